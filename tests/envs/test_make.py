from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
import warm
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv
from patience import PATIENCE_S
from worlds import CountingEnv, CountingVectorEnv

from headrace.envs import make_vec
from headrace.envs.adapters import EnvPool, NextStep
from headrace.envs.make import env_seed
from headrace.envs.names import env_name, resolve
from headrace.errors import ConfigError


def engine_of(*args, **kwargs) -> type:
    envs = make_vec(*args, **kwargs)
    envs.close()
    return type(envs)


@pytest.fixture
def registered():
    """Gymnasium id of this test, for CountingEnv."""
    env_id = "HeadraceCounting-v0"
    gymnasium.register(env_id, "worlds:CountingEnv", max_episode_steps=4)
    yield env_id
    del gymnasium.registry[env_id]


def test_auto_prefers_native_then_envpool_then_sync():
    pytest.importorskip("envpool")
    assert engine_of("CartPole-v1", 2) is CartPoleVectorEnv
    assert engine_of("LunarLander-v3", 2) is EnvPool
    assert engine_of("LunarLander-v3", 2, env_kwargs={"gravity": -5.0}) is SyncVectorEnv
    assert engine_of(CountingEnv, 2) is SyncVectorEnv
    assert engine_of(CountingVectorEnv, 2) is CountingVectorEnv


def test_auto_passes_over_a_native_version_that_lacks_a_dependency_or_refuses_the_kwargs():
    pytest.importorskip("envpool")
    if importlib.util.find_spec("jax") is None:
        assert engine_of("phys2d/CartPole-v1", 2) is EnvPool
    spec = EnvSpec(
        "Native-v0",
        "worlds:CountingEnv",
        vector_entry_point="worlds:CountingVectorEnv",
    )
    assert engine_of(spec, 2) is CountingVectorEnv
    assert engine_of(spec, 2, env_kwargs={"autoreset_mode": "SameStep"}) is NextStep
    spec.max_episode_steps = 3  # CountingVectorEnv has no such argument
    assert engine_of(spec, 2) is SyncVectorEnv
    with pytest.raises(ConfigError, match="but no 'max_episode_steps'; engine='sync' can"):
        make_vec(spec, 2, "native")


def test_a_native_version_without_an_autoreset_mode_falls_through_to_sync():
    class Silent(CountingVectorEnv):
        def __init__(self, num_envs: int) -> None:
            super().__init__(num_envs)
            self.metadata = {}

    spec = EnvSpec("Silent-v0", CountingEnv, vector_entry_point=Silent)
    with pytest.warns(UserWarning, match="missing AutoresetMode"):
        assert engine_of(spec, 2) is SyncVectorEnv
    with pytest.raises(ConfigError, match="doesn't say how it resets"):
        make_vec(Silent, 2)


def test_kwargs_reach_the_environment_through_every_engine():
    pytest.importorskip("envpool")
    for engine in ("native", "envpool", "sync", "async"):
        envs = make_vec("CartPole-v1", 1, engine, {"max_episode_steps": 3})
        envs.reset(seed=0)
        flags = [envs.step(np.zeros(1, int))[3][0] for _ in range(8)]
        assert flags == [False, False, True, False] * 2, engine
        envs.close()
    for env, engine in (
        (CountingEnv, "sync"),
        (CountingEnv, "async"),
        (CountingVectorEnv, "native"),
    ):
        envs = make_vec(env, 1, engine, {"episode_length": 2})
        envs.reset(seed=0)
        assert [envs.step(np.zeros(1, int))[2][0] for _ in range(3)] == [False, True, False]


def test_a_time_limit_of_the_spec_holds_in_envpool_too():
    pytest.importorskip("envpool")
    spec = gymnasium.spec("LunarLander-v3")
    spec = EnvSpec(spec.id, spec.entry_point, max_episode_steps=2)
    envs = make_vec(spec, 1, "envpool")
    envs.reset(seed=0)
    assert [envs.step(np.zeros(1, int))[3][0] for _ in range(3)] == [False, True, False]
    envs.close()


def test_an_environment_of_the_users_is_never_replaced_by_envpools_of_the_same_id():
    spec = EnvSpec("LunarLander-v3", "worlds:CountingEnv")
    assert engine_of(spec, 2) is SyncVectorEnv


def test_a_name_in_a_module_is_an_environment_too(registered):
    assert resolve("worlds:CountingEnv") is CountingEnv
    assert resolve(f"worlds:{registered}") is gymnasium.registry[registered]
    assert engine_of(f"worlds:{registered}", 2) is SyncVectorEnv


def test_envpool_environments_that_gymnasium_lacks_can_be_made(monkeypatch):
    pytest.importorskip("envpool")
    monkeypatch.delitem(gymnasium.registry, "Catch-v0", raising=False)  # that of the benchmarks
    spec = resolve("Catch-v0")
    assert isinstance(spec, EnvSpec)
    assert engine_of(spec, 2) is EnvPool
    with pytest.raises(ConfigError, match=r"no single environment is registered.*'envpool' can"):
        make_vec("Catch-v0", 2, "sync")


def test_a_resolved_id_works_in_a_process_where_it_was_never_registered(registered, tmp_path):
    path = tmp_path / "env.pkl"
    path.write_bytes(cloudpickle.dumps(resolve(registered)))
    code = f"""
import pickle, numpy as np, gymnasium
from headrace.envs import make_vec
assert {registered!r} not in gymnasium.registry
envs = make_vec(pickle.load(open({str(path)!r}, "rb")), 2)
print(envs.reset(seed=5)[0].tolist(), [envs.step(np.zeros(2, int))[3].any() for _ in range(4)])
"""
    output = warm.run(tmp_path, "-c", code)
    assert "[[5.0, 0.0, 0.0, -1.0], [6.0, 0.0, 0.0, -1.0]]" in output
    assert "True" in output  # the time limit of the registration came along


def test_an_environment_that_a_script_defines_and_registers_travels_by_value(tmp_path):
    path, script = tmp_path / "env.pkl", tmp_path / "script.py"
    script.write_text(f"""
import cloudpickle, gymnasium
from headrace.envs.names import resolve
from worlds import CountingEnv
class Mine(CountingEnv):
    pass
gymnasium.register("Mine-v0", "__main__:Mine")
open({str(path)!r}, "wb").write(cloudpickle.dumps(resolve("Mine-v0")))
""")
    subprocess.run([sys.executable, script], check=True, timeout=PATIENCE_S)
    code = f"""
import pickle
from headrace.envs import make_vec
print(make_vec(pickle.load(open({str(path)!r}, "rb")), 2).envs[0].unwrapped)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Mine" in run.stdout


def test_importing_the_package_or_making_ones_own_environment_imports_no_envpool():
    code = """
import sys
from headrace.envs import make_vec
from worlds import CountingEnv
assert "torch" not in sys.modules
make_vec(CountingEnv, 2)
make_vec("CartPole-v1", 2)
assert "envpool" not in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_the_seed_of_make_vec_seeds_envpool_until_reset_gets_another():
    pytest.importorskip("envpool")
    starts = []
    for seed, reset_seed in ((3, None), (0, 3), (3, 3), (4, None)):
        envs = make_vec("CartPole-v1", 2, "envpool", seed=seed)
        starts.append(envs.reset(seed=reset_seed)[0])
        envs.close()
    assert np.array_equal(starts[0], starts[1])
    assert np.array_equal(starts[0], starts[2])
    assert not np.array_equal(starts[0], starts[3])


def test_a_reset_without_a_seed_goes_on_in_the_random_stream():
    pytest.importorskip("envpool")
    for engine in ("native", "envpool", "sync", "async"):
        envs = make_vec("CartPole-v1", 2, engine)
        first, _ = envs.reset(seed=0)
        first = first.copy()
        assert not np.array_equal(first, envs.reset()[0]), engine
        envs.close()


def test_envpools_spaces_state_no_bounds_that_observations_break():
    pytest.importorskip("envpool")
    envs = make_vec("LunarLander-v3", 2, "envpool")
    space = envs.single_observation_space
    assert np.isneginf(space.low).all()
    assert np.isposinf(space.high).all()
    envs.close()
    envs.close()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("CartPol-v1", 2), "env='CartPol-v1' is unknown.*Did you mean 'CartPole-v1'"),
        (("CartPole", 2), "env='CartPole' is unknown.*Did you mean 'CartPole-v1'"),
        (("not a name", 2), "env='not a name' is unknown; register it"),
        (("nowhere:Env-v0", 2), "needs module 'nowhere', which can't be imported"),
        (("headrace.errors:Env-v0", 2), "env='headrace.errors:Env-v0' is unknown"),
        ((7, 2), "env=7 is neither a Gymnasium id"),
        ((CountingEnv, 0), "num_envs=0 must be 1 or more"),
        (
            (CountingEnv, 2, "nativ"),
            "engine='nativ' is unknown; choose auto, native, envpool, sync, async",
        ),
        ((CountingEnv, 2, "nativ"), "Did you mean 'native'"),
        (
            (CountingEnv, 2, "native"),
            "engine='native' can't make CountingEnv because it isn't a VectorEnv class "
            "and has no vector entry point; engine='sync' can",
        ),
        ((CountingEnv, 2, "envpool"), "envpool makes environments by id only; engine='sync' can"),
        ((CountingVectorEnv, 2, "sync"), "it is a VectorEnv class; engine='native' can"),
        (("Pendulum-v1", 2, "native"), "it has no vector entry point; engine='.*sync' can"),
        ((CountingEnv, 2, "auto", {"size": 3}), "CountingEnv takes episode_length, but no 'size'"),
        ((lambda: 3, 2, "sync", {"size": 3}), "takes no arguments, so no 'size'"),
        ((CountingVectorEnv, 2, "async"), "it is a VectorEnv class; engine='native' can"),
        ((lambda: 3, 2, "async"), "it returned int, which isn't a gymnasium.Env"),
        (("CartPole-v1", 2, "sync", {"size": 3}), "but no 'size'; no other engine can either"),
        (("CartPole-v1", 2, "async", {"size": 3}), "but no 'size'; no other engine can either"),
        ((lambda: 3, 2), "it returned int, which isn't a gymnasium.Env"),
        ((functools.partial(CountingVectorEnv, 2), 2), "it returned CountingVectorEnv"),
        ((EnvSpec("None-v0"), 2, "sync"), "no single environment is registered under its id"),
        ((EnvSpec("Gone-v0", "gone:Env"), 2), r"Gone-v0 can't be made \(engine sync: No module"),
    ],
)
def test_a_wrong_setting_gets_one_sentence_that_says_what_would_work(args, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        make_vec(*args)
    assert "\n" not in str(caught.value)


def test_envpool_refuses_settings_and_ids_in_a_sentence(registered):
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match="envpool has no environment of this id; engine='sync'"):
        make_vec(registered, 2, "envpool")
    with pytest.raises(ConfigError, match=r"can't make CartPole-v1.*sutton.*or 'sync' can"):
        make_vec("CartPole-v1", 2, "envpool", {"sutton_barto_reward": True})
    envs = make_vec("CartPole-v1", 2, "envpool")
    with pytest.raises(ValueError, match="no reset options"):
        envs.reset(options={"low": 0.0})
    envs.close()


def test_a_missing_envpool_is_said_and_auto_goes_on_without_it(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "envpool" else find_spec(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[envpool\]'\); engine='sync'"):
        make_vec("Pendulum-v1", 2, "envpool")
    assert engine_of("Pendulum-v1", 2) is SyncVectorEnv


def test_names_are_short():
    assert env_name("module:Id-v0") == "module:Id-v0"
    assert env_name(gymnasium.spec("CartPole-v1")) == "CartPole-v1"
    assert env_name(CountingEnv) == "CountingEnv"
    assert env_name(functools.partial(CountingEnv, 3)) == "CountingEnv"


@pytest.mark.parametrize("num_envs", [1, 7, 256])
def test_no_two_environments_of_a_run_share_a_seed(num_envs):
    bases = sorted(
        env_seed(3, actor, num_envs, generation) for actor in range(40) for generation in range(40)
    )
    assert (np.diff(bases) >= num_envs).all()
    assert bases[0] >= 0
    assert bases[-1] + num_envs <= 2**31


def test_seeds_depend_on_the_seed_of_the_run_and_on_nothing_else():
    assert env_seed(1, 2, 8, 3) == env_seed(1, 2, 8, 3)
    sets = [{env_seed(seed, actor, 8) for actor in range(32)} for seed in range(-2, 100)]
    assert len(set.union(*sets)) == 32 * 102

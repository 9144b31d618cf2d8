"""ClusterEnv is a Gymnasium vector environment, bit for bit equal to SyncVectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.utils import env_checker
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from worlds import CountingEnv, CountingVectorEnv, IdentityEnv

from headrace.cluster_env import LocalConfig
from headrace.errors import ConfigError
from tests.cluster_env.parts import CountingAgent, EverythingEnv, Gaussian

pytestmark = pytest.mark.filterwarnings("ignore:.*A Box observation space .* value is")

# -- Gymnasium's own checks -----------------------------------------------------------------------


def test_gymnasiums_checks_pass(make):
    envs = make(env_name="CartPole-v1", seed=None)
    env_checker.check_reset_seed_determinism(envs)
    env_checker.check_reset_options(envs)
    env_checker.check_reset_return_type(envs)
    env_checker.check_space_limit(envs.single_observation_space, "observation")
    env_checker.check_observation_space(envs.observation_space)
    env_checker.check_action_space(envs.action_space)


def test_the_same_seed_gives_the_same_and_none_goes_on(make):
    envs = make(EverythingEnv, envs_per_node=2)
    first, first_infos = envs.reset(seed=7)
    second, _ = envs.reset()
    again, again_infos = envs.reset(seed=7)
    assert env_checker.data_equivalence(first, again, exact=True)
    assert env_checker.data_equivalence(first_infos, again_infos, exact=True)
    assert env_checker.data_equivalence(second, envs.reset()[0], exact=True)
    assert not env_checker.data_equivalence(first, second, exact=True)


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_was_returned_is_never_written_again(make, nodes):
    envs = make(EverythingEnv, LocalConfig(nodes=nodes))
    kept = [envs.reset(seed=1)[0]]
    for _ in range(3):
        kept.append(envs.step(envs.action_space.sample())[0])
    arrays = [part for obs in kept for part in (obs["image"], *obs["pair"])]
    for i, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[i + 1 :])


def test_spaces_contain_what_is_returned_and_metadata_say_next_step(make):
    envs = make(EverythingEnv, envs_per_node=2)
    assert envs.num_envs == 4
    obs, infos = envs.reset(seed=3)
    assert obs in envs.observation_space
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    for _ in range(12):
        obs, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        assert obs in envs.observation_space
        assert reward.dtype == np.float64
        assert terminated.dtype == truncated.dtype == bool
        assert reward.shape == terminated.shape == truncated.shape == (4,)
        assert isinstance(infos, dict)


def test_wrappers_work_on_it(make):
    envs = wrappers.RecordEpisodeStatistics(make(IdentityEnv, env_kwargs={"n": 3}))
    envs.reset(seed=0)
    infos: dict[str, Any] = {}
    for _ in range(8):
        infos = envs.step(np.zeros(2, int))[-1]
    assert infos["episode"]["l"].tolist() == [8, 8]
    assert infos["_episode"].all()
    scaled = wrappers.TransformReward(make(CountingEnv), lambda reward: -reward)
    scaled.reset(seed=0)
    assert scaled.step(np.array([1, 2]))[1].tolist() == [-0.25, -0.5]


def test_statistics_are_recorded_of_what_an_agent_does(make):
    envs = wrappers.RecordEpisodeStatistics(make(CountingEnv))
    envs.reset(seed=0)
    lengths = []
    for _ in range(40):
        infos = envs.step(CountingAgent())[-1]
        lengths += infos["episode"]["l"][infos["_episode"]].tolist() if "episode" in infos else []
    assert lengths[:4] == [5, 6, 6, 7]  # CountingEnv's, of environments 0 and 1


# -- starting and stopping ------------------------------------------------------------------------


def workers() -> list[psutil.Process]:
    """Return the worker processes of this one, without the fork server."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.pid not in _before]


_before: set[int] = set()


@pytest.fixture
def count_processes(make):
    """Return the processes that existed before the test, including the fork server."""
    make(CountingEnv).launch().close()
    _before.clear()
    _before.update(child.pid for child in psutil.Process().children(recursive=True))


@pytest.mark.usefixtures("count_processes")
@pytest.mark.parametrize(
    "begin",
    [
        lambda envs: envs.launch(),
        lambda envs: envs.reset(),
        lambda envs: envs.observation_space,
        lambda envs: envs.single_action_space,
    ],
    ids=["launch", "reset", "observation_space", "single_action_space"],
)
def test_its_making_starts_the_workers_nothing_else_does_and_close_leaves_none(make, begin, gone):
    assert workers() == []
    envs = make(CountingEnv)
    started = workers()
    assert len(started) == 2
    envs.launch()
    begin(envs)
    assert workers() == started
    envs.close()
    envs.close()
    assert gone(started) == []


@pytest.mark.usefixtures("count_processes")
def test_a_with_block_launches_and_closes_even_if_it_raises(make, gone):
    with pytest.raises(ZeroDivisionError), make(CountingEnv) as envs:
        started = workers()
        envs.reset()
        raise ZeroDivisionError
    assert len(started) == 2
    assert gone(started) == []


@pytest.mark.parametrize("launched", [True, False])
def test_nothing_works_after_close(make, launched):
    envs = make(CountingEnv)
    iterator = None
    if launched:
        envs.reset()
        iterator = envs.collect_async(CountingAgent(), 2)
        next(iterator)
    envs.close()
    uses = [
        envs.reset,
        envs.launch,
        lambda: envs.step(np.zeros(2, int)),
        lambda: envs.collect(CountingAgent(), 2),
        lambda: envs.collect_async(CountingAgent(), 2),
    ]
    for use in uses if iterator is None else [*uses, lambda: next(iterator)]:
        with pytest.raises(ConfigError):
            use()


def test_an_attribute_that_is_not_there_starts_nothing(make):
    envs = make(CountingEnv)
    before = psutil.Process().children(recursive=True)
    with pytest.raises(AttributeError, match="observation_spaces"):
        _ = envs.observation_spaces
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_wrappers_that_read_the_spaces_of_what_they_wrap_work_before_any_reset(make):
    envs = wrappers.RescaleAction(make(env_name="Pendulum-v1"), -1.0, 1.0)
    assert envs.single_action_space.low.tolist() == [-1.0]
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space


# -- the same as SyncVectorEnv --------------------------------------------------------------------


def same(one: Any, other: Any) -> None:
    """Check that two results of reset or step are equal: values, dtypes, and keys of infos."""
    assert env_checker.data_equivalence(one, other, exact=True), (one, other)


def compare(envs: Any, plain: SyncVectorEnv, num_steps: int, seed: Any) -> int:
    """Reset and step both equally; return the number of finished episodes."""
    same(envs.reset(seed=seed), plain.reset(seed=seed))
    plain.action_space.seed(1)
    ended = 0
    for _ in range(num_steps):
        actions = plain.action_space.sample()
        result = plain.step(actions)
        same(envs.step(actions), result)
        ended += int((result[2] | result[3]).sum())
    return ended


def plain_of(env: Any) -> SyncVectorEnv:
    """Four environments in this process."""
    create = (lambda: gymnasium.make(env)) if isinstance(env, str) else env
    return SyncVectorEnv([create] * 4)


@pytest.mark.parametrize(
    ("place", "env"),
    [
        ("local", "CartPole-v1"),
        ("local", "LunarLander-v3"),
        ("local", EverythingEnv),
        pytest.param("ray", "CartPole-v1", marks=pytest.mark.ray),
        pytest.param("ray", "LunarLander-v3", marks=pytest.mark.ray),
    ],
    indirect=["place"],
)
def test_steps_are_bit_for_bit_those_of_sync_vector_env(make, place, env):
    setting = {"env_name": env} if isinstance(env, str) else {"type": env}
    envs = make(config=place(nodes=2), envs_per_node=2, **setting)
    plain, steps = plain_of(env), 220 if env == "LunarLander-v3" else 120
    assert compare(envs, plain, steps, 11) > 4
    compare(envs, plain, 20, [5, 3, 11, 2])
    compare(envs, plain, 5, 12)


def test_a_persistent_environment_never_ends(make):
    create = lambda: gymnasium.wrappers.TransformReward(  # noqa: E731
        gymnasium.make("Pendulum-v1", max_episode_steps=10**9), lambda reward: reward
    )
    envs = make(create, envs_per_node=2)
    assert compare(envs, SyncVectorEnv([create] * 4), 250, 3) == 0


@pytest.mark.parametrize("mask", [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]], ids=str)
def test_a_partial_reset_is_that_of_sync_vector_env(make, mask):
    envs, plain = make(EverythingEnv, envs_per_node=2), plain_of(EverythingEnv)
    compare(envs, plain, 4, 11)
    for round_ in range(6):  # with some environments just ended
        chosen = np.array(mask, bool)
        same(
            envs.reset(options={"reset_mask": chosen}),
            plain.reset(options={"reset_mask": chosen.copy()}),
        )
        for _ in range(1 + round_):
            actions = plain.action_space.sample()
            same(envs.step(actions), plain.step(actions))
    seeds = [3, 1, None, 4]
    chosen = np.array(mask, bool)
    if mask != [0, 0, 1, 1]:  # where one of the seeds is random
        chosen[2] = False
        same(
            envs.reset(seed=seeds, options={"reset_mask": chosen}),
            plain.reset(seed=seeds, options={"reset_mask": chosen.copy()}),
        )


@pytest.mark.parametrize("seed", [np.int64(5), (5, 6, 7, 8), np.array([5, 6, 7, 8])], ids=repr)
def test_seeds_of_other_types_are_seeds(make, seed):
    envs = make(CountingEnv, envs_per_node=2)
    assert envs.reset(seed=seed)[0][:, 0].tolist() == [5, 6, 7, 8]


def test_a_native_vector_environment_is_stepped_as_one(make):
    envs = make(CountingVectorEnv, envs_per_node=3, engine="native")
    plain = SyncVectorEnv([CountingEnv] * 6)
    assert compare(envs, plain, 30, 4) > 10


def test_the_agents_actions_are_the_ones_that_are_stepped(make):
    envs, plain = make(EverythingEnv, envs_per_node=2), plain_of(EverythingEnv)
    envs.reset(seed=1)
    plain.reset(seed=1)
    for _ in range(12):
        *result, infos = envs.step(Gaussian())
        *expected, plain_infos = plain.step(infos["action"])
        same(result, expected)
        same({key: infos[key] for key in plain_infos}, plain_infos)

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from patience import PATIENCE_S

from headrace.envs import make_vec
from headrace.errors import ConfigError
from worlds import (
    CountingEnv,
    CountingVectorEnv,
    FaultyEnv,
    IdentityEnv,
    IdentityVectorEnv,
    SlowEnv,
    counting_length,
    counting_reward,
)


@pytest.mark.parametrize("make", [CountingEnv, IdentityEnv, FaultyEnv, SlowEnv])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_single_environments_pass_gymnasiums_checker(make):
    check_env(make(), skip_render_check=True)


def test_counting_episodes_differ_in_length_and_alternate_between_the_two_ends():
    env = CountingEnv(episode_length=4)
    env.reset(seed=10)
    ends = []
    for episode in range(6):
        if episode:
            obs, _ = env.reset()
            assert obs.tolist() == [10, episode, 0, -1]
        steps = 0
        while True:
            obs, reward, terminated, truncated, _ = env.step(2)
            assert reward == counting_reward(episode, steps, 2)
            steps += 1
            assert obs.tolist() == [10, episode, steps, 2]
            if terminated or truncated:
                break
        ends.append((steps, terminated, truncated))
    assert [steps for steps, *_ in ends] == [5, 6, 4, 5, 6, 4]
    assert [steps for steps, *_ in ends] == [counting_length(10, e, 4) for e in range(6)]
    assert [end[1:] for end in ends] == [(True, False), (False, True)] * 3


def test_counting_rewards_name_episode_step_and_action_and_are_exact_in_float32():
    rewards = [
        counting_reward(episode, step, action)
        for episode in (*range(50), 4000)
        for step in range(100)
        for action in range(3)
    ]
    assert len(set(rewards)) == len(rewards)
    assert np.array_equal(np.array(rewards, np.float32).astype(np.float64), rewards)


def test_the_vectorised_counting_environment_equals_single_ones():
    native = make_vec(CountingVectorEnv, 4, env_kwargs={"episode_length": 3})
    loop = make_vec(CountingEnv, 4, env_kwargs={"episode_length": 3})
    assert np.array_equal(native.reset(seed=2)[0], loop.reset(seed=2)[0])
    rng = np.random.default_rng(0)
    for _ in range(50):
        action = rng.integers(3, size=4)
        for a, b in zip(native.step(action)[:4], loop.step(action)[:4], strict=True):
            assert np.array_equal(a, b)


def test_a_disabled_counting_environment_refuses_steps_beyond_the_end():
    envs = CountingVectorEnv(2, episode_length=1, autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(RuntimeError, match="reset environments"):
        envs.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="at least one"):
        envs.reset(options={"reset_mask": np.zeros(2, bool)})


def play_identity(envs, choose, steps: int) -> list[float]:
    returns, total = [], np.zeros(envs.num_envs)
    obs, _ = envs.reset(seed=0)
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = envs.step(choose(np.array(obs)))
        assert not truncated.any()
        total += reward
        returns += total[terminated].tolist()
        total[terminated] = 0
    return returns


@pytest.mark.parametrize("make", [IdentityEnv, IdentityVectorEnv])
def test_the_identity_environments_best_and_worst_returns_are_known(make):
    envs = make_vec(make, 3, env_kwargs={"n": 5, "episode_length": 6})
    best = play_identity(envs, lambda obs: obs.argmax(1), 21)
    assert best == [6.0] * 9
    assert play_identity(envs, lambda obs: (obs.argmax(1) + 1) % 5, 21) == [0.0] * 9
    guess = play_identity(envs, lambda obs: np.zeros(3, int), 700)
    assert 0.8 < np.mean(guess) < 1.6  # 6 / 5


@pytest.mark.parametrize("make", [IdentityEnv, IdentityVectorEnv])
def test_the_continuous_identity_environment_rewards_the_squared_distance(make):
    envs = make_vec(make, 3, env_kwargs={"continuous": True, "episode_length": 4})
    assert play_identity(envs, lambda obs: obs, 15) == [0.0] * 9
    away = play_identity(envs, lambda obs: obs + np.float32(0.5), 15)
    assert away == pytest.approx([-1.0] * 9)


def test_identity_observations_change_at_every_step_and_follow_the_seed():
    streams = []
    for seed in (0, 0, 1):
        envs = IdentityVectorEnv(4)
        obs = [envs.reset(seed=seed)[0]] + [envs.step(np.zeros(4, int))[0] for _ in range(20)]
        streams.append(np.stack(obs))
    assert np.array_equal(streams[0], streams[1])
    assert not np.array_equal(streams[0], streams[2])
    assert (streams[0].sum(-1) == 1).all()
    assert streams[0].any((0, 1)).all()


def test_a_faulty_environment_fails_at_exactly_the_step_asked_for():
    env = FaultyEnv(fail_at_step=25, mode="raise")  # in its second episode
    env.reset(seed=0)
    for _ in range(24):
        if env.step(0)[2]:
            env.reset()
    with pytest.raises(RuntimeError, match="at step 25"):
        env.step(0)
    env = FaultyEnv(fail_at_step=2, mode="nan")
    env.reset(seed=0)
    finite = [bool(np.isfinite(env.step(0)[0]).all()) for _ in range(3)]
    assert finite == [True, False, True]
    with pytest.raises(ConfigError, match="mode='melt' is unknown"):
        FaultyEnv(mode="melt")


def test_a_fault_with_a_file_happens_to_one_environment_only(tmp_path):
    envs = [FaultyEnv(1, "nan", once=str(tmp_path / "done")) for _ in range(3)]
    for env in envs:
        env.reset(seed=0)
    assert [bool(np.isnan(env.step(0)[0]).any()) for env in envs] == [True, False, False]


@pytest.mark.parametrize(("mode", "status"), [("exit", 13), ("hang", None)])
def test_a_faulty_environment_ends_or_hangs_its_process(mode, status):
    code = f"""
from worlds import FaultyEnv
env = FaultyEnv(2, {mode!r})
env.reset(seed=0)
env.step(0)
print("alive", flush=True)
env.step(0)
print("beyond", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "alive\n"
        if status is None:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
        else:
            assert child.wait(PATIENCE_S) == status
    finally:
        child.kill()
    assert child.stdout.read() == ""


def test_a_slow_environment_takes_its_time():
    env = SlowEnv(step_seconds=0.02)
    env.reset(seed=0)
    started = time.perf_counter()
    for _ in range(5):
        env.step(0)
    assert time.perf_counter() - started >= 0.1

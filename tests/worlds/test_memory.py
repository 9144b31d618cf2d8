"""The memory environment: returns with and without memory."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from headrace.envs import make_vec
from headrace.errors import ConfigError
from worlds import MemoryEnv, MemoryVectorEnv


def play(envs, choose, steps: int) -> tuple[list[float], list[int]]:
    """Return returns and lengths of the episodes; ``choose(obs, cue)`` knows the cue."""
    returns, lengths = [], []
    obs, _ = envs.reset(seed=0)
    cue = obs[:, :-1].argmax(1)
    total, length = np.zeros(envs.num_envs), 0
    filler = False
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = envs.step(choose(np.array(obs), cue))
        assert not truncated.any()
        total += reward
        length += 1
        if filler:
            assert not reward.any()
            cue, length = obs[:, :-1].argmax(1), 0
        elif not terminated.any():
            assert not reward.any()
        filler = bool(terminated.all())
        assert filler == terminated.any()
        if filler:
            returns += total.tolist()
            lengths.append(length)
            total[:] = 0
    return returns, lengths


@pytest.mark.parametrize("make", [MemoryEnv, MemoryVectorEnv])
def test_who_remembers_the_cue_gets_1_and_who_answers_another_gets_0(make):
    envs = make_vec(make, 5, env_kwargs={"num_cues": 3, "delay": 4})
    returns, lengths = play(envs, lambda obs, cue: cue, 60)
    assert returns == [MemoryVectorEnv.best_return] * 50
    assert lengths == [5] * 10
    assert set(play(envs, lambda obs, cue: (cue + 1) % 3, 60)[0]) == {0.0}


def test_who_forgets_gets_one_in_num_cues():
    envs = MemoryVectorEnv(200, num_cues=5, delay=1)
    rng = np.random.default_rng(0)
    for choose in (
        lambda obs, cue: np.full(200, 2),
        lambda obs, cue: rng.integers(5, size=200),
        lambda obs, cue: obs[:, :-1].argmax(1),  # what is seen now
    ):
        returns, _ = play(envs, choose, 60)
        assert np.mean(returns) == pytest.approx(envs.memoryless_return, abs=0.03)
    assert envs.memoryless_return == MemoryEnv(5).memoryless_return == 0.2


def test_the_cue_is_shown_in_the_first_observation_only_and_the_time_in_all():
    env = MemoryEnv(num_cues=4, delay=3)
    for _ in range(5):
        obs, _ = env.reset()
        assert sorted(obs[:-1].tolist()) == [0, 0, 0, 1]
        assert obs[-1] == 0
        for t in range(1, 5):
            obs, reward, terminated, _, _ = env.step(0)
            assert obs.tolist() == [0, 0, 0, 0, t / 4]
            assert terminated == (t == 4)
            assert reward in ((0.0, 1.0) if terminated else (0.0,))


def test_the_vectorised_environment_equals_single_ones_step_for_step():
    native = make_vec(MemoryVectorEnv, 6)
    loop = make_vec(MemoryEnv, 6)
    assert np.array_equal(native.reset(seed=2)[0], loop.reset(seed=2)[0])
    rng = np.random.default_rng(0)
    rewards = 0.0
    for _ in range(80):
        action = rng.integers(4, size=6)
        results = native.step(action), loop.step(action)
        for a, b in zip(results[0][:4], results[1][:4], strict=True):
            assert np.array_equal(a, b)
            assert a.dtype == b.dtype
        rewards += results[0][1].sum()
    assert rewards > 0


def test_cues_follow_the_seed_and_all_occur():
    def cues(seed: int) -> np.ndarray:
        envs = MemoryVectorEnv(8, delay=1)
        rows = [envs.reset(seed=seed)[0]]
        rows += [envs.step(np.zeros(8, int))[0] for _ in range(60)]
        return np.stack(rows)[::3, :, :-1]

    assert np.array_equal(cues(0), cues(0))
    assert not np.array_equal(cues(0), cues(1))
    assert (cues(0).sum(-1) == 1).all()
    assert np.abs(cues(0).mean((0, 1)) - 0.25).max() < 0.15


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_passes_gymnasiums_checker():
    check_env(MemoryEnv(), skip_render_check=True)


@pytest.mark.parametrize(("name", "value"), [("num_cues", 1), ("delay", 0)])
def test_what_needs_no_memory_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value} must be at least {value + 1}"):
        MemoryEnv(**{name: value})

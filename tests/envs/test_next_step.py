"""One suite for every engine and adapter: all of them keep the NEXT_STEP convention."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from worlds import (
    CountingEnv,
    CountingVectorEnv,
    counting_length,
    counting_reward,
    counting_truncates,
)

from headrace.envs import make_vec
from headrace.envs.adapters import NextStep, next_step, still_ended
from headrace.errors import ConfigError, EnvironmentFault

NUM_ENVS, SEED = 5, 1234
LIMIT = 15  # max_episode_steps of the environments that aren't counting ones


@dataclass
class Case:
    make: Callable[[], VectorEnv]
    starts: Callable[[np.ndarray], np.ndarray]  # [N, ...] -> [N] bool, looks like a reset's
    failed: Callable[[np.ndarray], np.ndarray] | None  # looks like a terminal one
    stride: int = 0  # of a counting environment: its episodes are 0, stride, 2 * stride, ...
    steps: int = 60


def cartpole(engine: str) -> Case:
    return Case(
        lambda: make_vec("CartPole-v1", NUM_ENVS, engine, {"max_episode_steps": LIMIT}),
        starts=lambda obs: (np.abs(obs) <= 0.05).all(1),
        failed=lambda obs: (np.abs(obs[:, 0]) > 2.4) | (np.abs(obs[:, 2]) > 0.2094),
    )


def lunarlander() -> Case:
    return Case(
        lambda: make_vec("LunarLander-v3", NUM_ENVS, "envpool"),
        starts=lambda obs: (np.abs(obs[:, 0]) < 0.02) & (obs[:, 1] > 1.35),
        failed=lambda obs: (obs[:, 1] < 0.4) | (np.abs(obs[:, 0]) >= 1.0),
        steps=400,
    )


def counting(make: Callable[[], VectorEnv], stride: int = 1) -> Case:
    return Case(make, lambda obs: (obs[:, 2] == 0) & (obs[:, 3] == -1), None, stride)


def counting_sync(mode: AutoresetMode) -> Case:
    def make() -> VectorEnv:
        return next_step(SyncVectorEnv([CountingEnv] * NUM_ENVS, autoreset_mode=mode), "counting")

    return counting(make, 1 if mode is AutoresetMode.NEXT_STEP else 2)


def counting_native(mode: AutoresetMode) -> Case:
    def make() -> VectorEnv:
        return make_vec(CountingVectorEnv, NUM_ENVS, env_kwargs={"autoreset_mode": mode})

    return counting(make, 1 if mode is AutoresetMode.NEXT_STEP else 2)


def counting_factory(mode: AutoresetMode, kind: type = SyncVectorEnv) -> Case:
    def made(num_envs: int) -> VectorEnv:
        envs = kind([CountingEnv] * num_envs, autoreset_mode=mode)
        return RecordEpisodeStatistics(envs)

    stride = 1 if mode is AutoresetMode.NEXT_STEP else 2
    return counting(lambda: make_vec(made, NUM_ENVS), stride)


CASES = {
    "native cartpole": cartpole("native"),
    "sync cartpole": cartpole("sync"),
    "envpool cartpole": cartpole("envpool"),
    "envpool lunarlander": lunarlander(),
    "sync class": counting(lambda: make_vec(CountingEnv, NUM_ENVS)),
    "async cartpole": cartpole("async"),
    "async counting": counting(lambda: make_vec(CountingEnv, NUM_ENVS, "async")),
    "sync callable": counting(lambda: make_vec(lambda: CountingEnv(), NUM_ENVS, "sync")),
    **{f"sync counting {m.value}": counting_sync(m) for m in AutoresetMode},
    **{f"native counting {m.value}": counting_native(m) for m in AutoresetMode},
    **{f"factory {m.value}": counting_factory(m) for m in AutoresetMode},
    "factory async": counting_factory(AutoresetMode.SAME_STEP, AsyncVectorEnv),
}


@pytest.fixture(params=CASES)
def case(request):
    if "envpool" in request.param and importlib.util.find_spec("envpool") is None:
        pytest.skip("envpool isn't installed")
    return CASES[request.param]


@dataclass
class Stream:
    obs: np.ndarray  # [T+1, B, ...]
    action: np.ndarray  # [T, B]
    reward: np.ndarray  # [T, B]
    terminated: np.ndarray  # [T, B]
    truncated: np.ndarray  # [T, B]
    filler: np.ndarray  # [T, B]  the step after an end


def play(envs: VectorEnv, steps: int, seed: int = SEED, disturb: bool = False) -> Stream:
    """Take random actions and copy each step; ``disturb`` changes those of reset steps only."""
    rng = np.random.default_rng(0)
    num_actions = envs.single_action_space.n
    obs, _ = envs.reset(seed=seed)
    rows, done = [], np.zeros(envs.num_envs, bool)
    all_obs = [np.array(obs)]
    for _ in range(steps):
        action = rng.integers(num_actions, size=envs.num_envs)
        if disturb:
            action = np.where(done, (action + 1) % num_actions, action)
        obs, reward, terminated, truncated, _ = envs.step(action)
        all_obs.append(np.array(obs))
        rows.append([np.array(x) for x in (action, reward, terminated, truncated, done)])
        done = terminated | truncated
    return Stream(np.stack(all_obs), *(np.stack(column) for column in zip(*rows, strict=True)))


def same(a: Stream, b: Stream) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("obs", "reward", "terminated", "truncated", "filler")
    )


@pytest.fixture(scope="module")
def streams():
    return {}


@pytest.fixture
def stream(case, streams):
    """Plays a case once for all tests and returns its steps, read-only."""
    if id(case) not in streams:
        envs = case.make()
        streams[id(case)] = play(envs, case.steps)
        envs.close()
        for field in fields(Stream):
            getattr(streams[id(case)], field.name).setflags(write=False)
    return streams[id(case)]


def test_it_is_a_vector_env_in_next_step_mode_whose_steps_lie_in_its_spaces(case):
    envs = case.make()
    assert isinstance(envs, VectorEnv)
    assert envs.num_envs == NUM_ENVS
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    obs, infos = envs.reset(seed=SEED)
    assert envs.observation_space.shape == (NUM_ENVS, *envs.single_observation_space.shape)
    assert envs.observation_space.contains(obs)
    assert isinstance(infos, dict)
    envs.action_space.seed(0)
    for _ in range(5):
        obs, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(obs)
        assert reward.shape == terminated.shape == truncated.shape == (NUM_ENVS,)
        assert terminated.dtype == truncated.dtype == bool
    envs.close()


def test_the_step_after_an_end_is_a_filler_with_reward_0_no_flags_and_the_reset_observation(
    case, stream
):
    filler = stream.filler
    assert filler.sum() >= 3
    assert (stream.reward[filler] == 0).all()
    assert not stream.terminated[filler].any()
    assert not stream.truncated[filler].any()
    assert case.starts(stream.obs[1:][filler]).all()
    # It takes a real reset to look like one.
    assert not case.starts(stream.obs[1:][~filler]).all()


def test_the_action_of_a_filler_is_ignored(case, stream):
    envs = case.make()
    disturbed = play(envs, case.steps, disturb=True)
    envs.close()
    assert (disturbed.action != stream.action).any()
    assert same(disturbed, stream)


def test_an_episode_ends_with_its_final_observation_and_the_right_flag(case, stream):
    ended = stream.terminated | stream.truncated
    final = stream.obs[1:][ended]
    assert not case.starts(final).any()
    if case.stride:
        env_id, episode, step, _ = final.T
        assert (step == counting_length(env_id, episode)).all()
        assert (stream.truncated[ended] == counting_truncates(env_id, episode)).all()
        assert (stream.terminated[ended] != stream.truncated[ended]).all()
        assert stream.terminated.any()
        assert stream.truncated.any()
    else:
        assert case.failed(stream.obs[1:][stream.terminated]).all()
        assert stream.terminated.any()


@pytest.mark.parametrize("case", [name for name in CASES if "cartpole" in name], indirect=True)
def test_truncation_happens_at_the_time_limit_and_nowhere_else(case, stream):
    length, lengths = np.zeros(NUM_ENVS, int), []
    for t in range(case.steps):
        length += ~stream.filler[t]
        assert (stream.truncated[t] == (length == LIMIT))[~stream.filler[t]].all()
        ended = stream.terminated[t] | stream.truncated[t]
        lengths += length[ended].tolist()
        length[ended] = 0
    assert max(lengths) == LIMIT > min(lengths)


@pytest.mark.parametrize("case", [name for name, c in CASES.items() if c.stride], indirect=True)
def test_every_step_of_every_episode_arrives_once_in_order_with_its_own_reward(case, stream):
    for i in range(NUM_ENVS):
        valid = ~stream.filler[:, i]
        before, after = stream.obs[:-1, i][valid], stream.obs[1:, i][valid]
        action, reward = stream.action[valid, i], stream.reward[valid, i]
        expected = [
            (SEED + i, episode, step)
            for episode in range(0, 40, case.stride)
            for step in range(counting_length(SEED + i, episode))
        ]
        assert [tuple(row) for row in before[:, :3]] == expected[: len(before)]
        assert (reward == counting_reward(before[:, 1], before[:, 2], action)).all()
        assert (after[:, 1] == before[:, 1]).all()
        assert (after[:, 2] == before[:, 2] + 1).all()
        assert (after[:, 3] == action).all()


def test_the_same_seed_gives_the_same_stream_also_from_a_used_environment(case, stream):
    fresh, used = case.make(), case.make()
    play(used, 20, seed=SEED + 1000)
    assert same(play(fresh, case.steps), stream)
    assert same(play(used, case.steps), stream)
    assert same(play(used, case.steps), stream)
    fresh.close()
    used.close()


def test_another_seed_gives_another_stream(case, stream):
    envs = case.make()
    other = play(envs, case.steps, seed=SEED + NUM_ENVS)
    envs.close()
    assert not np.isin(other.obs[0], stream.obs[0]).all(-1).any()


def test_every_environment_has_a_seed_of_its_own(case, stream):
    assert len(np.unique(stream.obs[0], axis=0)) == NUM_ENVS


# -- the adapter alone -------------------------------------------------------------------------


def step_often(envs: VectorEnv) -> None:
    for _ in range(8):
        envs.step(np.zeros(envs.num_envs, int))


def test_an_environment_in_next_step_mode_is_returned_untouched():
    envs = CountingVectorEnv(2)
    assert next_step(envs, "counting") is envs


def test_an_environment_without_a_known_autoreset_mode_is_refused():
    envs = CountingVectorEnv(2)
    for metadata in ({}, {"autoreset_mode": "sometimes"}):
        envs.metadata = metadata
        with pytest.raises(ConfigError, match="doesn't say how it resets"):
            next_step(envs, "counting")


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_an_environment_that_ignores_the_reset_mask_is_found_out(mode):
    class Ignorant(CountingVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    envs = make_vec(Ignorant, 4, env_kwargs={"autoreset_mode": mode})
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="ignores reset"):
        step_often(envs)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_an_environment_that_ignores_it_is_found_out_though_it_reuses_its_memory(mode):
    class Ignorant(SyncVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    envs = NextStep(Ignorant([CountingEnv] * 4, copy=False, autoreset_mode=mode))
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="ignores reset"):
        step_often(envs)


def test_a_missing_final_observation_is_reported():
    class Forgetful(CountingVectorEnv):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    envs = make_vec(Forgetful, 2, env_kwargs={"autoreset_mode": "SameStep"})
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="final_obs"):
        step_often(envs)


class NestedCountingEnv(CountingEnv):
    """Show the count in nested observations: a dict, or a tuple."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        self._as_tuple = as_tuple
        self._box = self.observation_space
        parts: dict[str, gymnasium.Space] = {"count": self._box, "step": Discrete(100)}
        self.observation_space = Tuple(parts.values()) if as_tuple else Dict(parts)

    def _observe(self, action: int) -> Any:
        obs = super()._observe(action)
        step = np.int64(self._step)
        return (obs, step) if self._as_tuple else {"count": obs, "step": step}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("as_tuple", [False, True])
def test_nested_observations_are_adapted_leaf_by_leaf(mode, as_tuple):
    inner = SyncVectorEnv(
        [lambda: NestedCountingEnv(as_tuple)] * 3, copy=False, autoreset_mode=mode
    )
    envs = NextStep(inner)
    flat = NextStep(SyncVectorEnv([CountingEnv] * 3, autoreset_mode=mode))
    keys = (0, 1) if as_tuple else ("count", "step")
    envs.reset(seed=7)
    flat.reset(seed=7)
    ends = 0
    for t in range(40):
        action = np.full(3, t % 3)
        obs, _, terminated, truncated, _ = envs.step(action)
        expected, *_ = flat.step(action)
        assert np.array_equal(obs[keys[0]], expected)
        assert np.array_equal(obs[keys[1]], expected[:, 2])
        ends += int((terminated | truncated).sum())
    assert ends >= 6


def test_episodes_of_one_step_alternate_with_fillers():
    for mode in AutoresetMode:
        kwargs = {"autoreset_mode": mode, "episode_length": 1}
        envs = make_vec(CountingVectorEnv, 2, env_kwargs=kwargs)
        stream = play(envs, 12)
        ended = stream.terminated | stream.truncated
        assert not (ended & stream.filler).any()
        assert ended.sum(0).min() >= 3
        assert (ended[:-1] == stream.filler[1:]).all()
        assert (stream.obs[1:, :, 2][stream.filler] == 0).all()


def test_a_reset_forgets_pending_fillers():
    envs = make_vec(CountingVectorEnv, 2, env_kwargs={"autoreset_mode": "SameStep"})
    envs.reset(seed=0)
    ended = np.zeros(2, bool)
    while not ended.any():  # the other one is still running
        _, _, terminated, truncated, _ = envs.step(np.zeros(2, int))
        ended = terminated | truncated
    envs.reset(seed=0)
    obs, reward, *_ = envs.step(np.ones(2, int))
    assert (obs[:, 2] == 1).all()
    assert (reward == counting_reward(0, 0, 1)).all()


def test_the_arrays_of_envpool_are_never_overwritten():
    pytest.importorskip("envpool")
    envs = make_vec("CartPole-v1", 8, "envpool")
    obs, _ = envs.reset(seed=0)
    kept, copies = [obs], [obs.copy()]
    for _ in range(50):
        obs, *_ = envs.step(np.ones(8, int))
        kept.append(obs)
        copies.append(obs.copy())
    envs.reset(seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert isinstance(envs.single_observation_space, Box)


def test_a_reset_takes_fillers_off_those_that_it_resets():
    ended = np.array([True, True, False])
    assert not still_ended(ended, None).any()
    mask = np.array([True, False, True])
    assert still_ended(ended, {"reset_mask": mask}).tolist() == [False, True, False]
    assert ended.tolist() == [True, True, False]


@pytest.mark.parametrize("read", [
    lambda options: options["reset_mask"], lambda options: options.get("reset_mask"),
    lambda options: options.pop("reset_mask"),
])  # fmt: skip
def test_a_wrapper_finds_the_reset_mask_after_gymnasium_has_taken_it(read):
    found = []

    class Reads(gymnasium.vector.VectorWrapper):
        def reset(self, *, seed=None, options=None):
            returned = self.env.reset(seed=seed, options=options)
            if options is not None:
                found.append(read(options).copy())
            return returned

    inner = SyncVectorEnv([CountingEnv] * 3, autoreset_mode=AutoresetMode.DISABLED)
    envs = next_step(Reads(inner), "Reads")
    envs.reset(seed=0)
    ended = []
    for _ in range(20):
        _, _, terminated, truncated, _ = envs.step(np.zeros(3, np.int64))
        ended.append(terminated | truncated)
    envs.close()
    assert len(found) > 2
    once = [row for row in ended[:-1] if row.any()]
    assert np.array_equal(found, np.repeat(once, 2, axis=0))  # each filler resets twice

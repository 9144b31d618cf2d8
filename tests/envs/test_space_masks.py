"""Masks of identity environments, and the return of random actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st
from tries import examples
from worlds import (
    SpaceIdentityEnv,
    SpaceIdentityVectorEnv,
    random_return,
)

from headrace.errors import ConfigError
from headrace.ops import tree
from tests.envs.space_oracles import (
    CASES,
    literal_mask,
    parts_of,
    spaces,
    target_of,
    to_action,
)


def random_actions(envs, allowed, rng) -> Any:
    """Return uniform probabilities over allowed actions (``[B, num_mask]``), or over all."""
    space, actions = envs.single_action_space, []
    for i in range(envs.num_envs):
        action = space.sample()
        if allowed is not None and allowed[i].any():
            marks = allowed[i].tolist()
            for leaf, part in parts_of(space, action):
                if not isinstance(leaf, (Discrete, MultiDiscrete)):
                    continue
                sizes = [leaf.n] if isinstance(leaf, Discrete) else leaf.nvec.tolist()
                chosen = []
                for n in sizes:
                    head, marks = marks[:n], marks[n:]
                    chosen.append(rng.choice(np.flatnonzero(head)))
                part[...] = np.array(chosen).reshape(part.shape) + leaf.start
                if part.ndim == 0:
                    action = put(space, action, leaf, part[()])
        actions.append(action)
    return tree.map_leaves(lambda *a: np.stack([np.asarray(x) for x in a]), *actions)


def put(space: gymnasium.Space, action: Any, leaf: gymnasium.Space, value: Any) -> Any:
    """Return ``action`` with ``leaf`` replaced, also for scalars."""
    if space is leaf:
        return value
    if isinstance(space, Dict):
        return {key: put(space[key], action[key], leaf, value) for key in space}
    if isinstance(space, Tuple):
        return tuple(put(part, a, leaf, value) for part, a in zip(space, action, strict=True))
    return action


@pytest.mark.parametrize(("name", "mask"), CASES)
def test_random_actions_get_the_return_that_is_stated_and_break_no_mask(name, mask):
    envs = SpaceIdentityVectorEnv(16, name, mask)
    envs.single_action_space.seed(0)
    rng = np.random.default_rng(0)
    obs, infos = envs.reset(seed=0)
    total, episodes = 0.0, 0
    for _ in range(9 * 12):
        allowed = obs["action_mask"] if mask == "obs" else infos.get("action_mask")
        actions = random_actions(envs, allowed, rng)
        obs, reward, terminated, _, infos = envs.step(actions)
        total += reward.sum()
        episodes += terminated.sum()
    assert episodes == 16 * 12
    # A step's reward has a standard deviation below 1/2.
    assert total / episodes == pytest.approx(
        random_return(name, mask), abs=4 * 0.5 * (8 / episodes) ** 0.5
    )


def test_random_returns_are_the_numbers_that_one_computes_by_hand():
    assert random_return(Discrete(4)) == 2.0
    assert random_return("multidiscrete", episode_length=1) == pytest.approx(
        (1 / 3 + 1 / 2 + 1 / 4) / 3
    )
    assert random_return("multibinary") == 4.0
    assert random_return("box", episode_length=12) == pytest.approx(5.0)
    # Two actions: the other one is allowed half of the time.
    assert random_return(Discrete(2), "info", 4) == pytest.approx(4 * (0.5 * 1 + 0.5 * 0.5))
    rng = np.random.default_rng(0)
    for low, high in ((-1, 1), (-1, 3), (-1.5, 1.2), (-2, 2)):
        distance = np.abs(rng.uniform(low, high, 10**6) - rng.uniform(-1, 1, 10**6))
        expected = np.maximum(0, 1 - distance).mean()
        space = Box(low, high, (1,), np.float64)
        assert random_return(space, episode_length=1) == pytest.approx(expected, abs=2e-3)


@examples(60)
@given(space=spaces, seed=st.integers(0, 1000), where=st.sampled_from(["obs", "info"]))
def test_masks_always_allow_the_target_and_nothing_after_the_end(space, seed, where):
    probe = {"mask": where, "episode_length": 3}
    if not any(
        isinstance(leaf, (Discrete, MultiDiscrete)) for leaf, _ in parts_of(space, space.sample())
    ):
        with pytest.raises(ConfigError, match="nothing to mask"):
            SpaceIdentityEnv(space, **probe)
        return
    env = SpaceIdentityEnv(space, **probe)
    obs, info = env.reset(seed=seed)
    for t in range(4):
        mask = obs["action_mask"] if where == "obs" else info["action_mask"]
        assert mask.dtype == np.int8
        if t == 3:
            assert not mask.any()
            break
        target = to_action(space, target_of(obs).tolist())
        shown = literal_mask(space, target)
        assert len(shown) == len(mask)
        assert (mask >= shown).all()
        obs, reward, _, _, info = env.step(target)
        assert reward == 1.0


def test_masks_allow_every_other_action_half_of_the_time():
    envs = SpaceIdentityVectorEnv(64, Discrete(6), "info", episode_length=30)
    masks, targets = [], []
    obs, infos = envs.reset(seed=0)
    for _ in range(30):
        masks.append(infos["action_mask"].copy())
        targets.append(obs)
        obs, _, _, _, infos = envs.step(obs.argmax(1))
    others = np.stack(masks)[np.stack(targets) == 0]
    assert abs(others.mean() - 0.5) < 0.02
    assert infos["_action_mask"].all()


def test_a_masked_action_raises_and_is_named():
    envs = SpaceIdentityVectorEnv(2, Discrete(5, start=10), "info")
    obs, infos = envs.reset(seed=1)
    best = obs.argmax(1)
    forbidden = int(np.flatnonzero(infos["action_mask"][1] == 0)[0])
    sentence = rf"action component 0 is {10 + forbidden} in environment 1, which its mask forbids; "
    with pytest.raises(ValueError, match=sentence + r"allowed: 1\d"):
        envs.step(10 + np.array([best[0], forbidden]))
    single = SpaceIdentityEnv("tuple", "obs")
    obs, _ = single.reset(seed=0)
    while (obs["action_mask"][3:5] == 1).all():
        obs, _ = single.reset()
    target = to_action(single.action_space, obs["target"].tolist())
    target[1]["move"][0] = np.flatnonzero(obs["action_mask"][3:5] == 0)[0]
    with pytest.raises(ValueError, match="action at 1/'move' component 0 is"):
        single.step(target)


def test_a_filler_takes_any_action_whatever_the_mask():
    envs = SpaceIdentityVectorEnv(2, "discrete", "obs", episode_length=1)
    obs, _ = envs.reset(seed=0)
    obs, _, terminated, _, _ = envs.step(obs["target"].argmax(1))
    assert terminated.all()
    assert not obs["action_mask"].any()
    obs, reward, terminated, _, _ = envs.step(np.array([0, 99]))
    assert obs["action_mask"].any(1).all()
    assert not reward.any()
    assert not terminated.any()

"""Identity environments for every action space: the observation shows what to do.

Rewards are in [0, 1], and the policy that does what it observes gets 1 at each step. The return of
a random policy is also known (``random_return``).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import ConfigError, nearest
from headrace.ops import tree
from worlds.layout import Layout, named_action_space

__all__ = ["SpaceIdentityEnv", "SpaceIdentityVectorEnv", "named_action_space", "random_return"]


def random_return(
    action_space: gymnasium.Space | str, mask: str | None = None, episode_length: int = 8
) -> float:
    """Return the expected return of uniformly random (allowed) actions in a SpaceIdentityEnv.

    Per component: ``1 / n`` for a choice among ``n``; with a mask, where ``X ~ Bin(n - 1, 1/2)``
    others are allowed, ``E[1 / (1 + X)] = 2 (1 - 2**-n) / n``; for a number drawn from
    ``[low, high]``, ``E[max(0, 1 - |a - t|)]``, which is 5/12 for ``[-1, 1]``.
    """
    layout = _layout(action_space)
    n = np.maximum(layout.sizes, 1)
    choice = np.where(layout.hot & (mask is not None), 2 * (1 - 0.5**n) / n, 1 / n)
    number = _random_number(*layout.bounds())
    return float(np.where(layout.sizes > 0, choice, number).mean() * episode_length)


def _random_number(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    # The triangle of rewards around a target has area 1, less what lies outside the bounds.
    cut = (2 - np.minimum(high, 2)) ** 3 / 12 + (2 - np.minimum(-low, 2)) ** 3 / 12
    return (1 - cut) / (high - low)


def _layout(action_space: gymnasium.Space | str) -> Layout:
    if isinstance(action_space, str):
        action_space = named_action_space(action_space)
    return Layout(action_space)


def generators(num_envs: int, seed: int | None) -> list[np.random.Generator]:
    """Return one generator per environment, seeded with ``seed + i`` as in Gymnasium."""
    return [seeding.np_random(None if seed is None else seed + i)[0] for i in range(num_envs)]


class SpaceIdentityVectorEnv(VectorEnv):
    """The best action is what the observation shows, in any action space and at each step.

    Observation: the target, float32 ``[num_features]``: one-hots of Discrete and MultiDiscrete,
    0 or 1 per bit of MultiBinary, a value in [-1, 1] per number of a Box. Reward: the mean over
    the action's components of 1 for the right choice or bit, 0 for another, and
    ``max(0, 1 - |action - target|)`` for a number. So the best return is ``episode_length``, and
    :func:`random_return` is that of random actions. Episodes terminate, all at the same step.
    NEXT_STEP autoreset.

    Masks: at every step a random subset of the actions of all Discrete and MultiDiscrete
    components is allowed, always including the target: int8 ``[num_mask]``, the components'
    actions side by side. The final observation's mask is all 0, as in some real environments.

    Args:
        num_envs: number of environments.
        action_space: Discrete, MultiDiscrete, MultiBinary, a floating Box that contains [-1, 1],
            Dict or Tuple of these, nested at will; or a name for :func:`named_action_space`.
        mask: None, ``"obs"`` (the observation is a Dict of ``target`` and ``action_mask``) or
            ``"info"`` (``info["action_mask"]`` ``[num_envs, num_mask]`` and
            ``info["_action_mask"]``, at each reset and step).
        episode_length: steps of every episode.
        nested: the observation is a Dict of ``target`` and ``extra``, a Tuple of noise.

    Raises:
        ConfigError: a space or argument is of another kind; or a mask has nothing to mask.
        ValueError: from ``step``: an action isn't in the space or its mask forbids it. Reset steps
            aren't checked. Values beyond the bounds of a Box are rewarded like others.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int,
        action_space: gymnasium.Space | str = "discrete",
        mask: str | None = None,
        episode_length: int = 8,
        nested: bool = False,
    ) -> None:
        self._layout = _layout(action_space)
        _check(self._layout, mask, episode_length)
        self.num_envs, self._mask = num_envs, mask
        self._episode_length, self._nested = episode_length, nested
        self.single_action_space = self._layout.space
        self.single_observation_space = _observation_space(self._layout, mask == "obs", nested)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs = generators(num_envs, None)
        self._step = episode_length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment."""
        super().reset(seed=seed)
        if seed is not None:
            self._rngs = generators(self.num_envs, seed)
        self._begin()
        return self._observe(), self._infos()

    def _begin(self) -> None:
        """Draw targets and masks of an episode, ``[episode_length + 1, num_envs, ...]`` each."""
        self._step = 0
        rows = self._episode_length + 1
        episodes = [self._draw(rng, rows) for rng in self._rngs]
        self._target, self._allowed, self._extra = tree.map_leaves(
            lambda *parts: np.stack(parts, 1), *episodes
        )

    def _draw(self, rng: np.random.Generator, rows: int) -> tuple[Any, ...]:
        target = self._layout.draw(rng, rows)
        allowed = np.zeros((rows, 0), np.int8)
        if self._mask is not None:
            allowed = self._layout.draw_mask(rng, target)
            allowed[-1] = 0
        extra: tuple[np.ndarray, ...] = ()
        if self._nested:
            extra = (
                rng.integers(3, size=rows),
                rng.integers(2, size=(rows, 2), dtype=np.int8),
                rng.integers(256, size=(rows, 2, 3), dtype=np.uint8),
            )
        return target, allowed, extra

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Reward ``actions`` and show the next targets; or start episodes where one has ended."""
        ended = np.zeros(self.num_envs, bool)
        if self._step == self._episode_length:
            self._begin()
            return self._observe(), np.zeros(self.num_envs), ended, ended.copy(), self._infos()
        layout, target = self._layout, self._target[self._step]
        values = layout.values(actions, self.num_envs)
        if self._mask is not None:
            layout.check_mask(values, self._allowed[self._step])
        number = np.maximum(0.0, 1.0 - np.abs(values - target))
        reward = np.where(layout.sizes > 0, values == target, number).mean(-1)
        self._step += 1
        truncated = ended.copy()
        ended[:] = self._step == self._episode_length
        return self._observe(), reward, ended, truncated, self._infos()

    def _observe(self) -> Any:
        shown = self._layout.features(self._target[self._step])
        obs: dict[str, Any] = {}  # in the order of the space, which Gymnasium sorts
        if self._mask == "obs":
            obs["action_mask"] = self._allowed[self._step].copy()
        if self._nested:
            obs["extra"] = tuple(part[self._step].copy() for part in self._extra)
        obs["target"] = shown
        return obs if len(obs) > 1 else shown

    def _infos(self) -> dict[str, Any]:
        if self._mask != "info":
            return {}
        allowed = self._allowed[self._step].copy()
        return {"action_mask": allowed, "_action_mask": np.ones(self.num_envs, bool)}


class SpaceIdentityEnv(gymnasium.Env):
    """:class:`SpaceIdentityVectorEnv` for one: the same steps from the same seed.

    Arguments as there. With ``mask="info"``, ``info["action_mask"]`` is ``[num_mask]``.
    """

    def __init__(
        self,
        action_space: gymnasium.Space | str = "discrete",
        mask: str | None = None,
        episode_length: int = 8,
        nested: bool = False,
    ) -> None:
        self._one = SpaceIdentityVectorEnv(1, action_space, mask, episode_length, nested)
        self.observation_space = self._one.single_observation_space
        self.action_space = self._one.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        obs, infos = self._one.reset(seed=seed)
        return tree.map_leaves(lambda x: x[0], obs), _first(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward ``action`` and show the next target."""
        actions = tree.map_leaves(lambda x: np.asarray(x)[None], action)
        obs, reward, terminated, truncated, infos = self._one.step(actions)
        one = tree.map_leaves(lambda x: x[0], obs)
        return one, float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(infos)


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    return {key: value[0] for key, value in infos.items() if not key.startswith("_")}


def _check(layout: Layout, mask: str | None, episode_length: int) -> None:
    if mask not in (None, "obs", "info"):
        raise ConfigError(
            f"mask={mask!r} is unknown; choose None, 'obs' or 'info'."
            f"{nearest(str(mask), ('obs', 'info'))}"
        )
    if mask is not None and not layout.num_mask:
        raise ConfigError(
            f"mask={mask!r} has nothing to mask in {layout.space}; use None, or an action space "
            "with a Discrete or MultiDiscrete part"
        )
    if episode_length < 1:
        raise ConfigError(f"episode_length={episode_length} must be at least 1")


def _observation_space(layout: Layout, masked: bool, nested: bool) -> gymnasium.Space:
    target = Box(layout.feature_low(), np.ones(layout.num_features, np.float32), dtype=np.float32)
    parts: dict[str, gymnasium.Space] = {"target": target}
    if nested:
        parts["extra"] = Tuple((Discrete(3), MultiBinary(2), Box(0, 255, (2, 3), np.uint8)))
    if masked:
        parts["action_mask"] = MultiBinary(layout.num_mask)
    return Dict(parts) if len(parts) > 1 else target

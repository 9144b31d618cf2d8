"""Builds a policy's inputs: the observation, and the actor's additions to it.

Without additions the input is the observation, with texts as rows of word numbers. Otherwise it is
a dict with ``observation`` and those of ``action_mask`` (flat bool), ``previous_action`` and
``previous_reward`` (zeros after a reset) that are used. Everything is stored row by row in the
rollout, so the learner needs no special cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
import torch

from headrace.errors import ConfigError, EnvironmentFault
from headrace.ops import tree
from headrace.ops.distributions import Distribution
from headrace.spaces.actions import mask_is_empty
from headrace.spaces.masks import MASK, flatten_mask
from headrace.spaces.observations import zeros
from headrace.spaces.text import Words
from headrace.spaces.unified_spaces import TASK
from headrace.spaces.walk import parts
from headrace.types import Tree

Source: TypeAlias = Literal["none", "observation", "info"]


@dataclass(frozen=True)
class Inputs:
    """Builds a policy's inputs from an environment's observations and infos.

    Args:
        observation_space: space of a single environment, including a mask in it.
        mask: source of the action mask.
        previous: the previous action and reward are inputs.
        words: encodes texts in the observation; None: there are none.
        hides_task: True if only the values get the task's number; None: without task numbers
            outside the features.
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    distribution: Distribution
    mask: Source = "none"
    previous: bool = False
    words: Words | None = None
    hides_task: bool | None = None

    @property
    def plain(self) -> bool:
        """Return True if the observation is the whole input."""
        return self.mask == "none" and not self.previous and self.hides_task is None

    @property
    def is_observation(self) -> bool:
        """Return True if observations need no :meth:`compose`."""
        return self.plain and self.words is None

    @property
    def features_space(self) -> gymnasium.Space:
        """Return the observation space without the mask, with word numbers instead of texts."""
        space = self.observation_space
        if self._apart:
            assert isinstance(space, gymnasium.spaces.Dict)
            space = gymnasium.spaces.Dict({k: v for k, v in space.items() if k not in self._apart})
        return space if self.words is None else self.words.in_place_of_texts(space)

    @property
    def _apart(self) -> set[str]:
        """Return the parts of the observation that aren't features."""
        parts = {MASK: self.mask == "observation", TASK: bool(self.hides_task)}
        return {name for name, is_apart in parts.items() if is_apart}

    def example(self, num_envs: int) -> Tree:
        """Return zeros with the structure, shapes ``[num_envs, ...]`` and dtypes of the inputs."""
        obs = zeros(self.features_space, num_envs)
        if self.plain:
            return obs
        inputs = {"observation": obs}
        if self.mask != "none":
            inputs[MASK] = torch.ones(num_envs, self.distribution.num_mask, dtype=torch.bool)
        if self.hides_task is not None:
            inputs[TASK] = torch.zeros(num_envs, dtype=torch.int64)
        if self.previous:
            inputs["previous_action"] = self.zero_action(num_envs)
            inputs["previous_reward"] = torch.zeros(num_envs)
        return inputs

    def zero_action(self, num_envs: int) -> Tree:
        """Return zeros with the structure, shapes and dtypes of ``num_envs`` actions."""
        distribution = self.distribution
        params = torch.zeros(num_envs, distribution.num_params)
        action = distribution.sample(params, distribution.noise((num_envs,), torch.Generator()))
        return tree.map_leaves(torch.zeros_like, action)

    def compose(
        self, obs: Any, mask: Any, previous_action: Tree, previous_reward: Any, first: np.ndarray
    ) -> Tree:
        """Build the inputs ``[B, ...]`` as a tree of arrays.

        Args:
            obs: observations ``[B, ...]``.
            mask: ``info["action_mask"]`` if there was one.
            previous_action: ``[B, ...]`` or None; previous_reward: ``[B]`` or None.
            first: ``[B]`` bool, obs came from a reset.
        """
        if self.words is not None:
            obs = self.words.read(self.observation_space, obs)
        if self.plain:
            return obs
        whole = obs
        if self._apart:
            mask = obs.get(MASK) if self.mask == "observation" else mask
            obs = {key: value for key, value in obs.items() if key not in self._apart}
        inputs = {"observation": obs}
        if self.hides_task is not None:
            inputs[TASK] = whole[TASK]
        if self.mask != "none":
            inputs[MASK] = self._flat_mask(mask, len(first))
        if self.previous:
            if previous_action is None:
                previous_action, previous_reward = self.zero_action(len(first)), 0.0
            inputs["previous_action"] = tree.map_leaves(
                lambda x: np.asarray(x) * ~first.reshape(-1, *[1] * (x.ndim - 1)), previous_action
            )
            inputs["previous_reward"] = np.where(first, 0.0, previous_reward).astype(np.float32)
        return inputs

    def _flat_mask(self, mask: Any, num_envs: int) -> np.ndarray:
        if mask is None:
            return np.ones((num_envs, self.distribution.num_mask), bool)
        if not (isinstance(mask, np.ndarray) and mask.dtype == object):
            return flatten_mask(self.action_space, mask)
        # Gymnasium's vector environments collect tuples and lists as rows of objects.
        return np.stack([flatten_mask(self.action_space, row) for row in mask])

    def check_mask(self, inputs: Tree, ended: np.ndarray, name: str, row: int) -> None:
        """Raise EnvironmentFault if a mask forbids every action in an episode that hasn't ended."""
        if self.mask == "none":
            return
        empty = mask_is_empty(self.distribution, inputs[MASK]) & ~ended
        if empty.any():
            raise EnvironmentFault(
                f"{name} forbids every action: its action_mask allows none in environment "
                f"{int(np.flatnonzero(empty)[0])} of this actor, row {row} of the fragment; an "
                "agent that waits for others needs a no-op action, or a turn-based game (AECEnv)"
            )


def info_mask(infos: dict[str, Any]) -> Any:
    """Return ``infos["action_mask"]`` of a vector environment; rows without one allow all."""
    return _where_present(infos.get(MASK), infos.get(f"_{MASK}"))


def evaluated_mask(inputs: Inputs, infos: dict[str, Any], num_envs: int) -> Any:
    """Return :func:`info_mask`, or a mask that allows everything for a policy that needs one."""
    mask = info_mask(infos)
    if mask is None and inputs.mask == "info":
        return np.ones((num_envs, inputs.distribution.num_mask), bool)
    return mask


def _where_present(mask: Any, present: Any) -> Any:
    """Apply and remove Gymnasium's ``_key`` entries, which mark the rows that have a mask."""
    if isinstance(mask, dict):
        keys = [key for key in mask if not (key[:1] == "_" and key[1:] in mask)]
        return {key: _where_present(mask[key], mask.get(f"_{key}", present)) for key in keys}
    if isinstance(mask, tuple):
        return tuple(_where_present(part, present) for part in mask)
    if mask is None or present is None or np.all(present):
        return mask
    if mask.dtype == object:
        return np.array([m if p else None for m, p in zip(mask, present, strict=True)], object)
    return np.where(present.reshape(-1, *[1] * (mask.ndim - 1)), mask, np.ones_like(mask))


def mask_source(
    observation_space: gymnasium.Space, distribution: Distribution, in_infos: bool
) -> Source:
    """Return where an environment's action mask comes from.

    Raises:
        ConfigError: it has a mask, but its actions can't be masked.
    """
    shown: Source = "info" if in_infos else "none"
    source: Source = "observation" if MASK in (parts(observation_space) or ()) else shown
    if source != "none" and not distribution.num_mask:
        raise ConfigError(
            f"the environment has an action_mask in its {source}, or a method action_masks(), but "
            "none of its actions is discrete: leave the mask out or make the actions Discrete, "
            "MultiDiscrete or MultiBinary"
        )
    return source

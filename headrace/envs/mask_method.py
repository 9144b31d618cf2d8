"""Copies masks from a method ``action_masks()``, the convention of sb3-contrib, into infos.

The method belongs to an environment, to a wrapper, or to a vector environment. Its masks are put
into ``info["action_mask"]``, which the rest of headrace reads. Masks that an environment already
has in its observation or info take precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from headrace.envs.old_gym import GymEnv
from headrace.errors import ConfigError, EnvironmentFault
from headrace.spaces.masks import MASK, flatten_mask
from headrace.spaces.walk import parts

METHOD = "action_masks"
USED = "action_masks_method"  # metadata key under which an environment has its MethodMasks


@dataclass
class MethodMasks:
    """Records whether an environment's masks have come from its method so far."""

    used: bool = False


def with_method_masks(env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Env[Any, Any]:
    """Wrap ``env`` if it has the method and no mask in its observation; else return it unchanged.

    Args:
        name: name of the environment, for messages.
    """
    masks = _method_of(env)
    if masks is None or MASK in (parts(env.observation_space) or ()) or USED in env.metadata:
        return env
    return MaskedByMethod(env, masks, name)


class MaskedByMethod(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the masks of an environment's method to its infos.

    The method is called after each reset and each step that doesn't end the episode, since it may
    fail in a state that has no next action. ``reset`` and ``step`` raise EnvironmentFault if a
    mask doesn't fit the actions.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], masks: Callable[[], Any], name: str) -> None:
        super().__init__(env)
        self._masks, self._name, self._found = masks, name, MethodMasks()
        self.metadata = {**env.metadata, USED: self._found}

    def reset(self, **kwargs: Any) -> Any:
        """As :meth:`gymnasium.Env.reset`."""
        returned = self.env.reset(**kwargs)
        if not isinstance(returned, tuple) or len(returned) != 2:  # the contract reports it
            return returned
        return returned[0], self._shown(returned[1])

    def step(self, action: Any) -> Any:
        """As :meth:`gymnasium.Env.step`."""
        returned = self.env.step(action)
        if not isinstance(returned, tuple) or len(returned) != 5 or any(map(np.any, returned[2:4])):
            return returned
        return *returned[:4], self._shown(returned[4])

    def _shown(self, info: Any) -> Any:
        if not isinstance(info, dict) or MASK in info or (mask := self._masks()) is None:
            return info
        self._found.used = True
        return {**info, MASK: mask_bits(self.env.action_space, mask, self._name)}


def with_vector_masks(envs: VectorEnv, name: str) -> VectorEnv:
    """Wrap a vector environment if it has the method, which returns a mask for each row."""
    masks = vector_method_of(envs)
    shows = MASK in (parts(envs.single_observation_space) or ())
    if masks is None or shows or USED in envs.metadata:
        return envs
    return RowsMaskedByMethod(envs, masks, name)


class RowsMaskedByMethod(VectorWrapper):
    """Adds the masks of a vector environment's method to its infos; other attributes pass through.

    ``reset`` and ``step`` raise EnvironmentFault if a mask doesn't fit the actions.
    """

    def __init__(self, envs: VectorEnv, masks: Callable[[], Any], name: str) -> None:
        super().__init__(envs)
        self._masks, self._name, self._found = masks, name, MethodMasks()
        self.metadata = {**envs.metadata, USED: self._found}

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") or attribute == "env":
            raise AttributeError(attribute)
        return getattr(self.env, attribute)

    def reset(self, **kwargs: Any) -> Any:
        """As :meth:`gymnasium.vector.VectorEnv.reset`."""
        obs, infos = self.env.reset(**kwargs)
        return obs, self._shown(infos)

    def step(self, actions: Any) -> Any:
        """As :meth:`gymnasium.vector.VectorEnv.step`."""
        *returned, infos = self.env.step(actions)
        return *returned, self._shown(infos)

    def _shown(self, infos: Any) -> Any:
        if not isinstance(infos, dict) or MASK in infos or (rows := self._masks()) is None:
            return infos
        if len(rows) != self.num_envs:
            raise EnvironmentFault(
                f"{self._name}.{METHOD}() returned {len(rows)} masks: return one for each of the "
                f"{self.num_envs} environments"
            )
        self._found.used = True
        space = self.single_action_space
        return {**infos, MASK: np.stack([mask_bits(space, row, self._name) for row in rows])}


def _method_of(env: Any) -> Callable[[], Any] | None:
    inner = env.unwrapped
    try:
        method = env.get_wrapper_attr(METHOD)
    except AttributeError:
        method = getattr(inner._env, METHOD, None) if isinstance(inner, GymEnv) else None
    return method if callable(method) else None


def vector_method_of(envs: VectorEnv) -> Callable[[], Any] | None:
    """Return the method of a vector environment, or of all of its environments; None: neither."""
    layer: Any = envs
    while True:
        if callable(method := getattr(layer, METHOD, None)):
            return method  # type: ignore[no-any-return]
        if not isinstance(layer, VectorWrapper):
            break
        layer = layer.env
    if not isinstance(layer, SyncVectorEnv | AsyncVectorEnv):
        return None
    each = layer.call("has_wrapper_attr", METHOD)
    return (lambda: layer.call(METHOD)) if all(each) else None


def mask_bits(space: Any, mask: Any, name: str) -> np.ndarray:
    """Convert a mask to ``[num_mask]`` bool in the order of the logits; None allows everything."""
    try:
        if isinstance(mask, list) and isinstance(space, MultiDiscrete) and np.ndim(mask[0]):
            mask = tuple(map(np.asarray, mask))  # an array for each choice
        elif mask is not None and not isinstance(mask, dict | tuple):
            mask = np.ravel(mask)
        bits = flatten_mask(space, mask)
    except (ConfigError, ValueError) as error:
        raise EnvironmentFault(
            f"{name}.{METHOD}() returned a mask that doesn't fit: {error}"
        ) from error
    return bits.reshape(-1)

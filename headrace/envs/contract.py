"""Checks of the first resets and steps of an environment against its spaces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import VectorEnv

from headrace.envs.bounds_warnings import brief, warn_beyond
from headrace.errors import EnvironmentFault
from headrace.processes import torch_defaults_kept
from headrace.spaces.agreement import same_space
from headrace.spaces.text import is_text
from headrace.spaces.walk import Path, parts, place

CHECKED_STEPS = 100

_STEP = "(observation, reward, terminated, truncated, info)"
_RESET = "(observation, info)"


def check_first_steps(env: Any, name: str, num_steps: int = CHECKED_STEPS) -> None:
    """Check the return values of the first calls of ``reset`` and ``step`` of an environment.

    Both methods are replaced by checking versions until they have been called ``num_steps`` times
    and are then restored, so later steps cost nothing. Only if a single environment's rewards or
    flags are arrays of one number, a conversion to scalars stays in place.

    Args:
        env: an Env or a VectorEnv.
        name: name of the environment, for messages.
        num_steps: number of checked steps.

    The checking versions raise EnvironmentFault if a value doesn't match the spaces. Values
    outside a Box's bounds only cause a warning.
    """
    if num_steps < 1:
        return
    own = {word: vars(env)[word] for word in _CHECKED if word in getattr(env, "__dict__", {})}
    if any(isinstance(one, _Checked) for one in own.values()):  # this instance is already checked
        return
    contract = Contract(env, name)
    reset, step, left = env.reset, env.step, num_steps

    def checked_reset(**how: Any) -> Any:
        try:
            returned = torch_defaults_kept(lambda: reset(**how))
        except TypeError as error:
            if _is_refusal(error):
                raise EnvironmentFault(
                    f"{name}.reset doesn't accept Gymnasium's arguments ({error}): define it as "
                    "reset(self, *, seed=None, options=None)"
                ) from error
            raise
        contract.check_reset(returned)
        return returned

    def checked_step(action: Any) -> Any:
        nonlocal left
        returned = torch_defaults_kept(lambda: step(action))
        contract.check_step(returned)
        left -= 1
        if not left:
            for word in _CHECKED:
                vars(env).pop(word, None)
            vars(env).update(own)
            if contract.in_arrays:
                env.step = _Checked(lambda action: _as_scalars(step(action)), env, "step", own)
        return _as_scalars(returned) if contract.in_arrays else returned

    try:
        env.reset = _Checked(checked_reset, env, "reset", own)
        env.step = _Checked(checked_step, env, "step", own)
    except AttributeError:  # the class has __slots__
        return


_CHECKED = ("reset", "step")


class _Checked:
    """A checked method; copies and pickles of its environment contain the original method.

    Args:
        call: the checking function.
        own: the methods that the environment had as instance attributes.
    """

    def __init__(self, call: Callable[..., Any], env: Any, word: str, own: dict[str, Any]) -> None:
        functools.update_wrapper(self, getattr(env, word))
        self._call, self._env, self._word, self._own = call, env, word, own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        if self._word in self._own:
            return _itself, (self._own[self._word],)
        return getattr, (self._env, self._word)


def _as_scalars(returned: Any) -> Any:
    """Replace arrays of one element in a step's return value by numbers."""
    obs, reward, terminated, truncated, info = returned
    return obs, *(np.asarray(one).item() for one in (reward, terminated, truncated)), info


def _itself(method: Any) -> Any:
    return method


_ARGUMENTS = ("seed", "options")


def _is_refusal(error: TypeError) -> bool:
    """Return whether a TypeError is about the arguments that every ``reset`` takes."""
    return any(f"unexpected keyword argument '{word}'" in str(error) for word in _ARGUMENTS)


class Contract:
    """Requirements on the return values of an environment's ``reset`` and ``step``."""

    def __init__(self, env: Any, name: str) -> None:
        self._name = name
        self._together = isinstance(env, VectorEnv)
        self._count = env.num_envs if self._together else 1
        self._env, self._space = env, env.observation_space
        self._spaces: dict[str, Any] = {
            kind: getattr(env, kind, None) for kind in ("observation_space", "action_space")
        }
        self._reward_space = getattr(getattr(env, "unwrapped", env), "reward_space", None)
        self._steps = 0
        self.in_arrays = False  # scalar results of a single environment

    def check_reset(self, returned: Any) -> None:
        self._check_spaces_kept()
        self._check_length("reset", returned, 2, _RESET)
        self._check_rest("reset", returned[-1])
        self._check_observation("reset", self._space, returned[0])

    def check_step(self, returned: Any) -> None:
        self._steps += 1
        self._check_length("step", returned, 5, _STEP)
        obs, reward, terminated, truncated, info = returned
        self._check_scalar(reward)
        self._check_number("reward", reward, "a finite number", self._is_reward)
        for word, flag in (("terminated", terminated), ("truncated", truncated)):
            self._check_number(word, flag, "True or False", self._is_flag)
        numbers = reward, terminated, truncated
        self.in_arrays |= not self._together and any(map(np.ndim, numbers))
        self._check_rest("step", info)
        self._check_observation("step", self._space, obs)

    def _check_spaces_kept(self) -> None:
        """Raise EnvironmentFault if a reset replaced a space."""
        now: Any
        for kind, first in self._spaces.items():
            now = getattr(self._env, kind, None)
            if now is not first and not (now is not None and same_space(first, now)):
                raise EnvironmentFault(
                    f"{self._name} changed its {kind} in reset from {brief(first)} to "
                    f"{brief(now)}: spaces must stay the same in every episode"
                )

    def _fault(self, method: str, came: str, remedy: str) -> EnvironmentFault:
        when = f"at step {self._steps}" if method == "step" else "from reset"
        return EnvironmentFault(f"{self._name} returned {came} {when}: {remedy}")

    def _check_length(self, method: str, returned: Any, length: int, names: str) -> None:
        if isinstance(returned, (tuple, list)) and len(returned) == length:
            return
        came, remedy = _shown(returned), f"return {names}"
        if isinstance(returned, (tuple, list)):
            came = f"{len(returned)} values instead of {length}"
            if method == "step" and len(returned) == 4:
                remedy += ", where the old Gym's done is terminated or truncated"
        raise self._fault(method, came, remedy)

    def _check_rest(self, method: str, info: Any) -> None:
        if not isinstance(info, dict):
            raise self._fault(method, f"{_shown(info)} as its info", "return a dict, {} if empty")

    def _check_scalar(self, reward: Any) -> None:
        """Raise EnvironmentFault if a reward is vector-valued."""
        array, batch = _array(reward), self._together
        if array is None or array.dtype.kind not in "biuf" or array.size <= self._count:
            return
        each = f" for each of {self._count} environments" if batch else ""
        of = "" if self._reward_space is None else f", of the space {brief(self._reward_space)},"
        kind = "gymnasium.wrappers.vector" if batch else "gymnasium.wrappers"
        axis = "r.sum(-1)" if batch else "float(r.sum())"
        raise self._fault(
            "step",
            f"a reward of shape {array.shape}{of}",
            f"return one number{each}, for example with the wrapper "
            f"{kind}.TransformReward(env, lambda r: {axis})",
        )

    def _check_number(
        self, word: str, value: Any, valid: str, holds: Callable[[np.ndarray], bool]
    ) -> None:
        array = _array(value)
        fits = array is not None and array.size == self._count and array.ndim <= 1
        if array is None or not fits or not holds(array):
            each = f" for each of {self._count} environments" if self._together else ""
            raise self._fault("step", f"{_shown(value)} as its {word}", f"return {valid}{each}")

    def _is_reward(self, value: np.ndarray) -> bool:
        # After an episode's end, vector environments may return placeholder rewards.
        is_number = value.dtype.kind in "biuf"
        return is_number and (self._together or bool(np.isfinite(value).all()))

    def _is_flag(self, value: np.ndarray) -> bool:
        return value.dtype.kind in "biu" and bool(np.isin(value, (0, 1)).all())

    def _check_observation(
        self, method: str, space: gymnasium.Space, value: Any, path: Path = ()
    ) -> None:
        """Compare an observation with its space, part by part."""
        inner = parts(space)
        if inner is None:
            self._check_leaf(method, space, value, path)
            return
        fits: bool
        if isinstance(space, Dict):
            fits, expected = isinstance(value, dict), f"a dict with the keys {list(inner)}"
            missing = [key for key in inner if fits and key not in value]
            came = f"a dict without {', '.join(map(repr, missing))}" if missing else _shown(value)
            fits = fits and not missing
        else:
            assert isinstance(space, Tuple)
            fits = isinstance(value, (tuple, list)) and len(value) == len(inner)
            expected, came = f"a tuple of {len(inner)}", _shown(value)
        if not fits:
            raise self._misfit(method, space, came, path, f"return {expected}, or change the space")
        for key, part in inner.items():
            self._check_observation(method, part, value[key], (*path, key))

    def _misfit(
        self, method: str, space: gymnasium.Space, came: str, path: Path, remedy: str
    ) -> EnvironmentFault:
        came = f"{came} as its observation{place(path)}, which should be in {brief(space)}"
        return self._fault(method, came, remedy)

    def _check_leaf(self, method: str, space: Any, value: Any, path: Path) -> None:
        if is_text(space) and not isinstance(value, str):
            raise self._misfit(method, space, _shown(value), path, "return a str")
        if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
            return  # other values are rejected elsewhere
        array = _array(value)
        if array is None or array.dtype.kind not in "biuf":
            remedy = f"return an array of {space.dtype}, of shape {space.shape}"
            raise self._misfit(method, space, _shown(value), path, remedy)
        if array.shape != space.shape:
            remedy = f"return the shape {space.shape}, or make the space's {array.shape}"
            raise self._misfit(method, space, _shown(value), path, remedy)
        if not np.can_cast(array.dtype, space.dtype, "same_kind"):
            remedy = f"return it .astype('{space.dtype}'), or make the space's dtype {array.dtype}"
            raise self._misfit(method, space, _shown(value), path, remedy)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            where = np.argwhere(~np.isfinite(array))[0].tolist()
            came = f"{array[tuple(where)]} in its observation{where or ''}{place(path)}"
            raise self._fault(method, came, "return finite numbers")
        if isinstance(space, Box):
            warn_beyond(self._name, space, array, path)
        elif not space.contains(array.astype(space.dtype)):
            remedy = "keep within the space, or make it larger"
            raise self._misfit(method, space, _shown(value), path, remedy)


def _array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError):  # ragged lists, tensors with gradients
        return None


def _shown(value: Any) -> str:
    """Format a value in a few words."""
    if isinstance(value, np.ndarray) and value.dtype != object and (value.ndim or value.size > 1):
        return f"{value.dtype} of shape {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) < 40 else f"a {type(value).__name__}"

"""Several tasks for one policy: their spaces joined, so that whatever steps one meets the same.

| spaces that differ | joined |
|---|---|
| vectors (Box of one dimension) observed | the longest; shorter ones end in zeros |
| Box of the same shape observed | the same with the widest bounds |
| Discrete observed; texts | the most values; the longest, of all characters |
| Dict or Tuple of the same parts observed | part by part |
| Discrete actions | the most choices; ``info["action_mask"]`` allows a task's own |
| vectors of actions | the longest between -1 and 1, scaled to a task's bounds, the rest ignored |

Others can't be joined. A task whose spaces are the joined ones is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from headrace.envs.names import Tasks, resolve
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError
from headrace.spaces.images import is_image
from headrace.spaces.masks import MASK
from headrace.spaces.observations import TASK
from headrace.spaces.text import is_text, plain_text

_OBSERVATION = "observation"  # the part beside it, of an observation that isn't a Dict
Spaces = tuple[gymnasium.Space, gymnasium.Space]  # of observations and actions


def join(tasks: Tasks, spaces: Sequence[Spaces]) -> Tasks:
    """The tasks with the same spaces each.

    Args:
        tasks: resolved. spaces: of each.

    Raises:
        ConfigError: they can't be joined; names two tasks that differ.
    """
    names = tasks.names
    kinds = zip(("observation", "action"), zip(*spaces, strict=True), strict=True)
    observation, action = (_of_all(kind, names, each) for kind, each in kinds)
    own = observation
    if tasks.shown:
        observation = _with_task(observation, len(names))
    envs = []
    for number, (env, each) in enumerate(zip(tasks.envs, spaces, strict=True)):
        if tasks.shown or each != (own, action):
            known: dict[str, Any] = {"observation_space": observation, "action_space": action}
            known |= {"task": number if tasks.shown else None}
            env = resolve(env, [Wrap(Joined, "the joining of tasks", known, JoinedVector)])
        envs.append(env)
    return replace(tasks, envs=tuple(envs), joined=True)


def _of_all(kind: str, names: Sequence[str], spaces: Sequence[gymnasium.Space]) -> gymnasium.Space:
    pair = _observed if kind == "observation" else _acted
    whole = spaces[0]
    for i, space in enumerate(spaces):
        joined = pair(whole, space)
        if joined is None:
            other = next((j for j in range(i) if pair(spaces[j], space) is None), 0)
            raise ConfigError(
                f"tasks {names[other]!r} and {names[i]!r} can't be joined: the {kind} space of one "
                f"is {_line(spaces[other])}, of the other {_line(space)} (wrappers may make them "
                "alike, which docs/tasks.md tells)"
            )
        whole = joined
    return whole


def _line(space: gymnasium.Space) -> str:
    return " ".join(str(space).split())


def _observed(a: gymnasium.Space, b: gymnasium.Space) -> gymnasium.Space | None:
    """What holds the observations of both; None: nothing does."""
    if a == b:
        return a
    if isinstance(a, Box) and isinstance(b, Box):
        return _boxes(a, b)
    if isinstance(a, Discrete) and isinstance(b, Discrete) and a.start == b.start:
        return Discrete(int(max(a.n, b.n)), start=int(a.start))
    if is_text(a) and is_text(b):
        x, y = plain_text(a), plain_text(b)
        characters = "".join(sorted({*x.characters, *y.characters}))
        most, least = max(x.max_length, y.max_length), min(x.min_length, y.min_length)
        return Text(most, min_length=least, charset=characters)
    if isinstance(a, Dict) and isinstance(b, Dict) and a.keys() == b.keys():
        parts = {key: joined for key in a if (joined := _observed(a[key], b[key])) is not None}
        return Dict(parts) if len(parts) == len(a) else None
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a) == len(b):
        each = [_observed(x, y) for x, y in zip(a, b, strict=True)]
        known = [joined for joined in each if joined is not None]
        return Tuple(known) if len(known) == len(a) else None
    return None


def _boxes(a: Box, b: Box) -> Box | None:
    if a.shape != b.shape and not (_is_vector(a) and _is_vector(b)):
        return None
    if a.dtype != b.dtype and not all(np.issubdtype(x.dtype, np.floating) for x in (a, b)):
        return None
    dtype: Any = np.result_type(a.dtype, b.dtype)
    if a.shape == b.shape:
        return Box(np.minimum(a.low, b.low), np.maximum(a.high, b.high), dtype=dtype)
    size = max(a.shape[0], b.shape[0])
    (low, high), (b_low, b_high) = ([_longer(x, size) for x in (s.low, s.high)] for s in (a, b))
    return Box(np.minimum(low, b_low), np.maximum(high, b_high), dtype=dtype)


def _is_vector(space: gymnasium.Space) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and not is_image(space)


def _longer(x: np.ndarray, size: int) -> np.ndarray:
    """With zeros at the end of its last axis."""
    longer = np.zeros((*x.shape[:-1], size), x.dtype)
    longer[..., : x.shape[-1]] = x
    return longer


def _acted(a: gymnasium.Space, b: gymnasium.Space) -> gymnasium.Space | None:
    """What holds the actions of both; None: nothing does."""
    if a == b:
        return a
    if isinstance(a, Discrete) and isinstance(b, Discrete):
        return Discrete(int(max(a.n, b.n)))
    if _is_scalable(a) and _is_scalable(b):
        return Box(-1.0, 1.0, (max(a.shape[0], b.shape[0]),), np.float32)  # type: ignore[index]
    return None


def _is_scalable(space: gymnasium.Space) -> bool:
    floats = _is_vector(space) and np.issubdtype(np.dtype(space.dtype), np.floating)
    return floats and space.is_bounded("both")  # type: ignore[attr-defined, no-any-return]


def _with_task(space: gymnasium.Space, count: int) -> Dict:
    if isinstance(space, Dict) and TASK in space.spaces:
        raise ConfigError(
            f"the tasks' observations have a part {TASK!r} already, so task_id=True and "
            "per_task_values=True must be left out"
        )
    parts = dict(space.items()) if isinstance(space, Dict) else {_OBSERVATION: space}
    return Dict({**parts, TASK: Discrete(count)})


class Joined(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in spaces that other tasks fit as well, see :func:`join`.

    Args:
        task: its number, which observations show; None: they don't.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        task: int | None = None,
    ) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = observation_space, action_space
        self._acts_alike = env.action_space == action_space  # comparing Boxes takes 50 µs
        self._task = None if task is None else np.int64(task)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """As :meth:`gymnasium.Env.reset`."""
        obs, info = self.env.reset(**given)
        return self._shown(obs), self._masked(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As :meth:`gymnasium.Env.step`."""
        own = action if self._acts_alike else _own_action(action, self.env.action_space)
        obs, reward, terminated, truncated, info = self.env.step(own)
        return self._shown(obs), reward, terminated, truncated, self._masked(info)

    def _shown(self, obs: Any) -> Any:
        return _shown_by(obs, self.env.observation_space, self.observation_space, self._task)

    def _masked(self, info: dict[str, Any]) -> dict[str, Any]:
        return _masked_by(info, self.env.action_space, self.action_space)


class JoinedVector(VectorWrapper):
    """What :class:`~headrace.envs.joined.Joined` is around a single one.

    Args:
        envs: of one agent each. task: their number, which observations show; None: they don't.
    """

    def __init__(
        self,
        envs: VectorEnv,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        task: int | None = None,
    ) -> None:
        super().__init__(envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, envs.num_envs)
        self.action_space = batch_space(action_space, envs.num_envs)
        self._acts_alike = envs.single_action_space == action_space
        self._task = None if task is None else np.full(envs.num_envs, task, np.int64)

    @property
    def frames_per_step(self) -> int:
        """Of a game of ALE that tells them itself; 0: it doesn't."""
        return int(getattr(self.env, "frames_per_step", 0))

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """As :meth:`gymnasium.vector.VectorEnv.reset`."""
        obs, infos = self.env.reset(**given)
        return self._shown(obs), self._masked(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As :meth:`gymnasium.vector.VectorEnv.step`."""
        own = actions if self._acts_alike else _own_action(actions, self.env.single_action_space)
        obs, reward, terminated, truncated, infos = self.env.step(own)
        return self._shown(obs), reward, terminated, truncated, self._masked(infos)

    def _shown(self, obs: Any) -> Any:
        spaces = self.env.single_observation_space, self.single_observation_space
        return _shown_by(obs, *spaces, self._task, axes=1)

    def _masked(self, infos: dict[str, Any]) -> dict[str, Any]:
        spaces = self.env.single_action_space, self.single_action_space
        return _masked_by(infos, *spaces, batch=(self.num_envs,))


def _shown_by(
    obs: Any, own: gymnasium.Space[Any], whole: gymnasium.Space[Any], task: Any, axes: int = 0
) -> Any:
    """Observations as the joined space has them, with the task's number, or those of a batch."""
    if task is None:
        return _fitted(obs, whole, axes)
    if not isinstance(own, Dict):
        obs = {_OBSERVATION: obs}
    assert isinstance(whole, Dict)
    parts = {key: _fitted(obs[key], part, axes) for key, part in whole.items() if key != TASK}
    return {**parts, TASK: task}


def _own_action(action: Any, own: gymnasium.Space[Any]) -> Any:
    """A task's own actions for those ``[..., *]`` of the joined space, which is another.

    A choice that it doesn't have, which no mask allows, is its last.
    """
    if isinstance(own, Discrete):
        return own.start + np.minimum(action, int(own.n) - 1)
    assert isinstance(own, Box)
    share = (np.clip(np.asarray(action)[..., : own.shape[0]], -1.0, 1.0) + 1.0) / 2.0
    return (own.low + share * (own.high - own.low)).astype(own.dtype)


def _masked_by(
    info: dict[str, Any],
    own: gymnasium.Space[Any],
    whole: gymnasium.Space[Any],
    batch: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Infos with a mask ``[*batch, choices]`` of the task's own choices, where it lacks some."""
    if not (isinstance(own, Discrete) and isinstance(whole, Discrete) and own.n < whole.n):
        return info
    mask = info.get(MASK, np.ones((*batch, int(own.n)), np.int8))
    return {**info, MASK: _longer(np.asarray(list(mask)), int(whole.n))}


def _fitted(obs: Any, space: gymnasium.Space[Any], axes: int = 0) -> Any:
    """An observation as the joined space has it; ``axes``: before its own, of a batch."""
    if isinstance(space, Box):
        obs = np.asarray(obs, space.dtype)
        return obs if obs.shape[axes:] == space.shape else _longer(obs, space.shape[0])
    if isinstance(space, Dict):
        return {key: _fitted(obs[key], part, axes) for key, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(_fitted(x, part, axes) for x, part in zip(obs, space, strict=True))
    return obs

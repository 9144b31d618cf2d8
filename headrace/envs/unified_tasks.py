"""Unifies the spaces of several tasks for one policy.

``headrace.spaces.unified_spaces`` defines the mapping. Tasks that already have the unified spaces
stay unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from headrace.envs.names import Tasks, resolve
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError
from headrace.spaces import unified_spaces
from headrace.spaces.unified_spaces import TASK, Spaces


def join(tasks: Tasks, spaces: Sequence[Spaces]) -> Tasks:
    """Return the tasks, each wrapped to have the unified spaces.

    Args:
        tasks: resolved tasks.
        spaces: spaces of each task.

    Raises:
        ConfigError: they can't be unified; the message names two tasks that differ.
    """
    names = tasks.names
    hint = "wrappers may unify them, see docs/tasks.md"
    observation, action = unified_spaces.joined(names, spaces, "tasks", hint, apart=True)
    own, observed = observation, [space for space, _ in spaces]
    if tasks.shown:
        observation = _with_task(observation, len(names))
    envs = []
    for number, (env, each) in enumerate(zip(tasks.envs, spaces, strict=True)):
        if tasks.shown or each != (own, action):
            placement: dict[str, Any] = {"observation_space": observation, "action_space": action}
            placement |= {"task": number if tasks.shown else None}
            placement |= {"place": unified_spaces.place(each[0], observed)}
            env = resolve(
                env, [Wrap(UnifiedTask, "the unification of tasks", placement, UnifiedTaskVector)]
            )
        envs.append(env)
    return replace(tasks, envs=tuple(envs), joined=True, own=tuple(spaces))


def _with_task(space: gymnasium.Space, count: int) -> Dict:
    if isinstance(space, Dict) and TASK in space.spaces:
        raise ConfigError(
            f"the tasks' observations already have a part {TASK!r}, so task_id=True and "
            "per_task_values=True must be left out"
        )
    parts = dict(space.items()) if isinstance(space, Dict) else {unified_spaces.OBSERVATION: space}
    return Dict({**parts, TASK: Discrete(count)})


class UnifiedTask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment in the unified spaces of several tasks, see :func:`join`.

    Args:
        task: task number to add to observations; None: don't add it.
        place: mapping of its observations, see :func:`headrace.spaces.unified_spaces.place`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        task: int | None = None,
        place: Any = 0,
    ) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = observation_space, action_space
        self._acts_alike = env.action_space == action_space  # comparing Boxes takes 50 µs
        self._task, self._place = None if task is None else np.int64(task), place

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As :meth:`gymnasium.Env.reset`."""
        obs, info = self.env.reset(**kwargs)
        return self._shown(obs), self._masked(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As :meth:`gymnasium.Env.step`."""
        own = action
        if not self._acts_alike:
            own = unified_spaces.own_action(action, self.env.action_space, self.action_space)
        obs, reward, terminated, truncated, info = self.env.step(own)
        return self._shown(obs), reward, terminated, truncated, self._masked(info)

    def _shown(self, obs: Any) -> Any:
        spaces = self.env.observation_space, self.observation_space
        return unified_spaces.shown(obs, *spaces, self._task, self._place)

    def _masked(self, info: dict[str, Any]) -> dict[str, Any]:
        return unified_spaces.masked(info, self.env.action_space, self.action_space)


class UnifiedTaskVector(VectorWrapper):
    """Vectorised :class:`~headrace.envs.unified_tasks.UnifiedTask`.

    Args:
        envs: single-agent environments.
        task: task number to add to observations; None: don't add it.
        place: mapping of their observations.
    """

    def __init__(
        self,
        envs: VectorEnv,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        task: int | None = None,
        place: Any = 0,
    ) -> None:
        super().__init__(envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, envs.num_envs)
        self.action_space = batch_space(action_space, envs.num_envs)
        self._acts_alike = envs.single_action_space == action_space
        self._task = None if task is None else np.full(envs.num_envs, task, np.int64)
        self._place = place

    @property
    def frames_per_step(self) -> int:
        """Frames per step that an ALE game reports itself; 0 if it doesn't."""
        return int(getattr(self.env, "frames_per_step", 0))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As :meth:`gymnasium.vector.VectorEnv.reset`."""
        obs, infos = self.env.reset(**kwargs)
        return self._shown(obs), self._masked(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As :meth:`gymnasium.vector.VectorEnv.step`."""
        own, spaces = actions, (self.env.single_action_space, self.single_action_space)
        if not self._acts_alike:
            own = unified_spaces.own_action(actions, *spaces)
        obs, reward, terminated, truncated, infos = self.env.step(own)
        return self._shown(obs), reward, terminated, truncated, self._masked(infos)

    def _shown(self, obs: Any) -> Any:
        spaces = self.env.single_observation_space, self.single_observation_space
        return unified_spaces.shown(obs, *spaces, self._task, self._place, axes=1)

    def _masked(self, infos: dict[str, Any]) -> dict[str, Any]:
        spaces = self.env.single_action_space, self.single_action_space
        return unified_spaces.masked(infos, *spaces, batch=(self.num_envs,))

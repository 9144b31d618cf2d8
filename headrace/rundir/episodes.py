"""Tracks the latest training episodes, by task and agent."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.envs.names import Tasks
from headrace.errors import shown
from headrace.types import Group

EPISODE_WINDOW = 100


@dataclass
class Episodes:
    """Returns and lengths of the last ``window`` episodes of training."""

    window: int = EPISODE_WINDOW
    count: int = 0
    tasks: tuple[str, ...] = ()  # tasks to track separately
    env_steps: int = 0  # trained on, if tasks or agents are tracked separately
    agents: tuple[str, ...] = ()  # a game's agents to track separately, in column order

    def __post_init__(self) -> None:
        self.by_task = {name: Episodes(self.window) for name in self.tasks}
        self.by_agent = {name: Episodes(self.window) for name in self.agents}
        self.returns: deque[float] = deque(maxlen=self.window)
        self.lengths: deque[float] = deque(maxlen=self.window)

    def add(self, episode_return: np.ndarray, episode_length: np.ndarray, task: int = 0) -> None:
        """Add the episodes of one rollout of a task: ``[T, B]``, NaN where none ends."""
        if self.tasks:
            self.by_task[self.tasks[task]].add(episode_return, episode_length)
        for i, own in enumerate(self.by_agent.values()):
            every = slice(i, None, len(self.agents))
            own.add(episode_return[:, every], episode_length[:, every])
        ends = ~np.isnan(episode_return)
        self.returns.extend(episode_return[ends].tolist())
        self.lengths.extend(episode_length[ends].tolist())
        self.count += int(ends.sum())

    def count_trained(self, task: int, env_steps: int) -> None:
        """Count steps of a task that are trained on."""
        if self.tasks:
            self.by_task[self.tasks[task]].env_steps += env_steps

    def count_trained_by_agents(self, env_steps: np.ndarray) -> None:
        """Count steps ``[B]`` of columns (agents) that are trained on."""
        for i, own in enumerate(self.by_agent.values()):
            own.env_steps += int(env_steps[i :: len(self.agents)].sum())

    @property
    def mean_return(self) -> float | None:
        """Mean return over the window, averaged over tasks; None before the first episode."""
        return self._mean(lambda one: one.returns)

    @property
    def mean_length(self) -> float | None:
        """Mean length over the window, averaged over tasks; None before the first episode."""
        return self._mean(lambda one: one.lengths)

    def _mean(self, values: Callable[[Episodes], Sequence[float]]) -> float | None:
        each = [values(one) for one in self.by_task.values()] or [values(self)]
        return float(np.mean([np.mean(x) for x in each])) if all(each) else None

    @property
    def windows(self) -> list[float]:
        """Returns in the window, or in the windows of all tasks."""
        each = [one.returns for one in self.by_task.values()] or [self.returns]
        return [value for returns in each for value in returns]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        lists = {"returns": list(self.returns), "lengths": list(self.lengths)}
        own: dict[str, Any] = {"count": self.count, "env_steps": self.env_steps}
        for name, parts in self._parts.items():
            if parts:
                own[name] = {key: one.state_dict() for key, one in parts.items()}
        return {**lists, **own}

    @property
    def _parts(self) -> dict[str, dict[str, Episodes]]:
        """Tasks and agents tracked separately, by their names in checkpoints."""
        return {"by_task": self.by_task, "by_agent": self.by_agent}

    def load_share(self, saved: list[dict[str, Any]], rank: int, size: int) -> None:
        """Load one of ``size`` learners' share of the episodes that each learner saved."""
        if size == len(saved):
            saved, rank, size = [saved[rank]], 0, 1
        for name in ("returns", "lengths"):
            everyone = [value for one in saved for value in one[name]]
            getattr(self, name).extend(everyone[rank::size])
        for name in ("count", "env_steps"):
            setattr(self, name, sum(one.get(name, 0) for one in saved) if rank == 0 else 0)
        for part, each in self._parts.items():
            for name, own in each.items():
                own.load_share([one[part][name] for one in saved], rank, size)

    @property
    def full(self) -> bool:
        """True if the window is full, for tasks that of each."""
        if self.tasks:
            return all(one.full for one in self.by_task.values())
        return len(self.returns) == self.window


def check_episodes(saved: Any) -> None:
    """Raise ValueError unless a learner's saved episodes have finite returns and lengths."""
    for name in ("returns", "lengths"):
        values = saved[name]
        if not isinstance(values, list) or not all(map(_is_finite, values)):
            raise ValueError(f"{name} of episodes are {shown(values)}, but must be finite")
    for part in ("by_task", "by_agent"):
        for one in saved.get(part, {}).values():
            check_episodes(one)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def mean_return(saved: list[dict[str, Any]]) -> float | None:
    """Return :attr:`Episodes.mean_return` of the states that all learners saved."""
    if "by_task" in saved[0]:
        means = [
            mean_return([one["by_task"][name] for one in saved]) for name in saved[0]["by_task"]
        ]
        values = [mean for mean in means if mean is not None]
        return float(np.mean(values)) if len(values) == len(means) else None
    returns = [value for one in saved for value in one["returns"]]
    return float(np.mean(returns)) if returns else None


def own_episodes(num_learners: int, env: Any = None, agents: tuple[str, ...] = ()) -> Episodes:
    """Create one learner's window: its share of the last 100 episodes, rounded up.

    Args:
        env: Tasks, whose episodes are tracked separately, or another environment.
        agents: agents of a game, whose episodes are tracked separately.
    """
    tasks = env.names if isinstance(env, Tasks) else ()
    return Episodes(-(-EPISODE_WINDOW // num_learners), tasks=tasks, agents=agents)


def gather_episodes(group: Group, episodes: Episodes) -> Episodes:
    """Gather the latest episodes of all learners, equal on each rank."""
    window = episodes.window
    row = [float(episodes.count), float(episodes.env_steps)]
    for values in (episodes.returns, episodes.lengths):
        row += [*values, *[math.nan] * (window - len(values))]
    everyone = Episodes(window * group.size, tasks=episodes.tasks, agents=episodes.agents)
    for name, own in episodes.by_task.items():
        everyone.by_task[name] = gather_episodes(group, own)
    for name, own in episodes.by_agent.items():
        everyone.by_agent[name] = gather_episodes(group, own)
    for count, steps, *values in group.gather(torch.tensor(row, dtype=torch.float64)).tolist():
        everyone.count += int(count)
        everyone.env_steps += int(steps)
        everyone.returns.extend(x for x in values[:window] if not math.isnan(x))
        everyone.lengths.extend(x for x in values[window:] if not math.isnan(x))
    return everyone

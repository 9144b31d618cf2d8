"""Plays episodes with a policy, bounded by steps and by time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from headrace.envs.info_metrics import InfoMetrics
from headrace.errors import wrapper
from headrace.games.vector import GameVector, absent_in, in_turns
from headrace.nn.inputs import evaluated_mask
from headrace.nn.multi_policy import AnyPolicy
from headrace.ops import tree
from headrace.processes.output import print_to_stderr
from headrace.types import Tree
from headrace.validation import fields, ranges

MAX_STEPS = 100_000  # per episode; Atari's have at most 27,000
TIMEOUT_S = 900.0
_PATIENCE = 10  # play stops once another agent has ended this many times its share of episodes
_FIRST_REPORT_S = 10.0  # later reports: after twice, four times, … as long


@dataclass(frozen=True)
class Limits:
    """Limits of the episodes of one environment."""

    max_steps: int = MAX_STEPS
    """Steps per episode."""
    timeout_s: float = TIMEOUT_S
    """Seconds for all episodes together."""

    def exceeded(self, unfinished: int, episodes: int, steps: int) -> str:
        """Describe episodes that did not end.

        Args:
            unfinished: number of episodes that did not end.
            episodes: number of requested episodes.
            steps: length of the longest of them.
        """
        by_steps = steps >= self.max_steps
        limit = f"{self.max_steps:,} steps" if by_steps else f"{self.timeout_s:g} s"
        count = f"{unfinished:,} of {episodes:,} episodes" if episodes > 1 else "the episode"
        return f"{count} did not end within {limit}"


def time_limit() -> str:
    """Format the setting that ends episodes, as a keyword or as a flag."""
    return wrapper('TimeLimit:{"max_episode_steps":1000}')


def limits_of(
    config: Mapping[str, Any], max_steps: int | None = None, timeout_s: float | None = None
) -> Limits:
    """Return the limits of a run's evaluations.

    Args:
        config: settings of the run, as in its ``config.json``.
        max_steps, timeout_s: override these settings.

    Raises:
        ConfigError: a limit is out of range.
    """
    steps = config.get("eval_max_steps", MAX_STEPS) if max_steps is None else max_steps
    seconds = config.get("eval_timeout_s", TIMEOUT_S) if timeout_s is None else timeout_s
    fields.check("max_steps", Annotated[int, ranges.STEPS], steps)
    fields.check("timeout_s", Annotated[float, ranges.SECONDS], seconds)
    return Limits(steps, seconds)


class Patience:
    """Reports the progress of long evaluations and videos, and checks their time limit.

    Args:
        timeout_s: time limit in seconds, from construction.
        notify: called with a line of text after 10 s, 20 s, 40 s and so on.
    """

    def __init__(self, timeout_s: float, notify: Callable[[str], None] = print_to_stderr) -> None:
        self._start, self._timeout_s, self._notify = time.monotonic(), timeout_s, notify
        self._next_s = _FIRST_REPORT_S

    def is_over(self, progress: Callable[[], str]) -> bool:
        """Return True after the time limit; report ``progress()`` if due."""
        now = time.monotonic() - self._start
        if now >= self._next_s:
            self._next_s = 2 * now
            self._notify(f"{progress()} after {now:.0f} s (time limit {self._timeout_s:g} s)")
        return now >= self._timeout_s


class PlayedEpisodes(NamedTuple):
    """Episodes of an environment."""

    agents: list[tuple[list[float], list[int]]]
    """Returns and lengths of each agent's episodes, in the order in which they ended."""
    unfinished: int
    """Episodes that did not end within the limits. They count with their return so far."""


class _EpisodeCounter:
    """Sums rewards until each environment has played its share of the episodes.

    Attributes:
        episodes: returns and lengths, by agent.
        unfinished: number of episodes that reached a limit.
        longest: steps of the longest episode so far.
    """

    def __init__(self, num_envs: int, episodes: int, num_agents: int, max_steps: int) -> None:
        quota = np.full(num_envs, episodes // num_envs)
        quota[: episodes % num_envs] += 1
        self._most, self._ended = _PATIENCE * quota, np.zeros((num_envs, num_agents), int)
        self._quota, self._max_steps = quota.repeat(num_agents), max_steps
        self._total = np.zeros(len(self._quota))
        self._length = np.zeros(len(self._quota), int)
        self.episodes: list[tuple[list[float], list[int]]] = [([], []) for _ in range(num_agents)]
        self.unfinished = self.longest = 0

    @property
    def is_complete(self) -> bool:
        """True if all episodes have been played."""
        return not self._quota.any()

    def add(self, step: VectorStep, metrics: InfoMetrics | None, is_late: bool) -> None:
        """Add one step of all environments; with ``is_late``, cut all episodes here."""
        begins, ends, infos = step.begins, step.ends, step.infos
        self._total += np.where(begins, 0.0, step.reward)
        self._length += ~begins
        self.longest = max(self.longest, int(self._length.max()))
        wanted = self._quota > 0
        finished = ends & ~begins & wanted
        over = self._over(wanted & ~finished, is_late)
        cut = over & wanted & ~finished & (self._length > 0)
        counted = finished | cut
        if metrics is not None and (infos or metrics.every_step):
            metrics.note(infos, begins, ends | cut, counted)
        for column in np.flatnonzero(counted).tolist():
            returns, lengths = self.episodes[column % len(self.episodes)]
            returns.append(float(self._total[column]))
            lengths.append(int(self._length[column]))
        self.unfinished += int(cut.sum())
        self._quota -= counted
        self._quota[over] = 0
        self._ended += (ends & ~begins).reshape(self._ended.shape)
        self._quota.reshape(self._ended.shape)[self._ended.max(1) >= self._most] = 0
        self._total[ends], self._length[ends] = 0.0, 0

    def _over(self, running: np.ndarray, is_late: bool) -> np.ndarray:
        """Return ``[B]`` bool: True for agents whose environment stops playing."""
        if is_late:
            return np.ones(len(running), bool)
        too_long = running & (self._length >= self._max_steps)
        if not too_long.any():
            return too_long
        return too_long.reshape(self._ended.shape).any(1).repeat(len(self.episodes))


def whole_episodes(
    moments: Iterator[VectorStep],
    num_envs: int,
    episodes: int,
    on_step: Callable[[], object] = lambda: None,
    num_agents: int = 1,
    metrics: InfoMetrics | None = None,
    limits: Limits = Limits(),
    notify: Callable[[str], None] = print_to_stderr,
) -> PlayedEpisodes:
    """Return returns and lengths of each agent's episodes, in the order in which they end.

    An agent has fewer if another agent of its environment ended ``_PATIENCE`` times its share. An
    environment stops playing after an episode that reached a limit.

    Args:
        moments: steps of ``num_envs`` environments. Their numbers of episodes differ by at most
            one.
        on_step: called before each step.
        num_agents: agents (columns) per environment.
        metrics: receives the infos of the episodes that count.
        notify: called with a line of text about the progress of a long evaluation, and about
            episodes that did not end.
    """
    counter = _EpisodeCounter(num_envs, episodes, num_agents, limits.max_steps)
    patience, requested = Patience(limits.timeout_s, notify), episodes * num_agents

    def progress() -> str:
        ended = sum(len(returns) for returns, _ in counter.episodes)
        longest = f"the longest has {counter.longest:,} steps"
        return f"evaluation: {ended:,} of {requested:,} episodes have ended, {longest}"

    for count, moment in enumerate(moments):
        on_step()
        counter.add(moment, metrics, patience.is_over(progress) and count > 0)
        if counter.is_complete:
            break
    if counter.unfinished:
        line = limits.exceeded(counter.unfinished, requested, counter.longest)
        notify(f"{line} and count with their return so far; train with {time_limit()}")
    return PlayedEpisodes(counter.episodes, counter.unfinished)


class VectorStep(NamedTuple):
    """Observations, rewards and episode boundaries of N environments; each ``[N, ...]``."""

    obs: Tree
    reward: np.ndarray
    begins: np.ndarray
    """True where an episode begins with this observation."""
    ends: np.ndarray
    """True where an episode ends with this observation, or an agent is absent at the start."""
    infos: dict[str, Any] = {}  # noqa: RUF012
    """Vectorised as in Gymnasium."""


@contextlib.contextmanager
def drawing(seed: int, deterministic: bool) -> Iterator[None]:
    """Sample actions with ``seed`` inside the block, unless ``deterministic``."""
    with torch.random.fork_rng([], enabled=not deterministic):
        if not deterministic:
            torch.manual_seed(seed)
        yield


def played(
    policy: AnyPolicy, envs: VectorEnv, seed: int, deterministic: bool = True
) -> Iterator[VectorStep]:
    """Play endlessly: yield the reset, then each step."""
    if in_turns(envs):
        yield from _in_turns(policy, envs, seed, deterministic)
        return
    obs, infos = envs.reset(seed=seed)
    reward, state = np.zeros(envs.num_envs), None
    begins, ends = np.ones(envs.num_envs, bool), absent_in(infos, envs.num_envs)
    while True:
        yield VectorStep(obs, reward, begins, ends, infos)
        mask = evaluated_mask(policy.inputs, infos, envs.num_envs)
        extra_inputs = {"action_mask": mask, "reward": reward}
        action, state = policy.predict(obs, state, begins, deterministic, **extra_inputs)
        obs, reward, terminated, truncated, infos = envs.step(action)
        begins, ends = ends, terminated | truncated


def _in_turns(
    policy: AnyPolicy, envs: GameVector, seed: int, deterministic: bool
) -> Iterator[VectorStep]:
    """Play a turn-based game endlessly; ``begins`` is True for waiting agents, who take no step."""
    obs, infos = envs.reset(seed=seed)
    count, everyone = envs.num_envs, np.arange(envs.num_envs)
    rows = everyone
    reward, begins, ends = np.zeros(count), np.ones(count, bool), absent_in(infos, count)
    _, whole = policy.predict(obs, None, begins, **_shown(policy, infos, reward, rows))
    whole = tree.map_leaves(lambda x: x.clone() if isinstance(x, torch.Tensor) else x.copy(), whole)
    while True:
        yield VectorStep(obs, reward, begins, ends, infos)
        mine, state = (tree.map_leaves(lambda x, rows=rows: x[rows], x) for x in (obs, whole))
        extra_inputs = _shown(policy, infos, reward, rows)
        action, state = policy.predict(mine, state, begins[rows], deterministic, **extra_inputs)
        tree.map_leaves(lambda to, x, rows=rows: to.__setitem__(rows, x), whole, state)
        envs.send(rows, action)
        rows = envs.receive()
        (obs, *_), infos = envs.results(everyone), envs.infos(rows)
        _, own, terminated, truncated = envs.results(rows)
        reward, begins = np.zeros(count), np.ones(count, bool)
        reward[rows], begins[rows] = own, ends[rows]
        ends = ends.copy()
        ends[rows] = terminated | truncated


def _shown(
    policy: AnyPolicy, infos: dict[str, Any], reward: np.ndarray, rows: np.ndarray
) -> dict[str, Any]:
    mask = evaluated_mask(policy.inputs, infos, len(reward))
    return {"action_mask": None if mask is None else mask[rows], "reward": reward[rows]}

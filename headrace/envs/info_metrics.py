"""Numbers that environments report in their infos, reduced to one value per episode and name.

By default, all numbers in the info of an episode's last step are collected: success flags, scores
and the statistics of ``RecordEpisodeStatistics``. The setting ``info_metrics`` chooses names and
reductions, also for numbers that are reported at every step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from headrace.envs.info_numbers import column, numbers_of
from headrace.errors import ConfigError, nearest, shown

PREFIX = "env/"  # prefix of metric names
REDUCTIONS = ("mean", "last", "sum", "min", "max")
NOTHING = "none"  # the setting that collects nothing
MAX_NAMES = 32  # names that are collected by default
NOT_FINITE = "env/not_finite"  # values that were skipped
LOGGED = "custom/"  # prefix of values that callbacks log
LOGGED_NOT_FINITE = "custom/not_finite"  # prefix of counts of skipped values among these
SEEN = "seen/"  # prefix of info keys, sent once if a chosen name is missing
_NAME = re.compile(r"[^\s,:]+")

InfoNames: TypeAlias = str | Mapping[str, str] | Sequence[str] | None
Sums: TypeAlias = dict[str, list[float]]  # by metric name: [sum over episodes, number of episodes]


def written(chosen: Any) -> Any:
    """Convert a mapping or collection of names to the text form of the command line.

    Raises:
        ConfigError: it is something else, or a name or reduction isn't text.
    """
    if chosen is None or isinstance(chosen, str):
        return chosen
    if isinstance(chosen, Mapping):
        words, parts = [*chosen, *chosen.values()], [f"{n}:{how}" for n, how in chosen.items()]
    elif isinstance(chosen, list | tuple | set | frozenset):
        words = parts = sorted(chosen) if isinstance(chosen, set | frozenset) else [*chosen]
    else:
        words = [chosen]
    if wrong := [word for word in words if not isinstance(word, str)]:
        raise ConfigError(
            f"info_metrics={shown(chosen)} has {shown(wrong[0])}, which is not the name of a "
            'number in infos: give names, as in ["is_success"], or names with reductions, as in '
            '{"is_success": "last"}'
        )
    return ",".join(parts) or NOTHING


def chosen_in(text: str | None) -> dict[str, str] | None:
    """Parse the setting ``info_metrics`` into a reduction per name; None: collect all names.

    Raises:
        ConfigError: a reduction is unknown, or a name is missing or invalid.
    """
    if text is None:
        return None
    reductions: dict[str, str] = {}
    for part in text.split(",") if text != NOTHING else ():
        name, colon, how = part.strip().rpartition(":")
        name, how = (name, how) if colon else (how, "mean")
        if how not in REDUCTIONS:
            valid = ", ".join(REDUCTIONS)
            raise ConfigError(
                f"info_metrics={shown(text)} has the reduction {shown(how)} for {name}, which must "
                f"be one of {valid}.{nearest(how, REDUCTIONS)}"
            )
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"info_metrics={shown(text)} has the invalid name {shown(name)}: write "
                "NAME:REDUCTION, as in is_success:last,reward_parts/drive:mean"
            )
        reductions[name.removeprefix(PREFIX)] = how
    return reductions


class InfoMetrics:
    """Collects metrics from the infos of a vector environment.

    Args:
        num_envs: number of environments, B.
        chosen: the setting ``info_metrics``, see :func:`chosen_in`.
        agents: names of a game's agents, in the order of its columns. Each agent also gets metrics
            under ``agents/NAME/``.
    """

    def __init__(
        self, num_envs: int, chosen: str | None = None, agents: Sequence[str] = ()
    ) -> None:
        names = chosen_in(chosen)
        self._finds, self._agents, self._sums = names is None, tuple(agents), Sums()
        self._running = {name: _Running(how, num_envs) for name, how in (names or {}).items()}
        self.every_step = bool(self._running)  # whether steps within episodes matter
        self.unused = names == {}
        self._missing = set(names or ())  # that no environment has reported
        self._seen = set[str]()  # info keys that were seen, while a chosen name is missing

    def reset(self) -> None:
        """Forget the episodes in progress, because all environments were reset."""
        for running in self._running.values():
            running.reset()

    def note(
        self,
        infos: Mapping[str, Any],
        begins: np.ndarray,
        ends: np.ndarray,
        counted: np.ndarray | None = None,
    ) -> None:
        """Record the infos of one step.

        Args:
            infos: vectorised as in Gymnasium, or with lists of dicts.
            begins: ``[B]`` bool, True where the step was a reset.
            ends: ``[B]`` bool, True where the episode ended.
            counted: ``[B]`` bool, True where an episode counts when it ends; None: everywhere.
        """
        ended = ends & ~begins
        for name, running in self._running.items():
            running.add(*column(infos, name.split("/"), len(ends)), ~begins)
        if self._missing:
            self._look(infos, ended)
        rows = np.flatnonzero(ended if counted is None else ended & counted).tolist()
        for row in rows if self._finds else ():
            for name, value in numbers_of(infos, row):
                self._add(name, value, row)
        for name, running in self._running.items():
            for row, value in running.take(rows, ended):
                self._add(name, value, row)

    def _look(self, infos: Mapping[str, Any], ended: np.ndarray) -> None:
        """Record the names of available numbers, until an episode ends without a chosen one."""
        rows = {0, *np.flatnonzero(ended).tolist()}
        self._seen |= {name for row in rows for name, _ in numbers_of(infos, row)}
        self._missing -= self._seen
        if self._missing and ended.any():
            names = sorted(self._seen)[:MAX_NAMES] or [""]
            add_sums(self._sums, {SEEN + name: [0.0, 1.0] for name in names})
            self._missing.clear()

    def _add(self, name: str, value: float, row: int) -> None:
        if not math.isfinite(value):
            add_sums(self._sums, {NOT_FINITE: [1.0, 1.0]})
            return
        names = [PREFIX + name]
        if self._agents:
            names.append(f"agents/{self._agents[row % len(self._agents)]}/{PREFIX}{name}")
        add_sums(self._sums, {one: [value, 1.0] for one in names}, self._finds)

    def take(self) -> Sums:
        """Return and clear the sums over the episodes that ended since the last call."""
        sums, self._sums = self._sums, {}
        return sums


def add_sums(to: Sums, new: Mapping[str, Sequence[float]], bounded: bool = False) -> None:
    """Add sums by name; ``bounded``: leave out names beyond the first ``MAX_NAMES`` of a group."""
    for name, (total, count) in new.items():
        if name in to:
            to[name][0] += total
            to[name][1] += count
            continue
        group = name.partition(PREFIX)[0]
        if bounded and sum(one.partition(PREFIX)[0] == group for one in to) >= MAX_NAMES:
            continue
        to[name] = [total, count]


def means_of(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean over episodes by name, and the number of values that weren't finite."""
    counted = (NOT_FINITE, LOGGED_NOT_FINITE)
    return {
        name: total if name.endswith(counted) else total / count
        for name, (total, count) in sums.items()
        if not name.startswith(SEEN)
    }


class _Running:
    """Reduces the values of one name over the episodes in progress."""

    def __init__(self, how: str, num_envs: int) -> None:
        self._how = how
        self._value, self._count = np.zeros(num_envs), np.zeros(num_envs)

    def reset(self) -> None:
        """Forget all episodes in progress."""
        self._count[:] = 0

    def add(self, values: np.ndarray, present: np.ndarray, steps: np.ndarray) -> None:
        """Add ``values`` ``[B]`` where ``present`` is True and the step was not a reset."""
        new, old = present & steps, self._value
        joined = {
            "last": values,
            "min": np.minimum(old, values),
            "max": np.maximum(old, values),
        }.get(self._how, old + values)
        joined = np.where(self._count > 0, joined, values)
        self._value = np.where(new, joined, old)
        self._count += new

    def take(self, rows: Iterable[int], ended: np.ndarray) -> Iterator[tuple[int, float]]:
        """Yield the values of the episodes in ``rows`` that have one, then reset ``ended``."""
        values, counts = self._value, self._count.copy()
        self._count[ended] = 0
        for row in rows:
            if counts[row]:
                mean = self._how == "mean"
                yield row, float(values[row] / counts[row] if mean else values[row])

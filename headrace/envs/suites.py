"""Task suites with random and reference scores per task, and capped normalised scores.

A score of 0 is the random player's and 1 the reference's: a human or a trained expert. The score
of several tasks is defined as in IMPALA (Table B.1): a task's episodes are averaged, normalised and
capped at 1, without a floor; then the mean or median over tasks is taken.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.envs import atari_scores, dmlab_scores, levels
from headrace.envs.atari_scores import Players
from headrace.errors import ConfigError, nearest, require_choice

# Aitchison et al. (2023), "Atari-5", Appendix E: estimates the median of 57 games. A
# regression on the results that the authors published with it gives the same numbers.
_ATARI_5 = {
    "BattleZone": 0.3820,
    "DoubleDunk": 0.0679,
    "NameThisGame": 0.3108,
    "Phoenix": 0.1241,
    "Qbert": 0.0805,
}
_GAME = re.compile(r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


@dataclass(frozen=True)
class Suite:
    """Tasks with the reference scores that normalise them.

    Attributes:
        references: by task: the id of its environment, or the name of its level.
        envs: ids of environments to train on, where these aren't the tasks' names.
    """

    name: str
    references: Mapping[str, Players]
    envs: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """Tasks with reference scores, in the suite's order."""
        return list(self.references)

    @property
    def ids(self) -> list[str]:
        """Ids of the environments to train on, in the suite's order."""
        return list(self.envs or self.references)

    @property
    def is_atari(self) -> bool:
        """Return True if the references are human scores in Atari games."""
        return SUITES.get(self.name) is self and all(task in _ATARI_57 for task in self.references)

    def task(self, name: str) -> str:
        """Return the task of an environment's id or level.

        For example, ``PongNoFrameskip-v4`` or ``Pong`` for ``ALE/Pong-v5``, and DMLab-30's training
        levels for its test levels.

        Raises:
            ConfigError: the suite has no reference score for it; the message suggests the nearest.
        """
        task = the_same(name, self.references)
        if task is None and self.tasks and (trained := the_same(name, self.envs)) is not None:
            task = self.tasks[self.envs.index(trained)]
        if task is None:
            hint = nearest(name, self.references) or f" It has {', '.join(self.tasks[:3])} …"
            if not self.references:
                hint = " headrace references measures them."
            raise ConfigError(f"suite {self.name} has no reference score for {name!r}.{hint}")
        return task

    def scores(self, returns: Mapping[str, Sequence[float]]) -> Scores:
        """Normalise the returns of episodes by task.

        Raises:
            ConfigError: a task is unknown or listed twice, has no episode, or its return isn't a
                number.
        """
        by_task: dict[str, float] = {}
        for name, episodes in returns.items():
            task = self.task(name)
            if not len(episodes) or task in by_task:
                how = "twice" if task in by_task else "without an episode"
                raise ConfigError(f"task {name!r} of suite {self.name} is listed {how}")
            mean = statistics.fmean(episodes)
            if not math.isfinite(mean):  # a cap would turn it into a full score
                raise ConfigError(f"task {name!r} of suite {self.name} has a return of {mean}")
            by_task[task] = self.references[task].normalized(mean)
        return Scores(self, {task: by_task[task] for task in self.tasks if task in by_task})


def the_same(name: str, names: Iterable[str]) -> str | None:
    """Return the member of ``names`` for the same environment in any spelling, or None."""
    names = list(names)
    if name in names:
        return name
    own = _spellings(name)
    return next((one for one in names if own & _spellings(one)), None)


def _spellings(name: str) -> set[str]:
    """Return spellings of a name: without module, DeepMind Lab level, Atari game."""
    bare = name.rpartition(":")[2]
    spellings, game, level = {bare}, _GAME.fullmatch(bare), bare.rpartition("/")[2]
    if game and game[1] in atari_scores.SCORES:
        spellings.add(_atari(game[1]))
    if level in dmlab_scores.SCORES or f"dmlab/{level}" in _DMLAB:
        spellings.add(level)
    return spellings


@dataclass(frozen=True)
class Scores:
    """Normalised scores by task, neither capped nor floored."""

    suite: Suite
    normalized: Mapping[str, float]

    @property
    def capped(self) -> dict[str, float]:
        """Scores capped at 1, by task."""
        return {task: min(1.0, score) for task, score in self.normalized.items()}

    @property
    def mean(self) -> float:
        """Mean of the capped scores."""
        return statistics.fmean(self.capped.values())

    @property
    def median(self) -> float:
        """Median of the capped scores."""
        return statistics.median(self.capped.values())

    @property
    def missing(self) -> list[str]:
        """Tasks of the suite without a score."""
        return [task for task in self.suite.tasks if task not in self.normalized]

    @property
    def atari_57_median(self) -> float | None:
        """Estimate of the uncapped median over 57 games by Atari-5's regression.

        None unless all five games have scores. The regression uses ``log10(1 + score in percent)``,
        where scores below 0 count as 0.
        """
        by_game = {game: self.normalized.get(_atari(game)) for game in _ATARI_5}
        total = 0.0
        for game, score in by_game.items():
            if score is None:
                return None
            total += _ATARI_5[game] * math.log10(1 + 100 * max(score, 0.0))
        return float((10**total - 1) / 100)


def _atari(game: str) -> str:
    return f"ALE/{game}-v5"


_ATARI_57 = {_atari(game): players for game, players in atari_scores.SCORES.items()}
_DMLAB = tuple(f"dmlab/{dmlab_scores.trained_on(level)}" for level in dmlab_scores.SCORES)
_LEVELS = tuple(f"levels/{name}" for name in levels.LEVELS)
SUITES = {
    suite.name: suite
    for suite in (
        Suite("atari-57", _ATARI_57),
        Suite("atari-5", {_atari(game): _ATARI_57[_atari(game)] for game in _ATARI_5}),
        Suite("dmlab-30", dmlab_scores.SCORES, envs=_DMLAB),
        Suite("levels-10", {}, envs=_LEVELS),
    )
}


def suite(name: str) -> Suite:
    """Return a suite by name.

    Raises:
        ConfigError: the name is unknown.
    """
    require_choice("suite", name, SUITES)
    return SUITES[name]

"""Applies the rules to a run, once or repeatedly during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.doctor import returns
from headrace.doctor.history import History
from headrace.doctor.rules import RULES

FEWEST_ROWS = 3  # fewest results for a diagnosis
_AGAIN = 1.25  # growth of the history between two examinations
_MOST_ROWS = 2000  # rows kept during a run; beyond, every other one is dropped


class Finding(NamedTuple):
    """A problem of a run."""

    name: str  # name of the rule
    text: str  # sentence with the metrics behind it
    remedy: str  # usual fix

    @property
    def line(self) -> str:
        """Text and remedy."""
        return f"{self.text}; usually fixed by: {self.remedy}"


def triggered(
    rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], action_space: Any = None
) -> dict[str, str]:
    """Return the sentences of all rules that apply, including symptoms; see :func:`examine`."""
    if len(rows) < FEWEST_ROWS:
        return {}
    return _triggered(History(rows, settings, action_space))


def _triggered(history: History) -> dict[str, str]:
    return {rule.name: text for rule in RULES if (text := rule.check(history)) is not None}


def examine(
    rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], action_space: Any = None
) -> list[Finding]:
    """Return the findings, causes first; symptoms of other findings are left out.

    Args:
        rows: lines of ``metrics.jsonl``, oldest first.
        settings: settings by name, including those of algorithm and network.
        action_space: action space of the environment; None if unknown.
    """
    if len(rows) < FEWEST_ROWS:
        return []
    history = History(rows, settings, action_space)
    texts, continuous = _triggered(history), history.num_continuous != 0
    return [
        Finding(rule.name, texts[rule.name], rule.remedy(settings, continuous))
        for rule in RULES
        if rule.name in texts and not texts.keys() & set(rule.explained_by)
    ]


def no_findings(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """Return a sentence about a run without findings: healthy, or too short to tell."""
    if len(rows) < FEWEST_ROWS:
        return f"too few results to examine ({len(rows)} of {FEWEST_ROWS})"
    lacking = returns.too_short(History(rows, settings, None))
    if lacking is None:
        return "No problems found."
    return f"No problems found, but the run is too short to judge whether it learns: {lacking}."


class Doctor:
    """Examines a run in progress at growing intervals, and reports each finding once.

    Args:
        settings, action_space: see :func:`examine`.
        reported: names of findings that were reported before.

    Attributes:
        reported: names of all reported findings.
    """

    def __init__(
        self, settings: Mapping[str, Any], action_space: Any = None, reported: Iterable[str] = ()
    ) -> None:
        self._settings, self._action_space = settings, action_space
        self._rows: list[Mapping[str, Any]] = []
        self.reported, self._num_rows, self._next = set(reported), 0, 2.0 * FEWEST_ROWS

    def note(self, row: Mapping[str, Any]) -> list[Finding]:
        """Add a line, and return new findings."""
        self._rows.append(row)
        self._num_rows += 1
        if len(self._rows) > _MOST_ROWS:
            del self._rows[1::2]
        if self._num_rows < self._next:
            return []
        self._next = self._num_rows * _AGAIN
        findings = examine(self._rows, self._settings, self._action_space)
        new = [one for one in findings if one.name not in self.reported]
        self.reported |= {one.name for one in new}
        return new

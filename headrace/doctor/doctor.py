"""Looking at a run: now, or again and again while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.doctor.history import History
from headrace.doctor.rules import RULES

FEWEST_ROWS = 3  # with fewer lines nothing is said
_AGAIN = 1.25  # so much longer a history is looked at again
_MOST_ROWS = 2000  # that are kept while a run goes on; beyond, every other one


class Finding(NamedTuple):
    """What is wrong with a run."""

    name: str  # of the rule
    text: str  # the sentence, with its figures
    mends: str  # the setting that usually does

    @property
    def line(self) -> str:
        """All of it."""
        return f"{self.text}; what usually mends it: {self.mends}"


def speaking(
    rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], action_space: Any = None
) -> dict[str, str]:
    """Of every rule that has one its sentence, symptoms among them; see :func:`examine`."""
    if len(rows) < FEWEST_ROWS:
        return {}
    history = History(rows, settings, action_space)
    return {rule.name: text for rule in RULES if (text := rule.found(history)) is not None}


def examine(
    rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], action_space: Any = None
) -> list[Finding]:
    """What the rules find, causes before their symptoms, which are left out.

    Args:
        rows: lines of ``metrics.jsonl``, oldest first.
        settings: by name, those of algorithm and network among them.
        action_space: of the environment; None: not known.
    """
    found = speaking(rows, settings, action_space)
    return [
        Finding(rule.name, found[rule.name], rule.remedy)
        for rule in RULES
        if rule.name in found and not found.keys() & set(rule.explained_by)
    ]


class Doctor:
    """Looks at a run while it goes on, rarely, and tells each finding once.

    Args:
        settings, action_space: as for :func:`examine`.
        told: names of findings that were told before.

    Attributes:
        told: the names of all that were.
    """

    def __init__(
        self, settings: Mapping[str, Any], action_space: Any = None, told: Iterable[str] = ()
    ) -> None:
        self._settings, self._action_space = settings, action_space
        self._rows: list[Mapping[str, Any]] = []
        self.reported, self._num_rows, self._next = set(told), 0, 2.0 * FEWEST_ROWS

    def note(self, row: Mapping[str, Any]) -> list[Finding]:
        """Take a line in; what is found now and wasn't told before."""
        self._rows.append(row)
        self._num_rows += 1
        if len(self._rows) > _MOST_ROWS:
            del self._rows[1::2]
        if self._num_rows < self._next:
            return []
        self._next = self._num_rows * _AGAIN
        found = examine(self._rows, self._settings, self._action_space)
        new = [one for one in found if one.name not in self.reported]
        self.reported |= {one.name for one in new}
        return new

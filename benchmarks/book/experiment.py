"""Experiments: the cases to run, the settings they depend on, and what is measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from headrace.config import Config
from headrace.studies.run_table import fingerprint

Case = Mapping[str, Any]
T = TypeVar("T")
Scale = Literal["quick", "medium", "full"]

_OF_ONE_RUN = ("seed", "run_dir", "overwrite", "resume")  # settings that don't change a result
_FILES = ("env_file", "file")  # of custom code, whose folder depends on the checkout


@dataclass(frozen=True)
class Form:
    """Scale of a page's experiments.

    Attributes:
        scale: ``quick``: all pages in less than an hour on two cores; ``medium``: runs of the same
            length with more seeds, in some hours; ``full``: longer runs, in days.
        first_seed: seeds count from it.
    """

    scale: Scale = "full"
    first_seed: int = 0

    def pick(self, quick: T, full: T, medium: T | None = None) -> T:
        """Return the value for this form; ``medium`` is ``quick`` unless given."""
        if self.scale == "medium" and medium is not None:
            return medium
        return full if self.scale == "full" else quick

    def seeds(self, medium: int, full: int, quick: int = 2) -> range:
        """Return the seeds of this form; the quick form has at most as many as the medium one."""
        number = self.pick(min(quick, medium), full, medium)
        return range(self.first_seed, self.first_seed + number)


@dataclass(frozen=True)
class Experiment:
    """Runs that answer one or more rows of a page.

    Attributes:
        name: name of the file of its data.
        cases: returns the cases of a form in the order of execution; JSON values by name.
        settings: returns what a case's result depends on: a config, or JSON values that may
            contain configs.
        measure: returns a case's results as JSON values by name; called in a separate process.
            None: train the config, see :func:`book.training.trained`.
        alone: it measures time, so a case gets all cores; otherwise each core runs a case.
        limit_s: seconds after which a case counts as failed.
    """

    name: str
    cases: Callable[[Form], list[Case]]
    settings: Callable[[Case], Any]
    measure: Callable[[Case], dict[str, Any]] | None = None
    alone: bool = False
    limit_s: float = 600.0

    @cached_property
    def _known(self) -> dict[str, dict[str, Any]]:
        return {}

    def settings_of(self, case: Case) -> dict[str, Any]:
        """Return the settings of a case with today's defaults, by dotted name."""
        key = json.dumps(case)
        if key not in self._known:
            self._known[key] = flat(self.settings(case))
        return self._known[key]

    def fingerprint(self, case: Case) -> str:
        """Return a fingerprint of a case's settings, which changes with a default."""
        return fingerprint(self.settings_of(case))


def flat(values: Any) -> dict[str, Any]:
    """Return settings by dotted name, without those of a single run.

    Args:
        values: a config, or JSON values that may contain configs.
    """
    flattened: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Config):
            value = value.to_json()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key in _FILES and isinstance(inner, str):
                    inner = Path(inner).name
                if key not in _OF_ONE_RUN:
                    add(f"{name}.{key}" if name else str(key), inner)
        else:
            flattened[name] = json.loads(json.dumps(value, default=str))

    add("", values)
    return flattened

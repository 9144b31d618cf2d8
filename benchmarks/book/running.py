"""Runs the missing cases of experiments in separate processes."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from book.data import Data
from book.experiment import Case, Form
from book.forks import run_cases
from headrace.processes import cores, pinned
from headrace.studies.children import Children
from headrace.studies.workers import work


def run_missing(page: str, data: Data, form: Form, console: Console, replace: bool = False) -> None:
    """Run cases without a result, and store each result when its run ends.

    Args:
        page: module of ``book`` that defines the experiment.
        replace: drop stored runs of other cases.

    Raises:
        ConfigError: there are stored runs of other cases.
        RuntimeError: a process that runs cases was killed.
    """
    experiment = data.experiment
    cases = experiment.cases(form)
    data.start(form.scale, cases, replace)
    todo = data.missing(cases)
    if not todo:
        return
    jobs = 1 if experiment.alone else min(len(cores()), len(todo))
    with tempfile.TemporaryDirectory() as folder:
        results = _Results(Path(folder), data, todo, console)
        request = {"page": page, "experiment": experiment.name, "cases": todo, "folder": folder}
        limit_s = (experiment.limit_s + 60) * len(todo)
        places = iter(range(jobs))

        def turn(children: Children) -> bool:
            with pinned(None if experiment.alone else 1, next(places)):
                try:
                    children.call(run_cases, request, limit_s, watch=lambda pid: results.collect())
                finally:
                    results.collect()
            return False

        work(jobs, turn)


@dataclass
class _Results:
    """Stores and prints the results that processes write to a folder."""

    folder: Path
    data: Data
    cases: list[Case]
    console: Console
    _stored: set[int] = field(default_factory=set)
    _begin: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self) -> None:
        """Store the new results."""
        with self._lock:
            for number, case in enumerate(self.cases):
                path = self.folder / f"{number}.json"
                if number not in self._stored and path.exists():
                    self._stored.add(number)
                    self._store(case, json.loads(path.read_text(encoding="utf-8")))

    def _store(self, case: Case, result: dict[str, Any]) -> None:
        self.data.add(case, **result)
        count, of = len(self._stored), len(self.cases)
        left_s = (time.monotonic() - self._begin) / count * (of - count)
        at = f"{self.data.experiment.name} {count}/{of}, {left_s:.0f} s left"
        told = result.get("error") or short(result["values"])
        self.console.print(f"[{at}] {short(case)}: {told}", soft_wrap=True)


def short(values: Any) -> str:
    """Return the numbers and short texts of a mapping in one line."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in values.items()}
    return ", ".join(f"{k} {v}" for k, v in texts.items() if len(v) < 40)

"""Stores the runs of an experiment in a JSON file, with settings, commit and machine."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from book.experiment import Case, Experiment, Form, Scale
from book.rows import Run, Runs
from headrace.errors import ConfigError, HeadraceError
from headrace.rundir.atomic_files import replace_text
from headrace.studies.machine import machine


@dataclass
class Data:
    """Runs of one experiment by case, read from ``folder`` and written after each run.

    The file holds settings that all runs share once, and those that differ by their fingerprint.
    """

    experiment: Experiment
    folder: Path
    form: Scale = "full"
    machine: str = field(default_factory=machine)  # before threads are restricted to a core
    _lines: dict[str, dict[str, Any]] = field(default_factory=dict)  # by case, as JSON
    _settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by fingerprint
    _keys: list[str] = field(default_factory=list)  # the cases to run, as JSON
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        stored = json.loads(self.path.read_text(encoding="utf-8"))
        self.form = stored["form"]
        self._lines = {json.dumps(line["case"]): line for line in stored["runs"]}
        shared = stored["shared_settings"]
        self._settings = {key: {**shared, **own} for key, own in stored["settings"].items()}

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.folder / f"{self.experiment.name}.json"

    @property
    def runs(self) -> Runs:
        """Return the runs that ended without an error."""
        ended = [line for line in self._lines.values() if "values" in line]
        return Runs(tuple(Run(line["case"], line["values"]) for line in ended))

    @property
    def failed(self) -> list[str]:
        """Return the errors of failed runs."""
        return [line["error"] for line in self._lines.values() if "error" in line]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the stored record of each run."""
        return list(self._lines.values())

    def stale(self) -> list[Mapping[str, Any]]:
        """Return the cases whose settings have other values today."""
        cases = [line for line in self._lines.values() if self._is_stale(line)]
        return [line["case"] for line in cases]

    def _is_stale(self, line: Mapping[str, Any]) -> bool:
        now = self._settings_today(line["case"])
        return now is None or bool(_changes(self._settings[line["settings"]], now))

    def _settings_today(self, case: Case) -> dict[str, Any] | None:
        """Return the settings of a case; None if the case isn't valid any more."""
        try:
            return self.experiment.settings_of(case)
        except (HeadraceError, LookupError, TypeError, ValueError, AttributeError):
            return None

    def changed(self) -> list[str]:
        """Return the names of settings that stale runs had with other values."""
        names: dict[str, None] = {}
        for case in self.stale():
            line = self._lines[json.dumps(case)]
            then = self._settings[line["settings"]]
            if (now := self._settings_today(case)) is not None:
                names |= dict.fromkeys(_changes(then, now))
        return list(names)

    def missing(self, cases: list[Case]) -> list[Case]:
        """Return cases that have no run, or a failed or stale one."""
        lines = [(case, self._lines.get(json.dumps(case))) for case in cases]
        return [c for c, line in lines if not line or "error" in line or self._is_stale(line)]

    def num_missing(self) -> int:
        """Return how many cases of the stored form, from its first seed on, have no line."""
        seeds = [line["case"].get("seed", 0) for line in self.lines]
        cases = self.experiment.cases(Form(self.form, min(seeds, default=0)))
        return sum(json.dumps(case) not in self._lines for case in cases)

    def start(self, form: Scale, cases: list[Case], replace: bool = False) -> None:
        """Begin to add runs of these cases.

        Args:
            replace: drop runs of other cases.

        Raises:
            ConfigError: the file has runs of other cases, such as another form or other seeds.
        """
        keys = [json.dumps(case) for case in cases]
        others = self._lines.keys() - set(keys)
        if others and not replace:
            raise ConfigError(
                f"{self.path} has {len(others)} runs of other cases, such as {min(others)}: choose "
                "another --output, or drop them with --replace"
            )
        self.form, self._keys = form, keys
        self._sort()

    def _sort(self) -> None:
        """Put the runs in the order of the cases."""
        self._lines = {key: self._lines[key] for key in self._keys if key in self._lines}

    def add(self, case: Case, seconds: float, **result: Any) -> None:
        """Add a run and write the file.

        Args:
            seconds: its duration.
            result: ``values`` or ``error``.
        """
        known = self.experiment.fingerprint(case)
        line = {"case": dict(case), "settings": known, "seconds": round(seconds, 1)}
        line |= {"commit": commit(), "machine": self.machine, **result}
        with self._lock:
            self._settings[known] = self.experiment.settings_of(case)
            self._lines[json.dumps(case)] = line
            self._sort()
            self._write()

    def _write(self) -> None:
        used = {line["settings"]: self._settings[line["settings"]] for line in self.lines}
        first, *others = used.values()
        shared = {k: v for k, v in first.items() if all(o.get(k, o) == v for o in others)}
        own = {h: {k: v for k, v in s.items() if k not in shared} for h, s in used.items()}
        head = {"experiment": self.experiment.name, "form": self.form, "shared_settings": shared}
        parts = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
        settings = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in own.items())
        runs = ",\n".join(f"  {json.dumps(line)}" for line in self.lines)
        parts += [f'"settings": {{\n{settings}\n}}', f'"runs": [\n{runs}\n]']
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.path, "{" + ",\n".join(parts) + "}\n")


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that have other values, without new ones that are off."""
    new = now.keys() - then.keys()
    return [
        name for name in {**then, **now}
        if (not _is_off(now[name]) if name in new else name not in now or then[name] != now[name])
    ]  # fmt: skip


def _is_off(value: Any) -> bool:
    """Return True if a setting that was added later has no effect with this value."""
    return value is None or value is False or value in ([], {}, "")


def commit() -> str:
    """Return the abbreviated commit of this checkout, with a ``+`` if the code has changes.

    Empty outside of a checkout.
    """
    git = ["git", "-C", str(Path(__file__).parents[2])]
    code = ["headrace", "headrace_ssa", "benchmarks"]
    try:
        known = _output([*git, "rev-parse", "--short=8", "HEAD"])
        return known + "+" * bool(_output([*git, "status", "--porcelain", "--", *code]))
    except (OSError, subprocess.CalledProcessError):
        return ""


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

"""Table of a study's runs that survives interruption.

A study is a list of *cases*: dicts of settings, including the seed, that identify one run each. The
table has a line per run, appended when the run ends. Starting a study again runs only the cases
without a line; with other settings it adds lines and keeps the old ones.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rich import progress
from rich.console import Console

from headrace.errors import ConfigError, setting
from headrace.processes import safe_files
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.studies.children import Children

Case = Mapping[str, Any]


def grid(settings: Case, **axes: Iterable[Any]) -> list[Case]:
    """Return all combinations of some axes, merged with the common settings.

    The last axis is outermost. Pass the seed there, so that temporary noise affects all cases.
    """
    values = [list(axis) for axis in axes.values()][::-1]
    return [
        dict(zip(axes, chosen[::-1], strict=True)) | dict(settings)
        for chosen in itertools.product(*values)
    ]


def fingerprint(values: Any) -> str:
    """Return a fingerprint of JSON settings."""
    text = json.dumps(values, sort_keys=True)
    # The x keeps the fingerprint from parsing as a number.
    return "x" + hashlib.sha256(text.encode()).hexdigest()[:8]


class Study:
    """Runs of a study, stored in a CSV table.

    Args:
        folder: folder of the table, created if it is missing.
        columns: columns of the table: the settings of a case, then the results.
        name: name of the file in ``folder``.

    Raises:
        ConfigError: the folder contains a table with other columns.
    """

    def __init__(self, folder: Path, columns: Sequence[str], name: str = "runs.csv") -> None:
        self.folder, self._columns = folder, list(columns)
        self._path = folder / name
        self.rows: list[dict[str, Any]] = []  # in order of their end; numbers are numbers again
        self.failed: list[Case] = []  # in all calls of run
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(self._path):
            with checkpoint_errors(self._path, "read"):
                self._read()

    def _read(self) -> None:
        text = safe_files.read_bytes(self._path, safe_files.LINES_BYTES).decode()
        complete = text[: text.rfind("\n") + 1]  # an interruption may truncate the last line
        if complete != text:
            safe_files.truncate(self._path, len(complete.encode()))
        header, *lines = csv.reader(complete.split("\n")[:-1]) if complete else [[]]
        if header and header != self._columns:
            raise ConfigError(
                f"{self._path} has the columns {', '.join(header)}, but this study writes "
                f"{', '.join(self._columns)}; move it away or choose another folder with "
                f"{setting('output', repr('FOLDER'))}"
            )
        self.rows = [dict(zip(header, map(_parsed, line), strict=True)) for line in lines]

    def append(self, *rows: Case) -> None:
        """Append finished runs to the table; atomic, and on disk on return.

        Raises:
            ValueError: a column is missing or unknown, or a value contains a line break.
        """
        lines = [self._values(row) for row in rows]
        text = io.StringIO()
        new = not self._path.exists() or not self._path.stat().st_size
        csv.writer(text, lineterminator="\n").writerows([self._columns] * new + lines)
        with safe_files.appended(self._path) as file:
            data = text.getvalue().encode()
            if file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        for values in lines:
            self.rows.append(dict(zip(self._columns, map(_parsed, values), strict=True)))

    def _values(self, row: Case) -> list[Any]:
        if set(row) != set(self._columns):
            raise ValueError(f"a run has {sorted(row)}, but the columns are {self._columns}")
        values = [row[name] for name in self._columns]
        if any("\n" in str(value) or "\r" in str(value) for value in values):
            raise ValueError(f"a value of {dict(row)} holds a line break")
        return values

    def row(self, case: Case) -> dict[str, Any] | None:
        """Return the run of a case, or None while it hasn't ended."""
        values = [(name, _parsed(value)) for name, value in case.items()]
        return next((r for r in self.rows if all(r[k] == v for k, v in values)), None)

    def done(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        """Return the finished runs, in the order of the cases."""
        return [row for row in map(self.row, cases) if row is not None]

    def missing(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases without a run."""
        return [case for case in cases if self.row(case) is None]

    def run(
        self,
        cases: Sequence[Case],
        measure: Callable[[Case, Children], Case],
        console: Console,
        jobs: int = 1,
        shown: Sequence[str] | None = None,
    ) -> None:
        """Measure missing cases and append each result; add failed cases to ``failed``.

        Args:
            measure: returns the results of a case. It runs in a thread of this process, so it
                should start a child for long work. All children end with this call.
            console: console for a progress bar, and a line per run.
            jobs: number of cases measured at a time.
            shown: results in the line of a run; None: all.
        """
        names = list(dict.fromkeys(name for case in cases for name in case))
        varied = [k for k in names if len({str(case.get(k)) for case in cases}) > 1]
        cases, children, start = self.missing(cases), Children(), time.monotonic()
        waiting, running = list(reversed(cases)), dict[Future[Case], Case]()
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(_bar(console))
            task = bar.add_task("", total=len(cases))
            pool = stack.enter_context(ThreadPoolExecutor(jobs))
            stack.callback(children.end)  # before the pool waits for its threads
            while waiting or running:
                while waiting and len(running) < jobs:
                    case = waiting.pop()
                    running[pool.submit(measure, case, children)] = case
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    case = running.pop(future)
                    try:
                        result = dict(future.result())
                        self.append({**case, **result})
                        result = {k: v for k, v in result.items() if shown is None or k in shown}
                    except Exception as error:  # the study continues without this run
                        self.failed.append(case)
                        result = {"failed": f"{type(error).__name__}: {error}"}
                    name = _spelled({k: case[k] for k in varied if k in case})
                    count = len(cases) - len(waiting) - len(running)
                    left_s = (time.monotonic() - start) / count * (len(cases) - count)
                    where = f"[{count:>3}/{len(cases)}, {left_s:.0f} s left]"
                    console.print(f"{where} {name}: {_spelled(result)}", soft_wrap=True)
                    bar.advance(task)

    def status(self, console: Console, *names: str) -> int:
        """Print the failed cases and return the exit status of the command."""
        for case in self.failed:
            name = ", ".join(f"{k.replace('_', ' ')} {case[k]}" for k in names)
            console.print(f"failed, start again to repeat it: {name}", soft_wrap=True)
        return 1 if self.failed else 0


def _parsed(value: Any) -> Any:
    """Parse a cell so that a written value compares equal."""
    text = "" if value is None else str(value)
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return {"True": True, "False": False, "": None}.get(text, text)


def _spelled(values: Case) -> str:
    short = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in values.items()}
    return ", ".join(f"{k} {v}" for k, v in short.items())


def _bar(console: Console) -> progress.Progress:
    return progress.Progress(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left:"),
        progress.TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        disable=not console.is_terminal,
    )

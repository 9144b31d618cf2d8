"""What studies of many runs share: a table that survives interruption, and pictures of it.

A study is a list of *cases*: dicts of settings, the seed among them, that name one run each. Its
runs are the lines of a table, one appended when a run ends. Starting a study again does only the
cases that have no line yet; with other settings it adds lines and leaves the old ones alone.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich import progress
from rich.console import Console
from rich.table import Table

from headrace.errors import ConfigError
from headrace.studies.machine import machine

Case = Mapping[str, Any]
Curve = tuple[Sequence[float], Sequence[float]]  # x, growing, and y
GRID_POINTS = 100


class Study:
    """The runs of a study, in a table that is a CSV file.

    Args:
        folder: made if it is missing.
        columns: of the table: the settings that a case names, then the results.
        name: of the file in ``folder``.

    Raises:
        ConfigError: the folder holds a table with other columns.
    """

    def __init__(self, folder: Path, columns: Sequence[str], name: str = "runs.csv") -> None:
        self.folder, self._columns = folder, list(columns)
        self._path = folder / name
        self.rows: list[dict[str, Any]] = []  # in order of their end; numbers are numbers again
        folder.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._read()

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a line without its end was cut by an interruption
        if whole != text:
            os.truncate(self._path, len(whole.encode()))
        header, *lines = csv.reader(whole.split("\n")[:-1]) if whole else [[]]
        if header and header != self._columns:
            raise ConfigError(
                f"{self._path} has the columns {', '.join(header)}, but this study writes "
                f"{', '.join(self._columns)}; move it away or choose another --output"
            )
        self.rows = [dict(zip(header, map(_parsed, line), strict=True)) for line in lines]

    def append(self, row: Case) -> None:
        """Add a finished run; it is on the disk when this returns.

        Raises:
            ValueError: a column is missing, unknown, or holds a line break.
        """
        if set(row) != set(self._columns):
            raise ValueError(f"a run has {sorted(row)}, but the columns are {self._columns}")
        values = [row[name] for name in self._columns]
        if any("\n" in str(value) or "\r" in str(value) for value in values):
            raise ValueError(f"a value of {dict(row)} holds a line break")
        new = not self._path.exists() or not self._path.stat().st_size
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([self._columns, values] if new else [values])
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(dict(zip(self._columns, map(_parsed, values), strict=True)))

    def row(self, case: Case) -> dict[str, Any] | None:
        """The run of a case; None while it has not ended."""
        wanted = [(name, _parsed(value)) for name, value in case.items()]
        return next((r for r in self.rows if all(r[k] == v for k, v in wanted)), None)

    def done(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        """The runs of those of the cases that have ended, in the order of the cases."""
        return [row for row in map(self.row, cases) if row is not None]

    def missing(self, cases: Sequence[Case]) -> list[Case]:
        """The cases that have no run yet."""
        return [case for case in cases if self.row(case) is None]

    def run(
        self,
        cases: Sequence[Case],
        measure: Callable[[Case], Case],
        console: Console,
        jobs: int = 1,
        cancel: Callable[[], None] = lambda: None,
        shown: Sequence[str] | None = None,
    ) -> list[Case]:
        """Measure the missing cases and append each as it ends; returns those that failed.

        Args:
            measure: gives the results of a case; it runs in a thread of this process, so it
                starts a process of its own for what costs time.
            console: gets a progress bar, and a line per run.
            jobs: how many cases are measured at a time.
            cancel: ends what ``measure`` has started; called at the end, interrupted or not.
            shown: results in a run's line; None: all.
        """
        names = list(dict.fromkeys(name for case in cases for name in case))
        varied = [k for k in names if len({str(case.get(k)) for case in cases}) > 1]
        cases, failed = self.missing(cases), []
        waiting, running = list(reversed(cases)), dict[Future[Case], Case]()
        with contextlib.ExitStack() as stack:
            report = stack.enter_context(_progress(console, len(cases)))
            pool = stack.enter_context(ThreadPoolExecutor(jobs))
            stack.callback(cancel)  # before the pool waits for its threads
            while waiting or running:
                while waiting and len(running) < jobs:
                    case = waiting.pop()
                    running[pool.submit(measure, case)] = case
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    case = running.pop(future)
                    try:
                        result = dict(future.result())
                        self.append({**case, **result})
                        result = {k: v for k, v in result.items() if shown is None or k in shown}
                    except Exception as error:  # one run is lost, the study goes on
                        failed.append(case)
                        result = {"failed": f"{type(error).__name__}: {error}"}
                    name = _spelled({k: case[k] for k in varied if k in case})
                    report(f"{name}: {_spelled(result)}")
        return failed


def _parsed(value: Any) -> Any:
    """A cell as it is compared and calculated with; what was written reads the same."""
    text = "" if value is None else str(value)
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return {"True": True, "False": False, "": None}.get(text, text)


def _spelled(values: Case) -> str:
    short = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in values.items()}
    return ", ".join(f"{k} {v}" for k, v in short.items())


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Gives a function that notes one more run, with its line of text."""
    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left:"),
        progress.TimeRemainingColumn(elapsed_when_finished=False),
    )
    start, count = time.monotonic(), 0
    bar = progress.Progress(*columns, console=console, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("", total=total)

        def report(line: str) -> None:
            nonlocal count
            count += 1
            left_s = (time.monotonic() - start) / count * (total - count)
            console.print(f"[{count:>3}/{total}, {left_s:.0f} s left] {line}", soft_wrap=True)
            bar.update(task, advance=1)

        yield report


# -- figures ---------------------------------------------------------------------------------------


def mean_se(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of the mean; the error of a single value is NaN.

    Raises:
        statistics.StatisticsError: there is no value.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, statistics.stdev(values) / math.sqrt(len(values))


def plus_minus(mean: float, se: float, digits: int = 1) -> str:
    """``12.3 ± 0.4``, without the error where there is none."""
    text = f"{mean:,.{digits}f}"
    return text if math.isnan(se) else f"{text} ± {se:,.{digits}f}"


def show(rows: Sequence[Case], title: str, console: Console) -> None:
    """Print a table of texts, one column per key; the first is aligned to the left."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def head(doc: str | None, settings: str, console: Console) -> None:
    """Print what a study reproduces, its settings and the machine."""
    first = (doc or "").strip().split("\n\n")[0]
    console.print(f"{first}\n{settings}\nMachine: {machine()}", soft_wrap=True)


# -- pictures --------------------------------------------------------------------------------------


def draw_bars(
    series: Mapping[str, Mapping[str, tuple[float, float]]], title: str, ylabel: str, path: Path
) -> None:
    """Grouped bars with whiskers of one standard error.

    Args:
        series: by its name in the legend, by group on the x axis: mean and standard error.
    """
    groups = list(dict.fromkeys(group for bars in series.values() for group in bars))
    picture = Figure(figsize=(max(6.0, 1.6 * len(groups) + 2), 4.2), layout="constrained")
    panel = picture.subplots()
    width = 0.8 / len(series)
    for i, (name, bars) in enumerate(series.items()):
        at = [groups.index(group) + (i - (len(series) - 1) / 2) * width for group in bars]
        means, errors = zip(*bars.values(), strict=True)
        panel.bar(at, means, width, yerr=errors, label=name, capsize=3, ecolor="#333333")
    panel.set_xticks(range(len(groups)), groups)
    panel.set(ylabel=ylabel)
    panel.set_title(title, fontsize="small", wrap=True)
    panel.legend(fontsize="small")
    panel.grid(axis="y", alpha=0.3)
    picture.savefig(path, dpi=120)


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], title: str, ylabel: str, path: Path
) -> None:
    """Learning curves side by side: the seeds' mean with a band of one standard error.

    Args:
        panels: by the label of their x axis, by the name in the legend: one curve per seed.
    """
    picture = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    row = picture.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for panel, (xlabel, series) in zip(row, panels.items(), strict=True):
        for name, curves in series.items():
            x, mean, se = mean_curve(curves)
            (line,) = panel.plot(x, mean, label=name)
            panel.fill_between(x, mean - se, mean + se, alpha=0.2, color=line.get_color())
        panel.set(xlabel=xlabel)
        panel.grid(alpha=0.3)
    row[0].set(ylabel=ylabel)
    for i, (panel, series) in enumerate(zip(row, panels.values(), strict=True)):
        if i == 0 or list(series) != list(next(iter(panels.values()))):
            panel.legend(fontsize="small")
    picture.suptitle(title, fontsize="small", wrap=True)
    picture.savefig(path, dpi=120)


def mean_curve(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, mean and standard error over curves, interpolated where all of them have values.

    Empty curves are left out. The error of a single curve is 0: it has no band.

    Raises:
        ValueError: no x is common to all curves.
    """
    full = [curve for curve in curves if len(curve[0])]
    if not full:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    low, high = max(x[0] for x, _ in full), min(x[-1] for x, _ in full)
    if low > high:
        raise ValueError(f"curves that start at {low} and end at {high} have no x in common")
    x = np.linspace(low, high, GRID_POINTS)
    y = np.stack([np.interp(x, *curve) for curve in full])
    se = y.std(axis=0, ddof=1) / math.sqrt(len(y)) if len(y) > 1 else np.zeros(len(x))
    return x, y.mean(axis=0), se

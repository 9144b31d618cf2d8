"""The commands ``headrace report``, ``watch`` and ``doctor``.

Functions import what reads runs when they are called: ``--help`` needs none of it.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from headrace.errors import CheckpointError, ConfigError, require
from headrace.processes.display import has_display

if TYPE_CHECKING:
    from headrace.rundir.curves import Interval

_LOOK_S = 0.25


def report(runs: list[Path], output: Path | None = None) -> None:
    """Write one self-contained HTML file about one or several runs.

    Runs that differ only in their seed are one curve: the interquartile mean with its 95% bootstrap
    interval.

    Args:
        runs: run directories.
        output: path of the page; None: report.html in a single run, or comparison.html next to
            several.
    """
    from headrace.reporting.page import write

    paths = list(dict.fromkeys(runs))
    interval, notes = interval_of(paths)
    print(f"report: {write(paths, output, interval, notes)}")


def interval_of(runs: list[Path]) -> tuple[Interval | None, list[str]]:
    """Return the function for intervals over runs.

    None if all runs are single curves, or, with a printed reason, if it is unavailable.
    """
    from headrace.rundir.curves import by_settings, read_run

    if all(len(group) < 2 for group in by_settings([read_run(run) for run in runs]).values()):
        return None, []
    try:
        return _interval(), []
    except ConfigError as error:
        note = f"Curves have no intervals: {error}"
        print(f"headrace: {note}", file=sys.stderr)
        return None, [note]


def _interval() -> Interval:
    """Compute the interquartile mean of values ``[runs, points]`` and its interval.

    Raises:
        ConfigError: rliable isn't installed.
    """
    import numpy as np

    from headrace.studies.statistics import over_runs

    over_runs(np.zeros((2, 1)))  # raises, if at all, before anything is drawn
    return over_runs


def doctor(runs: list[Path], json: bool = False) -> None:
    """Find problems of runs, and settings that usually fix them.

    Args:
        runs: run directories of finished or current runs.
        json: print one line of JSON for each run.
    """
    from json import dumps

    from headrace.doctor.doctor import no_findings
    from headrace.rundir.curves import read_run
    from headrace.rundir.health import as_json, findings

    if not runs:
        raise ConfigError("doctor needs one or more run directories: headrace doctor runs/one")
    for path in dict.fromkeys(runs):
        run = read_run(path)
        logged = findings(run)
        if json:
            print(dumps({"run": str(path), "findings": [as_json(one) for one in logged]}))
            continue
        print(f"{path}:" if logged else f"{path}: {no_findings(run.results, run.settings)}")
        for one in logged:
            when = f"{'earlier, ' * one.earlier}after {one.env_steps:,} steps"
            print(f"  {one.finding.name}: {one.finding.line} ({when})")


def watch(
    run: Annotated[Path, tyro.conf.Positional],
    terminal: bool = False,
    refresh_s: float = 2.0,
    port: int = 0,
    timeout_s: float = 60.0,
    browser: bool = True,
) -> None:
    """Show a current run: its report in a browser, refreshed regularly.

    The page is served on 127.0.0.1 only, at the printed address. Ctrl-C stops the server; the run
    continues.

    Args:
        run: run directory, which may not exist yet.
        terminal: show the run in the terminal instead, until it ends.
        refresh_s: seconds between refreshes.
        port: port to listen on; 0: any free port.
        timeout_s: seconds to wait for the run's first result.
        browser: open the page in a browser. Without a display and a port the run is shown in the
            terminal.
    """
    require(0.1 <= refresh_s <= 3600, "refresh_s", refresh_s, "from 0.1 to 3600 (nearest: 2)")
    require(0 <= port <= 65535, "port", port, "from 0 to 65535 (nearest: 0, any that is free)")
    require(0 <= timeout_s <= 86400, "timeout_s", timeout_s, "from 0 to 86400 (nearest: 60)")
    with contextlib.suppress(KeyboardInterrupt):
        _await(run, timeout_s)
        here = terminal or (browser and port == 0 and not has_display())
        (_watch_here if here else _serve)(run, refresh_s, port, browser and has_display())


def _await(run: Path, timeout_s: float) -> None:
    """Wait for a run's first result.

    Raises:
        CheckpointError: none came in time; the message names what is there.
    """
    from headrace.rundir.curves import read_run

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            read_run(run)
            return
        except CheckpointError as error:
            if time.monotonic() >= deadline:
                raise CheckpointError(f"after timeout_s={timeout_s:g} s, {error}") from None
        time.sleep(_LOOK_S)


def _serve(run: Path, refresh_s: float, port: int, browser: bool) -> None:
    from headrace.reporting.live import Live

    with contextlib.ExitStack() as stack:
        live = stack.enter_context(contextlib.closing(Live(run, refresh_s, port)))
        print(f"watching {run} at {live.url}\nCtrl-C ends this, not the run", flush=True)
        if browser:
            import webbrowser

            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(stack.enter_context(_redirect(live.url)).as_uri())
        while True:
            time.sleep(3600.0)


@contextlib.contextmanager
def _redirect(url: str) -> Iterator[Path]:
    """Write a private file that redirects to an address, because command lines are public."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "watch.html"
        file.touch(0o600)
        file.write_text(f'<meta http-equiv="refresh" content="0; url={url}">')
        yield file


def _watch_here(run: Path, refresh_s: float, *_: object) -> None:
    """Show the run in the terminal until it has ended."""
    from rich.console import Console
    from rich.live import Live as Screen

    from headrace.reporting.live import REST
    from headrace.reporting.screen import screen
    from headrace.rundir.curves import read_run

    console, took = Console(), 0.0
    with Screen(screen(read_run(run)), console=console, auto_refresh=False) as shown:
        while not _has_ended(run):
            time.sleep(max(refresh_s, REST * took))
            began = time.monotonic()
            with contextlib.suppress(CheckpointError):  # it is being replaced
                shown.update(screen(read_run(run)), refresh=True)
            took = time.monotonic() - began
        shown.update(screen(read_run(run)), refresh=True)
    if not console.is_terminal:
        console.print()


def _has_ended(run: Path) -> bool:
    """Return True if the run's summary exists and is newer than its results."""
    summary, metrics = run / "summary.json", run / "metrics.jsonl"
    return summary.exists() and summary.stat().st_mtime_ns >= metrics.stat().st_mtime_ns

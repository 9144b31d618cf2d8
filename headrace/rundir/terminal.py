"""Shows a run on the terminal: progress during training, a table at the end."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from headrace.config import Config
from headrace.processes.output import GuardedStream, discard_output, replace_unencodable
from headrace.rundir.closing_table import closing_table, shown
from headrace.rundir.result import Result
from headrace.schedules import share_done

_PLAIN_INTERVAL_S = 5.0
_SPEED_S = 1.0  # fewest seconds behind a speed


class Report:
    """Shows a live line on a terminal, or a plain line every few seconds elsewhere.

    Args:
        config: settings of the run.
        console: destination; None: standard output.
        quiet: write nothing.
    """

    def __init__(self, config: Config, console: Console | None = None, quiet: bool = False) -> None:
        self._config, self._folder = config, Path.cwd()
        replace_unencodable()
        self._console = console or Console(
            quiet=quiet, file=cast(TextIO, GuardedStream(sys.stdout))
        )
        self._console.on_broken_pipe = self._stop_printing  # type: ignore[method-assign]
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn(
                "{task.fields[line]}", markup=False, table_column=Column(no_wrap=True, ratio=1)
            ),
            console=self._console,
            expand=True,  # the last column gets the space that the others leave
        )
        self._task = self._progress.add_task(config.algo_name, total=1.0, line="starting")
        self._live = Live(self._progress, console=self._console, transient=True)
        self._last_plain_s = -_PLAIN_INTERVAL_S
        self._measured: tuple[int, float] | None = None  # steps and time of the latest speed
        self._sps: float | None = None
        self._begun_s = time.monotonic()

    def __enter__(self) -> Report:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _stop_printing(self) -> None:
        """Stop printing after the reader has closed the pipe; the run continues."""
        self._console.quiet = True
        discard_output()

    def say(self, text: str) -> None:
        """Print a line of plain text, without markup or emojis."""
        self._console.print(Text(text), soft_wrap=True)

    def begin(self, config: Config, run_dir: Path) -> None:
        """Print the resolved settings and the run directory."""
        learners = f"{config.num_learners} learners, " if config.num_learners > 1 else ""
        sync = "" if config.weight_sync == "every" else f", weight sync {config.weight_sync}"
        if config.sync.on_drift:
            sync += f" beyond {config.kl_threshold:g} nats"
        written = config.to_json()
        wrappers = "".join(f" + {name}" for name in written["wrappers"])
        self.say(
            f"{config.algo_name} on {', '.join(written['tasks']) or written['env']}{wrappers} "
            f"(engine {config.engine}): {learners}"
            f"{config.num_actors} actor{'s' if config.num_actors != 1 else ''} × "
            f"{config.envs_per_actor} environments, rollouts of {config.fragment_length} steps, "
            f"batches of {config.resolved_batch_size:,} steps, "
            f"{config.cluster or config.transport}{sync}; results in {self._short(run_dir)}"
        )

    def _short(self, path: Path) -> Path:
        """Return a path relative to the directory in which the run was started."""
        return path.relative_to(self._folder) if path.is_relative_to(self._folder) else path

    def update(self, result: Result) -> None:
        """Show one result."""
        now = time.monotonic()
        result = self._with_steady_speed(result, now)
        line = main_line(result)
        self._progress.update(self._task, completed=self._share(result), line=line)
        if not self._console.is_terminal and now - self._last_plain_s >= _PLAIN_INTERVAL_S:
            self._last_plain_s = now
            self.say(f"{self._done(result, now)} · {line}")

    def _with_steady_speed(self, result: Result, now: float) -> Result:
        """Return a result with the speed over a second or more, instead of since the last one."""
        steps, since = self._measured or (result.env_steps, now)
        if now - since >= _SPEED_S:
            self._sps = (result.env_steps - steps) / (now - since)
            steps, since = result.env_steps, now
        self._measured = steps, since
        return result if self._sps is None else replace(result, sps=self._sps)

    def _done(self, result: Result, now: float) -> str:
        """Format the completed share of a run, the time so far and the estimated time left.

        The first result has no estimate: its speed includes start-up.
        """
        config = self._config
        text = f"{self._share(result):>4.0%} {_duration(now - self._begun_s)}"
        if not self._sps:
            return text
        left_s = max(0, config.total_steps - result.env_steps) / self._sps
        if config.stop_time_s is not None:
            left_s = min(left_s, max(0.0, config.stop_time_s - result.seconds))
        return f"{text}, {_duration(left_s)} left"

    def _share(self, result: Result) -> float:
        """Return the share of the run that is done."""
        limits = self._config.total_steps, result.seconds, self._config.stop_time_s
        return min(1.0, share_done(result.env_steps, *limits))

    def end(self, run_dir: Path, summary: dict[str, Any]) -> None:
        """Print the closing screen: results, speed, then the paths of files, never wrapped."""
        self._live.stop()
        self._console.print(Panel(closing_table(summary), expand=False))
        for name, path in _files(run_dir).items():
            self.say(f"{name:<12}{self._short(path)}")


def _files(run_dir: Path) -> dict[str, Path]:
    """Return the files of a finished run that a user opens next."""
    names = {"checkpoint": "checkpoints/latest", "metrics": "metrics.jsonl"}
    names |= {"plot": "curve.png", "report": "report.html"}
    return {name: run_dir / file for name, file in names.items() if (run_dir / file).exists()}


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def main_line(result: Result) -> str:
    """Format returns and speed, and then where the time goes."""
    parts = [f"{result.sps:,.0f} steps/s", f"{result.env_steps:,} steps"]
    if result.frames is not None:
        parts.append(f"{result.frames:,} frames")
    if result.episode_return is not None:
        parts.insert(0, f"return {shown(result.episode_return)}")
    if result.utilisation_actor is not None:
        parts.append(
            f"busy: learner {result.utilisation_learner:.0%}, actors {result.utilisation_actor:.0%}"
        )
    if result.lag_mean is not None:
        parts.append(f"lag {result.lag_mean:.1f}")
    if result.sync_divergence is not None:
        parts.append(f"pulls {result.sync_pulls:,} (KL {result.sync_divergence:.3f})")
    if result.dropped:
        parts.append(f"dropped {result.dropped}")
    if result.lost:
        parts.append(f"lost {result.lost}")
    return " · ".join(parts)

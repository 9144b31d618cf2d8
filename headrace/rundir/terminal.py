"""Shows a run on the terminal: progress during training, a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
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
from rich.table import Column, Table
from rich.text import Text

from headrace.config import Config
from headrace.processes.output import GuardedStream, discard_output, replace_unencodable
from headrace.rundir.result import Result

_PLAIN_INTERVAL_S = 5.0
_SPEED_S = 1.0  # fewest seconds behind a speed
_SPENT = {
    "learn": "computing", "wait": "waiting", "publish": "publishing", "comm": "all-reduce",
    "sync": "waiting for others",
}  # fmt: skip


_ACTIONS = {True: "deterministic policy", False: "sampled actions"}


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
        self._task = self._progress.add_task(
            config.algo_name, total=config.total_steps, line="starting"
        )
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
        self._progress.update(self._task, completed=result.env_steps, line=line)
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
        """Format the share of the run that is done, the time so far and the estimated rest."""
        total = self._config.total_steps
        done = min(1.0, result.env_steps / total)
        text = f"{done:>4.0%} {_duration(now - self._begun_s)}"
        if result.sps <= 0:
            return text
        return f"{text}, {_duration(max(0, total - result.env_steps) / result.sps)} left"

    def end(self, run_dir: Path, summary: dict[str, Any]) -> None:
        """Print the closing screen: results, speed, then the paths of files, never wrapped."""
        self._live.stop()
        self._console.print(Panel(closing_table(summary), expand=False))
        for name, path in _files(run_dir).items():
            self.say(f"{name:<12}{self._short(path)}")


def _files(run_dir: Path) -> dict[str, Path]:
    """Return the files of a finished run that a user opens next."""
    written = {"plot": run_dir / "curve.png", "report": run_dir / "report.html"}
    files = {"checkpoint": run_dir / "checkpoints" / "latest", "metrics": run_dir / "metrics.jsonl"}
    return files | {name: path for name, path in written.items() if path.exists()}


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def main_line(result: Result) -> str:
    """Format returns and speed, and then where the time goes."""
    parts = [f"{result.sps:,.0f} steps/s", f"{result.env_steps:,} steps"]
    if result.frames is not None:
        parts.append(f"{result.frames:,} frames")
    if result.episode_return is not None:
        parts.insert(0, f"return {result.episode_return:.1f}")
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


def closing_table(summary: dict[str, Any]) -> Table:
    """Build the table of returns, then of speed, times and lag."""
    table = Table.grid(padding=(0, 2))
    for name, value in (_result_rows(summary) | _speed_rows(summary)).items():
        if value:  # otherwise unknown
            table.add_row(Text(name, style="bold"), Text(str(value)))
    return table


def _result_rows(summary: dict[str, Any]) -> dict[str, Any]:
    """Format the returns of a run, and what the doctor found."""
    played, missing = summary.get("evaluation"), summary.get("no_evaluation")
    human = played and played.get("human_normalized")
    capped = ", each task capped" if summary.get("tasks") else ""
    mean, of_each = summary["episodic_return"], " of each task" if summary.get("tasks") else ""
    warned = [one["name"] for one in summary.get("warnings", ()) if "earlier" not in one]
    return {
        "evaluated return": f"{played['mean']:.1f} ± {played['std']:.1f} (standard deviation over "
        f"{played['episodes']} episodes{_unfinished(played)}, "
        f"{_ACTIONS[played.get('deterministic', True)]})"
        if played
        else missing and f"none: {missing}",
        **_other_mode(played or {}),
        "human-normalised": human is not None and f"{human:.1%} (0 random, 100% human{capped})",
        "training return": mean is not None and f"{mean:.1f} (last 100 episodes{of_each})",
        **{f"evaluated on {k}": v for k, v in _others(played or {}).items()},
        **_of_parts(summary, played, "tasks"),
        **_of_parts(summary, played, "agents"),
        **{f"policy {k}": v for k, v in _of_parts(summary, played, "policies").items()},
        "doctor": warned and f"{', '.join(warned)}: see warnings.jsonl and the report",
    }


def _speed_rows(summary: dict[str, Any]) -> dict[str, Any]:
    """Format steps, speed, and where the time went."""
    first, plan, frames = (summary.get(x) for x in ("seconds_to_first_update", "plan", "frames"))
    busy, lag, sync = summary["utilisation"], summary["lag"], summary["sync"]
    lost, is_asynchronous = summary.get("lost"), lag.get("bound") != 0
    times = [(word, summary["time"][name]) for name, word in _SPENT.items()]
    return {
        "environment steps": f"{summary['env_steps']:,} in {summary['seconds_training']:.1f} s of "
        "training",
        "frames": frames and f"{frames:,}, {summary['frames_per_step']} per step",
        "speed": f"{summary['sps']:,.0f} steps/s after the first update",
        "first update": first is not None and f"{first:.1f} s after the start",
        "session": f"{summary['seconds_total']:.1f} s with start-up, until the end of training",
        "bottleneck": plan and _is_clear(plan, busy, is_asynchronous) and _advice(plan["line"]),
        "learner's time": " · ".join(f"{word} {s:.1f} s" for word, s in times if s is not None),
        "busy": busy["actor"] is not None
        and f"learner {busy['learner']:.0%} · actors {busy['actor']:.0%}",
        "policy lag": is_asynchronous
        and lag["mean"] is not None
        and f"{lag['mean']:.2f} updates on average, at most {lag['max']}",
        "dropped rollouts": summary["dropped"] and f"{summary['dropped']}, too old",
        "lost rollouts": lost and f"{lost}, unfinished in actors that died",
        "weights pulled": sync.get("divergence") is not None
        and f"{sync['pulls']:,} times, {sync['bytes'] / 1e6:,.1f} MB",
    }


def _is_clear(plan: dict[str, Any], busy: dict[str, Any], is_asynchronous: bool) -> bool:
    """Return False if the side with the smaller capacity was the less busy one."""
    sides = {"actors": ("actor", "learner"), "learners": ("learner", "actor")}
    if not is_asynchronous or busy["actor"] is None or plan.get("bottleneck") not in sides:
        return True
    slow, fast = sides[plan["bottleneck"]]
    return bool(busy[slow] >= busy[fast])


def _advice(line: str) -> str:
    """Shorten the line about the bottleneck to what it is and what would help."""
    subject, _, advice = line.partition("; ")
    helps, would, _ = advice.partition(" would help")
    return f"{subject.partition(':')[0].removeprefix('taking turns, ')}; {helps}{would}"


def _unfinished(played: dict[str, Any]) -> str:
    """Format the number of episodes that did not end, if there are any."""
    count = played.get("unfinished")
    return f", {count} of which did not end" if count else ""


def _other_mode(played: dict[str, Any]) -> dict[str, str]:
    """Format the final evaluation in the other mode of actions."""
    other = played.get("other_mode")
    if other is None:
        return {}
    return {_ACTIONS[other["deterministic"]]: f"{other['mean']:.1f} ± {other['std']:.1f}"}


def _others(played: dict[str, Any]) -> dict[str, str]:
    """Format mean and standard deviation for each of the run's ``eval_envs``."""
    return {k: f"{x['mean']:.1f} ± {x['std']:.1f}" for k, x in (played.get("others") or {}).items()}


def _of_parts(summary: dict[str, Any], played: dict[str, Any] | None, kind: str) -> dict[str, str]:
    """Format a row for each of several tasks, agents of a game, or policies."""
    evaluated = (played or {}).get(kind) or {}
    return {
        name: " · ".join(_of_part(one, evaluated.get(name)))
        for name, one in (summary.get(kind) or {}).items()
        if tuple(one.get("agents", ())) != (name,)  # its agent's row is the same
    }


def _of_part(trained: dict[str, Any], played: dict[str, Any] | None) -> Iterator[str]:
    if played is not None:
        yield f"evaluated {played['mean']:.1f} ± {played['std']:.1f}"
        if played["human_normalized"] is not None:
            yield f"human-normalised {played['human_normalized']:.1%}"
    if trained["episode_return"] is not None:
        yield f"training {trained['episode_return']:.1f}, length {trained['episode_length']:.0f}"
    yield f"{trained['env_steps']:,} steps"

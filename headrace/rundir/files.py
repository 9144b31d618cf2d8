"""Appends to the log files of a run: results, returns, evaluations, iterations, warnings.

Data that can't be written is kept and written later.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from headrace import extras
from headrace.doctor.doctor import Doctor, Finding
from headrace.envs.changes import EnvChange
from headrace.errors import on_one_line, shown
from headrace.evaluation import Evaluation
from headrace.processes import safe_files
from headrace.processes.output import print_line
from headrace.rundir import tensorboard_events
from headrace.rundir.atomic_files import (
    TolerantWriter,
    checkpoint_errors,
    replace_bytes,
    write_json,
)
from headrace.rundir.early_returns import ReturnPoint
from headrace.rundir.json_values import plain
from headrace.rundir.machine_info import machine, versions
from headrace.rundir.metric_accumulators import Iteration
from headrace.rundir.result import Result

RETURN = "charts/episodic_return"
MACHINE = "machine.json"  # written after the first update, which it doesn't delay


class RunLog:
    """Writes results, evaluations, warnings, iterations and TensorBoard events of a run.

    Args:
        path: run directory.
        num_learners: number of learners whose iterations are written.
        keep_until: when resuming, drop lines beyond these env_steps and updates.
        notify: called with findings, and when writing fails or works again.
        doctor: examines every result; findings are written to ``warnings.jsonl``. None: off.

    Raises:
        CheckpointError: a later result can't be dropped.
    """

    def __init__(
        self,
        path: Path,
        num_learners: int,
        keep_until: tuple[int, int] | None = None,
        notify: Callable[[str], None] = print_line,
        doctor: Doctor | None = None,
    ) -> None:
        self._metrics, self._evaluations = path / "metrics.jsonl", path / "evaluations.jsonl"
        self._events = path / tensorboard_events.file_name()
        self._writes_events = extras.is_installed("tensorboard")
        self._warnings, self._doctor = path / "warnings.jsonl", doctor
        self._ranks = [path / "iterations" / f"rank_{r}.jsonl" for r in range(num_learners)]
        self._changes, self._returns = path / "env_changes.jsonl", path / "returns.jsonl"
        files = (self._metrics, self._events, *self._ranks, self._evaluations, self._warnings)
        files += (self._changes, self._returns)
        self._unwritten = {file: bytearray() for file in files}
        self._disk, self._notify, self._root = TolerantWriter(notify), notify, path
        if keep_until is not None:
            ours = (self._metrics, self._evaluations, *path.glob("iterations/rank_*.jsonl"))
            others = self._warnings, self._changes, self._returns
            for file in filter(os.path.lexists, (*ours, *others)):
                truncate_jsonl(file, *keep_until, path)
            self._restore_doctor()
        purge_step = None if keep_until is None else keep_until[0] + 1
        self._is_first = True
        self._header: Callable[[], bytes] | None = partial(tensorboard_events.header, purge_step)
        for file in (self._metrics, *self._ranks):
            if self._disk.attempt(f"writing {file.name}", partial(self._append, file)):
                self._unwritten[file].clear()

    def returns(self, points: Sequence[ReturnPoint]) -> None:
        """Add points of the curve of returns, before the result that follows them."""
        for point in points:
            position = {"env_steps": point.env_steps, "update": point.updates}
            scalars = {RETURN: point.episode_return}
            self._note(self._returns, position | {"seconds": round(point.seconds, 6)} | scalars)
            if self._writes_events:
                self._note_events(scalars, point.env_steps)

    def result(self, result: Result) -> None:
        """Write a result, and the iterations before it."""
        scalars = result.scalars()
        position = {"env_steps": result.env_steps, "seconds": round(result.seconds, 6)}
        self._note(self._metrics, position | scalars)
        for finding in self._findings(position | scalars):
            self._notify(f"doctor: {finding.line}")
            self._note(self._warnings, position | finding._asdict())
        if self._is_first:
            self._is_first = False
            self._disk.attempt(f"writing {MACHINE}", self._write_machine)
        if self._writes_events:
            self._note_events(scalars, result.env_steps)
        self.flush()

    def _note_events(self, scalars: dict[str, float], env_steps: int) -> None:
        if self._header is not None:
            self._unwritten[self._events] += self._header()
            self._header = None
        self._unwritten[self._events] += tensorboard_events.scalars(scalars, env_steps)

    def _restore_doctor(self) -> None:
        """Mark findings in ``warnings.jsonl`` as already reported."""
        with self._guarded():
            if self._doctor is not None and self._warnings.exists():
                before = read_jsonl(self._warnings)
                self._doctor.reported |= {str(line["name"]) for line in before if "name" in line}

    def _findings(self, line: dict[str, Any]) -> list[Finding]:
        """Return the doctor's findings for a line."""
        with self._guarded():
            return [] if self._doctor is None else self._doctor.note(line)
        return []

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Disable a doctor that raises, so that its error doesn't stop training."""
        try:
            yield
        except Exception as error:
            self._doctor, why = None, on_one_line(error)
            self._notify(f"the doctor failed and is disabled for this run ({why})")

    def _write_machine(self) -> None:
        write_json(self._metrics.with_name(MACHINE), {"machine": machine(), "versions": versions()})

    def flush(self) -> None:
        """Write all pending lines."""
        for file, data in self._unwritten.items():
            if data and self._disk.attempt(f"writing {file.name}", partial(self._append, file)):
                data.clear()

    def _append(self, file: Path) -> None:
        with checkpoint_errors(file):
            self._root.mkdir(exist_ok=True)  # unless it was removed
            if file.parent != self._root:
                safe_files.make_folder(file.parent, self._root)
        append(file, self._unwritten[file], self._root)

    def _note(self, file: Path, line: dict[str, Any]) -> None:
        self._unwritten[file] += _encoded(line)

    def iteration(
        self, parts: Iterable[Iteration], update: int, env_steps: int, secs: float
    ) -> None:
        """Add an update's lines by rank; ``secs``: training time without evaluations."""
        position = {"update": update, "env_steps": env_steps, "seconds": round(secs, 6)}
        for file, one in zip(self._ranks, parts, strict=False):
            self._note(file, position | one.line())

    def evaluation(self, evaluation: Evaluation, env_steps: int, seconds: float) -> None:
        """Write an evaluation's line; ``seconds``: training time when it started."""
        line = {
            "env_steps": env_steps,
            "seconds": round(seconds, 6),
            "return_mean": evaluation.mean,
            "return_std": evaluation.std,
            "episodes": evaluation.episodes,
            "returns": evaluation.returns,
            "lengths": evaluation.lengths,
        }
        if evaluation.unfinished:
            line["unfinished"] = evaluation.unfinished
        if evaluation.human_normalized is not None:
            line["human_normalized"] = evaluation.human_normalized
        if evaluation.metrics:
            line["metrics"] = evaluation.metrics
        if evaluation.others:
            names = "mean", "std", "episodes", "metrics"
            line["others"] = {
                name: {key: getattr(one, key) for key in names}
                for name, one in evaluation.others.items()
            }
        for kind, parts in (("tasks", evaluation.tasks), ("agents", evaluation.agents)):
            if parts is not None:
                line[kind] = {name: one.mean for name, one in parts.items()}
        scores = {k: one.human_normalized for k, one in (evaluation.tasks or {}).items()}
        if any(score is not None for score in scores.values()):
            line["tasks_human_normalized"] = scores
        self._note(self._evaluations, line)
        self.flush()

    def env_change(self, change: EnvChange, env_steps: int, updates: int) -> None:
        """Write a change that a callback made to the environments."""
        position = {"env_steps": env_steps, "update": updates}
        self._note(self._changes, position | asdict(change))
        self.flush()

    def close(self) -> None:
        """Write all pending lines, and report files that can't be written."""
        self.flush()
        if lost := [file.name for file, data in self._unwritten.items() if data]:
            self._notify(f"incomplete because the disk could not be written: {', '.join(lost)}")


def append(path: Path, data: bytes | bytearray, root: Path | None = None) -> None:
    """Append bytes to a file, all or none; creates the file if needed.

    Args:
        root: see :mod:`headrace.processes.safe_files`.

    Raises:
        CheckpointError: the file can't be written.
    """
    with checkpoint_errors(path), safe_files.appended(path, root) as file:
        size = file.tell()
        remaining = memoryview(bytes(data))
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(file.fileno(), size)
            raise


def append_jsonl(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append lines to a JSON-lines file; creates it if needed. Non-finite numbers become null.

    Raises the errors of :func:`append`.
    """
    append(path, b"".join(map(_encoded, lines)))


def _encoded(line: dict[str, Any]) -> bytes:
    return (json.dumps(plain(line), allow_nan=False) + "\n").encode()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a JSON-lines file; skip a line that a crash cut short.

    Raises:
        OSError: the file can't be read.
        ValueError: a line is not a JSON object.
    """
    lines = []
    for number, data in enumerate(safe_files.read_lines(path), start=1):
        text = data.decode()
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        except (RecursionError, ValueError) as error:  # nested too deeply, or a huge number
            raise ValueError(
                f"line {number} was not written by headrace ({type(error).__name__})"
            ) from None
        if not isinstance(line, dict):
            raise ValueError(f"line {number} is {shown(line)}, not an object")
        lines.append(line)
    return lines


def truncate_jsonl(path: Path, env_steps: int, updates: int, root: Path | None = None) -> None:
    """Drop the lines of a JSON-lines file that are beyond these counts.

    Both counts are needed: IMPACT has updates without new data and thus no env_steps. A line cut
    short by a crash is dropped as well. Dropping lines at the end needs no free disk space.
    """

    def kept(text: bytes) -> bool:
        try:
            line = json.loads(text)
            update = line.get("update", line.get("charts/updates", 0))
            within = line["env_steps"] <= env_steps and update <= updates
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # not a run's
            return False
        return bool(text.endswith(b"\n") and within)

    with checkpoint_errors(path):
        before = safe_files.read_bytes(path, safe_files.machine_bytes(), root)
        after = b"".join(line for line in before.splitlines(keepends=True) if kept(line))
        if before.startswith(after):
            safe_files.truncate(path, len(after), root)
        else:
            replace_bytes(path, after, root)

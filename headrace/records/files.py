"""The files that a run adds to: results, evaluations, and a line per update and learner."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

from headrace.evaluation import Evaluation
from headrace.records.iteration import Iteration
from headrace.records.result import Result


class RunLog:
    """``metrics.jsonl``, TensorBoard events, ``evaluations.jsonl`` and ``iterations/``.

    Args:
        path: the run directory.
        num_learners: whose iterations are written; 0: nobody's.
        keep_until: when resuming, drop lines beyond these env_steps and updates.
    """

    def __init__(
        self, path: Path, num_learners: int, keep_until: tuple[int, int] | None = None
    ) -> None:
        self._writer = Writer(path, keep_until)
        self._evaluations = path / "evaluations.jsonl"
        if keep_until is not None:
            for file in (self._evaluations, *path.glob("iterations/rank_*.jsonl")):
                truncate_jsonl(file, *keep_until)
        self._iterations = IterationLog(path, num_learners) if num_learners else None

    def result(self, result: Result) -> None:
        """Write a result, and the iterations before it."""
        self._writer.write(result)
        self.flush()

    def flush(self) -> None:
        """Write the iterations that were noted."""
        if self._iterations is not None:
            self._iterations.flush()

    def iteration(self, parts: list[Iteration], update: int, env_steps: int, secs: float) -> None:
        """Note an update's lines, one per learner; ``secs``: of training, evaluations left out."""
        if self._iterations is not None:
            known = {"update": update, "env_steps": env_steps, "seconds": round(secs, 6)}
            self._iterations.note(parts, **known)

    def evaluation(self, evaluation: Evaluation, env_steps: int, seconds: float) -> None:
        """Write an evaluation's line; ``seconds`` as in :meth:`iteration`."""
        line = {
            "env_steps": env_steps,
            "seconds": round(seconds, 6),
            "return_mean": evaluation.mean,
            "return_std": evaluation.std,
            "episodes": evaluation.episodes,
        }
        with self._evaluations.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Write what was noted and close all files."""
        self._writer.close()
        if self._iterations is not None:
            self._iterations.close()


class IterationLog:
    """``iterations/rank_<r>.jsonl``: a line per update of each learner.

    Args:
        path: the run directory. size: number of learners.
    """

    def __init__(self, path: Path, size: int) -> None:
        folder = path / "iterations"
        folder.mkdir(exist_ok=True)
        names = [f"rank_{rank}.jsonl" for rank in range(size)]
        self._files: list[TextIO] = [(folder / n).open("a", encoding="utf-8") for n in names]
        self._lines: list[tuple[dict[str, Any], list[Iteration]]] = []

    def note(self, iterations: list[Iteration], **known: Any) -> None:
        """Remember an update's lines; ``known`` is what all of them begin with."""
        self._lines.append((known, iterations))

    def flush(self) -> None:
        """Write what was noted."""
        for known, iterations in self._lines:
            for one in iterations:
                self._files[one.rank].write(json.dumps(known | one.line()) + "\n")
        for file in self._files:
            file.flush()
        self._lines = []

    def close(self) -> None:
        """Write what was noted and close the files."""
        self.flush()
        for file in self._files:
            file.close()


class Writer:
    """``metrics.jsonl`` and TensorBoard events in a run directory.

    Args:
        path: the run directory.
        keep_until: when resuming, drop lines beyond these env_steps and updates.
    """

    def __init__(self, path: Path, keep_until: tuple[int, int] | None = None) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        file = path / "metrics.jsonl"
        if keep_until is not None:
            truncate_jsonl(file, *keep_until)
        self._file = file.open("a", encoding="utf-8")
        self._events = EventFileWriter(str(path))

    def write(self, result: Result) -> None:
        """Append one result."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = result.scalars()
        line: dict[str, Any] = {"env_steps": result.env_steps, "seconds": round(result.seconds, 4)}
        self._file.write(json.dumps(line | scalars) + "\n")
        self._file.flush()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        event = Event(wall_time=time.time(), step=result.env_steps, summary=Summary(value=values))
        self._events.add_event(event)

    def close(self) -> None:
        """Flush and close both files."""
        self._file.close()
        self._events.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a last line cut short by a crash is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def truncate_jsonl(path: Path, env_steps: int, updates: int) -> None:
    """Drop the lines of a JSON-lines file, if there is one, that are beyond these counts.

    Both are needed: an update without new data, which IMPACT has, takes no env_steps.
    """

    def kept(line: dict[str, Any]) -> bool:
        update = line.get("update", line.get("charts/updates", 0))
        return bool(line["env_steps"] <= env_steps and update <= updates)

    if path.exists():
        lines = [line for line in read_jsonl(path) if kept(line)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

"""The files that a run adds to: results, evaluations, and a line per update and learner."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.evaluation import Evaluation
from headrace.records.meter import Iteration
from headrace.records.result import Result


class RunLog:
    """``metrics.jsonl``, TensorBoard events, ``evaluations.jsonl`` and ``iterations/``.

    Args:
        path: the run directory.
        num_learners: whose iterations are written; 0: nobody's.
        keep_until: when resuming, drop what is beyond these env_steps and updates.
    """

    def __init__(
        self, path: Path, num_learners: int, keep_until: tuple[int, int] | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._metrics, self._evaluations = path / "metrics.jsonl", path / "evaluations.jsonl"
        ranks = [path / "iterations" / f"rank_{r}.jsonl" for r in range(num_learners)]
        self._noted: dict[Path, list[dict[str, Any]]] = {file: [] for file in ranks}
        if keep_until is not None:
            ours = (self._metrics, self._evaluations, *path.glob("iterations/rank_*.jsonl"))
            for file in filter(Path.exists, ours):
                truncate_jsonl(file, *keep_until)
        for file in (self._metrics, *ranks):
            file.parent.mkdir(exist_ok=True)
            file.touch()
        # TensorBoard leaves out the events before this one from its step on.
        purge_step = None if keep_until is None else keep_until[0] + 1
        self._events = SummaryWriter(str(path), purge_step=purge_step)

    def result(self, result: Result) -> None:
        """Write a result, and the iterations before it."""
        scalars = result.scalars()
        known = {"env_steps": result.env_steps, "seconds": round(result.seconds, 4)}
        append_jsonl(self._metrics, [known | scalars])
        for name, value in scalars.items():
            self._events.add_scalar(name, value, result.env_steps)
        self.flush()

    def flush(self) -> None:
        """Write the iterations that were noted."""
        for file, lines in self._noted.items():
            append_jsonl(file, lines)
            lines.clear()

    def iteration(self, parts: list[Iteration], update: int, env_steps: int, secs: float) -> None:
        """Note an update's lines by rank; ``secs``: of training, evaluations left out."""
        known = {"update": update, "env_steps": env_steps, "seconds": round(secs, 6)}
        for lines, one in zip(self._noted.values(), parts, strict=False):
            lines.append(known | one.line())

    def evaluation(self, evaluation: Evaluation, env_steps: int, seconds: float) -> None:
        """Write an evaluation's line; ``seconds`` as in :meth:`iteration`."""
        line = {
            "env_steps": env_steps,
            "seconds": round(seconds, 6),
            "return_mean": evaluation.mean,
            "return_std": evaluation.std,
            "episodes": evaluation.episodes,
        }
        append_jsonl(self._evaluations, [line])

    def close(self) -> None:
        """Write what was noted and close the events."""
        self.flush()
        self._events.close()


def append_jsonl(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Add lines to a JSON-lines file, which need not be there yet."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


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
    """Drop the lines of a JSON-lines file that are beyond these counts.

    Both are needed: an update without new data, which IMPACT has, takes no env_steps.
    """

    def kept(line: dict[str, Any]) -> bool:
        update = line.get("update", line.get("charts/updates", 0))
        return bool(line["env_steps"] <= env_steps and update <= updates)

    lines = [line for line in read_jsonl(path) if kept(line)]
    path.unlink()
    append_jsonl(path, lines)

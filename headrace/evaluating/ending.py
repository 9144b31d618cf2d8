"""How a run ends, however many learners trained: its last evaluation, its summary, its picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace.config import Config
from headrace.errors import CheckpointError, HeadraceError
from headrace.evaluating.evaluator import Evaluator, Played
from headrace.nn.policy import Policy
from headrace.process import stop_signals
from headrace.records import checkpoint
from headrace.records.disk import told, write_json
from headrace.records.files import read_jsonl
from headrace.records.plot import plot


class Run(Protocol):
    """A Trainer, or several learners."""

    config: Config
    run_dir: Path
    interrupted: bool

    @property
    def policy(self) -> Policy:
        """As it was saved."""

    def summary(self) -> dict[str, Any]:
        """Of the training."""


def finish(
    run: Run,
    evaluator: Evaluator,
    notify: Callable[[str], None],
    interrupt: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Evaluate the policy, write ``summary.json`` and draw ``curve.png``.

    Where there is no evaluation, though the settings ask for one, ``no_evaluation`` says why.

    Args:
        notify: called with a line of text about what can't be written.
        interrupt: called at Ctrl-C, which ends an evaluation in a process of its own.

    Returns:
        what ``summary.json`` holds.
    """
    summary, wanted = run.summary(), run.config.eval_episodes > 0
    found = _evaluated(run, summary, evaluator, interrupt) if wanted else None
    if found is not None:
        summary["evaluation"] = asdict(found.evaluation)
        if run.config.evaluates_while_training:
            keep_best(run.run_dir, found, notify)
    elif wanted:
        summary["no_evaluation"] = "interrupted" if run.interrupted else evaluator.reason
    for write in (partial(write_json, run.run_dir / "summary.json", summary), partial(_draw, run)):
        try:
            with told(run.run_dir):
                write()
        except HeadraceError as error:
            notify(str(error))
    return summary


def _draw(run: Run) -> None:
    metrics = run.run_dir / "metrics.jsonl"
    if metrics.exists() and read_jsonl(metrics):
        plot([run.run_dir])


def _evaluated(
    run: Run, summary: dict[str, Any], evaluator: Evaluator, interrupt: Callable[[], None] | None
) -> Played | None:
    if run.interrupted:
        return None
    with contextlib.ExitStack() as stack:
        stack.callback(evaluator.close)
        if interrupt is not None and not evaluator.in_process:
            stack.enter_context(stop_signals(interrupt))
        evaluator.begin(run.policy, summary["env_steps"], summary["seconds_training"])
        return evaluator.wait(lambda: run.interrupted)


def keep_best(run_dir: Path, found: Played, notify: Callable[[str], None]) -> None:
    """Save the policy as ``best``, with its evaluation, if none was evaluated as high before.

    What keeps it from being saved is told by ``notify``.
    """
    before = None
    with contextlib.suppress(CheckpointError):  # there is none yet
        best = checkpoint.read_config(checkpoint.find(run_dir, "best"))
        before = best.get("evaluation", {}).get("mean")
    if before is None or found.evaluation.mean > before:
        try:
            described = checkpoint.read_config(run_dir) | {"evaluation": asdict(found.evaluation)}
            checkpoint.save_policy(run_dir, described, found.policy, found.env_steps)
        except HeadraceError as error:
            notify(f"the best policy is not saved: {error}")

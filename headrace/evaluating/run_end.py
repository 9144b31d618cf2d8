"""Finishes a run: final evaluation, summary, doctor, plot and report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace import extras
from headrace.config import Config
from headrace.errors import CheckpointError, HeadraceError, on_one_line, resume_command
from headrace.evaluating.evaluator import Evaluator, PlayedEvaluation
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import return_freed_memory, signals_held, stop_signals
from headrace.rundir import checkpoint, checkpoint_writer, import_allowlist
from headrace.rundir.atomic_files import ForeignValues, checkpoint_errors, write_json
from headrace.rundir.health import conclude
from headrace.rundir.plot import plot

_ROUNDING = 1e-6  # relative rounding error of sums of float32 rewards


class FinishedRun(Protocol):
    """A Trainer, or a LearnerGroup."""

    run_dir: Path

    @property
    def config(self) -> Config:
        """Settings of the run."""

    @property
    def interrupted(self) -> bool:
        """True if the user has interrupted the training."""

    @property
    def policy(self) -> AnyPolicy:
        """Policy as saved."""

    def summary(self) -> dict[str, Any]:
        """Return the summary of the training."""


def report_interrupt(run: FinishedRun, notify: Callable[[str], None]) -> None:
    """Print how to continue the run, if the user has interrupted it."""
    if run.interrupted:
        then = "nothing was saved before the first update"
        if checkpoint.exists(run.run_dir):
            then = f"to continue: {resume_command(run.run_dir)}"
        notify(f"stopped early; {then}")


def finish(
    run: FinishedRun,
    evaluator: Evaluator,
    notify: Callable[[str], None],
    interrupt: Callable[[], None] | None = None,
    draw: bool = True,
) -> dict[str, Any]:
    """Evaluate the policy, write ``summary.json``, run the doctor, draw plot and report.

    If a requested evaluation is missing, ``no_evaluation`` has the reason. Failures after the
    evaluation are reported and don't prevent later parts.

    Args:
        notify: called with a line of text about failures, and about agents without any step.
        interrupt: called at Ctrl-C, which stops an evaluation in a separate process.
        draw: also ``curve.png`` and ``report.html``.

    Returns:
        contents of ``summary.json``.
    """
    summary, evaluates = run.summary(), run.config.eval_episodes > 0
    idle = [name for name, one in (summary.get("agents") or {}).items() if not one["env_steps"]]
    if idle and summary["env_steps"]:
        notify(f"no training for {', '.join(idle)}: this run had no step of theirs")
    evaluation = _evaluated(run, summary, evaluator, interrupt) if evaluates else None
    if evaluation is not None:
        summary["evaluation"] = asdict(evaluation.evaluation)
        if run.config.evaluates_while_training:
            keep_best(run.run_dir, evaluation, notify)
    elif evaluates:
        summary["no_evaluation"] = "interrupted" if run.interrupted else evaluator.reason
    if run.interrupted:
        summary["interrupted"] = True
    attempt = partial(_attempt, run.run_dir, notify)
    save = partial(write_json, run.run_dir / "summary.json", summary)
    saved = attempt("the summary", save)
    if not _has_logged(run.run_dir):
        return summary
    find_problems = partial(conclude, run.run_dir, notify)
    if attempt("the doctor", lambda: summary.update(warnings=find_problems())) and saved:
        attempt("the summary", save)
    if draw and extras.is_installed("matplotlib"):
        return_freed_memory()  # of the training
        for name, write in (("the plot", partial(plot, [run.run_dir])),
                            ("the report", partial(_report, run.run_dir))):  # fmt: skip
            with signals_held():  # exceptions in matplotlib's weakref callbacks are lost
                attempt(name, write)
    if draw and (left_out := _left_out()):
        notify(left_out)
    return summary


def _left_out() -> str | None:
    """Describe the files that a run lacks because an optional package isn't installed."""
    files = {
        ("matplotlib", "plots"): "curve.png and report.html",
        ("tensorboard", "tensorboard"): "TensorBoard files",
    }
    lacking = {key: name for key, name in files.items() if not extras.is_installed(key[0])}
    if not lacking:
        return None
    line = extras.install_line(*(extra for _, extra in lacking))
    return f"left out: {', '.join(lacking.values())}; to get them: {line}"


def _has_logged(run_dir: Path) -> bool:
    with contextlib.suppress(OSError):
        return (run_dir / "metrics.jsonl").stat().st_size > 0
    return False


def _report(run_dir: Path) -> None:
    from headrace.reporting.page import write  # imported late: training doesn't need it

    write([run_dir])


def _attempt(
    run_dir: Path, notify: Callable[[str], None], name: str, write: Callable[[], object]
) -> bool:
    """Call ``write``; return True on success, and otherwise report the error in one line."""
    try:
        with checkpoint_errors(run_dir):
            write()
    except HeadraceError as error:
        text = str(error)
        if isinstance(error, ForeignValues):  # in files that this run has written
            text = f"{name} of {run_dir} failed; the run is otherwise complete"
            text += f" ({on_one_line(error.__cause__ or error)})"
    except Exception as error:  # errors in reports must not fail the run
        text = f"{name} of {run_dir} failed; the run is otherwise complete ({on_one_line(error)})"
    else:
        return True
    notify(text.encode(errors="backslashreplace").decode())  # whatever bytes a path has
    return False


def _evaluated(
    run: FinishedRun,
    summary: dict[str, Any],
    evaluator: Evaluator,
    interrupt: Callable[[], None] | None,
) -> PlayedEvaluation | None:
    if run.interrupted:
        return None
    with contextlib.ExitStack() as stack:
        stack.callback(evaluator.close)
        if interrupt is not None and not evaluator.in_process:
            stack.enter_context(stop_signals(interrupt))
        progress = summary["env_steps"], summary["seconds_training"]
        evaluator.begin(run.policy, *progress, in_both_modes=True)
        return evaluator.wait(lambda: run.interrupted)


def keep_best(run_dir: Path, played: PlayedEvaluation, notify: Callable[[str], None]) -> None:
    """Save the policy and its evaluation as ``best``, unless an earlier one was better.

    In zero-sum games all policies have the same mean return, so the latest is saved. ``notify``
    reports that, and errors.
    """
    before: dict[str, Any] = {}
    with contextlib.suppress(CheckpointError):  # no best checkpoint yet
        best = checkpoint.read_config(checkpoint.find(run_dir, "best"))
        before = best.get("evaluation") or {}
    now, mean = asdict(played.evaluation), before.get("mean")
    balanced = _is_balanced(now)
    if balanced and _is_decisive(now) and not (_is_balanced(before) and _is_decisive(before)):
        notify(
            "the returns of this game's agents sum to 0, so their mean can't rank policies: best "
            "is the latest policy, and stop_return and target_return have no effect"
        )
    if mean is None or played.evaluation.mean > mean or (balanced and _is_balanced(before)):
        try:
            described = checkpoint.read_config(run_dir) | {"evaluation": now}
            described = import_allowlist.with_changes(described, played.env_changes)
            checkpoint_writer.save_policy(run_dir, described, played.policy, played.env_steps)
        except HeadraceError as error:
            notify(f"could not save the best policy: {error}")


def _is_balanced(evaluation: dict[str, Any]) -> bool:
    """Return True if the agents' returns sum to 0, up to rounding."""
    if not evaluation.get("agents"):
        return False
    most = max(abs(evaluation["min"]), abs(evaluation["max"]))
    return bool(abs(evaluation["mean"]) <= _ROUNDING * most)


def _is_decisive(evaluation: dict[str, Any]) -> bool:
    return bool(evaluation["max"] > evaluation["min"])

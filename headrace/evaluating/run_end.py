"""How a run ends, however many learners trained: its last evaluation, summary, picture, report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace.config import Config
from headrace.errors import CheckpointError, HeadraceError, on_one_line
from headrace.evaluating.evaluator import Evaluator, PlayedEvaluation
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import return_freed_memory, stop_signals
from headrace.rundir import checkpoint
from headrace.rundir.atomic_files import checkpoint_errors, write_json
from headrace.rundir.health import conclude
from headrace.rundir.plot import plot

_ROUNDING = 1e-6  # of sums of rewards, which may be float32


class FinishedRun(Protocol):
    """A Trainer, or several learners."""

    config: Config
    run_dir: Path
    interrupted: bool

    @property
    def policy(self) -> AnyPolicy:
        """As it was saved."""

    def summary(self) -> dict[str, Any]:
        """Of the training."""


def finish(
    run: FinishedRun,
    evaluator: Evaluator,
    notify: Callable[[str], None],
    interrupt: Callable[[], None] | None = None,
    draw: bool = True,
) -> dict[str, Any]:
    """Evaluate the policy, write ``summary.json``, hear the doctor, draw picture and report.

    Where there is no evaluation, though the settings ask for one, ``no_evaluation`` says why.
    Whatever fails after the evaluation is told, and costs nothing that comes after it.

    Args:
        notify: called with a line of text about what fails, and agents that were never there.
        interrupt: called at Ctrl-C, which ends an evaluation in a process of its own.
        draw: also ``curve.png`` and ``report.html``.

    Returns:
        what ``summary.json`` holds.
    """
    summary, wanted = run.summary(), run.config.eval_episodes > 0
    idle = [name for name, one in (summary.get("agents") or {}).items() if not one["env_steps"]]
    if idle and summary["env_steps"]:
        notify(f"nothing was learnt for {', '.join(idle)}: no step of theirs was in this run")
    found = _evaluated(run, summary, evaluator, interrupt) if wanted else None
    if found is not None:
        summary["evaluation"] = asdict(found.evaluation)
        if run.config.evaluates_while_training:
            keep_best(run.run_dir, found, notify)
    elif wanted:
        summary["no_evaluation"] = "interrupted" if run.interrupted else evaluator.reason
    if run.interrupted:
        summary["interrupted"] = True
    attempt = partial(_attempt, run.run_dir, notify)
    save = partial(write_json, run.run_dir / "summary.json", summary)
    saved = attempt("the summary", save)
    if not _has_logged(run.run_dir):
        return summary
    heard = partial(conclude, run.run_dir, notify)
    if attempt("the doctor", lambda: summary.update(warnings=heard())) and saved:
        attempt("the summary", save)
    if draw:
        return_freed_memory()  # by the training
        attempt("the picture", partial(plot, [run.run_dir]))
        attempt("the report", partial(_report, run.run_dir))
    return summary


def _has_logged(run_dir: Path) -> bool:
    with contextlib.suppress(OSError):
        return (run_dir / "metrics.jsonl").stat().st_size > 0
    return False


def _report(run_dir: Path) -> None:
    from headrace.reporting.page import write  # imported late: training doesn't need it

    write([run_dir])


def _attempt(
    run_dir: Path, notify: Callable[[str], None], what: str, write: Callable[[], object]
) -> bool:
    """Call ``write``; whether it worked. If not, one line says why."""
    try:
        with checkpoint_errors(run_dir):
            write()
    except HeadraceError as error:
        text = str(error)
    except Exception as error:  # a mistake in what is said of a run
        text = f"{what} of {run_dir} failed, what else ends a run doesn't ({on_one_line(error)})"
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
        evaluator.begin(run.policy, summary["env_steps"], summary["seconds_training"])
        return evaluator.wait(lambda: run.interrupted)


def keep_best(run_dir: Path, found: PlayedEvaluation, notify: Callable[[str], None]) -> None:
    """Save the policy as ``best``, with its evaluation, if none was evaluated as high before.

    In a game in which what one agent wins another loses all policies are as high; there the latest
    is saved. That, and what keeps it from being saved, is told by ``notify``.
    """
    before: dict[str, Any] = {}
    with contextlib.suppress(CheckpointError):  # there is none yet
        best = checkpoint.read_config(checkpoint.find(run_dir, "best"))
        before = best.get("evaluation") or {}
    now, mean = asdict(found.evaluation), before.get("mean")
    balanced = _is_balanced(now)
    if balanced and _is_decisive(now) and not (_is_balanced(before) and _is_decisive(before)):
        notify(
            "the returns of this game's agents add up to 0, so their mean says of no policy that "
            "it is better: best is the latest, and stop_return and target_return wait for nothing"
        )
    if mean is None or found.evaluation.mean > mean or (balanced and _is_balanced(before)):
        try:
            described = checkpoint.read_config(run_dir) | {"evaluation": asdict(found.evaluation)}
            checkpoint.save_policy(run_dir, described, found.policy, found.env_steps)
        except HeadraceError as error:
            notify(f"the best policy is not saved: {error}")


def _is_balanced(evaluation: dict[str, Any]) -> bool:
    """Whether it is of agents whose returns add up to 0, as far as floats do."""
    if not evaluation.get("agents"):
        return False
    most = max(abs(evaluation["min"]), abs(evaluation["max"]))
    return bool(abs(evaluation["mean"]) <= _ROUNDING * most)


def _is_decisive(evaluation: dict[str, Any]) -> bool:
    return bool(evaluation["max"] > evaluation["min"])

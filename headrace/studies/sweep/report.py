"""Writes the report of a sweep: a page and a plot."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from headrace.errors import CheckpointError, setting
from headrace.rundir.atomic_files import checkpoint_errors, replace_text
from headrace.rundir.countdown import continue_line
from headrace.rundir.curves import Curve, read_run
from headrace.studies import flags, statistics
from headrace.studies.aggregation import mean_se
from headrace.studies.machine import markdown, show
from headrace.studies.plotting import Series, band, curves, picture
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import Store, optuna

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST = 3  # trials with plotted curves, as in IMPALA's Figure 4
_FEWEST = 10  # minimum number of trials for importances
_BEST_SHARE, _FEWEST_BEST = 0.1, 5  # share and minimum number of trials that count as the best


def ranked(trials: Sequence[Any]) -> list[Any]:
    """Return the finished trials, best first; those without a score come last."""
    done = [trial for trial in trials if trial.state.is_finished()]
    return sorted(done, key=lambda trial: -_score(trial))


def _score(trial: Any) -> float:
    return -math.inf if trial.value is None or math.isnan(trial.value) else float(trial.value)


def importances(study: Any) -> dict[str, float]:
    """Return the importance of each parameter for being among the best trials; they sum to 1.

    PED-ANOVA (Watanabe et al. 2023) measures the distance between a parameter's distribution among
    the best tenth of trials (at least five) and that among all. This differs from a share of the
    scores' variance: an effect among bad trials only doesn't count. The greatest comes first. The
    result is empty with fewer than ten finished trials, or if all scores are equal.
    """
    library = optuna()
    done = [t for t in study.trials if t.state == library.trial.TrialState.COMPLETE]
    if len(done) < _FEWEST or len({trial.value for trial in done}) < 2:
        return {}
    best = max(_BEST_SHARE, _FEWEST_BEST / len(done))
    evaluator = library.importance.PedAnovaImportanceEvaluator(target_quantile=best)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parameters with equal values
        shares = library.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items()}


def rows_of(trials: Sequence[Any]) -> list[dict[str, str]]:
    """Return a table row per trial, best first."""
    rows = []
    for rank, trial in enumerate(ranked(trials), 1):
        row = {"rank": str(rank), "score": _spelled(trial), "trial": str(trial.number)}
        for name, value in trial.params.items():
            row[name] = f"{value:.4g}" if isinstance(value, float) else str(value)
        rows.append(row)
    return rows


def _spelled(trial: Any) -> str:
    scores = trial.user_attrs.get("scores", [])
    if "pruned" in trial.user_attrs:
        return f"{trial.value:.4g} (pruned)" if trial.value is not None else "pruned"
    if not scores:
        return "none"
    mean, se = mean_se(scores)
    return f"{mean:.4g}" if math.isnan(se) else f"{mean:.4g} ± {se:.2g}"


def _over_seeds(trials: Sequence[Any]) -> list[str]:
    """Return a section with interquartile means of the best trials with several seeds."""
    best = [t for t in ranked(trials) if len(t.user_attrs.get("scores", [])) > 1][:BEST]
    if not best or not statistics.are_there():
        return []
    scores = {str(t.number): np.array(t.user_attrs["scores"])[:, None] for t in best}
    means = statistics.interquartile(scores)
    table = [{"trial": trial, "interquartile mean": one.text()} for trial, one in means.items()]
    words = "The best trials, with 95% bootstrap intervals over seeds."
    return ["## Interquartile means", words, markdown(table)]


def run_curves(sweep: Sweep, number: int) -> list[Curve]:
    """Return the learning curve (return against steps) of each run of a trial."""
    learning_curves = []
    for folder in sorted(sweep.trial_dir(number).glob("seed-*/")):
        try:
            run = read_run(folder)
        except CheckpointError:  # the run ended before its first result
            continue
        learning_curves.append(run.curve("env_steps", "charts/episodic_return"))
    return learning_curves


def _units(sweep: Sweep) -> str:
    """Describe the unit of the scores in words."""
    tasks = len(sweep.config.tasks)
    if sweep.suite is None:
        flag = setting("references", "'FILE'")
        alone = f"in which one task may outweigh all others ({flag} weights them equally)"
        return f"the mean return over {tasks} tasks, {alone}," if tasks > 1 else "the mean return"
    what = f"mean over {tasks} tasks of scores, capped at 1," if tasks > 1 else "score"
    return f"the {what} by {sweep.suite.name} (0 random, 1 the reference)"


def write(sweep: Sweep, store: Store, console: Console) -> None:
    """Write ``sweep.md`` and ``sweep.png``, and print a table of the best trials."""
    trials = store.trials()
    rows, shares = rows_of(trials), importances(store.study)
    if not rows:
        console.print("no trial has ended yet")
        return
    folder = Path(sweep.output)
    show(rows[:10], "The best trials", console, wrap=True)
    title = f"{sweep.base.algo_name} on {flags.named(sweep.config)}"
    parts = [
        f"# Sweep: {title}",
        f"{len(rows)} of {sweep.trials} trials of {sweep.base.total_steps:,} steps, {sweep.seeds} "
        f"seed(s) each, drawn by {sweep.draws}. A score is {_units(sweep)} of a run's final "
        "evaluation, or without one of its last 100 training episodes; ± is the standard error "
        "over seeds.",
    ]
    if draw(sweep, trials, shares, title, folder / "sweep.png"):
        parts.append("![The best three, scores by rank, importances](sweep.png)")
    parts.append(markdown(rows))
    if (run := best_run(sweep, trials)) is not None:
        command = continue_line(str(run), sweep.base.total_steps)
        parts.append(f"The best run is {run}. Continue it with `{command}`.")
        console.print(f"best run: {run}\ncontinue it: {command}", soft_wrap=True)
    parts += _over_seeds(trials)
    if failed := [t for t in trials if "error" in t.user_attrs]:
        parts += ["## Without a score", *(f"- trial {t.number}: {t.user_attrs['error']}"
                                          for t in failed)]  # fmt: skip
    if shares:
        words = (
            "Importance of each setting for being among the best tenth of trials, at least five "
            "(PED-ANOVA); they sum to 1."
        )
        table = [{"setting": name, "importance": f"{x:.0%}"} for name, x in shares.items()]
        parts += ["## Importances", words, markdown(table)]
    with checkpoint_errors(folder / "sweep.md"):
        replace_text(folder / "sweep.md", "\n\n".join(parts) + "\n")
    plot = folder / "sweep.png"
    console.print(f"page: {folder}/sweep.md" + f", plot: {plot}" * plot.exists(), soft_wrap=True)


def best_run(sweep: Sweep, trials: Sequence[Any]) -> Path | None:
    """Return the directory of the best seed of the best trial; None if there is none."""
    best = next((trial for trial in ranked(trials) if trial.user_attrs.get("scores")), None)
    if best is None:
        return None
    scores = best.user_attrs["scores"]
    seed = sweep.config.seed + max(range(len(scores)), key=scores.__getitem__)
    run = sweep.trial_dir(best.number) / f"seed-{seed}"
    return run if run.exists() else None


def draw(
    sweep: Sweep, trials: Sequence[Any], shares: dict[str, float], title: str, path: Path
) -> bool:
    """Plot curves of the best trials, the stability curve (IMPALA, Figure 4), and importances.

    Panels without data are left out; returns False, without a plot, if there are none.
    """
    best = [trial for trial in ranked(trials) if "scores" in trial.user_attrs]
    names = {t.number: f"{i}: trial {t.number}" for i, t in enumerate(best[:BEST], 1)}
    learning = {name: run_curves(sweep, number) for number, name in names.items()}
    learning = {name: each for name, each in learning.items() if any(x for x, _ in each)}
    panels: list[Callable[[Axes], None]] = []
    if learning:
        panels.append(partial(_draw_curves, learning, sweep.seeds > 1))
    if best:
        panels.append(partial(_draw_ranks, [_score(x) for x in best], len(ranked(trials))))
    if shares:
        panels.append(partial(_draw_importances, shares))
    if not panels:
        path.unlink(missing_ok=True)  # of an earlier call
        return False
    with picture(path, title, (5.0 * len(panels), 4.0), ncols=len(panels)) as (_, axes):
        for draw_panel, panel in zip(panels, axes, strict=True):
            draw_panel(panel)
    return True


def _draw_curves(learning: Series, several_seeds: bool, panel: Axes) -> None:
    curves(panel, learning)
    over = f"\n{band()}" if several_seeds else ""
    panel.set(xlabel="environment steps", ylabel=f"training return{over}")
    panel.legend(fontsize="small")


def _draw_ranks(scores: Sequence[float], ended: int, panel: Axes) -> None:
    panel.plot(range(1, len(scores) + 1), scores, marker="o", markersize=4)
    without = ended - len(scores)
    panel.set(
        xlabel=f"rank of the combination ({without} pruned or without a score)",
        ylabel="final score", xlim=(0, max(2, ended + 1)),
    )  # fmt: skip
    panel.grid(alpha=0.3)


def _draw_importances(shares: dict[str, float], panel: Axes) -> None:
    panel.barh(list(shares)[::-1], list(shares.values())[::-1])
    panel.set(xlabel="importance for being among the best", xlim=(0, 1))

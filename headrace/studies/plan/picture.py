"""Plots a simulation: utilisation, queue depth and policy lag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.studies.plan.scenario import Outcome
from headrace.studies.plotting import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 40  # maximum number of values that are plotted as bars


def draw(outcome: Outcome, title: str, path: Path) -> None:
    """Plot utilisation, queue depth over time, its distribution, and that of policy lag."""
    with picture(path, title, (11.5, 6.8), nrows=2, ncols=2) as (_, (busy, line, depth, lag)):
        shares = [outcome.utilisation_learner, outcome.utilisation_actors]
        busy.barh(["learner", "actors"], shares, color=["C0", "C2"])
        for i, share in enumerate(shares):
            busy.annotate(f" {share:.0%}", (share, i), va="center")
        busy.set(title=f"Utilisation at {outcome.sps:,.0f} steps/s", xlabel="share of time busy")
        busy.set_xlim(0, 1.12)
        line.step(*zip(*outcome.depth_line, strict=True), where="pre", linewidth=0.8)
        line.set(title="Queue depth", xlabel="seconds", ylabel="rollouts waiting")
        _distribution(depth, outcome.depths)
        depth.set(title=f"Queue depth, mean {outcome.depth_mean:.2f}", xlabel="rollouts waiting")
        depth.set_ylabel("share of time")
        _distribution(lag, outcome.lags)
        lag.set(title=f"Policy lag, mean {outcome.lag_mean:.2f}", ylabel="share of rollouts")
        lag.set_xlabel("updates between acting and learning")
        for panel in (line, depth, lag):
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.3)


def _distribution(panel: Axes, weights: Mapping[int, float]) -> None:
    """Plot shares as bars, or as a filled line if there are many values."""
    values, total = sorted(weights), sum(weights.values()) or 1
    heights = [weights[value] / total for value in values]
    if len(values) <= _FEW:
        panel.bar(values, heights, width=0.8)
    else:
        panel.fill_between(values, heights, step="mid")

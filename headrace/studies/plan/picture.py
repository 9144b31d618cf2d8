"""The picture of a simulation: where time goes, the queue, and the policy lag."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.studies.plan.simulate import Outcome

_FEW = 40  # values of a distribution that get a bar each


def draw(outcome: Outcome, title: str, path: Path) -> None:
    """Utilisation, queue depth over time, its distribution, and that of policy lag, as a PNG."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11.5, 6.8), layout="constrained")
    (busy, line), (depth, lag) = picture.subplots(2, 2)
    names = ["learner", "actors"]
    shares = [outcome.utilisation_learner, outcome.utilisation_actors]
    for bar, share in zip(busy.barh(names, shares, color=["C0", "C2"]), shares, strict=True):
        busy.annotate(
            f"{share:.0%}",
            (bar.get_width(), bar.get_y() + bar.get_height() / 2),
            (4, 0),
            textcoords="offset points",
            va="center",
        )
    busy.set(title=f"Utilisation at {outcome.sps:,.0f} steps/s", xlabel="share of time busy")
    busy.set_xlim(0, 1.12)
    line.step(*zip(*outcome.depth_line, strict=True), where="pre", linewidth=0.8)
    line.set(title="Queue depth", xlabel="seconds", ylabel="rollouts waiting")
    line.set_ylim(bottom=0)
    seconds = sum(outcome.depths.values()) or 1.0
    _distribution(depth, {d: s / seconds for d, s in outcome.depths.items()})
    depth.set(title=f"Queue depth, mean {outcome.depth_mean:.2f}", xlabel="rollouts waiting")
    depth.set_ylabel("share of time")
    rollouts = sum(outcome.lags.values()) or 1
    _distribution(lag, {x: count / rollouts for x, count in outcome.lags.items()})
    lag.set(title=f"Policy lag, mean {outcome.lag_mean:.2f}", ylabel="share of rollouts")
    lag.set_xlabel("updates between acting and learning")
    for panel in (line, depth, lag):
        panel.grid(alpha=0.3)
    picture.suptitle(title)
    picture.savefig(path, dpi=110)


def _distribution(panel, shares: dict[int, float]) -> None:  # type: ignore[no-untyped-def]
    """Bars, or a filled line where there are many values."""
    values = sorted(shares)
    heights = [shares[value] for value in values]
    if len(values) <= _FEW:
        panel.bar(values, heights, width=0.8)
    else:
        panel.fill_between(values, heights, step="mid")
    panel.set_ylim(bottom=0)

"""Learning curves from the ``metrics.jsonl`` of one or more runs."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import CheckpointError
from headrace.records.files import read_jsonl

_RETURN, _SECONDS = "return (last 100 episodes)", "seconds since the start"
_PANELS = (  # x and y, and what is written beside them
    ("env_steps", "charts/episodic_return", "environment steps", _RETURN),
    ("seconds", "charts/episodic_return", _SECONDS, _RETURN),
    ("seconds", "charts/SPS", _SECONDS, "environment steps / s"),
)


def plot(run_dirs: list[Path], output: Path | None = None) -> Path:
    """Draw return against steps, return against seconds, and steps per second.

    Args:
        run_dirs: one curve each.
        output: the PNG, whose path is returned; ``curve.png`` in the first run by default.

    Raises:
        CheckpointError: a directory holds no metrics.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    for run_dir in run_dirs:
        file = run_dir / "metrics.jsonl"
        lines = read_jsonl(file) if file.exists() else []
        if not lines:
            raise CheckpointError(f"{run_dir} holds no metrics to plot (metrics.jsonl)")
        for panel, (x, y, *_) in zip(panels, _PANELS, strict=True):
            points = [(line[x], line[y]) for line in lines if y in line]
            panel.plot(*zip(*points, strict=True) if points else ([], []), label=run_dir.name)
    for panel, (*_, x_label, y_label) in zip(panels, _PANELS, strict=True):
        panel.set(xlabel=x_label, ylabel=y_label)
        panel.grid(alpha=0.3)
    panels[2].set_ylim(bottom=0)
    if len(run_dirs) > 1:
        panels[0].legend(fontsize="small")
    path = output or run_dirs[0] / "curve.png"
    figure.savefig(path, dpi=110)
    return path

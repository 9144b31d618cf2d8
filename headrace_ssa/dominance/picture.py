"""A picture of a game of OrbitalDominance: the truth, and what each side believes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace_ssa.dominance import play, rules
from headrace_ssa.dominance.motion import is_lit
from headrace_ssa.dominance.scene import Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCHES, _DPI = (10.0, 5.0), 80
_COLOURS = ("tab:blue", "tab:red")
_ALONG, _UP, _ACROSS = 1, 0, 2  # axes of the moving frame
_LEAST_KM = 4.0  # that is shown to either side of the middle


def frame(at: Scene, game: int) -> np.ndarray:
    """Game number ``game`` as an image ``[400, 800, 3]`` uint8.

    Left along the track and up, right along and across it. Assets are squares, inspectors
    triangles; a cross is where the other side believes a satellite to be, with a circle of one
    standard deviation, in that side's colour; a line goes from a sensor to what it sees. In shadow
    the ground is grey, else an arrow shows where the Sun is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # takes a second, hence here

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    sun = play.sun_now(at)[game]
    places = at.state[game, :, :, [_ALONG, _UP, _ACROSS]] / 1000.0
    middle = 0.5 * (places.min(axis=(1, 2)) + places.max(axis=(1, 2)))
    reach = max(_LEAST_KM, 1.2 * float(np.abs(places - middle[:, None, None]).max()))
    panels = figure.subplots(1, 2)
    for panel, axis, name in zip(panels, (_UP, _ACROSS), ("up", "across"), strict=True):
        _draw(panel, at, game, axis)
        panel.set_facecolor("white" if is_lit(sun) else "lightgrey")
        if is_lit(sun):
            way = {"arrowprops": {"arrowstyle": "->", "color": "orange"}, "color": "orange"}
            tip = 0.82 + 0.14 * sun[_ALONG], 0.15 + 0.14 * sun[axis]
            panel.annotate("Sun", tip, (0.82, 0.15), "axes fraction", "axes fraction", **way)
        height = middle[1 if axis == _UP else 2]
        panel.set(xlim=(middle[0] - reach, middle[0] + reach), xlabel="along the track, km")
        panel.set(ylim=(height - reach, height + reach), ylabel=f"{name}, km", aspect="equal")
    blue, red = at.score[game]
    hours = rules.STEP_S / 3600.0 * at.time[game]
    figure.suptitle(f"{hours:.1f} h, points: blue {blue:.0f}, red {red:.0f}", fontsize="small")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw(panel: Axes, at: Scene, game: int, axis: int) -> None:
    for side, colour in enumerate(_COLOURS):
        state = at.state[game, side] / 1000.0
        mean = at.mean[game, side] / 1000.0
        spread = np.sqrt(np.diagonal(at.cov[game, side], axis1=1, axis2=2)[:, :3].mean(axis=1))
        for k, (own, track) in enumerate(zip(state, mean, strict=True)):
            panel.plot(own[_ALONG], own[axis], "^" if k else "s", color=colour)
            panel.plot(track[_ALONG], track[axis], "x", color=colour)
            about = np.linspace(0.0, 2.0 * np.pi, 60)
            wide = spread[k] / 1000.0
            circle = track[_ALONG] + wide * np.cos(about), track[axis] + wide * np.sin(about)
            panel.plot(*circle, color=colour, linewidth=0.5)
            if at.sees[game, side, k]:
                seen = at.state[game, 1 - side, at.target[game, side, k]] / 1000.0
                ends = [own[_ALONG], seen[_ALONG]], [own[axis], seen[axis]]
                panel.plot(*ends, color=colour, linewidth=0.7)

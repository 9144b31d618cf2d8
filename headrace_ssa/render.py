"""Renders an SSAConjunction episode: a map, and the risks of the closest approaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.extras import needs
from headrace_ssa import sensors
from headrace_ssa.tracking import STEP_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headrace_ssa.outlook import Outlook

_SIZE_INCHES, _DPI = (10.0, 4.0), 80
_LOWEST = 1e-8


def frame(outlook: Outlook, row: int, title: str, turned: float, limit: float) -> np.ndarray:
    """Return an image ``[320, 800, 3]`` uint8 of episode ``row``.

    Left: a map of radars, the satellite, and objects before their closest approach (filled if a
    radar sees them). Right: the time to each closest approach and the probability of collision.

    Args:
        title: title of the map. turned: rotation angle of the Earth, rad. limit: longest time, h.
    """
    with needs("render_mode='rgb_array'", "plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure  # slow to import (about 1 s)

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    world, risks = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_map(world, outlook, row, turned)
    world.set_title(title, fontsize="small")
    _draw_risks(risks, outlook, row, limit)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_map(panel: Axes, outlook: Outlook, row: int, turned: float) -> None:
    """Draw radars, objects and the satellite on a map."""
    x, y, z = (values[row] for values in outlook.position)
    lon = np.degrees(np.remainder(np.arctan2(y, x) - turned + np.pi, 2.0 * np.pi) - np.pi)
    lat = np.degrees(np.arctan2(z, np.hypot(x, y)))
    coming, seen = outlook.coming[row], outlook.visible[row]
    radars = np.array(sensors.SITES_DEG)
    panel.scatter(radars[:, 1], radars[:, 0], marker="^", color="tab:green", label="radar")
    panel.scatter(
        lon[1:][coming & ~seen], lat[1:][coming & ~seen], facecolors="none", edgecolors="tab:blue"
    )
    panel.scatter(lon[1:][seen], lat[1:][seen], color="tab:blue", label="object (filled: seen)")
    panel.scatter(lon[:1], lat[:1], marker="*", s=150, color="tab:red", label="satellite")
    for number in np.flatnonzero(coming):
        panel.annotate(str(number), (lon[1 + number], lat[1 + number]), fontsize="x-small")
    panel.set(xlim=(-180, 180), ylim=(-90, 90), xlabel="longitude, deg", ylabel="latitude, deg")
    panel.legend(loc="lower left", fontsize="x-small")


def _draw_risks(panel: Axes, outlook: Outlook, row: int, limit: float) -> None:
    """Draw the collision probabilities against the times to the closest approaches."""
    coming = outlook.coming[row]
    hours = STEP_S / 3600.0 * outlook.togo[row]
    risks = np.maximum(outlook.risks[0, row], _LOWEST)
    colours = np.where(outlook.visible[row], "tab:blue", "lightgrey")
    panel.bar(hours[coming], risks[coming], width=0.08, bottom=_LOWEST, color=colours[coming])
    for number in np.flatnonzero(coming):
        panel.annotate(str(number), (hours[number], risks[number]), fontsize="x-small")
    panel.set(yscale="log", xlim=(0, limit), ylim=(_LOWEST, 1.0), xlabel="hours to go")
    panel.set_title("probability of collision (blue: seen)", fontsize="small")

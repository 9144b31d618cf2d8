"""A picture of one SSAConjunction episode: where everything is, and what comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace_ssa import orbits, sensors
from headrace_ssa.tracking import STEP_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headrace_ssa.conjunction import SSAConjunctionVectorEnv

_SIZE_INCHES, _DPI = (10.0, 4.0), 80
_LOWEST = 1e-8


def frame(games: SSAConjunctionVectorEnv, row: int) -> np.ndarray:
    """The scene of episode ``row`` as an image ``[320, 800, 3]`` uint8.

    Left, a map: radars, objects that are still to come (filled: a radar sees them), the satellite.
    Right: time to each closest approach, and the probability of collision.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # takes a second, hence here

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    world, risks = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_map(world, games, row)
    _draw_risks(risks, games, row)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_map(panel: Axes, games: SSAConjunctionVectorEnv, row: int) -> None:
    x, y, z = (values[row] for values in games.outlook.position)
    seconds = STEP_S * games.time[row]
    turned = games.scene.earth_angle[row] + orbits.EARTH_RATE * seconds
    lon = np.degrees(np.remainder(np.arctan2(y, x) - turned + np.pi, 2.0 * np.pi) - np.pi)
    lat = np.degrees(np.arctan2(z, np.hypot(x, y)))
    coming, seen = games.outlook.coming[row], games.outlook.visible[row]
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
    panel.set_title(f"{seconds / 3600:.1f} h, {games.burns_left[row]} burns left", fontsize="small")
    panel.legend(loc="lower left", fontsize="x-small")


def _draw_risks(panel: Axes, games: SSAConjunctionVectorEnv, row: int) -> None:
    coming = games.outlook.coming[row]
    hours = STEP_S / 3600.0 * games.outlook.togo[row]
    risks = np.maximum(games.outlook.risks[0, row], _LOWEST)
    colours = np.where(games.outlook.visible[row], "tab:blue", "lightgrey")
    panel.bar(hours[coming], risks[coming], width=0.08, bottom=_LOWEST, color=colours[coming])
    for number in np.flatnonzero(coming):
        panel.annotate(str(number), (hours[number], risks[number]), fontsize="x-small")
    limit = STEP_S / 3600.0 * games.horizon
    panel.set(yscale="log", xlim=(0, limit), ylim=(_LOWEST, 1.0), xlabel="hours to go")
    panel.set_title("probability of collision (blue: seen)", fontsize="small")

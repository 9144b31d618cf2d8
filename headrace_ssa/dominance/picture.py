"""Renders an OrbitalDominance game: true positions, each side's tracks, and the actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.extras import needs
from headrace_ssa.dominance import play, rules
from headrace_ssa.dominance.motion import is_lit, propagation
from headrace_ssa.dominance.scene import Scene

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_SIZE_INCHES, _DPI = (10.0, 5.0), 80
_PANELS = ((0.055, 0.555, 0.65, 0.385), (0.055, 0.085, 0.65, 0.385))  # left, bottom, width, height
_SIDE_PANEL = (0.72, 0.0, 0.28, 1.0)
_COLOURS = ("tab:blue", "tab:red")
_ALONG, _UP, _ACROSS = 1, 0, 2  # axes of the moving frame
_AXES = ((_UP, "up, km"), (_ACROSS, "across, km"))
_REACH_KM = 5.0  # the plotted range is a multiple of this
_AHEAD = np.stack([propagation(rules.STEP_S * steps)[:3] for steps in range(13)])  # [K, 3, 6]
_BURNS = ("up", "down", "forwards", "back", "left", "right")


def frame(at: Scene, game: int, chosen: np.ndarray) -> np.ndarray:
    """Return an image ``[400, 800, 3]`` uint8 of game number ``game``.

    The upper panel shows the plane along the track and up, the lower one the plane along and across
    it, both centred at the reference orbit. The right panel lists resources and actions of each
    side above a legend. The background is grey in shadow; in sunlight an arrow points to the Sun.

    Args:
        chosen: ``[2]`` int, actions of the sides in the last step.
    """
    with needs("render_mode='rgb_array'", "plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure  # slow to import (about 1 s)

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    sun, steps = play.sun_now(at)[game], int(at.time[game])
    flat = _PANELS[0][3] * _SIZE_INCHES[1] / (_PANELS[0][2] * _SIZE_INCHES[0])  # height by width
    reach = np.abs(at.state[game, ..., [_ALONG, _UP, _ACROSS]]).max(axis=(1, 2)) / 1000.0
    wide = _REACH_KM * np.ceil(1.05 * max(reach[0], *(reach[1:] / flat)) / _REACH_KM)
    light = "sunlight" if is_lit(sun) else "the Earth's shadow: sensors see nothing"
    hours = rules.STEP_S / 3600.0 * steps
    title = f"step {steps} of {at.noise.shape[1]}, {hours:.1f} h, in {light}"
    figure.text(_PANELS[0][0], 0.955, title, fontsize=9)
    for place, (axis, name) in zip(_PANELS, _AXES, strict=True):
        panel = figure.add_axes(place)
        _draw_satellites(panel, at, game, axis)
        _draw_actions(panel, at, game, axis, chosen)
        panel.set(xlim=(-wide, wide), ylim=(-wide * flat, wide * flat), facecolor="white")
        panel.set_ylabel(name, fontsize=8)
        panel.tick_params(labelsize=7)
        if is_lit(sun):
            look: dict[str, Any] = {"arrowstyle": "->", "color": "orange"}
            tip = 0.92 + 0.07 * sun[_ALONG], 0.2 + 0.07 * sun[axis] / flat
            panel.annotate(
                "Sun", tip, (0.92, 0.2), "axes fraction", "axes fraction", look, color="orange"
            )
        else:
            panel.set_facecolor("lightgrey")
    panel.set_xlabel("along the track, km", fontsize=8, labelpad=0)
    _describe_sides(figure.add_axes(_SIDE_PANEL), at, game, chosen)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _draw_satellites(panel: Axes, at: Scene, game: int, axis: int) -> None:
    """Draw satellites, their predicted paths, the tracks, and lines of sight."""
    about = np.linspace(0.0, 2.0 * np.pi, 60)
    for side, colour in enumerate(_COLOURS):
        mean = at.mean[game, side] / 1000.0
        spread = np.sqrt(np.diagonal(at.cov[game, side], axis1=1, axis2=2)[:, :3].mean(axis=1))
        for k, state in enumerate(at.state[game, side]):
            ahead = _AHEAD @ state / 1000.0
            panel.plot(ahead[:, _ALONG], ahead[:, axis], ":", color=colour, linewidth=0.8)
            position, track, wide = ahead[0], mean[k], spread[k] / 1000.0
            panel.plot(position[_ALONG], position[axis], "^" if k else "s", color=colour)
            panel.plot(track[_ALONG], track[axis], "+" if k else "x", color=colour, markersize=6)
            circle = track[_ALONG] + wide * np.cos(about), track[axis] + wide * np.sin(about)
            panel.plot(*circle, color=colour, linewidth=0.5)
            if at.sees[game, side, k]:
                seen = at.state[game, 1 - side, at.target[game, side, k], :3] / 1000.0
                ends = [position[_ALONG], seen[_ALONG]], [position[axis], seen[axis]]
                inspects = _inspects(at, game, side)[k]
                panel.plot(*ends, color=colour, linewidth=3.0 if inspects else 0.8)


def _inspects(at: Scene, game: int, side: int) -> np.ndarray:
    """Return which satellites of a side inspect the other side's asset, ``[n]`` bool."""
    away = np.linalg.norm(at.state[game, side, :, :3] - at.state[game, 1 - side, 0, :3], axis=-1)
    looks = at.sees[game, side] & (at.target[game, side] == 0)
    return looks & (away <= rules.INSPECTION_M)


def _draw_actions(panel: Axes, at: Scene, game: int, axis: int, chosen: np.ndarray) -> None:
    """Draw the burns of the step as arrows, and its jams as discs of the jammers' ranges."""
    actions = rules.Actions(at.burns.shape[2])
    for side, action in enumerate(chosen):
        if 0 < action < actions.first_point:
            which, way = divmod(int(action) - 1, len(rules.DIRECTIONS))
            place = at.state[game, side, which, [_ALONG, axis]] / 1000.0
            push = rules.DIRECTIONS[way, [_ALONG, axis]]
            panel.plot(*place, "o", color="black", markersize=13, fillstyle="none")
            if push.any():
                arrow = {"arrowstyle": "<|-", "color": "black", "shrinkB": 6}  # head at the burn
                tip = tuple(30.0 * push)
                panel.annotate("", tuple(place), tip, "data", "offset points", arrowprops=arrow)
        elif action >= actions.first_jam:
            place = at.state[game, side, action - actions.first_jam, [_ALONG, axis]] / 1000.0
            about = np.linspace(0.0, 2.0 * np.pi, 60)
            edge = place + rules.JAM_RANGE_M / 1000.0 * np.stack([np.cos(about), np.sin(about)], 1)
            panel.fill(*edge.T, color=_COLOURS[side], alpha=0.15)


def _describe_sides(panel: Axes, at: Scene, game: int, chosen: np.ndarray) -> None:
    """Write the resources and actions of each side, and a legend."""
    panel.axis("off")
    custody = play.has_custody(at)[game]
    for side, (name, colour) in enumerate(zip(rules.AGENTS, _COLOURS, strict=True)):
        other, top = rules.AGENTS[1 - side], 0.985 - 0.25 * side
        panel.text(0.0, top, f"{name}: {at.score[game, side]:.1f} points", color=colour, va="top")
        looks = ", inspects it" if _inspects(at, game, side).any() else ""
        lines = [
            f"{'has' if custody[side] else 'no'} custody of {other}'s asset{looks}",
            f"burns left: {_amounts(at.burns[game, side])}",
            f"jams left: {_amounts(at.jams[game, side])}",
            f"now: {describe_action(int(chosen[side]), at.burns.shape[2])}",
        ]
        panel.text(0.0, top - 0.06, "\n".join(lines), fontsize=8, va="top", linespacing=1.4)
    marks: list[Artist] = [
        panel.plot([], [], style, color="grey", linewidth=width, label=label)[0]
        for style, width, label in (
            ("s", 0, "asset"),
            ("^", 0, "inspector"),
            (":", 0.8, "its next 24 minutes without burns"),
            ("x", 0, "where the colour's side takes the\nother's asset to be; circle: 1 σ"),
            ("+", 0, "likewise an inspector"),
            ("-", 0.8, "sees it"),
            ("-", 3.0, "inspects the asset"),
        )
    ]
    marks += panel.plot([], [], "o", color="black", fillstyle="none", label="burns, to where")
    marks += [panel.fill([], [], color="grey", alpha=0.3, label="jams all in reach")[0]]
    panel.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    panel.legend(handles=marks, loc="lower left", fontsize=8, frameon=False, borderaxespad=0.2)


def _amounts(left: np.ndarray) -> str:
    """Format the amounts left to the asset and to each inspector."""
    return f"asset {left[0]}, inspector {', '.join(map(str, left[1:]))}"


def describe_action(action: int, n: int) -> str:
    """Describe the effect of an action in words.

    Args:
        n: satellites per side.
    """
    actions = rules.Actions(n)

    def name(which: int) -> str:
        return "asset" if which == 0 else "inspector" if n == 2 else f"inspector {which}"

    if action == 0:
        return "holds"
    if action < actions.first_point:
        which, way = divmod(action - 1, len(rules.DIRECTIONS))
        return f"{name(which)} burns {_BURNS[way]}"
    if action < actions.first_jam:
        which, target = divmod(action - actions.first_point, n)
        return f"{name(which)} points at {name(target)}"
    return f"{name(action - actions.first_jam)} jams"

"""Strategy study of orbital.py: behaviour in games of snapshots over training and of scripts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from orbital_runs import Args, policy_player, run_of

from headrace.games.league_folder import snapshots
from headrace.rundir import checkpoint
from headrace.studies.league.command import folder_of
from headrace.studies.plotting import picture
from headrace_ssa.dominance import match, play, rules
from headrace_ssa.dominance.motion import is_lit
from headrace_ssa.dominance.players import PLAYERS, Player
from headrace_ssa.dominance.scene import Scene

ITSELF = "itself"
OPPONENTS = (ITSELF, "hold", "pursuit", "evader")  # hold is met as the tracker is
DRAWN = {ITSELF: "-", "hold": ":"}
PANELS = {
    "custody": "steps of custody",
    "inspections": "inspections",
    "sees asset": "steps the asset is seen",
    "blinded": "steps the Sun blinds all sensors",
    "pointings": "sensor moves",
    "asset burns across": "asset: burns across the track",
    "asset burns along": "asset: burns along it, up or down",
    "off station": "asset: steps off its station",
    "inspector burns across": "inspector: burns across",
    "inspector burns up": "inspector: burns up or down",
    "inspector burns along": "inspector: burns along",
    "jams": "jams",
}


def strategies(args: Args) -> list[dict[str, Any]]:
    """Measure what snapshots of each seed's run do in a game, and the final policy and scripts.

    All play their most likely actions. Final policies and scripts meet ``OPPONENTS``, others meet
    those in the plot. Results of runs are plotted in ``strategies.png``.
    """
    rows = []
    for seed in args.run_seeds:
        run = run_of(args, seed)
        for path, steps in stages(run.folder):
            met = OPPONENTS if path == run.folder else tuple(DRAWN)
            told = {"run": run.name, "steps": steps}
            rows += games(told, policy_player(path), met, args.pairs)
    draw(rows, args.output / "strategies.png")
    for name, make in PLAYERS.items():
        rows += games({"run": name, "steps": ""}, make(), OPPONENTS, args.pairs)
    return rows


def stages(folder: Path) -> Iterator[tuple[Path, int]]:
    """Return policies of a run in the order of steps: its league's snapshots, and the final one."""
    for one in snapshots(folder_of(folder)):
        yield one.path, one.step
    yield folder, int(checkpoint.find(folder).name.removeprefix("step_"))


def games(
    told: dict[str, Any], own: Player, met: Sequence[str], pairs: int
) -> list[dict[str, Any]]:
    """Measure what a player does in a game, averaged over paired games, per opponent."""
    return [
        {**told, "opponent": name, **done(own, own if name == ITSELF else PLAYERS[name](), pairs)}
        for name in met
    ]


def done(first: Player, second: Player, pairs: int) -> dict[str, float]:
    """Measure what the first player does in a game; distances are means over its steps."""
    total, steps = dict[str, Any](), 0.0
    for moment in match.moments(first, second, pairs):
        steps = steps + moment.going
        for name, each in counts(moment).items():
            total[name] = total.get(name, 0.0) + moment.going * each
    for name in total:
        if name.endswith("km"):
            total[name] = total[name] / steps
    return {name: float(each[moment.is_first].mean()) for name, each in total.items()}


def counts(moment: match.Moment) -> dict[str, np.ndarray]:
    """Return what each column ``[4 pairs]`` does in a step, and its state after the step."""
    at = moment.scene
    each = _held(at) | _burnt(moment)
    jammer = moment.actions.reshape(-1, 2) - rules.Actions(at.burns.shape[2]).first_jam
    reach = (_ways(at, at.burns.shape[2])[1] <= rules.JAM_RANGE_M).any(axis=3)
    reach = np.take_along_axis(reach, np.maximum(jammer, 0)[..., None], axis=2)[..., 0]
    each["jams in reach"] = (jammer >= 0) & reach & _lit(at)
    flat = {name: value.reshape(-1) for name, value in each.items()} | {
        "return": moment.reward,
        "custody": moment.infos["custody"],
        "inspections": moment.infos["inspections"],
        "jams": moment.infos["jammed"],
        "collisions": moment.infos["collided"],
    }
    return {name: value.astype(float) for name, value in flat.items()}


def _held(at: Scene) -> dict[str, np.ndarray]:
    """Return positions and observations of each side ``[G, 2]``."""
    way, away = _ways(at, 1)
    nearest, lit = away[:, :, 1:, 0].min(axis=2), _lit(at)
    near = nearest <= rules.INSPECTION_M
    sun = play.sun_now(at)[:, None, None, None]
    glare = (way * sun).sum(axis=-1) > np.cos(np.radians(rules.SUN_DEG)) * away
    off = np.linalg.norm(at.state[:, :, 0, :3] - at.station[..., :3], axis=-1)
    return {
        "near, lit": near & lit,
        "near, dark": near & ~lit,
        "inspector away, km": nearest / 1000.0,
        "assets apart, km": away[:, :, 0, 0] / 1000.0,
        "blinded": glare.all(axis=(2, 3)) & lit,
        "off station, km": off / 1000.0,
        "off station": play.off_station(at),
        "sees asset": (at.sees & (at.target == 0)).any(axis=2),
        "sees inspector": (at.sees & (at.target > 0)).any(axis=2),
    }


def _burnt(moment: match.Moment) -> dict[str, np.ndarray]:
    """Return the burns and sensor changes of each side ``[G, 2]``."""
    kinds = rules.Actions(moment.scene.burns.shape[2])
    acts, burnt = moment.actions.reshape(-1, 2), moment.infos["burnt"].reshape(-1, 2)
    which, way = np.divmod(acts - 1, len(rules.DIRECTIONS))
    asset, inspector, axis = burnt & (which == 0), burnt & (which > 0), way // 2
    return {
        "asset burns across": asset & (axis == 2),
        "asset burns along": asset & (axis < 2),
        "asset burns at first": asset & (moment.scene.time <= rules.SURVEY_STEPS)[:, None],
        "inspector burns up": inspector & (axis == 0),
        "inspector burns along": inspector & (axis == 1),
        "inspector burns across": inspector & (axis == 2),
        "pointings": (acts >= kinds.first_point) & (acts < kinds.first_jam),
    }


def _ways(at: Scene, others: int) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors ``[G, 2, n, others, 3]`` and distances from satellites to the other side's."""
    place = at.state[..., :3]
    way = place[:, ::-1, None, :others] - place[:, :, :, None]
    return way, np.linalg.norm(way, axis=-1)


def _lit(at: Scene) -> np.ndarray:
    """Return whether the Sun shines in each game, ``[G, 1]``."""
    return is_lit(play.sun_now(at))[:, None]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot each of ``PANELS`` over millions of steps, one colour per run."""
    title = "Events per game: against itself, and dotted against hold"
    runs = list(dict.fromkeys(row["run"] for row in rows))
    with picture(path, title, (11.0, 6.4), nrows=3, ncols=4, sharex=True) as (_, panels):
        for panel, (name, text) in zip(panels, PANELS.items(), strict=True):
            for (i, run), (opponent, style) in itertools.product(enumerate(runs), DRAWN.items()):
                own = [row for row in rows if (row["run"], row["opponent"]) == (run, opponent)]
                steps, values = [row["steps"] / 1e6 for row in own], [row[name] for row in own]
                label = run if opponent == ITSELF else None
                panel.plot(steps, values, style, color=f"C{i}", linewidth=1.3, label=label)
            panel.set_title(text, fontsize="small")
            panel.set_ylim(bottom=0.0)
            panel.grid(alpha=0.3)
        for panel in panels[-4:]:
            panel.set_xlabel("million steps", fontsize="small")
        panels[0].legend(fontsize="x-small")

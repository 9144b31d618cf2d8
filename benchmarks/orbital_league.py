"""League study of orbital.py: ratings of snapshots over training, and gains of exploiters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from orbital_runs import Args, policy_player, row, run_of, train
from scipy.stats import spearmanr

from headrace.games.league_folder import snapshots
from headrace.studies.league.command import folder_of, show_league
from headrace.studies.machine import write_csv
from headrace.studies.plotting import picture
from headrace_ssa.dominance import match

SNAPSHOTS = 12  # maximum number of snapshots that play, evenly spaced
FIRST_GAME = 3_000_000  # of games between snapshots; matches with scripted players have others


def league(args: Args) -> list[dict[str, Any]]:
    """Rate the snapshots of each seed's run, to see whether later ones are better.

    Ratings are separate for each run, with a mean of 1500. They are written to ``ratings.csv`` and
    ``ratings.png``, and the pay-offs of each run to a plot.
    """
    rated, rows = [], []
    for seed in args.run_seeds:
        run = run_of(args, seed)
        drawn = args.output / f"{run.name}-league.png"
        ratings = show_league(run.folder, (), args.pairs, SNAPSHOTS, FIRST_GAME, False, drawn)
        own = [
            {"run": run.name, "steps": one.step, **ratings[one.name]._asdict()}
            for one in snapshots(folder_of(run.folder))
            if one.name in ratings
        ]
        rated += own
        rows.append({"run": run.name, **rise(own)})
    write_csv(args.output / "ratings.csv", rated)
    draw_ratings(rated, args.output / "ratings.png")
    return rows


def rise(rated: list[dict[str, Any]]) -> dict[str, Any]:
    """Return first, last and best ratings in the order of steps, and their rank correlation.

    ``rank correlation`` is Spearman's of steps and ratings: 1 if every snapshot is rated above all
    earlier ones.
    """
    first, last = rated[0], rated[-1]
    best = max(rated, key=lambda one: one["value"])
    ordered = spearmanr([one["steps"] for one in rated], [one["value"] for one in rated])
    return {
        "snapshots": len(rated),
        "first": first["value"],
        "first se": first["se"],
        "last": last["value"],
        "last se": last["se"],
        "best": best["value"],
        "best steps": best["steps"],
        "rank correlation": float(ordered.statistic),
    }


def draw_ratings(rated: list[dict[str, Any]], path: Path) -> None:
    """Plot ratings over training with standard errors, one line per run."""
    with picture(path, "Ratings of snapshots, by games among each run's own", (6.5, 4.0)) as (
        _,
        (panel,),
    ):
        for name in dict.fromkeys(one["run"] for one in rated):
            own = [one for one in rated if one["run"] == name]
            steps, values, spread = ([one[key] for one in own] for key in ("steps", "value", "se"))
            panel.errorbar(steps, values, spread, label=name, marker="o", markersize=3, capsize=2)
        panel.set(xlabel="environment steps of the run", ylabel="rating (Elo)")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")


def exploiter(args: Args) -> list[dict[str, Any]]:
    """Train an exploiter from each seed's final policy against that policy, and measure its gain.

    The final policy plays its most likely actions, as in other matches, or samples them, as in both
    trainings. The last row is the gain of the most likely actions over sampled ones.
    """
    rows = []
    for seed in args.run_seeds:
        run = run_of(args, seed)
        folder = args.output / f"{run.name}-exploiter"
        seconds = train(
            args.algorithm,
            folder,
            seed,
            exploit=run.folder,
            init_from=run.folder,
            total_steps=args.exploit_steps,
        )
        own, final, drawn = (
            policy_player(folder),
            policy_player(run.folder),
            policy_player(run.folder, deterministic=False),
        )
        for first, second, players in (
            ("exploiter", "final", (own, final)),
            ("exploiter", "final, drawn", (own, drawn)),
            ("final", "final, drawn", (final, drawn)),
        ):
            torch.manual_seed(seed)
            result = match.play(*players, args.pairs)
            rows.append({"run": run.name, **row(first, second, result), "seconds": seconds})
    return rows

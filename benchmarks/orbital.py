"""The wargame: how fast it is, and how well what was trained plays it.

    python benchmarks/orbital.py --studies speed
    python benchmarks/orbital.py --seeds 3 --pairs 500
    python benchmarks/orbital.py --studies league,exploiter
    python benchmarks/orbital.py --studies strategies --pairs 100
    python benchmarks/orbital.py --studies match,film --first runs/x --second pursuit

``speed`` steps games with random actions on one core. ``scripted`` lets all scripted players meet.
``trained`` trains the recipe ``orbital`` by ``headrace train`` and lets each policy meet all
scripted players. ``league`` rates the snapshots of the same runs by games among them.
``exploiter`` trains a policy against the final one of each run, and lets the two meet. Runs but for
exploiters are trained once, and kept in the folder of results. ``strategies`` counts what their
snapshots do in a game. ``match`` lets any two meet: a scripted player's name, or a run directory;
``film`` shows a game of the two, as film.mp4 and film.gif. All matches are paired: the same games
are played with the seats changed, so that a return is that of a game, averaged over both seats, and
its standard error is that over pairs.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import tyro
from orbital_league import exploiter, league
from orbital_runs import Args, player, policy_player, row, run_of
from orbital_strategies import strategies
from satellites import print_table

from headrace.studies.machine import write_csv
from headrace_ssa import OrbitalDominanceVectorEnv
from headrace_ssa.dominance import match
from headrace_ssa.dominance.players import PLAYERS


def speed(args: Args) -> list[dict[str, Any]]:
    """Random actions, some of which masks forbid; all games end, and begin anew, at once.

    Per second of the clock, and per second that a core computed: where other programs run, only the
    second is the game's own.
    """
    envs, rng = OrbitalDominanceVectorEnv(args.num_envs), np.random.default_rng(0)
    envs.reset(seed=0)
    last, steps = envs.single_action_space.n, 0
    clock, computed = time.perf_counter(), time.process_time()
    while time.process_time() - computed < args.seconds:
        for _ in range(envs.horizon):
            envs.step(rng.integers(last, size=args.num_envs))
        envs.step(np.zeros(args.num_envs, np.int64))  # a filler, which isn't counted
        steps += envs.horizon * args.num_envs
    return [
        {
            "num_envs": args.num_envs,
            "steps/s": steps / (time.perf_counter() - clock),
            "steps per s of a core": steps / (time.process_time() - computed),
        }
    ]


def scripted(args: Args) -> list[dict[str, Any]]:
    """Every pair of scripted players."""
    return [
        row(one, other, match.play(PLAYERS[one](), PLAYERS[other](), args.pairs))
        for one, other in itertools.combinations(PLAYERS, 2)
    ]


def trained(args: Args) -> list[dict[str, Any]]:
    """The recipe's policy of each seed against every scripted player."""
    rows = []
    for seed in args.run_seeds:
        run = run_of(args, seed)
        own = policy_player(run.folder)
        for name, make in PLAYERS.items():
            result = match.play(own, make(), args.pairs)
            rows.append({**row(run.name, name, result), "seconds": run.seconds})
    return rows


def one_match(args: Args) -> list[dict[str, Any]]:
    """The two that the arguments name."""
    result = match.play(player(args.first), player(args.second), args.pairs)
    return [row(args.first, args.second, result)]


def film(args: Args) -> list[dict[str, Any]]:
    """The first game of a match of the two that the arguments name, the first of them blue."""
    import imageio.v2 as imageio

    envs = OrbitalDominanceVectorEnv(2, render_mode="rgb_array")
    sides, path = (player(args.first), player(args.second)), args.output / "film.gif"
    obs, infos = envs.reset(seed=match.FIRST_GAME)
    total, over = 0.0, False
    frames = [envs.render()[0]]
    while not over:
        mask = infos["action_mask"]
        each = [act(obs[i : i + 1], mask[i : i + 1]) for i, act in enumerate(sides)]
        obs, reward, terminated, _, infos = envs.step(np.concatenate(each))
        frames.append(envs.render()[0])
        total, over = total + float(reward[0]), bool(terminated[0])
    fps = envs.metadata["render_fps"]
    imageio.mimwrite(path.with_suffix(".mp4"), frames, fps=fps, macro_block_size=1)
    imageio.mimwrite(path, frames, fps=fps, loop=0)
    return [{"first": args.first, "second": args.second, "return": total, "film": str(path)}]


STUDIES = {
    "speed": speed,
    "scripted": scripted,
    "trained": trained,
    "league": league,
    "exploiter": exploiter,
    "strategies": strategies,
    "match": one_match,
    "film": film,
}


def main(args: Args) -> None:
    """Run the studies, print, and write a CSV of each; what happened in games is in these alone."""
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.studies.split(","):
        rows = STUDIES[name](args)
        print_table(name, [{k: v for k, v in one.items() if " of " not in k} for one in rows])
        write_csv(args.output / f"{name}.csv", rows)
    print(f"results in {args.output}")


if __name__ == "__main__":
    main(tyro.cli(Args))

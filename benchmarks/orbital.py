"""OrbitalDominance: speed of the game, and strength of trained policies.

    python benchmarks/orbital.py --studies speed
    python benchmarks/orbital.py --seeds 3 --pairs 500
    python benchmarks/orbital.py --studies league,exploiter
    python benchmarks/orbital.py --studies strategies --pairs 100
    python benchmarks/orbital.py --studies match,video --first runs/x --second pursuit

``speed`` steps games with random actions on one core. ``scripted`` plays all pairs of scripted
players. ``trained`` trains the recipe ``orbital`` with ``headrace train``, and plays each policy
against all scripted players. ``league`` rates the snapshots of these runs by games among them.
``exploiter`` trains a policy against the final one of each run, and plays the two. All runs except
exploiters are trained once and kept. ``strategies`` measures what snapshots do in a game. ``match``
plays two players: a scripted player's name, or a run directory. ``video`` records one game of them
as video.mp4 and video.gif.

Matches are paired: the same games are played with exchanged seats. So a return is that of a game
averaged over both seats, and standard errors are over pairs.
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
    """Measure the speed with random actions, some of which masks forbid. All games end at once.

    There are two rates: per wall-clock second, and per CPU second. If other programs run, only the
    second is the game's.
    """
    envs, rng = OrbitalDominanceVectorEnv(args.num_envs), np.random.default_rng(0)
    envs.reset(seed=0)
    last, steps = envs.single_action_space.n, 0
    clock, computed = time.perf_counter(), time.process_time()
    while time.process_time() - computed < args.seconds:
        for _ in range(envs.horizon):
            envs.step(rng.integers(last, size=args.num_envs))
        envs.step(np.zeros(args.num_envs, np.int64))  # reset steps don't count
        steps += envs.horizon * args.num_envs
    return [
        {
            "num_envs": args.num_envs,
            "steps/s": steps / (time.perf_counter() - clock),
            "steps per s of a core": steps / (time.process_time() - computed),
        }
    ]


def scripted(args: Args) -> list[dict[str, Any]]:
    """Play every pair of scripted players."""
    return [
        row(one, other, match.play(PLAYERS[one](), PLAYERS[other](), args.pairs))
        for one, other in itertools.combinations(PLAYERS, 2)
    ]


def trained(args: Args) -> list[dict[str, Any]]:
    """Play the recipe's policy of each seed against every scripted player."""
    rows = []
    for seed in args.run_seeds:
        run = run_of(args, seed)
        own = policy_player(run.folder)
        for name, make in PLAYERS.items():
            result = match.play(own, make(), args.pairs)
            rows.append({**row(run.name, name, result), "seconds": run.seconds})
    return rows


def one_match(args: Args) -> list[dict[str, Any]]:
    """Play the two players of the arguments."""
    result = match.play(player(args.first), player(args.second), args.pairs)
    return [row(args.first, args.second, result)]


def video(args: Args) -> list[dict[str, Any]]:
    """Record the first game of a match of the two players of the arguments; the first is blue."""
    import imageio.v2 as imageio

    envs = OrbitalDominanceVectorEnv(2, render_mode="rgb_array")
    sides, path = (player(args.first), player(args.second)), args.output / "video.gif"
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
    return [{"first": args.first, "second": args.second, "return": total, "video": str(path)}]


STUDIES = {
    "speed": speed,
    "scripted": scripted,
    "trained": trained,
    "league": league,
    "exploiter": exploiter,
    "strategies": strategies,
    "match": one_match,
    "video": video,
}


def main(args: Args) -> None:
    """Run the studies, print, and write a CSV file of each, which also has events of the games."""
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.studies.split(","):
        rows = STUDIES[name](args)
        print_table(name, [{k: v for k, v in one.items() if " of " not in k} for one in rows])
        write_csv(args.output / f"{name}.csv", rows)
    print(f"results in {args.output}")


if __name__ == "__main__":
    main(tyro.cli(Args))

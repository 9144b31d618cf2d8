"""The wargame: how fast it is, and how well what was trained plays it.

    python benchmarks/orbital.py --studies speed
    python benchmarks/orbital.py --seeds 3 --pairs 500
    python benchmarks/orbital.py --studies match --first runs/x --second pursuit

``speed`` steps games with random actions on one core. ``scripted`` lets all scripted players meet.
``trained`` trains the recipe ``orbital`` by ``headrace train`` and lets each policy meet all
scripted players. ``match`` lets any two meet: a scripted player's name, or a run directory. All
games are paired: the same ones are played with the seats changed, so that a return is that of a
game, averaged over both seats, and its standard error is that over pairs.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from common import train_command
from satellites import print_table

import headrace as hr
from headrace.errors import require, require_choice
from headrace.studies.machine import write_csv
from headrace_ssa import OrbitalDominanceVectorEnv
from headrace_ssa.dominance import match
from headrace_ssa.dominance.players import PLAYERS, Player

FIRST_SEED = 100


@dataclass(frozen=True)
class Args:
    """Measure the wargame; see the top of the file."""

    studies: str = "speed,scripted,trained"
    """Separated by commas."""
    algorithm: str = "appo"
    """The recipe is trained with."""
    seeds: int = 3
    """Training runs, with seeds 100, 101 …: settings were chosen on others."""
    total_steps: int | None = None
    """Of each training run; None: the recipe's."""
    pairs: int = 500
    """Games of each match, each of which is played from both seats."""
    first: str = "tracker"
    """Of the study match: a scripted player, or the run directory of a policy."""
    second: str = "hold"
    """Who that meets."""
    num_envs: int = 256
    """Columns stepped together in the study of speed."""
    seconds: float = 5.0
    """Of computing in which speed is measured."""
    output: Path = Path("results/orbital")
    """Folder for runs and CSV files."""


def policy_player(run_dir: Path | str) -> Player:
    """A trained policy, deterministic.

    Raises:
        ConfigError: it takes more than the present: a player is told no beginnings of games.
    """
    policy = hr.load(run_dir)
    network = policy.network
    require(
        network.core is None and not network.previous_action_reward,
        "run_dir",
        str(run_dir),
        "a run whose policy sees the present alone (core=None, previous_action_reward=False): "
        "a match has no memory for players",
    )

    def act(obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return policy.predict(obs, action_mask=mask)[0]

    return act


def player(name: str) -> Player:
    """A scripted player, or the policy of a run directory."""
    if Path(name).is_dir():
        return policy_player(name)
    require_choice("player", name, PLAYERS)
    return PLAYERS[name]()


def row(first: str, second: str, result: match.Match) -> dict[str, Any]:
    """What came of a match, for tables; ``in_se`` is the return in standard errors."""
    told = {"first": first, "second": second, "return": result.mean, "se": result.se}
    told["in_se"] = result.in_se
    for whose, happened in (("first", result.first), ("second", result.second)):
        told |= {f"{name} of {whose}": count for name, count in happened.items()}
    return told


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
    more = {} if args.total_steps is None else {"total_steps": args.total_steps}
    for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
        folder = args.output / f"{args.algorithm}-{seed}"
        flags = {"recipe": "orbital", "seed": seed, "overwrite": True, "eval_episodes": 0} | more
        seconds = train_command(args.algorithm, folder, 3600.0, **flags).wall_s
        own = policy_player(folder)
        for name, make in PLAYERS.items():
            result = match.play(own, make(), args.pairs)
            rows.append({**row(f"{args.algorithm}-{seed}", name, result), "seconds": seconds})
    return rows


def one_match(args: Args) -> list[dict[str, Any]]:
    """The two that the arguments name."""
    result = match.play(player(args.first), player(args.second), args.pairs)
    return [row(args.first, args.second, result)]


STUDIES = {"speed": speed, "scripted": scripted, "trained": trained, "match": one_match}


def main(args: Args) -> None:
    """Run the studies, print, and write a CSV of each."""
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.studies.split(","):
        rows = STUDIES[name](args)
        print_table(name, rows)
        write_csv(args.output / f"{name}.csv", rows)
    print(f"results in {args.output}")


if __name__ == "__main__":
    main(tyro.cli(Args))

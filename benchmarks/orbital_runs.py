"""Of the wargame's benchmark: its arguments, the runs that it trains, and who plays in matches."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import keep, kept, train_command

import headrace as hr
from headrace.errors import require, require_choice
from headrace_ssa.dominance import match
from headrace_ssa.dominance.players import PLAYERS, Player

LIMIT_S = 3600.0  # of a training run


@dataclass(frozen=True)
class Args:
    """Measure the wargame; see the top of orbital.py."""

    studies: str = "speed,scripted,trained,league,exploiter"
    """Separated by commas."""
    algorithm: str = "appo"
    """The recipe is trained with."""
    seeds: int = 3
    """Training runs."""
    first_seed: int = 100
    """Of the first of them; those that follow are the others'. Settings were chosen on others than
    100, 101 and 102, whose results are in docs/results_learning.md."""
    total_steps: int | None = None
    """Of each training run; None: the recipe's."""
    exploit_steps: int = 4_000_000
    """Of each exploiter's training."""
    pairs: int = 500
    """Games of each match, each of which is played from both seats; snapshots of a league play as
    many with each other, half of them from either seat."""
    first: str = "tracker"
    """Of the studies match and film: a scripted player, or the run directory of a policy."""
    second: str = "hold"
    """Who that meets."""
    num_envs: int = 256
    """Columns stepped together in the study of speed."""
    seconds: float = 5.0
    """Of computing in which speed is measured."""
    output: Path = Path("results/orbital")
    """Folder for runs, CSV files, pictures and films."""

    @property
    def run_seeds(self) -> range:
        """Of the training runs."""
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True)
class Asked:
    """What a training run is kept by."""

    algorithm: str
    seed: int
    total_steps: int | None


class Run(NamedTuple):
    """A run that ended."""

    name: str
    folder: Path
    seconds: float


def run_of(args: Args, seed: int) -> Run:
    """The recipe's run with this seed, trained unless it is there.

    Raises:
        ConfigError: what is there has other steps.
    """
    name = f"{args.algorithm}-{seed}"
    folder, asked = args.output / name, Asked(args.algorithm, seed, args.total_steps)
    there = kept(args.output / f"{name}.json", asked)
    if there is None:
        more = {} if args.total_steps is None else {"total_steps": args.total_steps}
        seconds = train(args.algorithm, folder, seed, **more)
        there = keep(args.output / f"{name}.json", asked, {"seconds": seconds})
    return Run(name, folder, there["seconds"])


def train(algorithm: str, folder: Path, seed: int, **flags: Any) -> float:
    """Train the recipe ``orbital`` by the command, anew each time; seconds of the clock.

    Args:
        flags: of the command, beside those that every run has.

    Raises:
        RuntimeError: it failed, or was not done in ``LIMIT_S``.
    """
    whole = {"recipe": "orbital", "seed": seed, "overwrite": True, "eval_episodes": 0} | flags
    ended = train_command(algorithm, folder, LIMIT_S, **whole)
    if ended.timed_out:
        raise RuntimeError(f"{folder} was not trained in {LIMIT_S:g} s")
    return ended.wall_s


def policy_player(run_dir: Path | str, deterministic: bool = True) -> Player:
    """A trained policy, which plays its likeliest actions, or else draws them as in training.

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
    choose = functools.partial(policy.predict, deterministic=deterministic)

    def act(obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return choose(obs, action_mask=mask)[0]

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

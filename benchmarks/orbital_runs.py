"""Arguments, training runs and players of orbital.py."""

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

LIMIT_S = 3600.0  # time limit of a training run


@dataclass(frozen=True)
class Args:
    """Measure OrbitalDominance; see the docstring of orbital.py."""

    studies: str = "speed,scripted,trained,league,exploiter"
    """Comma-separated studies."""
    algorithm: str = "appo"
    """Algorithm of the recipe."""
    seeds: int = 3
    """Number of training runs."""
    first_seed: int = 100
    """First seed. Settings were chosen with other seeds than 100, 101 and 102, whose results are in
    docs/results/learning.md.
    """
    total_steps: int | None = None
    """Steps of each training run; None: the recipe's."""
    exploit_steps: int = 4_000_000
    """Steps of each exploiter's training."""
    pairs: int = 500
    """Games per match, each played from both seats. Snapshots of a league play as many games with
    each other, half of them from either seat.
    """
    first: str = "tracker"
    """First player of the studies match and video: a scripted player or a run directory."""
    second: str = "hold"
    """Second player."""
    num_envs: int = 256
    """Columns stepped together in the speed study."""
    seconds: float = 5.0
    """CPU seconds of the speed study."""
    output: Path = Path("results/orbital")
    """Folder for runs, CSV files, plots and videos."""

    @property
    def run_seeds(self) -> range:
        """Seeds of the training runs."""
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True)
class Asked:
    """Return the settings that identify a training run."""

    algorithm: str
    seed: int
    total_steps: int | None


class Run(NamedTuple):
    """A finished run."""

    name: str
    folder: Path
    seconds: float


def run_of(args: Args, seed: int) -> Run:
    """Return the recipe's run with this seed. Train it if it is missing.

    Raises:
        ConfigError: an existing run has a different number of steps.
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
    """Train the recipe ``orbital`` with the command from scratch. Return wall-clock seconds.

    Args:
        flags: additional flags of the command.

    Raises:
        RuntimeError: the command failed, or took more than ``LIMIT_S``.
    """
    whole = {"recipe": "orbital", "seed": seed, "overwrite": True, "eval_episodes": 0} | flags
    ended = train_command(algorithm, folder, LIMIT_S, **whole)
    if ended.timed_out:
        raise RuntimeError(f"{folder} was not trained in {LIMIT_S:g} s")
    return ended.wall_s


def policy_player(run_dir: Path | str, deterministic: bool = True) -> Player:
    """Return a trained policy that plays its most likely actions, or samples as in training.

    Raises:
        ConfigError: the policy has memory, but players don't learn when a game starts.
    """
    policy = hr.load(run_dir)
    network = policy.network
    require(
        network.core is None and not network.previous_action_reward,
        "run_dir",
        str(run_dir),
        "a run whose policy has no memory (core=None, previous_action_reward=False): "
        "players of a match can't have any",
    )
    choose = functools.partial(policy.predict, deterministic=deterministic)

    def act(obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return choose(obs, action_mask=mask)[0]

    return act


def player(name: str) -> Player:
    """Return a scripted player, or the policy of a run directory."""
    if Path(name).is_dir():
        return policy_player(name)
    require_choice("player", name, PLAYERS)
    return PLAYERS[name]()


def row(first: str, second: str, result: match.Match) -> dict[str, Any]:
    """Return the results of a match for tables; ``in_se`` is the return in standard errors."""
    told = {"first": first, "second": second, "return": result.mean, "se": result.se}
    told["in_se"] = result.in_se
    for whose, happened in (("first", result.first), ("second", result.second)):
        told |= {f"{name} of {whose}": count for name, count in happened.items()}
    return told

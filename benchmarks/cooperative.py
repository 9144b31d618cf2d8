"""Returns of one shared policy in cooperative games, compared with published returns.

    python benchmarks/cooperative.py
    python benchmarks/cooperative.py --games spread --seeds 0 1 2 3 4

Finished runs aren't repeated, and interrupted runs are resumed. Returns are in the units of the
publications; docs/results/studies.md explains the conversion.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from common import keep, kept

import headrace as hr
from headrace.errors import ConfigError, require, require_choice
from headrace.rundir.curves import read_run
from headrace.studies.aggregation import mean_se
from headrace.studies.machine import machine, show, wide_console
from headrace.studies.run import train_to_end

FIRST_SEED = 3_000_000  # of the evaluation games, different from those of training
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # fractions of a run at which its curve is reported


class Game(NamedTuple):
    """Training settings and published returns of a game, in units of factor * ours + plus."""

    config: hr.Config
    played: int
    deterministic: bool
    published: dict[str, str]
    factor: float = 1.0
    plus: float = 0.0


GAMES = {
    # The paper sums over its three agents, each with the full distances and its collisions. In
    # PettingZoo each has half of both, and collides with itself in each of the 25 steps.
    "spread": Game(
        hr.Config(
            env="mpe2:simple_spread_v3",
            algo=hr.PPO(
                learning_rate=1e-3,
                epochs=10,
                gamma=0.9,
                entropy_coef=0.01,
                entropy_schedule="linear",
            ),
            total_steps=5_000_000,
            num_actors=2,
            envs_per_actor=192,
            fragment_length=26,  # 25 steps of a game, and the autoreset step
            network=hr.Network(hidden=(128, 128)),
        ),
        played=1000,
        deterministic=False,
        published={
            "IPPO, Papoudakis et al.": "about -134",
            "MAPPO, Papoudakis et al.": "about -134",
        },
        factor=6.0,
        plus=-75.0,
    ),
    "multiwalker": Game(
        hr.Config(
            env="pettingzoo:sisl/multiwalker_v9",
            algo=hr.PPO(learning_rate=5e-4, epochs=10),
            total_steps=3_000_000,
            num_actors=2,
            envs_per_actor=48,
            fragment_length=128,
        ),
        played=100,
        deterministic=True,
        published={"PPO, PettingZoo's": "8.3 and 7.5"},
    ),
}


@dataclass(frozen=True)
class Args:
    """Train and evaluate policies in cooperative games; see the module's docstring."""

    games: tuple[str, ...] = tuple(GAMES)
    seeds: tuple[int, ...] = (0, 1, 2)
    total_steps: int | None = None
    """Agent steps of each run; None: the game's default."""
    played: int | None = None
    """Games per player; None: the game's default."""
    output: Path = Path("runs/cooperative")

    def __post_init__(self) -> None:
        for name in self.games:
            require_choice("games", name, GAMES)
        for name in ("total_steps", "played"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "1 or more (nearest: 1)")


@dataclass(frozen=True)
class Asked:
    """Return the settings that identify a run, in addition to game and seed."""

    total_steps: int
    played: int


def in_games(game: Game, returns: np.ndarray) -> dict[str, float]:
    """Return mean and standard error of returns ``[agents, played]`` in published units."""
    mean, error = mean_se(game.factor * returns.mean(0) + game.plus)
    return {"mean": mean, "se": error}


def random_play(game: Game, played: int) -> dict[str, float]:
    """Return the returns of random actions, and microseconds per agent step of the game alone."""
    envs = hr.make_vec(game.config.env, played)
    envs.reset(seed=FIRST_SEED)
    envs.action_space.seed(FIRST_SEED)
    returns, running, steps = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool), 0
    start = time.process_time()
    while running.any():
        _, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        returns += running * reward
        running &= ~(terminated | truncated)
        steps += envs.num_envs
    step_us = 1e6 * (time.process_time() - start) / steps
    envs.close()
    return in_games(game, returns.reshape(played, -1).T) | {"step_us": step_us}


def trained(game: Game, folder: Path, seed: int, asked: Asked) -> dict[str, Any]:
    """Return results, curve and seconds of a seed's policy. Train it if it is missing."""
    path = folder.with_suffix(".json")
    if there := kept(path, asked):
        return there
    run = {"seed": seed, "run_dir": str(folder), "total_steps": asked.total_steps}
    config = dataclasses.replace(game.config, eval_episodes=0, **run)
    if failed := train_to_end(config, total_steps=asked.total_steps):
        raise RuntimeError(f"{folder}: {failed}")
    play = {"seed": FIRST_SEED, "deterministic": game.deterministic}
    found = hr.evaluate(hr.load(folder), game.config.env, asked.played, **play)
    each = np.array([one.returns for one in (found.agents or {}).values()])
    steps, curve = read_run(folder).curve("env_steps", "charts/episodic_return")
    at = game.factor * np.interp(np.array(SHARES) * asked.total_steps, steps, curve) + game.plus
    seconds = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["seconds_total"]
    return keep(path, asked, in_games(game, each) | {"curve": at.tolist(), "seconds": seconds})


def report(game: Game, runs: dict[str, dict[str, Any]], asked: Asked) -> None:
    """Return a row per player: evaluation returns, and training returns at fractions of the run."""
    rows = []
    for name, run in runs.items():
        row = {"player": name, "return": f"{run['mean']:.1f} ± {run['se']:.1f}"}
        if curve := run.get("curve"):
            told = zip(SHARES, curve, strict=True)
            row |= {f"at {share:.0%}": f"{value:.1f}" for share, value in told}
            row["seconds"] = f"{run['seconds']:.0f}"
        rows.append(row)
    rows += [{"player": name, "return": what} for name, what in game.published.items()]
    names = dict.fromkeys(key for row in rows for key in row)
    title = f"{game.config.env}, {asked.total_steps:,} steps, {asked.played} games; {machine()}"
    show([dict.fromkeys(names, "") | row for row in rows], title, wide_console())


def main(args: Args) -> None:
    """Train missing runs, and print the table of each game when its runs are complete."""
    for name in args.games:
        game = GAMES[name]
        steps = args.total_steps or game.config.total_steps
        asked = Asked(steps, args.played or game.played)
        runs = {"random": random_play(game, asked.played)}
        for seed in args.seeds:
            runs[f"seed {seed}"] = trained(game, args.output / f"{name}-{seed}", seed, asked)
        report(game, runs, asked)
        print(f"the game alone takes {runs['random']['step_us']:.0f} µs per agent step")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except ConfigError as error:
        sys.exit(f"cooperative.py: {error}")

"""Satellite games: speed of the games, and strength of trained policies.

    python benchmarks/satellites.py --studies speed
    python benchmarks/satellites.py --studies conjunction --seeds 3 --episodes 500

``speed`` steps SSAConjunction with random actions on one core, long enough for episodes to end at
different times. ``simple`` and ``conjunction`` train the recipes with ``headrace train`` and
evaluate them. SimpleSatellite's policy is compared with the optimum of each episode.
SSAConjunction's policy is compared with random, round-robin and greedy players on the same
episodes, so that differences are paired.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro
from common import draw_ranges, train_command

import headrace as hr
from headrace.studies.aggregation import mean_se
from headrace.studies.machine import machine, show, wide_console, write_csv
from headrace_ssa import baselines, simple

FIRST_SEED = 2_000_000  # of the evaluation episodes, different from those of training
PLAYERS: dict[str, Callable[[], baselines.Player]] = {
    "random": baselines.random_player,
    "round-robin": baselines.round_robin,
    "greedy": baselines.greedy,
}
COUNTS = ("collisions", "avoided", "false_alarms")


@dataclass(frozen=True)
class Args:
    """Measure the satellite games; see the module's docstring."""

    studies: str = "speed,simple,conjunction"
    """Comma-separated studies."""
    algorithm: str = "appo"
    """Algorithm of the recipes."""
    seeds: int = 3
    """Number of training runs, with seeds from 0."""
    episodes: int = 500
    """Episodes of each policy and each other player."""
    total_steps: int | None = None
    """Steps of each training run; None: the recipe's."""
    num_envs: int = 256
    """Environments stepped together in the speed study."""
    seconds: float = 5.0
    """Seconds of each speed measurement."""
    output: Path = Path("results/satellites")
    """Folder for runs, CSV files and plots."""


# -- speed -----------------------------------------------------------------------------------------


def steps_per_second(envs: Any, num_envs: int, seconds: float, warm_up: int) -> float:
    """Return the rate of a vector environment with random actions, without reset steps."""
    envs.reset(seed=0)
    rng, ended, steps = np.random.default_rng(0), np.zeros(num_envs, bool), 0
    last = envs.single_action_space.n
    start = time.perf_counter()
    for i in range(10**9):
        if i == warm_up:
            steps, start = 0, time.perf_counter()
        elif i > warm_up and time.perf_counter() - start > seconds:
            break
        steps += int((~ended).sum())
        _, _, terminated, truncated, _ = envs.step(rng.integers(last, size=num_envs))
        ended = terminated | truncated
    return steps / (time.perf_counter() - start)


def speed(args: Args) -> list[dict[str, Any]]:
    """Measure both games, vectorised and one by one."""
    rows = []
    for name in ("SSAConjunction", "SimpleSatellite"):
        for engine, num_envs in (("native", args.num_envs), ("sync", 8)):
            envs = hr.make_vec(f"headrace/{name}-v0", num_envs, engine)
            rate = steps_per_second(envs, num_envs, args.seconds, warm_up=400)
            rows.append({"env": name, "engine": engine, "num_envs": num_envs, "sps": rate})
            envs.close()
    return rows


# -- training and evaluation ----------------------------------------------------------------------


def train(args: Args, recipe: str, seed: int) -> tuple[Path, float]:
    """Run ``headrace train``. Return the run directory and the seconds of the whole command."""
    folder = args.output / f"{recipe}-{args.algorithm}-{seed}"
    more = {} if args.total_steps is None else {"total_steps": args.total_steps}
    flags = {"recipe": recipe, "seed": seed, "overwrite": True} | more
    return folder, train_command(args.algorithm, folder, 3600.0, **flags).wall_s


def policy_player(run_dir: Path) -> baselines.Player:
    """Return a trained policy, deterministic."""
    policy = hr.load(run_dir)

    def act(obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return policy.predict(obs, action_mask=mask)[0]

    return act


def play(player: baselines.Player, episodes: int) -> tuple[np.ndarray, dict[str, float]]:
    """Return returns ``[episodes]`` of the first episode of each seed, and means of events."""
    envs = gymnasium.make_vec(
        "headrace_ssa:headrace/SSAConjunction-v0", episodes, "vector_entry_point"
    )
    obs, infos = envs.reset(seed=FIRST_SEED)
    first_burn = envs.single_action_space.n - 2
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    happened = dict.fromkeys(("burns", *COUNTS), 0.0)
    while running.any():
        actions = player(obs, infos["action_mask"].astype(bool))
        happened["burns"] += (running & (actions >= first_burn)).sum()
        obs, reward, terminated, _, infos = envs.step(actions)
        returns += running * reward
        for name in COUNTS:
            happened[name] += (running * infos[name]).sum()
        running &= ~terminated
    envs.close()
    return returns, {name: float(count) / episodes for name, count in happened.items()}


def conjunction(args: Args) -> list[dict[str, Any]]:
    """Compare every trained policy with every other player on the same episodes."""
    others, rows = {}, []
    for name, make in PLAYERS.items():
        others[name], happened = play(make(), args.episodes)
        rows.append({"player": name, **_mean_se(others[name]), **happened})
    for seed in range(args.seeds):
        folder, seconds = train(args, "conjunction", seed)
        returns, happened = play(policy_player(folder), args.episodes)
        row = {"player": f"{args.algorithm}, seed {seed}", **_mean_se(returns), **happened}
        for name, theirs in others.items():
            better = _mean_se(returns - theirs)
            row[f"over_{name}"] = better["mean"]
            row[f"over_{name}_in_se"] = better["mean"] / (better["se"] or math.nan)
        rows.append({**row, "seconds": seconds})
    return rows


def _mean_se(values: np.ndarray) -> dict[str, float]:
    return dict(zip(("mean", "se"), mean_se(values), strict=True))


def simple_satellite(args: Args) -> list[dict[str, Any]]:
    """Compare every trained policy with the optimum of the same episodes."""
    rows = []
    for seed in range(args.seeds):
        folder, seconds = train(args, "satellite", seed)
        policy = hr.load(folder)
        envs = gymnasium.make_vec(
            "headrace_ssa:headrace/SimpleSatellite-v0", args.episodes, "vector_entry_point"
        )
        obs, _ = envs.reset(seed=FIRST_SEED)
        best = np.mean([simple.optimal_return(row) for row in obs[:, 6:]])
        total = np.zeros(args.episodes)
        for _ in range(20):
            obs, reward, *_ = envs.step(policy.predict(obs)[0])
            total += reward
        envs.close()
        share = float(total.mean() / best)
        row = {"player": f"{args.algorithm}, seed {seed}", **_mean_se(total), "optimum": best}
        rows.append({**row, "share": share, "seconds": seconds})
    return rows


# -- tables ----------------------------------------------------------------------------------------

STUDIES = {"speed": speed, "simple": simple_satellite, "conjunction": conjunction}


def print_table(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows of a study."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    texts = [
        {key: f"{v:,.2f}" if isinstance(v := row.get(key, ""), float) else v for key in names}
        for row in rows
    ]
    show(texts, f"{name}; {machine()}", wide_console())


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot the mean return of each player with two standard errors."""
    ranges = {
        row["player"]: (row["mean"], row["mean"] - 2 * row["se"], row["mean"] + 2 * row["se"])
        for row in rows
    }
    label = "return of an episode, ± 2 standard errors"
    draw_ranges(ranges, "SSAConjunction-v0", label, path, own="")


def main(args: Args) -> None:
    """Run the studies, print, and write a CSV file of each and a plot."""
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.studies.split(","):
        rows = STUDIES[name](args)
        print_table(name, rows)
        write_csv(args.output / f"{name}.csv", rows)
        if name == "conjunction":
            draw(rows, args.output / "conjunction.png")
    print(f"results in {args.output}")


if __name__ == "__main__":
    main(tyro.cli(Args))

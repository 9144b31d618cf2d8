"""Training speed of OrbitalDominance by self-play, vs. single-agent environments of equal cost.

    python benchmarks/orbital_rates.py

Every case is the recipe ``orbital`` with its columns, network and updates, in a separate process.
Cases are interleaved, and ratios are medians of the ratios within a round. Rates are steps of
trained columns per second after the first update.

single      the game's columns as separate environments, without any multi-agent code
blue        an environment is a whole game, in which blue is trained and red holds
shared      one policy plays both sides, without a league
latest:1    the same in a league in which all games are against the latest policy
league      the recipe's opponents, with ``snapshots`` in its league, all equally likely
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from games import report
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

import headrace as hr
from headrace.recipes import recipe
from headrace.studies.children import Children
from headrace.studies.machine import wide_console
from headrace_ssa import OrbitalDominanceVectorEnv

TIMEOUT_S = 600.0
CASES = ("single", "blue", "shared", "latest:1", "league")


@dataclass(frozen=True)
class Args:
    """Measure training speed; see the module's docstring."""

    repeats: int = 3
    """Number of measurements of each case."""
    seconds: float = 10.0
    """Seconds of a run after its first update."""
    snapshots: int = 20
    """Snapshots in the league, by default as many as at the end of the recipe."""
    output: Path = Path("results/orbital_rates")
    """Folder for orbital_rates.csv."""


class Blue(VectorEnv):
    """Games of which only blue's side is observed, while red does nothing."""

    each = 2  # columns of the game per observed column

    def __init__(self, num_envs: int) -> None:
        whole = self.each * num_envs
        self._games, self.num_envs = OrbitalDominanceVectorEnv(whole + whole % 2), num_envs
        self._seen = slice(0, whole, self.each)
        self.single_observation_space = self._games.single_observation_space
        self.single_action_space = self._games.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = self._games.metadata

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all games."""
        obs, infos = self._games.reset(seed=seed, options=options)
        return obs[self._seen], {"action_mask": infos["action_mask"][self._seen]}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game with the actions ``[num_envs]`` of the observed columns."""
        given = np.zeros(self._games.num_envs, np.int64)  # 0 means hold
        given[self._seen] = actions
        *told, infos = self._games.step(given)
        obs, reward, terminated, truncated = (x[self._seen] for x in told)
        return obs, reward, terminated, truncated, {"action_mask": infos["action_mask"][self._seen]}


class Single(Blue):
    """All columns of the games as separate environments. An odd last column is alone."""

    each = 1


def config_of(case: str, folder: Path) -> hr.Config:
    """Return the recipe's settings of a case, with a league in ``folder``."""
    config = recipe("orbital", "appo")
    config = replace(config, run_dir=str(folder / "run"), eval_episodes=0, opponents=None)
    if case in ("single", "blue"):
        return replace(config, env=Single if case == "single" else Blue)
    if case == "shared":
        return config
    opponents = "latest:1" if case == "latest:1" else recipe("orbital", "appo").opponents
    return replace(config, opponents=opponents, league=str(folder / "league"))


def first_snapshots(config: hr.Config, count: int) -> hr.Config:
    """Return settings of a short run that saves snapshots in the league, one per update."""
    assert config.batch_size is not None
    every = int(config.batch_size)
    return replace(config, total_steps=every * (count - 1), snapshot_every_steps=every // 2)


def trained(config: hr.Config, seconds: float) -> float:
    """Return steps per second after the first update of a run that stops after ``seconds``."""
    with contextlib.closing(
        hr.Trainer(config, notify=lambda text: print(text, file=sys.stderr), handle_signals=False)
    ) as trainer:
        end = None
        for _ in trainer:
            end = end or time.monotonic() + seconds
            if time.monotonic() > end:
                break
        return trainer.sps


def begun(request: dict[str, Any]) -> float:
    """Create a league in a folder, in this process."""
    config = config_of("league", Path(request["folder"]))
    return trained(first_snapshots(config, request["snapshots"]), TIMEOUT_S)


def measured(request: dict[str, Any]) -> float:
    """Return the rate of a case, measured in this process with a separate copy of the league."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(Path(request["folder"]) / "league", folder / "league")
        return trained(config_of(request["case"], folder), request["seconds"])


def main(args: Args) -> None:
    """Measure, print and write the results."""
    console = wide_console()
    found: dict[str, list[float]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        asked = {"folder": folder, "snapshots": args.snapshots}
        Children().call(begun, asked, TIMEOUT_S)
        for _, case in itertools.product(range(args.repeats), CASES):
            asked = {"folder": folder, "case": case, "seconds": args.seconds}
            found[case].append(Children().call(measured, asked, TIMEOUT_S))
            console.print(f"{case}: {found[case][-1]:,.0f} steps/s")
    report(found, {base: found[base] for base in CASES[:2]}, args.output / "orbital_rates.csv", {})


if __name__ == "__main__":
    main(tyro.cli(Args))

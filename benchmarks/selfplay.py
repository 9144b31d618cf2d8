"""Self-play in solved games: distance from an equilibrium, or from perfect play.

    python benchmarks/selfplay.py                         # Kuhn poker, every method, three seeds
    python benchmarks/selfplay.py leduc_poker --seeds 1
    python benchmarks/selfplay.py tic_tac_toe --methods latest

NashConv is the total gain of both players by best responses (OpenSpiel's, exact). It is measured
for the latest policy, and for averages over the league's snapshots, in which a snapshot counts in
an information state by the probability that its player reaches it. Tic-tac-toe is played 1,000
times from either seat against minimax, which samples among its best moves. Tic-tac-toe and Connect
Four are also played against a player with a one-move lookahead and against a random player.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import headrace as hr

METHODS = ("latest", "naive", "uniform", "pfsp", "latest:0.5,pfsp:0.5")  # a run's opponents
ALGORITHMS = {
    "ppo": hr.PPO,
    "a2c": hr.A2C,
    "impala": hr.IMPALA,
    "appo": hr.APPO,
    "impact": hr.IMPACT,
}
FIRST_SEED = 10  # settings were chosen with smaller seeds
GAMES_PLAYED = 1000  # games from each seat


class Settings(NamedTuple):
    """Settings of a game. The entropy bonus falls to 0 with the learning rate unless ``held``."""

    steps: int = 2_000_000
    entropy: float = 0.3
    learning_rate: float = 3e-4
    minibatches: int = 8
    columns: int = 512
    fragment: int = 16
    hidden: tuple[int, ...] = (64, 64)
    lam: float = 1.0
    clip: float = 0.2
    held: bool = False
    gamma: float = 1.0
    epochs: int = 2
    more: Mapping[str, Any] = MappingProxyType({})  # settings of the algorithm only

    def changed(self, words: list[str]) -> Settings:
        """Return a copy with ``name=value`` in JSON. Unknown names go to the algorithm."""
        pairs = (word.partition("=") for word in words)
        given = {name: json.loads(value) for name, _, value in pairs}
        own = {name: given.pop(name) for name in self._fields if name in given}
        return self._replace(**own, more=given)


SETTINGS = {
    "rock_paper_scissors": Settings(500_000, hidden=(16,)),
    "kuhn_poker": Settings(),
    "leduc_poker": Settings(8_000_000, 0.3, 1e-3, 8, 2048, lam=0.6, clip=0.05, held=True),
    "tic_tac_toe": Settings(600_000, 0.2, 1e-3, 16, 256, hidden=(256, 256), lam=0.9),
    "connect_four": Settings(2_000_000, 0.1, 1e-3, 16, 256, hidden=(256, 256), lam=0.9),
}


def chosen(name: str, own: Settings) -> tuple[Any, int, int]:
    """Return an algorithm with a game's settings, and the columns and rows of its batches.

    All use samples as PPO does. A2C uses a batch once, so its batches are smaller to have as many
    optimiser steps. IMPACT stores the same batch in parts. Advantages stay in the game's units,
    because an entropy bonus only has a meaning relative to rewards. Near an equilibrium, where all
    actions are equally good, normalised advantages would be noise.
    """
    known: dict[str, Any] = {
        "learning_rate": own.learning_rate,
        "entropy_coef": own.entropy,
        "entropy_schedule": "constant" if own.held else "linear",
        "gamma": own.gamma,
        "lam": own.lam,
        "normalize_advantage": False,
    }
    parts, smaller = own.minibatches, 1
    if name in ("ppo", "appo", "impala"):
        known |= {"epochs": own.epochs, "minibatches": parts}
    if name != "a2c":
        known["clip"] = own.clip
    if name == "impact":
        known |= {"buffer_size": parts, "passes": own.epochs}
        smaller = parts
    if name == "a2c":
        smaller = own.epochs * parts
    rows = math.gcd(4, smaller)  # fewer rows first: steps with many columns cost little more
    algo = ALGORITHMS[name](**known | own.more)
    return algo, own.columns * rows // smaller, own.fragment // rows


def train(game: str, method: str, seed: int, args: argparse.Namespace) -> tuple[hr.Policy, Path]:
    """Return the policy and its league."""
    own = SETTINGS[game].changed(args.set)
    algo, columns, rows = chosen(args.algo, own)
    run = args.output / f"{game}-{args.algo}-{method.replace(',', '-').replace(':', '')}-{seed}"
    policy = hr.train(
        f"OpenSpiel/{game}-v0",
        algo,
        opponents=method,
        zero_sum=True,
        total_steps=own.steps,
        seed=seed,
        num_actors=1,
        envs_per_actor=columns,
        fragment_length=rows,
        network=hr.Network(hidden=own.hidden, activation="relu"),
        scale_free=False,
        snapshot_every_steps=own.steps // args.snapshots,
        transport="serial",
        eval_episodes=0,
        log_interval_s=30.0,
        run_dir=str(run),
        overwrite=True,
    )
    return policy, run / "league"


def measured(game: str, policy: hr.Policy, league: Path) -> dict[str, Any]:
    """Measure the latest policy, and the average where it can be better."""
    from headrace.games.league_folder import snapshots
    from headrace.games.openspiel import load
    from headrace.studies.games.nash import average, nash_conv, tabular
    from headrace.studies.games.perfect import against, any_move, minimax, one_ahead

    spiel, found = load(game), snapshots(league)
    if game in ("tic_tac_toe", "connect_four"):
        others = {"one_ahead": one_ahead, "any_move": any_move}
        if game == "tic_tac_toe":
            others["minimax"] = minimax()

        def lost(policy: hr.Policy) -> float:
            other = others.get("minimax", one_ahead)
            games = GAMES_PLAYED // 4
            each = [against(policy, spiel, seat, other, games, 1) for seat in (0, 1)]
            return sum(one["lost"] for one in each) / (2 * games)

        scores: dict[str, Any] = {
            f"{name}_seat_{seat}": dict(against(policy, spiel, seat, other, GAMES_PLAYED, 0))
            for name, other in others.items()
            for seat in (0, 1)
        }
        return scores | {"curve": [(one.step, lost(hr.load(one.path))) for one in found]}
    tables = [tabular(hr.load(one.path), spiel) for one in found]
    curve = [(one.step, nash_conv(table, spiel)) for one, table in zip(found, tables, strict=True)]
    third = len(tables) // 3
    return {
        "latest": nash_conv(tabular(policy, spiel), spiel),
        "average_of_last_third": nash_conv(average(tables[-third:], spiel), spiel),
        "average": nash_conv(average(tables, spiel), spiel),
        "curve": curve,
    }


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    """Plot curves over training, a colour per method and a line per seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    methods = list(dict.fromkeys(line["method"] for line in lines))
    for line in lines:
        at = methods.index(line["method"])
        steps, values = zip(*line["curve"], strict=True)
        first = line["seed"] == min(x["seed"] for x in lines if x["method"] == line["method"])
        axes.plot(steps, values, color=f"C{at}", lw=1, label=line["method"] if first else None)
    axes.set_xlabel("environment steps")
    lost = lines[0]["game"] in ("tic_tac_toe", "connect_four")
    axes.set_ylabel("games lost" if lost else "NashConv")
    axes.set_title(lines[0]["game"].replace("_", " "))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    """Train and measure, printing a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("game", nargs="?", default="kuhn_poker", choices=list(SETTINGS))
    parser.add_argument("--algo", default="ppo", choices=list(ALGORITHMS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=JSON", help="other settings")
    parser.add_argument("--snapshots", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("runs/selfplay"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    lines = []
    for method in args.methods:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            start = time.process_time()
            policy, league = train(args.game, method, seed, args)
            found = measured(args.game, policy, league)
            line = {"game": args.game, "algo": args.algo, "method": method, "seed": seed}
            line |= {"set": args.set, **found}
            lines.append(line)
            line["core_seconds"] = round(time.process_time() - start, 1)
            with (args.output / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            short = {key: value for key, value in line.items() if key != "curve"}
            print(json.dumps(short), flush=True)
            draw(lines, args.output / f"{args.game}.png")


if __name__ == "__main__":
    main()

"""Self-play in games that are solved: how far from an equilibrium, or from perfect play.

    python benchmarks/selfplay.py                         # Kuhn poker, every method, three seeds
    python benchmarks/selfplay.py leduc_poker --seeds 1
    python benchmarks/selfplay.py tic_tac_toe --methods latest

NashConv is what both players together could gain by best responses (OpenSpiel's, exact): of the
latest policy, and of the average over the second half of the league's snapshots, in which a
snapshot counts in an information state by how likely its player comes there. Tic-tac-toe is played
1,000 times from either seat against minimax, which draws among its best moves.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import headrace as hr

METHODS = {
    "latest": "latest",  # the policy against itself, and no snapshot
    "naive": "naive",
    "uniform": "uniform",
    "pfsp": "latest:0.5,pfsp:0.5",
}
FIRST_SEED = 10  # settings were chosen with seeds below


class Settings(NamedTuple):
    """Of a game; PPO takes 2 epochs of its minibatches."""

    steps: int = 1_000_000
    entropy: float = 0.05
    learning_rate: float = 2e-3
    minibatches: int = 8
    columns: int = 256
    fragment: int = 16
    width: int = 64


SETTINGS = {
    "rock_paper_scissors": Settings(20_000, 0.0, 5e-3, 4, 64, 8, 16),
    "kuhn_poker": Settings(60_000, 0.1, 3e-3, 4, 128, 8, 16),
    "leduc_poker": Settings(),
    "tic_tac_toe": Settings(entropy=0.01),
    "connect_four": Settings(entropy=0.01),
}


def algorithm(name: str, own: Settings) -> Any:
    """Of its name, with a game's settings."""
    known: dict[str, Any] = {"entropy_coef": own.entropy, "learning_rate": own.learning_rate}
    if name == "ppo":
        known |= {"epochs": 2, "minibatches": own.minibatches}
    return {"ppo": hr.PPO, "a2c": hr.A2C, "impala": hr.IMPALA}[name](**known)


def train(game: str, method: str, seed: int, args: argparse.Namespace) -> tuple[hr.Policy, Path]:
    """The policy, and its league."""
    given = {"steps": args.steps, "entropy": args.entropy}
    own = SETTINGS[game]._replace(**{k: v for k, v in given.items() if v is not None})
    run = args.output / f"{game}-{args.algo}-{method}-{seed}"
    policy = hr.train(
        f"OpenSpiel/{game}-v0",
        algorithm(args.algo, own),
        opponents=METHODS[method],
        zero_sum=True,
        total_steps=own.steps,
        seed=seed,
        num_actors=1,
        envs_per_actor=own.columns,
        fragment_length=own.fragment,
        network=hr.Network(hidden=(own.width,)),
        snapshot_every_steps=own.steps // args.snapshots,
        transport="serial",
        eval_episodes=0,
        log_interval_s=30.0,
        run_dir=str(run),
        overwrite=True,
    )
    return policy, run / "league"


def measured(game: str, policy: hr.Policy, league: Path) -> dict[str, Any]:
    """What the latest policy and the average are worth."""
    from headrace.envs.openspiel import load
    from headrace.league.folder import snapshots
    from headrace.studies.games.nash import average, nash_conv, tabular
    from headrace.studies.games.perfect import against_minimax

    spiel = load(game)
    if game == "tic_tac_toe":
        each = [dict(against_minimax(policy, spiel, seat, 1000, 0)) for seat in (0, 1)]
        return {"as_x": each[0], "as_o": each[1]}
    if game == "connect_four":
        return {}
    found = snapshots(league)
    tables = [tabular(hr.load(one.path), spiel) for one in found]
    curve = [
        (one.step, round(nash_conv(table, spiel), 4))
        for one, table in zip(found, tables, strict=True)
    ]
    half = len(tables) // 2
    return {
        "latest": nash_conv(tabular(policy, spiel), spiel),
        "average": nash_conv(average(tables[half:], spiel), spiel),
        "average_of_all": nash_conv(average(tables, spiel), spiel),
        "curve": curve,
    }


def main() -> None:
    """Train and measure, a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("game", nargs="?", default="kuhn_poker", choices=list(SETTINGS))
    parser.add_argument("--algo", default="ppo", choices=["ppo", "a2c", "impala"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--entropy", type=float)
    parser.add_argument("--snapshots", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("runs/selfplay"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for method in args.methods:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            start = time.monotonic()
            policy, league = train(args.game, method, seed, args)
            found = measured(args.game, policy, league)
            line = {"game": args.game, "algo": args.algo, "method": method, "seed": seed, **found}
            line["seconds"] = round(time.monotonic() - start, 1)
            with (args.output / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            short = {key: value for key, value in line.items() if key != "curve"}
            print(json.dumps(short), flush=True)


if __name__ == "__main__":
    main()

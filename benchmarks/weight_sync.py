"""Weight synchronisation at every update vs. by policy divergence, on CartPole-v1 to 475.

    python benchmarks/weight_sync.py --seeds 5 --rules every,adaptive

headrace runs its command with its recipe, which stops when an evaluation of the deterministic
policy (or the mean of the last 100 training episodes) reaches the target. The measures are
environment steps until then, and the number of weight fetches of the actors. A rule is a value of
``--weight-sync``, with an optional threshold as in ``adaptive:0.01``. Rules take turns: all with
seed 0, then all with seed 1 and so on. Actors run in parallel to the learner, so results depend on
timing. Finished runs aren't repeated. The output is runs.csv, summary.csv and weight_sync.png.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from common import train_command
from rich.console import Console

from headrace.studies.aggregation import grouped, means, over_present, plus_minus
from headrace.studies.children import Children
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.plotting import picture
from headrace.studies.run_table import Case, Study, grid

SIZES = ("num_actors", "envs_per_actor", "fragment_length", "max_lag")
SETTINGS = ("algo", "recipe", "target_return", "eval_interval", "eval_episodes", *SIZES)
RESULTS = ("reached", "env_steps", "updates", "pulls", "megabytes", "kl", "lag_mean", "sps")
COLUMNS = ("rule", "seed", *SETTINGS, *RESULTS)


@dataclass(frozen=True)
class Args:
    """Compare rules of weight synchronisation; see the module's docstring."""

    rules: str = "every,adaptive"
    """Comma-separated rules; the first is the baseline."""
    seeds: int = 5
    """Number of seeds, from 0."""
    algo: str = "appo"
    """An asynchronous algorithm."""
    recipe: str = "cartpole"
    """Recipe of headrace."""
    target_return: float = 475.0
    """Target mean return of an evaluation."""
    eval_interval: int = 30_000
    """Environment steps between evaluations."""
    eval_episodes: int = 10
    """Episodes of an evaluation."""
    num_actors: int = 2
    """Actors, each of which fetches weights."""
    envs_per_actor: int = 8
    """Environments of an actor."""
    fragment_length: int = 64
    """Steps of an environment per rollout."""
    max_lag: int = 1
    """Greatest lag of new rollouts in updates, if weights are fetched at every update."""
    limit_s: float = 120.0
    """Time limit of a run in seconds. Longer runs count as missed."""
    output: Path = Path("runs/benchmarks/weight_sync")
    """Folder for runs.csv, summary.csv and weight_sync.png."""


def cases_of(args: Args) -> list[Case]:
    """Return all cases, ordered by seed, so that an interrupted study covers every rule."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    return grid(settings, rule=args.rules.split(","), seed=range(args.seeds))


def measure(case: Case, children: Children, limit_s: float) -> dict[str, Any]:
    """Run the command once in a separate process."""
    word, _, threshold = case["rule"].partition(":")
    flags = {name: case[name] for name in SETTINGS[1:]} | {"seed": case["seed"]}
    flags |= {"weight_sync": word} | ({"kl_threshold": threshold} if threshold else {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        train_command(case["algo"], path, limit_s, children, **flags)
        return results(json.loads((path / "summary.json").read_text(encoding="utf-8")), case)


def results(summary: dict[str, Any], case: Case) -> dict[str, Any]:
    """Return the results in a run's summary."""
    final = (summary["episodic_return"], (summary.get("evaluation") or {}).get("mean"))
    return {
        "reached": any(x is not None and x >= case["target_return"] for x in final),
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "pulls": summary["sync"]["pulls"],
        "megabytes": summary["sync"]["bytes"] / 1e6,
        "kl": summary["sync"]["divergence"],
        "lag_mean": summary["lag"]["mean"],
        "sps": summary["sps"],
    }


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per rule; fetches and steps are relative to the means of the first rule."""
    cells: list[dict[str, Any]] = []
    for rule, own in grouped(rows, lambda row: row["rule"]).items():
        cell: dict[str, Any] = {"rule": rule, "seeds": len(own)}
        cell["reached"] = sum(row["reached"] for row in own)
        cell |= means(own, ("pulls", "env_steps", "updates", "megabytes", "lag_mean", "sps"))
        cell["kl"] = over_present(own, "kl", statistics.fmean)
        base = cells[0] if cells else cell
        cell["fewer_pulls"] = base["pulls"] / cell["pulls"]
        cell["more_steps"] = cell["env_steps"] / base["env_steps"]
        cells.append(cell)
    return cells


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Plot fetches against steps until the target: a dot per run, a cross at each rule's means."""
    by_rule = grouped(rows, lambda row: row["rule"])
    with picture(path, title, (7, 4.5)) as (_, (panel,)):
        for i, cell in enumerate(summarise(rows)):
            own = by_rule[cell["rule"]]
            x, y = [row["env_steps"] for row in own], [row["pulls"] for row in own]
            panel.plot(x, y, "o", color=f"C{i}", label=cell["rule"], alpha=0.7)
            panel.plot([cell["env_steps"]], [cell["pulls"]], "x", color=f"C{i}", markersize=11)
        panel.set_yscale("log")
        panel.set(xlabel="environment steps to the target", ylabel="weight fetches")
        panel.set_xlim(left=0)
        panel.legend(fontsize="small")
        panel.grid(alpha=0.3, which="both")


def report(rows: list[dict[str, Any]], args: Args, console: Console) -> None:
    """Print the table, and write the plot and summary.csv."""
    summary = summarise(rows)
    title = f"{args.algo}, recipe {args.recipe}, to {args.target_return:g}, mean ± standard error"
    show([
        {
            "weight sync": cell["rule"],
            "reached": f"{cell['reached']} of {cell['seeds']}",
            "fetches": plus_minus(cell, "pulls"),
            "× fewer": f"{cell['fewer_pulls']:.1f}",
            "MB": f"{cell['megabytes']:.2f}",
            "steps": plus_minus(cell, "env_steps", 0),
            "× steps": f"{cell['more_steps']:.2f}",
            "updates": plus_minus(cell, "updates"),
            "lag": f"{cell['lag_mean']:.1f}",
            "KL": "" if cell["kl"] is None else f"{cell['kl']:.4f}",
            "steps/s": f"{cell['sps']:,.0f}",
        }
        for cell in summary
    ], title, console)  # fmt: skip
    write_csv(args.output / "summary.csv", summary)
    draw(rows, title, args.output / "weight_sync.png")


def main(args: Args) -> int:
    """Run missing cases, print and write results."""
    console = wide_console()
    head(__doc__, ", ".join(f"{name}={getattr(args, name)}" for name in SETTINGS), console)
    study, cases = Study(args.output, COLUMNS), cases_of(args)
    study.run(cases, lambda *case: measure(*case, args.limit_s), console)
    if rows := study.done(cases):
        report(rows, args, console)
        console.print(f"results: {args.output}/runs.csv, summary.csv, weight_sync.png")
    return study.status(console, "rule", "seed")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))

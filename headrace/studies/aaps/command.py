"""``headrace bench aaps``: what adaptive weight synchronisation saves, and what it costs.

PPO over a ClusterEnv with several divergence thresholds, with weights fetched at every version, and
with weights fetched every k versions, where k spends as many bytes as each of the thresholds did.
"""

# Annotations are evaluated here at once: tyro reads those of Aaps.

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from headrace.cluster.settings import as_env_config
from headrace.errors import require, require_choice
from headrace.recipes import take_flag
from headrace.records.files import read_jsonl
from headrace.studies.aaps.run import Run, write_settings
from headrace.studies.children import Processes
from headrace.studies.machine import wide_console, write_csv
from headrace.studies.table import Case, Study, draw_curves, head, mean_se, plus_minus, show

THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)
RESULTS = (
    "final_return", "eval_return", "syncs_per_worker", "kilobytes", "iterations", "env_steps",
    "sps",
)  # fmt: skip
COLUMNS = ("weight_sync", "kl_threshold", "seed", "settings", *RESULTS)
_SHOWN = ("final_return", "eval_return", "syncs_per_worker", "sps")


@dataclass(frozen=True)
class Aaps:
    """Compare divergence thresholds of adaptive weight synchronisation on one environment."""

    env_id: str = "LunarLander-v3"
    """Gymnasium id of an environment with Box observations and Discrete actions."""
    kl_thresholds: tuple[float, ...] = THRESHOLDS
    """Nats of mean KL(worker's copy || learner) above which a worker fetches weights."""
    max_policy_lag: int | None = None
    """Versions behind at which a worker fetches weights whatever the drift; None: never."""
    fixed_intervals: bool = True
    """Also fetch at fixed intervals that spend as many bytes as each threshold did."""
    repeats: int = 3
    """Runs of each setting, with the seeds --seed, --seed + 1 …"""
    seed: int = 0
    """Of the first repeat."""
    nodes: int = 2
    """Workers."""
    envs_per_node: int = 32
    """Environments of each worker."""
    num_steps: int = 64
    """Steps of each environment per rollout; one update of the learner follows each rollout."""
    total_steps: int = 1_000_000
    """Environment steps of each run, rounded up to whole rollouts."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 8
    """Parts of each pass."""
    learning_rate: float = 1e-3
    """At the start; it falls to 0 linearly."""
    gamma: float = 0.999
    """Discount."""
    lam: float = 0.98
    """Of generalised advantage estimation."""
    entropy_coef: float = 0.01
    """Weight of the entropy."""
    reward_scale: float = 0.05
    """What rewards are multiplied by."""
    engine: str = "auto"
    """How workers step their environments."""
    eval_episodes: int = 50
    """Episodes of the evaluation at the end of each run."""
    output: str = "runs/aaps"
    """Folder for the table, the pictures and the runs."""
    timeout_s: float = 36_000.0
    """A run that takes longer is ended and counts as failed."""

    def __post_init__(self) -> None:
        thresholds = self.kl_thresholds
        require(bool(thresholds), "kl_thresholds", thresholds, "one or more")
        require(len(set(thresholds)) == len(thresholds), "kl_thresholds", thresholds, "different")
        for name in ("repeats", "nodes", "num_steps", "total_steps", "eval_episodes"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        for threshold in thresholds:  # raises what a ClusterEnv would
            as_env_config(
                {
                    "env_name": self.env_id,
                    "envs_per_node": self.envs_per_node,
                    "kl_threshold": threshold,
                    "max_policy_lag": self.max_policy_lag,
                    "seed": self.seed,
                }
            )

    @property
    def iterations(self) -> int:
        """Rollouts, and updates, of each run."""
        return -(-self.total_steps // (self.nodes * self.envs_per_node * self.num_steps))

    @property
    def fingerprint(self) -> str:
        """Of everything that a run depends on besides its case."""
        values = dataclasses.asdict(self)
        for name in ("kl_thresholds", "fixed_intervals", "repeats", "seed", "output", "timeout_s"):
            del values[name]
        text = json.dumps(values, sort_keys=True)
        return "x" + hashlib.sha256(text.encode()).hexdigest()[:8]  # with an x it is no number

    def case_run(self, case: Case) -> Run:
        """The settings of one run."""
        own = {f.name for f in dataclasses.fields(Run)} - {*case, "iterations"}
        return Run(
            iterations=self.iterations,
            weight_sync=case["weight_sync"],
            kl_threshold=case["kl_threshold"],
            seed=case["seed"],
            **{name: getattr(self, name) for name in own},
        )


PRESETS = {
    "machine": Aaps(),
    "paper": Aaps(  # ClusterEnv, section IV-A
        nodes=4,
        envs_per_node=64,
        num_steps=1024,
        total_steps=5_000_000,
        epochs=30,
        learning_rate=5e-4,
        gamma=0.99,
        lam=0.95,
        reward_scale=1.0,
    ),
}


# -- the command -----------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """``headrace bench aaps [--preset machine|paper] [flags]``; 1 if runs failed.

    Raises:
        ConfigError: a flag is wrong; nothing was started.
    """
    given, rest = take_flag(list(argv), "--preset")
    preset = "machine" if given is None else given
    require_choice("preset", preset, PRESETS)
    aaps = tyro.cli(
        Annotated[Aaps, tyro.conf.arg(name="")],
        default=PRESETS[preset],
        prog=f"headrace bench aaps --preset {preset}",
        args=rest,
    )
    return run(aaps, wide_console())


def cases_of(aaps: Aaps, kinds: Sequence[tuple[str, float]]) -> list[Case]:
    """Runs of these (weight_sync, kl_threshold), seeds outermost."""
    return [
        {"weight_sync": sync, "kl_threshold": threshold, "seed": aaps.seed + repeat}
        | {"settings": aaps.fingerprint}
        for repeat in range(aaps.repeats)
        for sync, threshold in kinds
    ]


def equal_intervals(aaps: Aaps, rows: Sequence[Mapping[str, Any]]) -> dict[float, int]:
    """By threshold: the k of every-<k> that fetches weights as often as it did (median of runs)."""
    found = {}
    for threshold in aaps.kl_thresholds:
        mine = [row["syncs_per_worker"] for row in rows if _is(row, "adaptive", threshold)]
        if mine:
            found[threshold] = max(1, round(aaps.iterations / statistics.median(mine)))
    return found


def _is(row: Mapping[str, Any], weight_sync: str, threshold: float) -> bool:
    return row["weight_sync"] == weight_sync and row["kl_threshold"] == threshold


def run(aaps: Aaps, console: Console) -> int:
    """Measure what is missing, then print and write everything; 1 if runs failed."""
    study, processes = Study(Path(aaps.output), COLUMNS), Processes()

    def measure(case: Case) -> Mapping[str, Any]:
        folder = run_dir(aaps, case)
        settings = folder / "settings.json"
        write_settings(aaps.case_run(case), settings)
        module = "headrace.studies.aaps.run"
        processes.run(module, [str(settings)], folder / "output.log", aaps.timeout_s)
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))

    steps = f"{aaps.iterations} iterations of {aaps.nodes} workers × {aaps.envs_per_node} × "
    head(__doc__, f"{aaps.env_id}, {steps}{aaps.num_steps} steps, {aaps.repeats} seeds", console)
    kinds = [("every", 0.0), *(("adaptive", threshold) for threshold in aaps.kl_thresholds)]
    cases = cases_of(aaps, kinds)
    failed = study.run(cases, measure, console, cancel=processes.end, shown=_SHOWN)
    if aaps.fixed_intervals:
        intervals = set(equal_intervals(aaps, study.done(cases)).values()) - {1}
        more = cases_of(aaps, [(f"every-{k}", 0.0) for k in sorted(intervals)])
        processes = Processes()
        failed += study.run(more, measure, console, cancel=processes.end, shown=_SHOWN)
        cases += more
    if rows := study.done(cases):
        write(aaps, rows, console)
    for case in failed:
        console.print(f"failed, start again to repeat it: {name_of(case)}, seed {case['seed']}")
    return 1 if failed else 0


def run_dir(aaps: Aaps, case: Case) -> Path:
    """Where a run writes."""
    name = f"{case['weight_sync']}-{case['kl_threshold']:g}-seed{case['seed']}"
    return Path(aaps.output) / "runs" / aaps.fingerprint / name


def name_of(case: Case) -> str:
    """Of a setting, in tables and pictures."""
    adaptive = case["weight_sync"] == "adaptive"
    return f"KL > {case['kl_threshold']:g}" if adaptive else str(case["weight_sync"])


# -- what is printed and drawn ---------------------------------------------------------------------


def write(aaps: Aaps, rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The table, ``summary.csv`` and the two pictures."""
    intervals = equal_intervals(aaps, rows)
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(name_of(row), []).append(row)
    table, summary = [], []
    for name, runs in by_name.items():
        means = {column: mean_se([row[column] for row in runs]) for column in RESULTS}
        interval = intervals.get(runs[0]["kl_threshold"]) if name.startswith("KL") else None
        syncs = means["syncs_per_worker"]
        table.append(
            {
                "weights": name,
                "return": plus_minus(*means["final_return"]),
                "evaluated": plus_minus(*means["eval_return"]),
                "syncs per worker": plus_minus(*syncs),
                "fewer": f"{aaps.iterations / syncs[0]:.1f}x",
                "kB sent": plus_minus(*means["kilobytes"], digits=0),
                "steps/s": plus_minus(*means["sps"], digits=0),
                "equal bytes": "" if interval is None else f"every-{interval}",
            }
        )
        summary.append({"weights": name, **{k: mean for k, (mean, _) in means.items()}})
    show(table, f"Mean ± standard error of {aaps.repeats} runs", console)
    output = Path(aaps.output)
    write_csv(output / "summary.csv", summary)
    _draw(aaps, by_name, output)
    console.print(
        f"table: {output / 'runs.csv'}, pictures: {output}/curves.png, {output}/syncs.png"
    )


def _draw(aaps: Aaps, by_name: Mapping[str, Sequence[Case]], output: Path) -> None:
    kinds = {
        "on drift": [n for n in by_name if n.startswith("KL") or n == "every"],
        "at fixed intervals": [n for n in by_name if n.startswith("every")],
    }
    steps = "environment steps, weights fetched "
    for figure, column, ylabel in (
        ("curves", "return", "mean return of the last 100 episodes"),
        ("syncs", "syncs", "weights fetched per worker"),
    ):
        panels = {
            steps + kind: {n: [_curve(aaps, row, column) for row in by_name[n]] for n in names}
            for kind, names in kinds.items()
            if names
        }
        title = f"{aaps.env_id}: mean and standard error of {aaps.repeats} seeds"
        draw_curves(panels, title, ylabel, output / f"{figure}.png")


def _curve(aaps: Aaps, row: Case, column: str) -> tuple[list[float], list[float]]:
    lines = read_jsonl(run_dir(aaps, row) / "curve.jsonl")
    lines = [line for line in lines if line[column] is not None]
    return [line["env_steps"] for line in lines], [line[column] for line in lines]

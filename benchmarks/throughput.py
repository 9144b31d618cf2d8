"""Training speed of headrace vs. Stable-Baselines3 and vs. the upper bound of this machine.

    python benchmarks/throughput.py                          # CartPole-v1, native environments
    python benchmarks/throughput.py --env-id LunarLander-v3  # with envpool
    python benchmarks/throughput.py --engine sync            # Gymnasium's Python loop
    python benchmarks/throughput.py --studies same_work      # more peers, see same_work.py

The study ``tuned`` gives each program its best settings; ``same_work`` is described in
same_work.py. Each rate comes from a separate process. Repeats are interleaved (A B C A B C …), so
that slow minutes affect all cases, and ratios are medians of the ratios within a repeat. Start-up
and the first update don't count. The *ceiling* is ``cores / (environment + inference + learning)``
with the cost per step of each part, measured alone on one core in handwritten torch. The cheapest
of several variants of each part counts, so that a slow one can't flatter the efficiency.

headrace's steps are transitions: autoreset steps take time but don't count.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ceiling
import common
import same_work
import sb3
import tyro
from rich.console import Console

from headrace.studies.children import Children
from headrace.studies.machine import machine, show, wide_console, write_csv

# Best settings by engine. A2C and PPO wait for each other's data, so they act on every core.
_SMALL = {"num_actors": 2, "envs_per_actor": 64, "batch_size": 8192}
SETTINGS: dict[str, dict[str, Any]] = {
    "native": {
        "async": {
            "num_actors": 2,
            "envs_per_actor": 512,
            "fragment_length": 32,
            "batch_size": 16384,
        },
        "on_policy": {"num_actors": 2, "envs_per_actor": 256, "batch_size": 32768},
        "steps": 3_000_000,
    },
    "envpool": {"async": _SMALL, "on_policy": _SMALL, "steps": 600_000},
    "sync": {"async": _SMALL, "on_policy": _SMALL, "steps": 600_000},
}
# One pass and one optimiser step per batch; rollouts for two updates are in flight.
ONCE = {"epochs": 1, "minibatches": 1, "max_lag": 1}
SB3_ROLLOUT_STEPS = 16384  # before each update
SB3_GRID = {"n_envs": (8, 16, 64), "threads": (1, 2), "batch_size": (4096, 16384)}
SB3_UPDATES = {"tune": 2, "run": 8}  # measured, after a first one that doesn't count
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Args:
    """Measure training speed; see the module's docstring."""

    env_id: str = "CartPole-v1"
    """A Gymnasium id with a Box observation of rank 1 and Discrete actions."""
    steps: int | None = None
    """Steps per headrace run; None: by engine, see SETTINGS."""
    repeats: int = 3
    """Number of measurements of each case."""
    engine: str = "auto"
    """headrace's engine: auto, native, envpool or sync."""
    studies: tuple[Literal["tuned", "same_work"], ...] = ("tuned", "same_work")
    """Each program with its best settings, and CartPole with the same work in all programs."""
    seconds: float = 6.0
    """Approximate seconds of a run of the same work."""
    output: Path = Path("results/throughput")
    """Folder for runs.csv, summary.csv, throughput.png, same_work.json and same_work.md."""
    skip_sb3: bool = False
    """Skip Stable-Baselines3."""


def measure_headrace(env_id: str, engine: str, algo: str, steps: int, **settings: Any) -> dict:
    """Train and return steps per second after the first update."""
    import headrace as hr

    passes = {name: settings.pop(name) for name in ONCE if name in settings}
    algos = {"appo": hr.APPO, "impala": hr.IMPALA, "a2c": hr.A2C, "ppo": hr.PPO}
    with tempfile.TemporaryDirectory() as folder:
        config = hr.Config(
            env_id,
            algos[algo](**passes),
            engine=engine,
            total_steps=steps,
            network=hr.Network(ceiling.HIDDEN, "tanh", shared=False),
            run_dir=f"{folder}/run",
            eval_episodes=0,
            **({"fragment_length": ceiling.FRAGMENT_LENGTH} | settings),
        )
        with contextlib.closing(
            hr.Trainer(
                config, notify=lambda text: print(text, file=sys.stderr), handle_signals=False
            )
        ) as trainer:
            for _ in trainer:
                pass
    busy = {f"{name}_busy": share for name, share in trainer.summary()["utilisation"].items()}
    return {"sps": trainer.sps} | busy


def measure_sb3(env_id: str, algo: str, grid: list[dict[str, int]], updates: int) -> dict:
    """Return the fastest entry of a grid: ``{"sps": …, "best": entry}``."""
    rates = [(sb3_rate(env_id, algo, updates, **entry), i) for i, entry in enumerate(grid)]
    sps, best = max(rates)
    return {"sps": sps, "best": grid[best]}


def sb3_rate(
    env_id: str, algo: str, updates: int, *, n_envs: int, threads: int, batch_size: int = 0
) -> float:
    """Return steps per second of Stable-Baselines3 after its first update, one pass per sample."""
    import torch
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    layers = {"pi": list(ceiling.HIDDEN), "vf": list(ceiling.HIDDEN)}
    settings: dict[str, Any] = {
        "env": make_vec_env(env_id, n_envs, seed=0),  # DummyVecEnv, its fastest for cheap steps
        "n_steps": SB3_ROLLOUT_STEPS // n_envs,
        "policy_kwargs": {"net_arch": layers, "activation_fn": torch.nn.Tanh},
    } | {"device": "cpu", "seed": 0}
    if algo == "ppo":
        settings |= {"batch_size": batch_size, "n_epochs": 1}
    model: Any = {"ppo": PPO, "a2c": A2C}[algo]("MlpPolicy", **settings)
    return sb3.rate(model, lambda done, _: done == updates)


MEASURE = {"headrace": measure_headrace, "sb3": measure_sb3}
MEASURE |= {"env": ceiling.measure_env, "ceiling": ceiling.measure_ceiling}


@dataclass(frozen=True)
class Job:
    """A line of the table: name, function and arguments of a measurement."""

    name: str
    measure: str
    arguments: dict[str, Any]


@dataclass
class Outcome:
    """The results of a job in every repeat."""

    job: Job
    results: list[dict[str, Any]]  # with sps, rss_gb, pss_gb, processes, and more by kind

    @property
    def sps(self) -> list[float]:
        """Return steps per second of each repeat."""
        return [result["sps"] for result in self.results]

    def relative_to(self, other: Outcome | None) -> float | None:
        """Return the median over repeats of the ratio within a repeat."""
        if other is None:
            return None
        return statistics.median(a / b for a, b in zip(self.sps, other.sps, strict=True))


def headrace_jobs(args: Args, engine: str) -> list[Job]:
    """Return the jobs of this engine; those of CartPole also with Gymnasium's Python loop."""
    variants = [
        ("APPO", {"algo": "appo", **ONCE}, "async", engine),
        ("APPO, default passes", {"algo": "appo"}, "async", engine),
        ("IMPALA", {"algo": "impala", **ONCE}, "async", engine),
        ("A2C", {"algo": "a2c"}, "on_policy", engine),
        ("PPO, one epoch", {"algo": "ppo", "epochs": 1, "minibatches": 4}, "on_policy", engine),
        ("PPO, default epochs", {"algo": "ppo"}, "on_policy", engine),
    ]
    if args.env_id.startswith("CartPole") and engine != "sync":
        variants.append(("APPO, engine=sync", {"algo": "appo", **ONCE}, "async", "sync"))
    jobs = []
    for name, algo, kind, used in variants:
        steps = SETTINGS[used]["steps"] if args.steps is None else args.steps
        arguments = {"env_id": args.env_id, "engine": used, "steps": steps}
        jobs.append(Job(f"headrace {name}", "headrace", arguments | algo | SETTINGS[used][kind]))
    return jobs


def sb3_job(args: Args, algo: str, console: Console) -> Job:
    """Return a job of Stable-Baselines3 with the fastest entry of the grid."""
    names = [name for name in SB3_GRID if algo == "ppo" or name != "batch_size"]
    values = itertools.product(*(SB3_GRID[name] for name in names))
    grid = [dict(zip(names, entry, strict=True)) for entry in values]
    arguments: dict[str, Any] = {"env_id": args.env_id, "algo": algo}
    best = measure(Job("", "sb3", arguments | {"grid": grid, "updates": SB3_UPDATES["tune"]}))[
        "best"
    ]
    console.print(f"SB3 {algo.upper()}: the fastest of {len(grid)} settings is {best}")
    arguments |= {"grid": [best], "updates": SB3_UPDATES["run"]}
    return Job(f"Stable-Baselines3 {algo.upper()}", "sb3", arguments)


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Measure once in this process."""
    return MEASURE[request.pop("measure")](**request)


def measure(job: Job) -> dict[str, Any]:
    """Run a job in a separate process. Return its result with the peak memory of its processes."""
    memory, request = common.Memory(), {"measure": job.measure, **job.arguments}
    found = Children().call(measured, request, TIMEOUT_S, watch=memory)
    gb = {"rss_gb": memory.rss / 1e9, "pss_gb": memory.pss / 1e9}
    return found | gb | {"processes": memory.processes}


def compare(args: Args, console: Console) -> list[Outcome]:
    """Run all jobs, interleaved."""
    engine = ceiling.engine_of(args.env_id, args.engine)
    jobs = headrace_jobs(args, engine)
    if not args.skip_sb3:
        jobs += [sb3_job(args, "ppo", console), sb3_job(args, "a2c", console)]
    shape = SETTINGS[engine]["async"]
    alone = {"env_id": args.env_id, "engine": engine, "num_envs": shape["envs_per_actor"]}
    jobs.append(Job("environment alone, one core", "env", alone))
    jobs.append(Job("ceiling", "ceiling", alone | {"batch_size": shape["batch_size"]}))
    outcomes = [Outcome(job, []) for job in jobs]
    for repeat, (i, outcome) in itertools.product(range(args.repeats), enumerate(outcomes)):
        outcome.results.append(measure(outcome.job))
        count = f"[{repeat * len(jobs) + i + 1:>2}/{args.repeats * len(jobs)}]"
        console.print(f"{count} {outcome.job.name}: {outcome.sps[-1]:,.0f} steps/s")
    return outcomes


def summarise(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Return a row of the table per job."""
    by_name = {outcome.job.name: outcome for outcome in outcomes}
    peer, most = by_name.get("Stable-Baselines3 PPO"), by_name["ceiling"]
    rows = []
    for outcome in outcomes:
        name, trains = outcome.job.name, outcome.job.measure in ("headrace", "sb3")
        peaks = {
            name: max(result[name] for result in outcome.results) if trains else None
            for name in ("rss_gb", "pss_gb", "processes")
        }
        bounded = name in ("headrace APPO", "headrace IMPALA")
        ratios = {
            "ratio_to_sb3_ppo": outcome.relative_to(peer) if trains else None,
            "efficiency": outcome.relative_to(most) if bounded else None,
        }
        rows.append({"name": name, **common.spread("sps", outcome.sps), **ratios, **peaks})
    return rows


def print_tables(
    rows: list[dict[str, Any]], outcomes: list[Outcome], title: str, console: Console
) -> None:
    """Print the table, and the parts of the ceiling."""
    texts = [
        {
            "": r["name"],
            "steps/s (median)": f"{r['sps_median']:,.0f}",
            "min–max": f"{r['sps_min']:,.0f}–{r['sps_max']:,.0f}",
            "× SB3 PPO": r["ratio_to_sb3_ppo"] and f"{r['ratio_to_sb3_ppo']:.1f}",
            "of ceiling": r["efficiency"] and f"{r['efficiency']:.0%}",
            "peak RSS, sum": r["processes"] and f"{r['rss_gb']:.2f} GB",
            "peak PSS, sum": r["processes"] and f"{r['pss_gb']:.2f} GB",
            "processes": r["processes"],
        }
        for r in rows
    ]
    show(texts, title, console)
    console.print("RSS counts a shared page once per process, PSS once in all.")
    console.print("The ceiling's parts, median µs per step, one core (the cheapest counts):")
    parts = [result["us_per_step"] for result in outcomes[-1].results]
    for part, ways in parts[0].items():
        costs = {way: statistics.median(p[part][way] for p in parts) for way in ways}
        console.print(f"  {part}: " + " · ".join(f"{k} {v:.3f}" for k, v in costs.items()))


def measure_tuned(args: Args, title: str, console: Console) -> None:
    """Measure each program with its best settings, print and write the results."""
    outcomes = compare(args, console)
    rows = summarise(outcomes)
    write_csv(args.output / "runs.csv", [
        {"name": o.job.name, "repeat": i, **result, **o.job.arguments}
        for o in outcomes for i, result in enumerate(o.results)
    ])  # fmt: skip
    write_csv(args.output / "summary.csv", [row | {"machine": machine()} for row in rows])
    common.draw_rates(rows, title, args.output / "throughput.png")
    print_tables(rows, outcomes, title, console)
    console.print(f"results: {args.output}/runs.csv, summary.csv, throughput.png")


def main(args: Args) -> None:
    """Run the studies."""
    console = wide_console()
    title = f"{args.env_id}, {args.repeats} repeats on {machine()}"
    console.print(title, soft_wrap=True)
    args.output.mkdir(parents=True, exist_ok=True)
    if "tuned" in args.studies:
        measure_tuned(args, title, console)
    if "same_work" in args.studies:
        rows = same_work.compare(args.repeats, args.seconds, console)
        found = {"machine": machine(), "seconds": args.seconds, "rows": rows}
        (args.output / "same_work.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        (args.output / "same_work.md").write_text(same_work.pivot(rows) + "\n", encoding="utf-8")
        console.print(f"results: {args.output}/same_work.json, same_work.md")


if __name__ == "__main__":
    main(tyro.cli(Args))

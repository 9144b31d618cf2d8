"""Time from process start to a mean return of 475 on CartPole-v1, vs. Stable-Baselines3.

    python benchmarks/time_to_target.py --seeds 5 --algos appo,impala,ppo,a2c,sb3

headrace runs its command with its recipe. Stable-Baselines3 runs PPO with the settings that
rl-baselines3-zoo tuned for this environment. Both stop when the mean return of the last 100
training episodes reaches the target. The time includes interpreter start and imports, and
headrace's final checkpoint. Runs take turns: all programs with seed 0, then all with seed 1 and so
on. A run that misses the target counts as infinitely long.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from common import spread, train_command
from rich.console import Console

from headrace.rundir.files import read_jsonl
from headrace.studies.aggregation import grouped
from headrace.studies.children import Children, ProcessResult
from headrace.studies.machine import machine, show, wide_console, write_csv
from headrace.studies.plotting import picture

TARGET = 475.0
WINDOW = 100
# CartPole-v1 in hyperparams/ppo.yml of https://github.com/DLR-RM/rl-baselines3-zoo
ZOO = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
}
ZOO_NUM_ENVS, ZOO_TIMESTEPS = 8, 100_000
ZOO_LEARNING_RATE, ZOO_CLIP_RANGE = 0.001, 0.2  # both fall linearly to 0 over ZOO_TIMESTEPS
MAX_HORIZONS = 10
COLORS = {"appo": "C0", "impala": "C1", "ppo": "C2", "a2c": "C4", "sb3": "0.45"}


@dataclass(frozen=True)
class Args:
    """Measure the time to the target; see the module's docstring."""

    seeds: int = 5
    """Number of seeds, from 0."""
    algos: str = "appo,impala,ppo,a2c,sb3"
    """Comma-separated: headrace's algorithms and sb3."""
    limit_s: float = 120.0
    """Time limit of a run in seconds. Longer runs count as missed."""
    sb3_threads: int = 1
    """Threads of torch in Stable-Baselines3 (one is fastest for its small batches)."""
    output: Path = Path("results/time_to_target")
    """Folder for runs.csv, curves.csv, summary.csv and time_to_target.png."""


@dataclass
class Run:
    """A run; ``seconds`` is infinite if it missed the target."""

    algo: str
    seed: int
    seconds: float  # from process start to the target
    wall_s: float  # from process start to its end
    final_return: float | None
    env_steps: int
    curve: list[tuple[float, float]]  # seconds, mean return of the last 100 episodes


def train_sb3(request: dict[str, Any]) -> dict[str, Any]:
    """Train Stable-Baselines3's PPO until the target or the limit; ``started`` is monotonic."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    seed, started, limit_s = (request[name] for name in ("seed", "started", "limit_s"))
    torch.set_num_threads(request["threads"])
    curve: list[tuple[float, float]] = []
    returns: deque[float] = deque(maxlen=WINDOW)

    class Watch(BaseCallback):
        reached_s: float | None = None

        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            returns.extend(ended)
            seconds = time.monotonic() - started
            if ended and len(returns) == WINDOW and statistics.fmean(returns) >= TARGET:
                self.reached_s = seconds
            return self.reached_s is None and seconds < limit_s

        def _on_rollout_end(self) -> None:
            if returns:
                curve.append((time.monotonic() - started, statistics.fmean(returns)))

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", ZOO_NUM_ENVS, seed=seed),
        learning_rate=lambda remaining: ZOO_LEARNING_RATE * remaining,
        clip_range=lambda remaining: ZOO_CLIP_RANGE * remaining,
        seed=seed,
        device="cpu",
        **ZOO,
    )
    watch = Watch()
    for horizon in range(MAX_HORIZONS):
        # A further call continues the schedules, as in SB3: they fall linearly from the current
        # fraction of all steps so far.
        model.learn(ZOO_TIMESTEPS, callback=watch, reset_num_timesteps=horizon == 0)
        if watch.reached_s is not None or time.monotonic() - started >= limit_s:
            break
    mean = statistics.fmean(returns) if returns else None
    if watch.reached_s is not None:
        curve.append((watch.reached_s, mean))
    steps = model.num_timesteps
    return {"seconds": watch.reached_s, "return": mean, "env_steps": steps, "curve": curve}


def sb3(seed: int, args: Args) -> Run:
    """Run Stable-Baselines3 in a separate process."""
    started = time.monotonic()
    request = {"seed": seed, "limit_s": args.limit_s, "threads": args.sb3_threads}
    # It observes the limit itself; the rest is for its last update.
    result = Children().call(train_sb3, request | {"started": started}, args.limit_s + 15)
    wall_s = time.monotonic() - started
    seconds = math.inf if result["seconds"] is None else result["seconds"]
    curve = [tuple(point) for point in result["curve"]]
    return Run("sb3", seed, seconds, wall_s, result["return"], result["env_steps"], curve)


def headrace(algo: str, seed: int, args: Args) -> Run:
    """Run ``headrace train ALGO --recipe cartpole``, which stops at the target."""
    flags = {"recipe": "cartpole", "seed": seed, "eval_episodes": 0}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        done = train_command(algo, run_dir, args.limit_s, **flags)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        return headrace_run(algo, seed, done, summary, read_jsonl(run_dir / "metrics.jsonl"))


def headrace_run(
    algo: str,
    seed: int,
    done: ProcessResult,
    summary: dict[str, Any],
    lines: list[dict[str, float]],
) -> Run:
    """Return the results of a run directory."""
    final, name = summary["episodic_return"], "charts/episodic_return"
    reached = final is not None and final >= TARGET and not done.timed_out
    start_s = summary["seconds_to_first_update"] - lines[0]["seconds"]
    curve = [(start_s + line["seconds"], line[name]) for line in lines if name in line]
    seconds = summary["seconds_total"] if reached else math.inf
    return Run(algo, seed, seconds, done.wall_s, final, summary["env_steps"], curve)


def summarise(runs: list[Run], algos: list[str]) -> list[dict[str, Any]]:
    """Return one row per program."""
    by_algo, rows = grouped(runs, lambda run: run.algo), []
    medians = {algo: statistics.median(r.seconds for r in by_algo[algo]) for algo in algos}
    for algo in algos:
        own, peer = by_algo[algo], medians.get("sb3", math.inf)
        both = math.isfinite(peer) and math.isfinite(medians[algo])
        rows.append({
            "algo": algo,
            "reached": f"{sum(math.isfinite(r.seconds) for r in own)} of {len(own)}",
            **spread("seconds", [r.seconds for r in own]),
            "wall_s_median": statistics.median(r.wall_s for r in own),
            "env_steps_median": statistics.median(r.env_steps for r in own),
            "times_faster_than_sb3": peer / medians[algo] if both else None,
        })  # fmt: skip
    return rows


def draw(runs: list[Run], title: str, path: Path) -> None:
    """Plot return against seconds, one line per run, with a dot at the target."""
    names = {"sb3": "Stable-Baselines3 PPO"}
    with picture(path, title, (9, 4.5)) as (_, (panel,)):
        for algo, own in grouped(runs, lambda run: run.algo).items():
            color = COLORS.get(algo, "C5")
            panel.plot([], [], ".-", color=color, label=names.get(algo, algo))
            for r in own:
                xs, ys = zip(*r.curve, strict=True) if r.curve else ((), ())
                panel.plot(xs, ys, ".-", color=color, alpha=0.8, linewidth=1.2, markersize=2)
                if math.isfinite(r.seconds):
                    panel.plot([r.seconds], [r.final_return], "o", color=color, markersize=5)
        panel.axhline(TARGET, color="0.6", linestyle="--", linewidth=0.8)
        panel.set(xlabel="seconds since the process was started")
        panel.set(ylabel="return (last 100 episodes)", xlim=(0, None), ylim=(0, 510))
        panel.legend(fontsize="small")
        panel.grid(alpha=0.3)


def spell(seconds: float) -> str:
    """Format seconds for the table."""
    return f"{seconds:.1f} s" if math.isfinite(seconds) else "missed"


def print_table(runs: list[Run], rows: list[dict[str, Any]], title: str, console: Console) -> None:
    """Return the table: one row per program, with all seeds."""
    by_algo = grouped(runs, lambda run: run.algo)
    show([
        {
            "": row["algo"],
            "reached": row["reached"],
            "median": spell(row["seconds_median"]),
            "× SB3": (ratio := row["times_faster_than_sb3"]) and f"{ratio:.1f}",
            "by seed": ", ".join(spell(r.seconds) for r in by_algo[row["algo"]]),
            "whole process": f"{row['wall_s_median']:.1f} s",
            "steps (median)": f"{row['env_steps_median']:,.0f}",
        }
        for row in rows
    ], title, console)  # fmt: skip


def write(runs: list[Run], rows: list[dict[str, Any]], title: str, output: Path) -> None:
    """Write three tables and the plot."""
    output.mkdir(parents=True, exist_ok=True)
    flat = [{k: v for k, v in vars(r).items() if k != "curve"} for r in runs]
    write_csv(output / "runs.csv", flat)
    write_csv(output / "summary.csv", [row | {"machine": machine()} for row in rows])
    points = [
        {"algo": r.algo, "seed": r.seed, "seconds": x, "return": y}
        for r in runs
        for x, y in r.curve
    ]
    write_csv(output / "curves.csv", points)
    draw(runs, title, output / "time_to_target.png")


def main(args: Args) -> None:
    """Run everything, print and write the results."""
    console = wide_console()
    algos = args.algos.split(",")
    title = f"CartPole-v1 to {TARGET:.0f}, {args.seeds} seed(s) on {machine()}"
    console.print(title, soft_wrap=True)
    runs: list[Run] = []
    for seed, algo in itertools.product(range(args.seeds), algos):
        runs.append(sb3(seed, args) if algo == "sb3" else headrace(algo, seed, args))
        last, total = runs[-1], args.seeds * len(algos)
        console.print(
            f"[{len(runs):>2}/{total}] {algo} seed {seed}: {spell(last.seconds)}, "
            f"return {last.final_return or 0.0:.1f}, {last.env_steps:,} steps"
        )
    rows = summarise(runs, algos)
    write(runs, rows, title, args.output)
    print_table(runs, rows, title, console)
    console.print(f"results: {args.output}/runs.csv, summary.csv, curves.csv, time_to_target.png")


if __name__ == "__main__":
    main(tyro.cli(Args))

"""Accuracy of ``headrace plan``: predicted vs. measured speed of runs.

For each configuration, micro-benchmarks measure the costs, the run is simulated, and then it is
executed. Rounds are interleaved, since the speed of a machine drifts within minutes. The plan
doesn't cover other programs: the CPU time that they take during a run (by the system's counts) is
subtracted from the simulated cores, and shown. Each run waits for a quiet moment, and the table
shows the quiet rounds, if any.

    python benchmarks/plan_validation.py [--rounds N] [--seconds S] [--patience S] [--only NAME …]
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import tyro

import headrace as hr
from headrace.processes import num_cores
from headrace.studies.aggregation import grouped
from headrace.studies.machine import machine, show, wide_console, write_csv
from headrace.studies.plan.measure import MeasuredCosts, measure
from headrace.studies.plan.scenario import Outcome
from headrace.studies.plan.settings import Plan
from headrace.studies.plan.simulate import simulate

WARM_UP_S = 1.5  # seconds of a run, after its first update
QUIET_CORES = 0.3  # cores that others may take in a quiet round
STRAGGLER = 4.0  # factor of the straggler's waits


class Steady(gymnasium.Env):
    """Sleeps and computes at every step; episodes have 1000 steps.

    Args:
        sleep_s: seconds that a step waits. loops: iterations of arithmetic per step.
        straggler: actor 0 waits ``STRAGGLER`` times as long.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, sleep_s: float = 0.0, loops: int = 0, straggler: bool = False) -> None:
        self._sleep_s, self._loops, self._steps = sleep_s, loops, 0
        if straggler and multiprocessing.current_process().name == "headrace-actor-0":
            self._sleep_s *= STRAGGLER

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action):
        if self._sleep_s:
            time.sleep(self._sleep_s)
        x = 1.0
        for _ in range(self._loops):
            x = x * 1.0001 + 0.1
        self._steps += 1
        return np.zeros(8, np.float32), float(x > 0), False, self._steps % 1000 == 0, {}


@dataclass(frozen=True)
class Case:
    """A configuration, and its number of stragglers."""

    name: str
    config: Callable[[], hr.Config]
    stragglers: int = 0


def _config(algo: Any, num_actors: int, env: Any = Steady, **settings: Any) -> hr.Config:
    base = {
        "envs_per_actor": 8, "fragment_length": 32, "total_steps": 10**9, "eval_episodes": 0,
        "log_interval_s": 0.25, "learner_threads": 1,
    }  # fmt: skip
    return hr.Config(env, algo, num_actors=num_actors, **(base | settings))


BURNING: dict[str, Any] = {"env_kwargs": {"loops": 600}}
SLEEPING: dict[str, Any] = {
    "env_kwargs": {"sleep_s": 0.002}, "envs_per_actor": 4, "fragment_length": 16,
}  # fmt: skip
WIDE = hr.Network(hidden=(512, 512))
CASES = [
    Case("PPO, 1 actor, CartPole",
         lambda: _config(hr.PPO(), 1, "CartPole-v1", envs_per_actor=64)),
    Case("PPO, 2 actors, environments sleep",
         lambda: _config(hr.PPO(), 2, **SLEEPING)),
    Case("A2C, 2 actors, environments compute",
         lambda: _config(hr.A2C(), 2, **BURNING)),
    Case("A2C, 4 actors on too few cores",
         lambda: _config(hr.A2C(), 4, **BURNING)),
    Case("APPO, 1 actor, environments compute",
         lambda: _config(hr.APPO(), 1, **BURNING)),
    Case("APPO, 2 actors, CartPole, shared cores",
         lambda: _config(hr.APPO(), 2, "CartPole-v1", envs_per_actor=64)),
    Case("IMPALA, 4 actors, environments compute",
         lambda: _config(hr.IMPALA(), 4, **BURNING)),
    Case("IMPALA, 2 actors, wide network, learner-bound",
         lambda: _config(hr.IMPALA(), 2, "CartPole-v1", envs_per_actor=64, network=WIDE)),
    Case("APPO, 4 actors asleep, one a straggler",
         lambda: _config(hr.APPO(), 4, **SLEEPING), stragglers=1),
    Case("IMPALA, 4 actors asleep, weights every-4",
         lambda: _config(hr.IMPALA(max_lag=4), 4, **SLEEPING, weight_sync="every-4")),
]  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Measurements of a run after its warm-up."""

    sps: float
    lag: float
    others_cores: float  # cores that other programs kept busy


def run(config: hr.Config, seconds: float) -> Measured:
    """Train for some seconds and measure the speed."""
    begun: Any = None
    lags: list[tuple[float, int]] = []
    warm_s, updates = math.inf, 0
    with contextlib.closing(
        hr.Trainer(config, notify=lambda text: None, handle_signals=False)
    ) as trainer:
        for result in trainer:
            now = time.perf_counter()
            if begun is not None:
                lags.append((result.lag_mean or 0.0, result.updates - updates))
                if now - begun[1] >= seconds:
                    others = _busy_s() - begun[2] - (_own_busy_s() - begun[3])
                    break
            elif now >= warm_s:
                begun = result, now, _busy_s(), _own_busy_s()
            warm_s, updates = min(warm_s, now + WARM_UP_S), result.updates
    passed = result.seconds - begun[0].seconds
    count = sum(weight for _, weight in lags)
    lag = sum(value * weight for value, weight in lags) / count if count else math.nan
    sps = (result.env_steps - begun[0].env_steps) / passed
    return Measured(sps, lag, max(0.0, others / (now - begun[1])))


def _busy_s() -> float:
    """Return the CPU seconds of all programs of the machine."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + getattr(times, "irq", 0) + times.softirq


def _own_busy_s() -> float:
    """Return the CPU seconds of this process and its live descendants."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def wait_until_quiet(patience_s: float) -> None:
    """Wait until other programs leave the cores, up to a limit."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        busy_s, start = _busy_s(), time.perf_counter()
        time.sleep(1.0)
        if _busy_s() - busy_s < QUIET_CORES * (time.perf_counter() - start):
            return


def one(case: Case, seconds: float, measure_s: float, folder: Path) -> dict[str, Any]:
    """Return costs, run and simulation of a case."""
    base = replace(case.config(), run_dir=str(folder / "run"), overwrite=True)
    costs = measure(base, measure_s)
    live = base
    if case.stragglers:
        live = replace(base, env_kwargs={**base.env_kwargs, "straggler": True})
    measured = run(live, seconds)
    planned = predict(case, base, costs, num_cores() - measured.others_cores)
    return {
        "case": case.name,
        "planned_sps": planned.sps,
        "measured_sps": measured.sps,
        "error": planned.sps / measured.sps - 1.0,
        "planned_lag": planned.lag_mean,
        "measured_lag": measured.lag,
        "learner": planned.utilisation_learner,
        "others_cores": measured.others_cores,
        "costs": costs.summary,
    }


def predict(case: Case, config: hr.Config, costs: MeasuredCosts, cores: float) -> Outcome:
    """Simulate a case on the cores that other programs leave."""
    actors: dict[str, Any] = {"stragglers": case.stragglers, "straggler_factor": STRAGGLER}
    plan = Plan(config=config, cores=max(0.5, cores), **actors)
    return simulate(plan.scenario(costs), 300)


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return medians over rounds, a row per case, over the quiet rounds if there are any."""
    found = []
    for name, mine in grouped(rows, lambda row: row["case"]).items():
        quiet = [row for row in mine if row["others_cores"] <= QUIET_CORES]
        used = quiet or mine
        numbers = [k for k, v in mine[0].items() if isinstance(v, float)]
        middle = {k: statistics.median(row[k] for row in used) for k in numbers}
        worst = max((row["error"] for row in used), key=abs)
        counts = f"{len(quiet)} of {len(mine)}"
        found.append({"case": name, "quiet rounds": counts, **middle, "worst_error": worst})
    return found


@dataclass(frozen=True)
class Args:
    """Compare plans with runs; see the module's docstring."""

    rounds: int = 3
    """Number of rounds of all configurations."""
    seconds: float = 5.0
    """Seconds of each run after its warm-up."""
    measure_seconds: float = 4.0
    """Seconds of the measurement of its costs."""
    patience: float = 60.0
    """Seconds to wait for a quiet moment."""
    only: tuple[str, ...] = ()
    """Parts of names of cases; none: all cases."""
    output: Path = Path("runs/plan_validation.csv")
    """Return a row per round and case."""


def main(args: Args) -> None:
    """Measure, and print one table."""
    console, rows = wide_console(), []
    console.print(f"planned against measured, {args.rounds} rounds; {machine()}")
    cases = [c for c in CASES if not args.only or any(part in c.name for part in args.only)]
    for round_ in range(args.rounds):
        for case in cases:
            wait_until_quiet(args.patience)
            with tempfile.TemporaryDirectory() as folder:
                rows.append(one(case, args.seconds, args.measure_seconds, Path(folder)))
            row = rows[-1]
            console.print(
                f"round {round_}: {row['case']}: planned {row['planned_sps']:,.0f}, measured "
                f"{row['measured_sps']:,.0f} steps/s ({row['error']:+.1%}); lag "
                f"{row['planned_lag']:.2f} / {row['measured_lag']:.2f}; others took "
                f"{row['others_cores']:.2f} cores; {row['costs']}"
            )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_csv(args.output, rows)
    show([
        {
            "case": row["case"],
            "planned steps/s": f"{row['planned_sps']:,.0f}",
            "measured": f"{row['measured_sps']:,.0f}",
            "error": f"{row['error']:+.1%}",
            "worst": f"{row['worst_error']:+.1%}",
            "lag planned": f"{row['planned_lag']:.2f}",
            "lag measured": f"{row['measured_lag']:.2f}",
            "cores of others": f"{row['others_cores']:.2f}",
            "quiet rounds": row["quiet rounds"],
        }
        for row in table(rows)
    ], "", console, wrap=True)  # fmt: skip
    console.print(f"every round: {args.output}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))

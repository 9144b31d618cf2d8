"""Compares headrace and its peers on the same work: CartPole-v1, on one core and on all.

    pip install -r benchmarks/same_work.txt       # JAX and gymnax
    python benchmarks/throughput.py --studies same_work

Every program trains policy and value networks of two layers of 64 tanh units on batches of 512
environments with 32 steps each, either in one pass, or in 4 epochs of 4 minibatches:

- headrace's PPO, and IMPALA where samples are used once,
- PPO as one compiled JAX program in the manner of PureJaxRL, with gymnax's CartPole,
- a single file in CleanRL's style, with Gymnasium's vectorised CartPole,
- Stable-Baselines3's PPO,
- PPO in plain C (ceiling.c), a bound that shares no code with headrace. On the machine, it runs
  once per core, without any exchange.

On one core, all threads and processes of a program are pinned to it. On the machine, the fastest
settings of each count: headrace's number of actors, and torch's threads. Rates come from separate
processes, interleaved, and ratios are medians of the ratios within a repeat. Start-up, compilation
and first updates don't count.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import ceiling_c
import common
from rich.console import Console

from headrace.studies.children import Children
from headrace.studies.machine import markdown, show

TIMEOUT_S = 900.0
TUNE_S = 0.4  # part of the seconds of a run, for each entry of a grid


@dataclass(frozen=True)
class Work:
    """An update: environments, their steps, and passes over the samples."""

    name: str
    epochs: int
    minibatches: int
    num_envs: int = 512
    num_steps: int = 32  # of each environment

    @property
    def batch_size(self) -> int:
        """Return the number of samples of an update."""
        return self.num_envs * self.num_steps


WORKS = (Work("one pass", 1, 1), Work("4 epochs x 4 minibatches", 4, 4))


@dataclass(frozen=True)
class Program:
    """A program, its settings, and what it needs."""

    name: str
    who: str  # key of RATES
    grid: tuple[dict[str, Any], ...] = ({},)  # settings on several cores; the first on one core
    needs: tuple[str, ...] = ()  # packages
    fixed: dict[str, Any] = field(default_factory=dict)
    single_pass: bool = False

    def missing(self) -> str | None:
        """Return why the program can't run, or None."""
        if self.who == "c" and ceiling_c.compiler() is None:
            return "no C compiler was found. Install gcc or set CC."
        lacking = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if lacking:
            names = " and ".join(lacking)
            return f"{names} missing. Try pip install -r benchmarks/same_work.txt"
        return None


THREADS = ({"threads": 1}, {"threads": 2})
ACTORS = ({"num_actors": 1}, {"num_actors": 2})
PROGRAMS = (
    Program("headrace PPO", "headrace", ACTORS, fixed={"algo": "ppo"}),
    Program("headrace IMPALA", "headrace", ACTORS, fixed={"algo": "impala"}, single_pass=True),
    Program("JAX, in PureJaxRL's manner", "jax", needs=("jax", "gymnax", "optax")),
    Program("single file, CleanRL's style", "cleanrl", THREADS),
    Program("Stable-Baselines3 PPO", "sb3", THREADS, needs=("stable_baselines3",)),
    Program("plain C, one per core", "c"),
)


def measured(request: dict[str, Any]) -> dict[str, float]:
    """Measure once in this process: ``sps``, and for some programs ``episode_length``."""
    import same_work_jax
    import same_work_loops as loops

    rates: dict[str, Callable[..., Any]] = {
        "headrace": loops.headrace_rate,
        "jax": same_work_jax.rate,
        "cleanrl": loops.cleanrl_rate,
        "sb3": loops.sb3_rate,
        "c": ceiling_c.rate,
    }
    work = Work(**request["work"])
    result = rates[request["who"]](work, request["seconds"], **request["settings"])
    return result if isinstance(result, dict) else {"sps": result}


@dataclass
class Case:
    """A program with its work and cores, and its rates."""

    program: Program
    work: Work
    cores: list[int]
    settings: dict[str, Any]
    rates: list[float] = field(default_factory=list)

    def rate(self, seconds: float, settings: dict[str, Any] | None = None) -> float:
        """Return steps per second of one run."""
        chosen = {**self.program.fixed, **(self.settings if settings is None else settings)}
        if self.program.who == "c":
            chosen["cores"] = self.cores
        request = {"who": self.program.who, "work": asdict(self.work), "seconds": seconds}
        within = ceiling_c.pinned(self.cores[0]) if len(self.cores) == 1 else []
        request["settings"] = chosen
        result = Children().call(measured, request, TIMEOUT_S + seconds, within=within)
        return float(result["sps"])

    def tune(self, seconds: float) -> None:
        """Choose the fastest settings of the grid, if the program may use several cores."""
        grid = self.program.grid if len(self.cores) > 1 else self.program.grid[:1]
        if len(grid) > 1:
            self.settings = max(grid, key=lambda entry: self.rate(seconds * TUNE_S, entry))

    def row(self, others: list[Case]) -> dict[str, Any]:
        """Return a line of the table, with headrace's fastest rate divided by this one's."""
        own = [case for case in others if case.program.who == "headrace"]
        best = max(own, key=lambda case: statistics.median(case.rates), default=None)
        ratio = best and statistics.median(
            a / b for a, b in zip(best.rates, self.rates, strict=True)
        )
        spread = common.spread("sps", self.rates)
        names = {"work": self.work.name, "cores": len(self.cores), "program": self.program.name}
        settings = {"settings": self.settings, "sps": self.rates}
        return {**names, **spread, "headrace_ratio": ratio, **settings}


def cases(console: Console) -> Iterator[Case]:
    """Yield the cases that can run here, and print why others can't."""
    available = []
    for program in PROGRAMS:
        if reason := program.missing():
            console.print(f"{program.name} is left out: {reason}")
        else:
            available.append(program)
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    places = [numbers[:1], numbers] if len(numbers) > 1 else [numbers]
    if not shutil.which("taskset"):
        console.print("One core is left out: taskset wasn't found.")
        places = places[1:]
    for work, cores, program in itertools.product(WORKS, places, available):
        if work.epochs == 1 or not program.single_pass:
            yield Case(program, work, cores, dict(program.grid[0]))


def compare(repeats: int, seconds: float, console: Console) -> list[dict[str, Any]]:
    """Measure all cases, interleaved, print the table and return its rows."""
    measured_cases = list(cases(console))
    for case in measured_cases:
        case.tune(seconds)
    for repeat, case in itertools.product(range(repeats), measured_cases):
        case.rates.append(case.rate(seconds))
        label = f"{case.program.name}, {case.work.name}, cores: {len(case.cores)}"
        console.print(f"[{repeat + 1}/{repeats}] {label}: {case.rates[-1]:,.0f} steps/s")
    rows = []
    for case in measured_cases:
        same = [c for c in measured_cases if (c.work, c.cores) == (case.work, case.cores)]
        rows.append(case.row(same))
    print_table(rows, console)
    return rows


def print_table(rows: list[dict[str, Any]], console: Console) -> None:
    """Print medians, ranges, ratios and chosen settings."""
    texts = [
        {
            "program": row["program"],
            "work": row["work"],
            "cores": row["cores"],
            "steps/s (median)": f"{row['sps_median']:,.0f}",
            "min–max": f"{row['sps_min']:,.0f}–{row['sps_max']:,.0f}",
            "headrace ÷ it": row["headrace_ratio"] and f"{row['headrace_ratio']:.2f}",
            "settings": ", ".join(f"{k}={v}" for k, v in row["settings"].items()),
        }
        for row in rows
    ]
    show(texts, "The same work on CartPole-v1", console)


def pivot(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of medians, with a line per program, the fastest first."""
    medians: dict[str, dict[str, float]] = {}
    for row in rows:
        column = f"{row['work']}, cores: {row['cores']}"
        medians.setdefault(row["program"], {})[column] = row["sps_median"]
    columns = list(dict.fromkeys(column for one in medians.values() for column in one))
    order = sorted(medians, key=lambda name: -medians[name].get(columns[0], 0.0))
    return markdown([
        {"program": name}
        | {c: f"{medians[name][c]:,.0f}" if c in medians[name] else "" for c in columns}
        for name in order
    ])  # fmt: skip

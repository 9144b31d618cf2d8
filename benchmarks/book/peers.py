"""The page that compares headrace's defaults with Stable-Baselines3."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import learning
import numpy as np
import time_to_target
from learning_tasks import TASKS, Task

import headrace as hr
from book.experiment import Case, Experiment, Form
from book.page import Page
from book.rows import Judgement, Row, Runs, Verdict, more, spread
from headrace.algos import ALGORITHMS
from headrace.studies.children import Children
from headrace.studies.statistics import middle

Data = Mapping[str, Runs]
QUICK = ("CartPole-v1", "LunarLander-v3", "Pendulum-v1", "Acrobot-v1")
SOLVED_BY = "MountainCarContinuous-v0"
PEER = "sb3"
LIMIT_S = 60.0  # of a run to CartPole's target


# -- equal seconds ---------------------------------------------------------------------------------


def _suite_cases(form: Form) -> list[Case]:
    wide = [t.name for t in TASKS.values() if t.group != "test" and t.name != SOLVED_BY]
    return [
        {"task": task, "algo": algo, "scale": form.pick(quick=_quick_scale(task), full=1.0),
         "seed": seed}
        for seed in form.seeds(2, 5)
        for task in form.pick(QUICK, tuple(wide))
        for algo in ("appo", "ppo", "impala", PEER)
    ]  # fmt: skip


def _quick_scale(task: str) -> float:
    """Return the factor that gives 12 s, or 20 s for the longer tasks."""
    seconds = TASKS[task].seconds
    return round((12 if seconds <= 20 else 20) / seconds, 3)


def scaled(case: Case) -> Task:
    """Return the task with the budget of a case."""
    task = TASKS[case["task"]]
    seconds = task.seconds * case["scale"]
    return replace(task, seconds=seconds)


def suite_settings(case: Case) -> dict[str, Any]:
    """Return the budget, and headrace's defaults or the peer's settings."""
    task = scaled(case)
    budget = {"steps": task.steps, "seconds": task.seconds}
    if case["algo"] == PEER:
        return budget | {"zoo": str(task.zoo)}
    algo, network = ALGORITHMS[case["algo"]](), hr.Network(**task.flags)
    return budget | {"config": hr.Config(task.env_id, algo, network=network)}


def _suite(case: Case) -> dict[str, Any]:
    learning.find_environments()
    run = learning.measure(learning.Case(scaled(case), case["algo"], case["seed"]), Children())
    seconds, steps, _ = run["curve"][-1]
    task = TASKS[case["task"]]
    return {
        "training_return": run["training_return"],
        "evaluated": run["evaluation"]["mean"],
        "score": task.score(run["training_return"]),
        "env_steps": run["env_steps"],
        "seconds": seconds,
        "sps": steps / seconds,
    }


SUITE = Experiment("peers_suite", _suite_cases, suite_settings, _suite)


def _solved_cases(form: Form) -> list[Case]:
    return [
        {"task": SOLVED_BY, "algo": algo, "scale": 1.0, "seed": seed}
        for seed in form.seeds(2, 5)
        for algo in ("appo", "ppo")
    ]


SOLVED = Experiment("peers_mountaincar", _solved_cases, suite_settings, _suite)


# -- time to a target ------------------------------------------------------------------------------


def _target_cases(form: Form) -> list[Case]:
    return [
        {"algo": algo, "seed": seed}
        for seed in form.seeds(2, 5)
        for algo in ("appo", "ppo", PEER)
    ]  # fmt: skip


def target_settings(case: Case) -> dict[str, Any]:
    """Return headrace's defaults, or the peer's settings."""
    known: dict[str, Any] = {"target": time_to_target.TARGET, "limit_s": LIMIT_S}
    if case["algo"] == PEER:
        return known | {"zoo": time_to_target.ZOO}
    return known | {"config": hr.recipe("cartpole", case["algo"])}


def _target(case: Case) -> dict[str, Any]:
    args, algo = time_to_target.Args(limit_s=LIMIT_S), case["algo"]
    if algo == PEER:
        run = time_to_target.sb3(case["seed"], args)
    else:
        run = time_to_target.headrace(algo, case["seed"], args)
    reached = math.isfinite(run.seconds)
    return {
        "seconds": run.seconds if reached else LIMIT_S,
        "reached": reached,
        "env_steps": run.env_steps,
        "final_return": run.final_return,
    }


TARGET = Experiment("peers_cartpole_475", _target_cases, target_settings, _target, alone=True)


# -- judgements ------------------------------------------------------------------------------------


def _on_task(task: str, algo: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["peers_suite"].where(task=task)
        own, peer = (runs.where(algo=one).values("training_return") for one in (algo, PEER))
        return Judgement(more(own, peer), f"return: {_ALL[algo]} {spread(own)}, SB3 {spread(peer)}")

    return judge


def interquartile(runs: Runs) -> list[float]:
    """Return the interquartile mean of the scores of all tasks, seed by seed."""
    each = [np.array(own.values("score")) for own in runs.by("seed").values()]
    return [float(middle(scores[:, None])[0]) for scores in each]


def _scores(name: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["peers_suite"]
        own, peer = (interquartile(runs.where(algo=algo)) for algo in (name, PEER))
        return Judgement(more(own, peer), f"score: {_ALL[name]} {spread(own)}, SB3 {spread(peer)}")

    return judge


def _speed(name: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        ratios: list[float] = []
        for own in data["peers_suite"].by("task").values():
            pairs = zip(
                own.where(algo=name).values("sps"), own.where(algo=PEER).values("sps"), strict=False
            )
            ratios.append(float(np.median([a / b for a, b in pairs])))
        verdict = Verdict.IN_KIND if min(ratios) > 1 else Verdict.NOT_REPRODUCED
        return Judgement(verdict, f"{min(ratios):.1f} to {max(ratios):.1f} times SB3's steps/s")

    return judge


def _first(name: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["peers_cartpole_475"]
        own, peer = (runs.where(algo=algo) for algo in (name, PEER))
        text = f"{_ALL[name]} {_seconds(own)}, SB3 {_seconds(peer)}"
        return Judgement(more(peer.values("seconds"), own.values("seconds")), text)

    return judge


def _seconds(runs: Runs) -> str:
    reached = sum(runs.values("reached"))
    missed = f" ({len(runs) - reached:.0f} of {len(runs)} missed)" if reached < len(runs) else ""
    return f"{spread(runs.values('seconds'))} s{missed}"


def _solved(name: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        returns: Sequence[float] = data["peers_mountaincar"].where(algo=name).values("evaluated")
        solved = sum(value >= TASKS[SOLVED_BY].high for value in returns)
        verdict = Verdict.IN_KIND if solved == len(returns) else Verdict.NOT_REPRODUCED
        text = f"return {spread(returns)}; {solved} of {len(returns)} runs solved it"
        return Judgement(verdict, text)

    return judge


_EQUAL = "same seconds of training, one core each"
_NAMES = {"CartPole-v1": "CartPole", "LunarLander-v3": "LunarLander", "Pendulum-v1": "Pendulum",
          "Acrobot-v1": "Acrobot"}  # fmt: skip
_ALL = {"appo": "APPO", "ppo": "PPO", "impala": "IMPALA"}

ROWS = (
    *(
        Row(f"{_NAMES[task]}, {_ALL[algo]}", f"{_ALL[algo]}'s return is above SB3 PPO's", _EQUAL,
            ("peers_suite",), _on_task(task, algo))
        for task in QUICK for algo in ("appo", "ppo")
    ),
    *(
        Row(f"All tasks, {name}", f"{name}'s score is above SB3 PPO's",
            "same seconds of training, interquartile mean over tasks", ("peers_suite",),
            _scores(algo))
        for algo, name in _ALL.items()
    ),
    *(
        Row(f"Speed, {_ALL[algo]}", f"{_ALL[algo]} is faster than SB3's PPO on every task",
            "same seconds of training, with start-up", ("peers_suite",), _speed(algo))
        for algo in ("appo", "ppo")
    ),
    *(
        Row(f"CartPole to 475, {_ALL[algo]}", f"{_ALL[algo]} solves CartPole sooner than SB3's PPO",
            "time from process start to a return of 475", ("peers_cartpole_475",), _first(algo))
        for algo in ("appo", "ppo")
    ),
    *(
        Row(f"MountainCarContinuous, {_ALL[algo]}", f"{_ALL[algo]} solves it: 90 or more",
            "30 s on one core, evaluated", ("peers_mountaincar",), _solved(algo))
        for algo in ("appo", "ppo")
    ),
)  # fmt: skip

PAGE = Page(
    "peers",
    "Defaults and Stable-Baselines3",
    source="No paper: headrace's defaults, and PPO of Stable-Baselines3 (SB3) with the settings "
    "that rl-baselines3-zoo publishes for each task",
    rows=ROWS,
    experiments=(TARGET, SUITE, SOLVED),
    intro="Returns are of training. Scores are 0 for a random policy and 1 for a reference policy. "
    "[More tasks](learning.md).",
)

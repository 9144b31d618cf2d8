"""Experiments of the page on IMPALA: one agent on several tasks, and an expert on each."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from typing import Any

import headrace as hr
from book.experiment import Case, Experiment, Form
from book.impala_poles import POLES
from book.impala_runs import SCALES, LateActorLearner

PENDULUM = "multitask_envs:PendulumOfFive-v0"
SUITES = {"four": ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", PENDULUM), "poles": POLES}
RANGES = {name: (task.low, task.high) for name, task in SCALES.items()}
RANGES |= {PENDULUM: (-1200.0, -200.0)} | dict.fromkeys(POLES, (20.0, 500.0))
LAYERS = {"shallow": (64,), "deep": (64, 64, 64)}
WHO = (
    ("experts", "impala", "deep"),
    ("agent", "impala", "deep"),
    ("experts", "impala", "shallow"),
    ("agent", "impala", "shallow"),
    ("experts", "a3c", "deep"),
    ("agent", "a3c", "deep"),
    ("experts", "a3c", "shallow"),
)


def _cases(
    seeds: range, suite: str, who: Sequence[tuple[str, str, str]], task_steps: int
) -> list[dict[str, Any]]:
    return [
        {"suite": suite, "who": name, "algo": algo, "net": net, "task_steps": task_steps,
         "seed": seed}
        for seed in seeds
        for name, algo, net in who
    ]  # fmt: skip


def config_of(case: Case, tasks: tuple[str, ...]) -> hr.Config:
    """Return the settings of one run: default hyperparameters, and actors that act in turn."""
    return hr.Config(
        tasks=tasks,
        algo=hr.A3C() if case["algo"] == "a3c" else hr.IMPALA(),
        num_actors=4 if len(tasks) == 1 and case["algo"] == "a3c" else len(tasks),
        envs_per_actor=2 if len(tasks) == 1 and case["algo"] == "a3c" else 8,
        fragment_length=32,
        transport="serial",
        total_steps=case["task_steps"] * len(tasks),
        seed=case["seed"],
        network=hr.Network(LAYERS[case["net"]]),
        eval_episodes=20,
    )


def _settings(case: Case) -> dict[str, Any]:
    tasks = SUITES[case["suite"]]
    if case["who"] == "agent":
        return {"agent": config_of(case, tasks)}
    return {task: config_of(case, (task,)) for task in tasks}


def returns(config: hr.Config) -> dict[str, float]:
    """Train in this process. Return the mean evaluated return of each task."""
    from headrace.actors import actor

    if isinstance(config.algo, hr.A3C):
        actor.ActorLearner = LateActorLearner  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(config, run_dir=f"{folder}/run")
        with hr.Trainer(config, notify=lambda line: None, handle_signals=False) as trainer:
            for _ in trainer:
                pass
            summary = trainer.finish()
    found = summary["evaluation"]
    each = found.get("tasks") or {config.tasks[0]: found}
    return dict(zip(config.tasks, (one["mean"] for one in each.values()), strict=True))


def measure(case: Case) -> dict[str, Any]:
    """Train an agent or all experts. Return scores by task, capped at 1, and their mean."""
    found: dict[str, float] = {}
    for config in _settings(case).values():
        found |= returns(config)
    scores = {}
    for task, value in found.items():
        low, high = RANGES[task]
        scores[task.rpartition(":")[2]] = min(1.0, (value - low) / (high - low))
    return {**scores, "mean": sum(scores.values()) / len(scores)}


def _four(form: Form) -> list[dict[str, Any]]:
    return _cases(form.seeds(medium=3, full=5), "four", WHO, form.pick(quick=20_000, full=200_000))


def _poles(form: Form) -> list[dict[str, Any]]:
    """Return cases with so few steps that experts reach about half of the score."""
    return _cases(form.seeds(medium=8, full=20), "poles", WHO[:2], 3000)


FOUR = Experiment("impala_four_tasks", _four, _settings, measure, limit_s=3600)
RELATED = Experiment("impala_poles", _poles, _settings, measure)
EXPERIMENTS = (FOUR, RELATED)

"""Experiments of the course lesson's page on environments that wait."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from typing import Any

import numpy as np
import waiting

import headrace as hr
from book.experiment import Case, Experiment, Form
from book.lesson_algos import TimedAPPO, TimedPPO

WAITING = "book.lesson_envs:Waiting-v0"
WARM_UP_S = 1.0


def steady(config: hr.Config, seconds: float) -> dict[str, float]:
    """Train for some time, and return the speed and means of results after the warm-up."""
    first_s, begin, end = None, None, None
    names = {"lag": "lag_mean", "learner_busy": "utilisation_learner"}
    names["actor_busy"] = "utilisation_actor"
    found: dict[str, list[float]] = {name: [] for name in names}
    kind = hr.LearnerGroup if config.num_learners > 1 else hr.Trainer
    with contextlib.closing(kind(config, notify=lambda text: None)) as trainer:
        for end in trainer:
            first_s = end.seconds if first_s is None else first_s
            if begin is None:
                begin = end if end.seconds - first_s >= WARM_UP_S else None
                continue
            for name, field in names.items():
                found[name].append(end[field] or 0.0)
            if end.seconds - begin.seconds >= seconds:
                break
    assert begin is not None
    assert end is not None
    sps = (end.env_steps - begin.env_steps) / (end.seconds - begin.seconds)
    return {"sps": sps, **{name: float(np.mean(values)) for name, values in found.items()}}


def _endless(env_kwargs: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return settings of runs on waiting environments that are stopped by the clock."""
    return {
        "env": WAITING, "env_kwargs": env_kwargs, "engine": "native", "inference": "actor",
        "precision": "float32", "total_steps": 10**9, "checkpoint_interval": 10**9,
        "log_interval_s": 0.2, "eval_episodes": 0, **settings,
    }  # fmt: skip


# -- throughput ------------------------------------------------------------------------------------

_SIZES = ("actors", "envs", "step_ms", "fragment", "batch", "learners")
_RATES = (
    (3, 4, 20, 50, 600, 1),
    (16, 8, 20, 50, 4800, 1),
    (32, 16, 20, 50, 4800, 1),
    (32, 16, 20, 50, 9600, 2),
    (32, 16, 5, 50, 4800, 1),
    (32, 16, 2, 50, 4800, 1),
    (2, 16, 0, 10, 4800, 1),
    (2, 16, 0, 150, 4800, 1),
)


def _rate_cases(form: Form) -> list[Case]:
    seconds = form.pick(quick=3, full=15)
    return [
        {**dict(zip(_SIZES, sizes, strict=True)), "seconds": seconds, "seed": seed}
        for seed in form.seeds(2, 5)
        for sizes in _RATES
    ]


def rate_config(case: Case) -> hr.Config:
    """Return the lesson's settings on environments that wait."""
    settings = _endless(
        {"step_s": case["step_ms"] / 1000},
        num_actors=case["actors"], envs_per_actor=case["envs"], batch_size=case["batch"],
        fragment_length=case["fragment"], num_learners=case["learners"], seed=case["seed"],
    )  # fmt: skip
    return dataclasses.replace(hr.recipe("lesson-conjunction"), **settings)


def _rate(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(rate_config(case), run_dir=f"{folder}/run")
        found = steady(config, case["seconds"])
    envs, step_s = case["actors"] * case["envs"], case["step_ms"] / 1000
    if not step_s:
        return found
    return {**found, "ceiling": envs / step_s, "share": found["sps"] * step_s / envs}


RATES = Experiment("lesson_throughput", _rate_cases, rate_config, _rate, alone=True)


# -- threads that wait, see waiting.py -------------------------------------------------------------


def _thread_cases(form: Form) -> list[Case]:
    kinds = [("acting", False), ("training", False), ("training", True)]
    return [
        {"what": what, "one_is_slow": slow, "seed": seed}
        for seed in form.seeds(2, 5)
        for what, slow in kinds
    ]


_THREADS = waiting.Args(seconds=5.0)


def _thread_settings(case: Case) -> dict[str, Any]:
    claim = "claim" if case["one_is_slow"] else ""
    config = waiting.config_of(_THREADS, waiting.Waiting, claim, 10**6, "run")
    return {"args": _THREADS, "config": config}


def _threads(case: Case) -> dict[str, float]:
    measured = waiting.acting if case["what"] == "acting" else waiting.training
    with tempfile.TemporaryDirectory() as folder:
        claim = f"{folder}/claim" if case["one_is_slow"] else ""
        sps = measured(_THREADS, waiting.Waiting, claim, f"{folder}/run")
    slow = case["one_is_slow"] * (1 - 1 / waiting.SLOWER)
    return {"sps": sps, "share": sps * _THREADS.step_s / (_THREADS.num_envs - slow)}


THREADS = Experiment("lesson_waiting", _thread_cases, _thread_settings, _threads, alone=True)


# -- collecting takes twice as long as an update ---------------------------------------------------


def _busy_cases(form: Form) -> list[Case]:
    kinds = (("ppo", 1, False), ("appo", 1, False), ("appo", 3, False), ("ppo", 8, True),
             ("appo", 8, True))  # fmt: skip
    seconds = form.pick(quick=3, full=15)
    return [
        {"algo": algo, "actors": actors, "one_is_slow": slow, "seconds": seconds, "seed": seed}
        for seed in form.seeds(2, 5)
        for algo, actors, slow in kinds
    ]


def busy_config(case: Case, claim: str = "claim") -> hr.Config:
    """Return a run in which 512 steps take 96 ms, and an update at least 50 ms.

    With 1 or 3 actors, each has the environments of a whole batch; with 8, two of them.
    """
    shared: dict[str, Any] = {
        "learning_rate": 5e-4, "epochs": 1, "minibatches": 1, "kl_limit": None, "update_s": 0.05,
    }  # fmt: skip
    kwargs: dict[str, Any] = {"step_s": 0.003, "claim": claim if case["one_is_slow"] else ""}
    settings = _endless(kwargs, num_actors=case["actors"], seed=case["seed"], scale_free=False)
    algo = TimedPPO(**shared) if case["algo"] == "ppo" else TimedAPPO(max_lag=3, **shared)
    envs = 2 if case["actors"] == 8 else 16
    return hr.Config(algo=algo, envs_per_actor=envs, fragment_length=32, batch_size=512, **settings)


def _busy(case: Case) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        config = busy_config(case, f"{folder}/claim")
        return steady(dataclasses.replace(config, run_dir=f"{folder}/run"), case["seconds"])


BUSY = Experiment("lesson_utilisation", _busy_cases, busy_config, _busy, alone=True)

"""Experiments of the page on IMPALA that measure time and therefore run one at a time."""

from __future__ import annotations

import functools
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import architectures
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

import headrace as hr
from book.experiment import Case, Experiment, Form
from book.training import trained, values_of
from headrace.nn.convolutions import ImageTorso
from headrace.rundir.files import read_jsonl

PAPER: dict[str, Any] = {"epochs": 1, "minibatches": 1, "clip": math.inf, "max_lag": 3}
BY_STEPS: dict[str, Any] = {"lam": 1.0, "optimizer": "rmsprop", "reward_scale": 0.1}
TARGET = 400.0  # return

# -- Table 1 ---------------------------------------------------------------------------------------

ROWS = (
    "A3C",
    "A2C, sync step",
    "A2C, sync trajectory",
    "A2C, dynamic batching",
    "IMPALA",
    "IMPALA, dynamic batching",
)


def _throughput_cases(form: Form) -> list[dict[str, Any]]:
    seconds = form.pick(quick=2.0, full=10.0)
    return [
        {"architecture": row, "task": task, "seconds": seconds, "seed": seed}
        for seed in form.seeds(medium=2, full=5)
        for task in architectures.TASKS
        for row in ROWS
    ]


def _whole(case: Case) -> dict[str, Any]:
    args = architectures.Args(seconds=case["seconds"], warm_up_s=0.5)
    settings = {name: getattr(args, name) for name in architectures.SETTINGS}
    return {**settings, **case, "repeat": case["seed"]}


THROUGHPUT = Experiment(
    "impala_throughput",
    _throughput_cases,
    lambda case: architectures.config_of(_whole(case), "run"),
    lambda case: architectures.measure(_whole(case)),
    alone=True,
)

# -- rates and times on CartPole -------------------------------------------------------------------


def _rate_cases(form: Form) -> list[dict[str, Any]]:
    scale = form.pick(quick=1, full=5)
    return [
        {"algo": algo, "envs_per_actor": envs, "steps": scale * steps, "seed": seed}
        for seed in form.seeds(medium=3, full=5)
        for algo, envs, steps in (
            ("impala", 256, 2_000_000),
            ("a3c", 256, 1_000_000),
            ("a3c", 1, 20_000),
        )
    ]


def _rate_config(case: Case) -> hr.Config:
    envs = case["envs_per_actor"]
    return hr.Config(
        "CartPole-v1",
        hr.IMPALA(**PAPER) if case["algo"] == "impala" else hr.A3C(max_lag=3),
        num_actors=2,
        envs_per_actor=envs,
        fragment_length=32,
        batch_size=64 * envs,
        total_steps=case["steps"],
        network=hr.Network((64, 64)),
        seed=case["seed"],
        eval_episodes=0,
    )


def _rate(case: Case) -> dict[str, Any]:
    found = trained(_rate_config(case))
    return {name: found[name] for name in ("sps", "final_return", "learner_busy", "actor_busy")}


RATE = Experiment("impala_rate", _rate_cases, _rate_config, _rate, alone=True)


def _clock_cases(form: Form) -> list[dict[str, Any]]:
    steps = form.pick(quick=120_000, full=500_000)
    return [
        {"algo": algo, "steps": steps, "seed": seed}
        for seed in form.seeds(medium=3, full=10)
        for algo in ("impala", "a3c")
    ]


def _clock_config(case: Case) -> hr.Config:
    known = {**BY_STEPS, "learning_rate": 5e-3, "entropy_coef": 3e-3}
    algo = hr.IMPALA(**PAPER, **known) if case["algo"] == "impala" else hr.A3C(max_lag=3, **known)
    return hr.Config(
        "CartPole-v1", algo, num_actors=2, envs_per_actor=8, fragment_length=20, batch_size=320,
        total_steps=case["steps"], scale_free=False, network=hr.Network((64, 64)),
        seed=case["seed"], eval_episodes=0,
    )  # fmt: skip


def _clock(case: Case) -> dict[str, Any]:
    """Return seconds and steps until the target return; of the whole run if it was missed."""
    found = trained(_clock_config(case))
    reached = next((p for p in found["curve"] if p[2] >= TARGET), None)
    steps, seconds, _ = reached or found["curve"][-1]
    values = {"seconds_to_target": seconds, "steps_to_target": steps, "reached": bool(reached)}
    return values | {name: found[name] for name in ("final_return", "sps", "lag_mean")}


CLOCK = Experiment("impala_clock", _clock_cases, _clock_config, _clock, alone=True)

# -- several learners ------------------------------------------------------------------------------


def _learners_cases(form: Form) -> list[dict[str, Any]]:
    steps = form.pick(quick=1_000_000, full=10_000_000)
    return [
        {"learners": learners, "steps": steps, "seed": seed}
        for seed in form.seeds(medium=3, full=5)
        for learners in (1, 2)
    ]


def _learners_config(case: Case) -> hr.Config:
    return hr.Config(
        "CartPole-v1",
        hr.IMPALA(max_lag=1),
        num_learners=case["learners"],
        num_actors=2,
        cores_per_learner=1,
        envs_per_actor=256,
        fragment_length=32,
        batch_size=16_384,
        total_steps=case["steps"],
        network=hr.Network((64, 64)),
        seed=case["seed"],
        eval_episodes=0,
    )


def _learners(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        hr.train(_learners_config(case), quiet=True, run_dir=str(run_dir))
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        found = values_of(summary, read_jsonl(run_dir / "metrics.jsonl"))
    return {name: found[name] for name in ("sps", "final_return", "area", "env_steps")}


LEARNERS = Experiment("impala_learners", _learners_cases, _learners_config, _learners, alone=True)

# -- the learner's networks: section 3.1, Figure 3 -------------------------------------------------

LENGTH, BATCHES = 20, (32, 128)


CONVOLUTIONS = ("impala_shallow", "impala_deep")


def _network_cases(form: Form) -> list[dict[str, Any]]:
    seconds = form.pick(quick=1.0, full=10.0)
    return [{"seconds": seconds, "seed": seed} for seed in form.seeds(medium=3, full=5)]


def _network_settings(case: Case) -> dict[str, Any]:
    return {"length": LENGTH, "batches": BATCHES, "networks": {n: _policy(n) for n in CONVOLUTIONS}}


def _policy(conv: str) -> hr.Network:
    return hr.Network(conv=conv, core="lstm", core_size=256)  # type: ignore[arg-type]


def rate(step: Callable[[], Tensor], frames: int, seconds: float) -> float:
    """Return the frames per second of forward and backward passes."""
    step().sum().backward()
    count, begin = 0, time.monotonic()
    while time.monotonic() - begin < seconds:
        step().sum().backward()
        count += frames
    return count / (time.monotonic() - begin)


def _network(case: Case) -> dict[str, Any]:
    """Return rates of the shallow network, and the sizes of both."""
    torch.manual_seed(case["seed"])
    torso, lstm = ImageTorso("impala_shallow", 3, 72, 96), nn.LSTM(256, 256)
    found: dict[str, Any] = {}
    for conv in CONVOLUTIONS:
        policy = hr.Policy(Box(0, 255, (72, 96, 3), np.uint8), Discrete(9), _policy(conv))
        found[conv] = sum(isinstance(m, nn.Conv2d) for m in policy.modules())
        found[f"{conv}_parameters"] = sum(p.numel() for p in policy.parameters())
    measured = {"one_environment": (1, _in_turn), "folded": (BATCHES[0], _folded)}
    measured |= {f"batch_{n}": (n, _with_core) for n in BATCHES}
    for name, (batch, forward) in measured.items():
        images = torch.rand(LENGTH, batch, 3, 72, 96)
        step = functools.partial(forward, torso, lstm, images)
        found[name] = rate(step, LENGTH * batch, case["seconds"])
    return found


def _in_turn(torso: nn.Module, lstm: nn.Module, images: Tensor) -> Tensor:
    return torch.stack([torso(row) for row in images])


def _folded(torso: nn.Module, lstm: nn.Module, images: Tensor) -> Tensor:
    return torso(images.flatten(0, 1))  # type: ignore[no-any-return]


def _with_core(torso: nn.Module, lstm: nn.Module, images: Tensor) -> Tensor:
    features = _folded(torso, lstm, images).unflatten(0, images.shape[:2])
    return lstm(features)[0]  # type: ignore[no-any-return]


NETWORK = Experiment("impala_network", _network_cases, _network_settings, _network, alone=True)

EXPERIMENTS = (THROUGHPUT, RATE, CLOCK, LEARNERS, NETWORK)

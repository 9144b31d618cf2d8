"""The page on ClusterEnv: workers that fetch weights once their policy has drifted."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import headrace as hr
from book.clusterenv_checks import CHECKS, check
from book.clusterenv_judges import ROWS
from book.clusterenv_runs import (
    continuous,
    example,
    pendulum_ppo,
    speeds,
    synced,
    waiting,
)
from book.experiment import Case, Experiment, Form
from book.page import Page
from headrace.algos import PPO
from headrace.cluster_env.settings import EnvConfig
from headrace.config import Config
from headrace.studies.aaps.run import PAPER_THRESHOLDS, PRESETS, Aaps, train

PAPER_ENVS = 64  # of a worker; the paper's code sums the KL over them
SUMS = (0.2, 0.5, 0.8)  # thresholds that shorter forms also test as such a sum
MEANS = (0.05, 0.8, 1.0)  # thresholds of the quick form


# -- figures 2 and 3 -------------------------------------------------------------------------------


def _thresholds(form: Form) -> list[Case]:
    sums = form.pick(quick=SUMS, full=PAPER_THRESHOLDS)
    rules: list[tuple[str, str, float]] = [("every", "", 0.0)]
    means = form.pick(quick=MEANS, medium=PAPER_THRESHOLDS, full=PAPER_THRESHOLDS)
    rules += [("adaptive", "mean", threshold) for threshold in means]
    rules += [("adaptive", "sum", threshold) for threshold in sums]
    return [
        {
            "weight_sync": sync,
            "kl": kind,
            "threshold": threshold,
            "envs": form.pick(quick=2 * 16, full=4 * 16),
            "total_steps": form.pick(quick=102_400, full=1_310_720),
            "seed": seed,
        }
        for seed in form.seeds(medium=3, full=3)
        for sync, kind, threshold in rules
    ]


def _aaps(case: Case) -> Aaps:
    is_full = case["envs"] == 64
    preset = PRESETS["paper" if is_full else "machine"]
    return dataclasses.replace(
        preset,
        kl_thresholds=(case["threshold"] / (PAPER_ENVS if case["kl"] == "sum" else 1),),
        envs_per_node=16,
        total_steps=case["total_steps"],
        evaluations=1,
        eval_episodes=20 if is_full else 2,
    )


def _threshold_settings(case: Case) -> dict[str, Any]:
    aaps = _aaps(case)
    hyper = {
        f.name: getattr(aaps, f.name) for f in dataclasses.fields(PPO) if hasattr(aaps, f.name)
    }
    return {"aaps": aaps, "weight_sync": case["weight_sync"], "algo": PPO(**hyper)}


def _trained(case: Case) -> dict[str, Any]:
    aaps = _aaps(case)
    rule = {"weight_sync": case["weight_sync"], "kl_threshold": aaps.kl_thresholds[0]}
    with tempfile.TemporaryDirectory() as folder:
        values = train(aaps, rule | {"seed": case["seed"]}, Path(folder))
        lines = (Path(folder) / "curve.jsonl").read_text(encoding="utf-8").splitlines()
    return values | {"updates": len(lines)}


THRESHOLDS = Experiment(
    "clusterenv_thresholds", _thresholds, _threshold_settings, _trained, limit_s=7200.0
)


# -- many small updates ----------------------------------------------------------------------------


def _updates(form: Form) -> list[Case]:
    steps = form.pick(quick=60_000, full=200_000)
    return [
        {"algo": algo, "weight_sync": rule, "total_steps": steps, "seed": seed}
        for seed in form.seeds(medium=3, full=10)
        for algo in ("appo", "impala")
        for rule in ("every", "every-12", "adaptive")
    ]


def _update_config(case: Case) -> Config:
    algorithms = {
        "appo": hr.APPO(max_lag=3, epochs=1, minibatches=1, learning_rate=2e-3),
        "impala": hr.IMPALA(max_lag=3, epochs=2, minibatches=2, learning_rate=2e-3),
    }
    return Config(
        "CartPole-v1",
        algorithms[case["algo"]],
        num_actors=1,
        envs_per_actor=8,
        fragment_length=16,
        batch_size=128,
        total_steps=case["total_steps"],
        weight_sync=case["weight_sync"],
        kl_threshold=0.005,
        network=hr.Network((128, 128)),
        learner_threads=1,
        eval_episodes=0,
        seed=case["seed"],
    )


# -- the other experiments -------------------------------------------------------------------------


def _examples(form: Form) -> list[Case]:
    kinds = (("ppo.py", 0), ("ppo.py", 2), ("clusterenv_dqn.py", 2))
    steps = form.pick(quick=40_000, full=100_000)
    return [
        {"example": name, "nodes": nodes, "total_steps": steps, "seed": seed}
        for seed in form.seeds(medium=2, full=5)
        for name, nodes in kinds
    ]


def _checks(form: Form) -> list[Case]:
    return [{"check": name, "seed": seed} for seed in form.seeds(1, 3) for name in CHECKS]


def _waits(form: Form) -> list[Case]:
    return [
        {"call": call, "seconds": form.pick(quick=4.0, full=20.0), "seed": seed}
        for seed in form.seeds(medium=3, full=5)
        for call in ("collect", "collect_async")
    ]


def _pendulum(form: Form) -> list[Case]:
    return [{"total_steps": 81_920, "seed": seed} for seed in form.seeds(medium=2, full=5)]


def _speeds(form: Form) -> list[Case]:
    seconds = form.pick(quick=1.5, full=5.0)
    return [{"seconds": seconds, "seed": seed} for seed in form.seeds(medium=3, full=10)]


EXPERIMENTS = (
    THRESHOLDS,
    Experiment(
        "clusterenv_updates", _updates, _update_config, lambda case: synced(_update_config(case))
    ),
    Experiment("clusterenv_examples", _examples, lambda case: {"env": "CartPole-v1"}, example),
    Experiment("clusterenv_checks", _checks, lambda case: EnvConfig(env_name="CartPole-v1"), check),
    Experiment(
        "clusterenv_waits",
        _waits,
        lambda case: EnvConfig(env_name="CartPole-v1"),
        waiting,
        alone=True,
    ),
    Experiment(
        "clusterenv_continuous",
        _pendulum,
        lambda case: {"algo": pendulum_ppo(), "env": EnvConfig(env_name="Pendulum-v1")},
        continuous,
    ),
    Experiment(
        "clusterenv_speed",
        _speeds,
        lambda case: EnvConfig(env_name="CartPole-v1"),
        speeds,
        alone=True,
    ),
)

PAGE = Page(
    "clusterenv",
    "ClusterEnv",
    source=(
        "Lafuente-Mercado 2025, *High-Throughput Distributed Reinforcement Learning via Adaptive "
        "Policy Synchronization*"
    ),
    rows=ROWS,
    experiments=EXPERIMENTS,
    intro=(
        "A worker fetches new weights after *every* update or, *adaptive*, once the KL divergence "
        "of its copy exceeds the threshold δ. The paper's formula has the mean KL; its "
        "code (`worker.py` at cfc5f79) sums the KL over 64 environments, so δ is 64 times as "
        "strict. Both were tested on LunarLander-v3, with 50 updates of 2,048 steps (in the full "
        "form: the paper's settings, a quarter of its environments). Returns are of the last 100 "
        "training episodes; those of examples are evaluated."
    ),
)

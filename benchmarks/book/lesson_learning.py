"""Experiments of the course lesson's page on learning and formulas."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace as hr
from book import lesson_formulas
from book.experiment import Case, Experiment, Form
from headrace_ssa import simple

EPISODES = 500  # of a policy's final test
TEST_SEED = 2_000_000  # of the first test
VARIANTS = ("literal", "serial", "not clipped", "no entropy bonus", "tuned")

# -- the complete example --------------------------------------------------------------------------


def _example_cases(form: Form) -> list[Case]:
    steps = form.pick(quick=100_000, full=1_000_000)
    return [
        {"variant": variant, "total_steps": steps, "seed": seed}
        for seed in form.seeds(3, 5)
        for variant in VARIANTS
    ]


def example_config(case: Case) -> hr.Config:
    """Return the settings of the lesson's complete example, or the tuned ones."""
    base = hr.recipe("satellite" if case["variant"] == "tuned" else "lesson-satellite")
    changes: dict[str, Any] = {
        "not clipped": {"max_grad_norm": math.inf}, "no entropy bonus": {"entropy_coef": 0.0},
    }.get(case["variant"], {})  # fmt: skip
    return dataclasses.replace(
        base,
        algo=dataclasses.replace(base.algo, **changes),
        transport="shm" if case["variant"] == "literal" else "serial",
        total_steps=case["total_steps"],
        seed=case["seed"],
        eval_episodes=0,
        log_interval_s=0.1,
    )


def _example(case: Case) -> dict[str, Any]:
    norms, last, curve = [], None, []
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(example_config(case), run_dir=f"{folder}/run")
        with contextlib.closing(
            hr.Trainer(config, notify=lambda text: None, handle_signals=False)
        ) as trainer:
            for last in trainer:
                norms += [] if last.grad_norm is None else [last.grad_norm]
                if last.episode_return is not None:
                    curve.append(last.episode_return)
            lag = trainer.summary()["lag"]["mean"]
        policy = hr.load(f"{folder}/run")
    assert last is not None
    first = TEST_SEED + EPISODES * case["seed"]
    tested, best, share = play(lambda obs: policy.predict(obs)[0], first)
    random = np.random.default_rng(first)
    chance, _, _ = play(lambda obs: random.integers(5, size=len(obs)), first)
    return {
        "random_return": chance, "final_return": curve[-1], "evaluated": tested,
        "share_of_best": tested / best, "picks_best": share, "entropy": last.entropy,
        "norm_median": float(np.median(norms)), "norm_max": max(norms), "lag": lag,
    }  # fmt: skip


def play(act: Callable[[np.ndarray], Any], seed: int) -> tuple[float, float, float]:
    """Return mean return, mean optimum, and the share of steps on the highest priority."""
    envs = simple.SimpleSatelliteVectorEnv(EPISODES)
    obs, _ = envs.reset(seed=seed)
    best = float(np.mean([simple.optimal_return(row) for row in obs[:, 6:]]))
    total, hits = np.zeros(EPISODES), []
    for _ in range(simple.EPISODE_STEPS):
        action = act(obs)
        hits.append(float((action == obs[:, 6:].argmax(1)).mean()))
        obs, reward, *_ = envs.step(action)
        total += reward
    return float(total.mean()), best, float(np.mean(hits))


EXAMPLE = Experiment("lesson_example", _example_cases, example_config, _example)


# -- stale rollouts, and algorithms ----------------------------------------------------------------

_PLAIN: dict[str, Any] = {
    "lr_schedule": "constant", "gamma": 0.99, "lam": 1.0, "entropy_coef": 0.01,
    "max_grad_norm": 40.0, "optimizer": "adam",
}  # fmt: skip


def _stale_cases(form: Form) -> list[Case]:
    steps = form.pick(quick=150_000, full=500_000)
    kinds = (("vtrace", 1.0), ("gae", 1.0), ("vtrace", 100.0))
    return [
        {"off_policy": kind, "rho_bar": bar, "total_steps": steps, "seed": seed}
        for seed in form.seeds(4, 10)
        for kind, bar in kinds
    ]


def stale_config(case: Case) -> hr.Config:
    """Return APPO with the lesson's settings on CartPole, with weights pulled every 16 updates."""
    base, bar = hr.recipe("lesson-satellite"), case["rho_bar"]
    algo = dataclasses.replace(base.algo, off_policy=case["off_policy"], rho_bar=bar, c_bar=bar)
    return hr.Config(
        "CartPole-v1", dataclasses.replace(algo, max_lag=2), num_actors=1, envs_per_actor=12,
        fragment_length=20, batch_size=240, total_steps=case["total_steps"], seed=case["seed"],
        scale_free=False, transport="serial", weight_sync="every-16",
    )  # fmt: skip


STALE = Experiment("lesson_stale", _stale_cases, stale_config)


def _table_cases(form: Form) -> list[Case]:
    steps = form.pick(quick=60_000, full=300_000)
    return [
        {"algo": algo, "learning_rate": rate, "total_steps": steps, "seed": seed}
        for seed in form.seeds(3, 5)
        for rate in form.pick(quick=(5e-3,), full=(5e-4, 1.5e-3, 5e-3))
        for algo in ("a3c", "a2c", "ppo", "impala", "appo")
    ]


def table_config(case: Case) -> hr.Config:
    """Return an algorithm in its paper's plain form, with 16 environments in four actors."""
    common = {"learning_rate": case["learning_rate"], **_PLAIN}
    passes: dict[str, Any] = {"epochs": 4, "minibatches": 4, "kl_limit": None}
    one: dict[str, Any] = {"max_lag": 3, "epochs": 1, "minibatches": 1, "clip": math.inf}
    algo = {
        "a3c": lambda: hr.A3C(max_lag=3, **common),
        "a2c": lambda: hr.A2C(**common),
        "ppo": lambda: hr.PPO(**passes, **common),
        "impala": lambda: hr.IMPALA(**one, **common),
        "appo": lambda: hr.APPO(max_lag=3, **passes, **common),
    }[case["algo"]]()
    return hr.Config(
        "CartPole-v1", algo, num_actors=4, envs_per_actor=4, fragment_length=20, batch_size=320,
        total_steps=case["total_steps"], seed=case["seed"], scale_free=False,
    )  # fmt: skip


TABLE = Experiment("lesson_table", _table_cases, table_config)


# -- the wargame's stand-in ------------------------------------------------------------------------


def _large_cases(form: Form) -> list[Case]:
    steps = form.pick(quick=300_000, full=10_000_000)
    return [
        {"kind": kind, "total_steps": steps, "seed": seed}
        for seed in form.seeds(2, 3)
        for kind in ("one", "split", "two")
    ]


def large_config(case: Case) -> hr.Config:
    """Return the lesson's settings: ``one`` learner, its batch ``split`` between two, or ``two``.

    The lesson's settings for two learners have twice the batch.
    """
    two = case["kind"] == "two"
    base = hr.recipe("lesson-conjunction-2-learners" if two else "lesson-conjunction")
    return dataclasses.replace(
        base,
        num_learners=1 if case["kind"] == "one" else 2,
        total_steps=case["total_steps"],
        seed=case["seed"],
        eval_episodes=100,
    )


LARGE = Experiment("lesson_conjunction", _large_cases, large_config, alone=True, limit_s=3600)


FORMULAS = Experiment(
    "lesson_formulas",
    lambda form: [{"seed": seed} for seed in form.seeds(3, 10)],
    lambda case: {"large": hr.recipe("lesson-conjunction")},
    lesson_formulas.formulas,
)

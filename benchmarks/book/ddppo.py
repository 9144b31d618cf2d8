"""The page on synchronous distributed PPO: experiments with learners that all-reduce gradients."""

from __future__ import annotations

from typing import Any

import headrace as hr
from book.ddppo_judges import ROWS
from book.ddppo_runs import COMMAND, Sleepy, by_command, equality, learned, with_learners
from book.experiment import Case, Experiment, Form
from book.page import Page
from headrace.config import Config
from headrace.studies.scaling.settings import ONE_CORE

PAPER: dict[str, Any] = {  # section P1.7
    "minibatches": 4, "gamma": 0.99, "lam": 0.95, "clip": 0.2, "value_coef": 0.5,
    "entropy_coef": 0.01, "learning_rate": 1e-3,
}  # fmt: skip
SIDE_BY_SIDE: dict[str, Any] = {"transport": "serial", "learner_threads": 1, "num_actors": 1}
SIZES = {"small": (8, 64), "large": (2048, 8)}  # environments and steps of one learner


def _config(case: Case, config: Config) -> Config:
    growing = case.get("batch") == "growing"
    return with_learners(config, case["world_size"], growing, seed=case["seed"])


# -- speed -----------------------------------------------------------------------------------------

LAYOUTS = (  # size, batch, learners; with one learner both batches are the same
    *(("small", "constant", w) for w in (1, 2, 4)),
    *(("small", "growing", w) for w in (2, 4)),
    *(("large", "constant", w) for w in (1, 2)),
    ("large", "growing", 2),
)


def _speeds(form: Form) -> list[Case]:
    return [
        {
            "size": size,
            "batch": batch,
            "world_size": learners,
            "iterations": form.pick(quick=25, full=60),
            "seed": seed,
        }
        for seed in form.seeds(medium=3, full=10)
        for size, batch, learners in LAYOUTS
    ]


def _speed_config(case: Case) -> Config:
    envs, steps = SIZES[case["size"]]
    growth = case["world_size"] if case["batch"] == "growing" else 1
    config = Config(
        "CartPole-v1",
        hr.PPO(epochs=2, **PAPER),
        num_actors=1,
        envs_per_actor=envs,
        fragment_length=steps,
        total_steps=envs * steps * growth * case["iterations"],
        eval_episodes=0,
        **ONE_CORE,
    )
    return _config(case, config)


# -- learning --------------------------------------------------------------------------------------


def _targets(form: Form) -> list[Case]:
    return [
        {"batch": batch, "world_size": learners, "total_steps": 65_536, "seed": seed}
        for seed in form.seeds(medium=3, full=10)
        for batch, learners in (("constant", 1), ("constant", 2), ("growing", 2), ("constant", 4))
    ]


def _target_config(case: Case) -> Config:
    config = Config(
        "CartPole-v1",
        hr.PPO(epochs=4, **PAPER),
        num_actors=1,
        envs_per_actor=16,
        fragment_length=64,
        total_steps=case["total_steps"],
        eval_interval=4096,
        eval_episodes=20,
        **ONE_CORE,
    )
    return _config(case, config)


def _continuous(form: Form) -> list[Case]:
    steps = form.pick(quick=40_960, full=200_000)
    return [
        {"world_size": 2, "total_steps": steps, "seed": seed}
        for seed in form.seeds(medium=3, full=5)
    ]


def _continuous_config(case: Case) -> Config:
    changes = {"minibatches": 8, "gamma": 0.9, "entropy_coef": 0.0}
    config = Config(
        "Pendulum-v1",
        hr.PPO(epochs=10, **PAPER | changes),
        envs_per_actor=16,
        fragment_length=128,
        total_steps=case["total_steps"],
        eval_interval=4096,
        eval_episodes=20,
        **SIDE_BY_SIDE,
    )
    return _config(case, config)


# -- slow environments -----------------------------------------------------------------------------


def _sleeps(form: Form) -> list[Case]:
    kinds = ((True, 8, None), (False, 8, None), (False, 32, None), (False, 8, 0.5))
    return [
        {"even": even, "envs": envs, "preempt": fraction, "world_size": 2, "seed": seed}
        for seed in form.seeds(medium=3, full=10)
        for even, envs, fraction in kinds
    ]


def _sleep_config(case: Case) -> Config:
    config = Config(
        Sleepy,
        hr.PPO(epochs=2, **PAPER),
        env_kwargs={"even": case["even"]},
        engine="sync",
        envs_per_actor=case["envs"],
        fragment_length=16,
        total_steps=30 * 16 * case["envs"],
        preempt_fraction=case["preempt"],
        eval_episodes=0,
        **SIDE_BY_SIDE,
    )
    return _config(case, config)


def _sleep_settings(case: Case) -> dict[str, Any]:
    settings = _sleep_config(case).to_json()
    return {k: v for k, v in settings.items() if k != "env_file"}  # where this file is


def _equal(form: Form) -> list[Case]:
    return [
        {"world_size": size, "seed": seed}
        for seed in form.seeds(medium=2, full=5)
        for size in (2, 3, 4)
    ]


EXPERIMENTS = (
    Experiment("ddppo_equal", _equal, lambda case: {"algo": hr.PPO()}, equality),
    Experiment(
        "ddppo_continuous", _continuous, _continuous_config,
        lambda case: learned(_continuous_config(case)),
    ),
    Experiment(
        "ddppo_sleep", _sleeps, _sleep_settings, lambda case: learned(_sleep_config(case)),
        alone=True,
    ),
    Experiment(
        "ddppo_target", _targets, _target_config, lambda case: learned(_target_config(case)),
        alone=True,
    ),
    Experiment(
        "ddppo_speed", _speeds, _speed_config, lambda case: learned(_speed_config(case)),
        alone=True,
    ),
    Experiment(
        "ddppo_command", lambda form: [{"seed": seed} for seed in form.seeds(medium=1, full=3)],
        lambda case: {"command": COMMAND}, by_command, alone=True,
    ),
)  # fmt: skip

PAGE = Page(
    "ddppo",
    "Synchronous distributed PPO",
    source="Budhbhatti et al., *Parallel and Distributed Training of PPO*, course assignment",
    rows=ROWS,
    experiments=EXPERIMENTS,
    intro=(
        "W learners step their own environments and all-reduce their gradients. Their total batch "
        "is *constant*, or *growing* with W. S(W) is the throughput relative to one learner, and "
        "E(W) = S(W) / W. The shares of an iteration's time in all-reduce and in waiting for other "
        "learners are rho_comm and rho_sync. On two cores, learners share cores if W = 4. The "
        "*small* batch is the paper's, 8 environments × 64 steps, the *large* one 2,048 × 8. "
        "CartPole: 65,536 steps, batches of 1,024, the settings of P1.7; returns are of "
        "evaluations, at most 500."
    ),
)

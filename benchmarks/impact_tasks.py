"""Tasks and studies of impact.py, with their settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from impact_runs import Run

FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)  # of N * K
PASSES = (1, 2, 4, 10, 16)
WORKERS = (1, 2, 4)
ONE_PASS = {"epochs": 1, "minibatches": 1, "clip": math.inf}  # IMPALA as in its paper


@dataclass(frozen=True)
class Task:
    """An environment, scaled to this machine, with tuned settings."""

    env: str
    threshold: float
    """Return threshold, to which steps and seconds are counted."""
    shared: Mapping[str, Any]
    """Hyperparameters of all algorithms."""
    config: Mapping[str, Any]
    impact: Mapping[str, Any]
    impala: Mapping[str, Any]
    ppo: Mapping[str, Any]
    ppo_config: Mapping[str, Any]
    """Additional settings of PPO: a larger batch, split into minibatches."""
    network: Mapping[str, Any] = field(default_factory=dict)

    def run(self, algo: str, total_steps: int | None = None, eval_episodes: int = 50) -> Run:
        """Return the tuned algorithm."""
        config = {**self.config, **(self.ppo_config if algo == "ppo" else {})}
        if total_steps is not None:
            config["total_steps"] = total_steps
        hyper = {**self.shared, **getattr(self, algo)}
        return Run(self.env, algo, algo, hyper, config, self.network, eval_episodes)

    def scaled_down(self, total_steps: int | None = None) -> list[dict[str, str]]:
        """Return rows that compare settings with the paper's section 4.3 and Tables 1 and 2."""
        cheetah = self.env.startswith("HalfCheetah")
        here, ppo = self.config, self.ppo_config["batch_size"]
        wide = self.ppo_config["envs_per_actor"]
        steps = here["total_steps"] if total_steps is None else total_steps
        rows = {
            "environment": (self.env, "HalfCheetah-v2" if cheetah else "Atari, 42 × 42 pixels"),
            "training": (f"{steps:,} steps", "10,000 s" if cheetah else "3 hours"),
            "workers": (
                f"{here['num_actors']} × {here['envs_per_actor']} environments (PPO: × {wide})",
                f"{16 if cheetah else 32} × 1 environment",
            ),
            "batch of IMPACT and IMPALA": (
                f"{here['batch_size']:,}",
                "32,768" if cheetah else "500",
            ),
            "batch of PPO": (f"{ppo:,}", "163,840" if cheetah else "5,000"),
            "rollout": (str(here["fragment_length"]), "1,024" if cheetah else "50 (PPO: 100)"),
            "N, K": (
                f"{self.impact['buffer_size']}, {self.impact['passes']}",
                "16, 32" if cheetah else "4, 2",
            ),
            "network": (
                "2 × 64 units, tanh",
                "2 × 256 units, tanh" if cheetah else "4 convolutions, shared",
            ),
        }
        return [{"": k, "here": a, "paper": b} for k, (a, b) in rows.items()]


# The recipe's setting, as headrace's defaults are scale-free. The other two keep older tuning.
_LANDER = Task(
    env="LunarLander-v3",
    threshold=200.0,
    shared={"gamma": 0.999, "lam": 0.98, "entropy_coef": 0.01},
    config={
        "num_actors": 1, "envs_per_actor": 8, "fragment_length": 64, "batch_size": 512,
        "total_steps": 500_000,
    },
    impact={
        "learning_rate": 1e-3, "buffer_size": 8, "passes": 10, "clip": 0.3, "rho": 2.0,
        "ratio": "R3", "t_target": None,
    },
    impala={"learning_rate": 1.5e-3, **ONE_PASS, "minibatches": 4},
    ppo={"learning_rate": 1e-3, "epochs": 4, "minibatches": 8},
    ppo_config={"envs_per_actor": 32, "batch_size": 2048},
)  # fmt: skip

_CARTPOLE = Task(
    env="CartPole-v1",
    threshold=400.0,
    shared={"gamma": 0.98, "lam": 0.95, "lr_schedule": "constant"},
    config={
        "num_actors": 2, "envs_per_actor": 16, "fragment_length": 32, "batch_size": 512,
        "total_steps": 150_000, "scale_free": False,
    },
    impact={
        "learning_rate": 1e-3, "buffer_size": 4, "passes": 4, "clip": 0.3, "rho": 2.0,
        "ratio": "R3", "t_target": None,
    },
    impala={"learning_rate": 2e-3, "entropy_coef": 0.01, "max_lag": 2, **ONE_PASS},
    ppo={"learning_rate": 3e-3, "epochs": 4, "minibatches": 4},
    ppo_config={"envs_per_actor": 32, "batch_size": 2048},
)  # fmt: skip

_CHEETAH = Task(
    env="HalfCheetah-v5",
    threshold=1400.0,
    shared={
        "normalize_returns": True, "gamma": 0.99, "lam": 0.95, "lr_schedule": "linear",
        "noise_color": 0.0,
    },
    config={
        "num_actors": 2, "envs_per_actor": 8, "fragment_length": 64, "batch_size": 512,
        "total_steps": 1_000_000, "scale_free": False,
    },
    impact={
        "learning_rate": 1e-3, "buffer_size": 8, "passes": 10, "clip": 0.4, "rho": 2.0,
        "ratio": "R3", "t_target": None, "kl_coef": 1.0, "kl_target": 0.04, "value_coef": 0.5,
    },
    impala={"learning_rate": 3e-4, "max_lag": 2, **ONE_PASS},
    ppo={"learning_rate": 1e-3, "epochs": 10, "minibatches": 16},
    ppo_config={"envs_per_actor": 32, "batch_size": 4096},
    network={"normalize_observations": True},
)  # fmt: skip

TASKS = {task.env: task for task in (_LANDER, _CARTPOLE, _CHEETAH)}


# -- runs of each study by name in the legend ------------------------------------------------------


def ratio(task: Task, **limits: Any) -> dict[str, Run]:
    """Figure 3a: the surrogate's ratio."""
    impact = task.run("impact", **limits)
    names = {"R1": "π/target", "R2": "π/μ", "R3": "π/max(target, μ/ρ)"}
    return {f"{r} = {name}": impact.changed(ratio=r) for r, name in names.items()}


def t_target(task: Task, **limits: Any) -> dict[str, Run]:
    """Figure 3b: optimiser steps between updates of the target network."""
    impact = task.run("impact", **limits)
    whole = task.impact["buffer_size"] * task.impact["passes"]
    runs = {}
    for factor in FACTORS:
        steps = max(1, round(factor * whole))
        name = f"NK/{round(1 / factor)}" if factor < 1 else f"{round(factor)} NK"
        runs[f"{name} = {steps}"] = impact.changed(t_target=None if factor == 1 else steps)
    return runs


def passes(task: Task, **limits: Any) -> dict[str, Run]:
    """Figures 4b and 4c: K, passes over each batch, with a target period of N * K."""
    impact = task.run("impact", **limits)
    return {f"K = {number}": impact.changed(passes=number) for number in PASSES}


def workers(task: Task, **limits: Any) -> dict[str, Run]:
    """Figure 7: actors with equal numbers of environments and equal batches."""
    impact = task.run("impact", **limits)
    return {f"{n} worker{'s'[: n > 1]}": impact.changed(num_actors=n) for n in WORKERS}


def ladder(task: Task, **limits: Any) -> dict[str, Run]:
    """Figure 9, from IMPALA to IMPACT. Settings that a step doesn't name are IMPACT's.

    - IMPALA: V-trace with the current policy; policy gradient weighted with min(1, π/μ); one pass.
    - + PPO objective (APPO): the surrogate on π/μ, clipped to 1 ± clip, instead of that gradient,
      with advantage r + γ v' − V; one pass, no target network.
    - + circular buffer (IMPACT with R2): N slots of K passes; values, V-trace ratios and
      advantages (now v − V) use the target network, once per batch; the ratio is still π/μ.
      IMPACT's KL penalty, if any, starts with this step.
    - + target-worker clipping (IMPACT with R3): the ratio becomes π/max(target, μ/ρ).
    """
    impact = task.run("impact", **limits)
    of_all = ("learning_rate", "lam", "max_grad_norm", "value_coef")
    hyper = {k: v for k, v in impact.hyper.items() if k in (*task.shared, *of_all)}
    hyper = {"value_coef": 1.0, **hyper}  # IMPACT's default, not IMPALA's
    hyper |= ONE_PASS
    clipped = {**hyper, "clip": impact.hyper["clip"], "kl_limit": None}
    impala = replace(impact, algo="impala", name="impala like impact", hyper=hyper)
    appo = replace(impact, algo="appo", name="appo like impact", hyper=clipped)
    return {
        "IMPALA": impala,
        "+ PPO objective": appo,
        "+ circular buffer": impact.changed(ratio="R2"),
        "+ target-worker clipping": impact.changed(ratio="R3"),
    }


def compare(task: Task, **limits: Any) -> dict[str, Run]:
    """Figures 5 and 6: IMPACT, IMPALA and PPO with tuned settings."""
    algos = {"IMPACT": "impact", "IMPALA": "impala", "PPO": "ppo"}
    return {name: task.run(algo, **limits) for name, algo in algos.items()}


STUDIES: dict[str, Callable[..., dict[str, Run]]] = {
    "ratio": ratio,
    "t_target": t_target,
    "k": passes,
    "workers": workers,
    "ladder": ladder,
    "compare": compare,
}

"""Experiments of the page on IMPALA: single tasks, corrections and population-based training.

Policy lag is forced, so that results don't depend on the load of the machine: the weights of IMPALA
are published late (``corrections.train_late``), and each of A3C's actors applies its gradient once
all others have applied theirs.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import corrections
import numpy as np
import pbt
import torch
from learning_tasks import TASKS as ALL_TASKS
from learning_tasks import Task

import headrace as hr
from book import impala_theory
from book.experiment import Case, Experiment, Form
from book.training import trained
from headrace.learner.hogwild import ActorLearner
from headrace.types import METRICS_BYTES, Rollout

SATELLITE = "headrace_ssa:headrace/SimpleSatellite-v0"
REGULATOR = "book.impact_envs:Regulator-v0"
SCALES = {task.env_id: task for task in ALL_TASKS.values()}
SCALES[SATELLITE] = Task(SATELLITE, 100_000, 20, 38.2, 134.0)  # high: mean optimal return
SCALES[REGULATOR] = Task(REGULATOR, 100_000, 20, -103.0, -0.9)  # high: best linear controller
TASKS = {"CartPole-v1": 0.1, "Acrobot-v1": 0.1, "LunarLander-v3": 0.05}  # scales of rewards
CORRECTED = TASKS | {SATELLITE: 0.1, REGULATOR: 1.0}
NUM_ENVS, NUM_ACTORS = 16, 4
IMPALA_LAG = 1  # updates, about as measured with 2 to 4 actors
HIDDEN = hr.Network((64, 64))
ALGORITHMS = ("impala", "a3c", "a2c")
DRAWN = ("learning_rate", "entropy_coef", "optimizer_eps")
METHODS = ("vtrace", "one_step", "epsilon", "none")
REPLAY_LAG = 8  # updates
Config, Values = hr.Config, dict[str, Any]


def score(task: str, value: float) -> float:
    """Return a score: 0 for random actions, 1 for the reference of learning_tasks.py."""
    return min(1.0, max(0.0, SCALES[task].score(value)))


# -- single tasks: Figure 4 ------------------------------------------------------------------------


def drawn(seed: int) -> dict[str, float]:
    """Sample hyperparameters as in Appendix D.1, with learning rates for short runs."""
    rng = np.random.default_rng([404, seed])
    draw = lambda low, high: float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")  # noqa: E731
    return {
        "learning_rate": draw(2e-4, 5e-2),
        "entropy_coef": draw(5e-5, 1e-2),
        "optimizer_eps": float(rng.choice([1e-4, 1e-5, 1e-6, 1e-7])),
    }


def _single_cases(form: Form) -> list[dict[str, Any]]:
    steps = form.pick(quick=60_000, full=500_000)
    return [
        {"task": task, "steps": steps, **drawn(seed), "seed": seed}
        for seed in form.seeds(quick=4, medium=8, full=24)
        for task in TASKS
    ]


def single_config(case: Case, algo: str) -> Config:
    """Return settings of an algorithm in the paper's form: n-step returns, shared RMSProp."""
    known: dict[str, Any] = {k: case[k] for k in DRAWN}
    known |= {"optimizer": "rmsprop", "lam": 1.0, "reward_scale": TASKS[case["task"]]}
    algorithm = {
        "impala": lambda: hr.IMPALA(epochs=1, minibatches=1, clip=math.inf, max_lag=1, **known),
        "a3c": lambda: hr.A3C(max_lag=2, **known),
        "a2c": lambda: hr.A2C(**known),
    }[algo]()
    actors = NUM_ACTORS if algo == "a3c" else 1
    return hr.Config(
        case["task"], algorithm, num_actors=actors, envs_per_actor=NUM_ENVS // actors,
        fragment_length=20, batch_size=20 * NUM_ENVS, transport="serial", network=HIDDEN,
        total_steps=case["steps"], scale_free=False, seed=case["seed"], eval_episodes=0,
    )  # fmt: skip


def _single_settings(case: Case) -> dict[str, Any]:
    return {"impala_lag": IMPALA_LAG, **{algo: single_config(case, algo) for algo in ALGORITHMS}}


class LateActorLearner(ActorLearner):
    """Applies each gradient at the actor's next turn, after those of all other actors."""

    _waiting: Rollout | None = None
    _lag = 0

    def pull(self) -> None:
        """Apply the gradient of the previous rollout, then copy the shared parameters."""
        if self._waiting is not None:
            self._lag = super().learn(self._waiting)
        super().pull()

    def learn(self, rollout: Rollout) -> int:
        """Store the rollout for the next turn. Return the lag of the previous gradient."""
        text = bytearray(b"{}".ljust(METRICS_BYTES))
        rollout.metrics.copy_(torch.frombuffer(text, dtype=torch.uint8))
        self._waiting = copy.deepcopy(rollout)
        return self._lag


def _single(case: Case) -> Values:
    """Train all algorithms. Return final scores, and mean scores of the curve as ``…_area``."""
    from headrace.actors import actor

    found: Values = {}
    for algo in ALGORITHMS:
        config = single_config(case, algo)
        if algo == "a3c":
            actor.ActorLearner = LateActorLearner  # type: ignore[misc]
            result = trained(config)
            final, area = result["final_return"], result["area"]
            found["a3c_lag"] = result["lag_mean"]
        else:
            _, result = corrections.train_late(config, IMPALA_LAG if algo == "impala" else 0)
            final, area = result["final_return"], result["mean_return"]
        found |= {algo: score(case["task"], final), f"{algo}_area": score(case["task"], area)}
    return found


SINGLE = Experiment("impala_single", _single_cases, _single_settings, _single)


# -- corrections: Table 2, section 5.2.2, Appendix E -----------------------------------------------


class ValueTarget(hr.IMPALA):
    """IMPALA with q = v instead of r + gamma v' (Appendix E.3), for the corrections' settings."""

    def terms(self, outputs: Any, batch: Any, state: Any) -> Any:
        """Return the terms with the advantage v - V(x)."""
        terms = super().terms(outputs, batch, state)
        return terms._replace(advantage=terms.target - outputs.value.detach()[: len(terms.target)])


def correction_config(case: Case, variant: str, replay: float) -> Config:
    """Return the settings of a variant: a correction, ``rho_bar=…`` or ``q=v``."""
    own = {k: case[k] for k in DRAWN if k in case}
    args = corrections.Args(
        env_id=case["task"], total_steps=case["steps"], reward_scale=CORRECTED[case["task"]]
    )
    correction = variant if variant in METHODS else "vtrace"
    full = {name: getattr(args, name) for name in corrections.SETTINGS}
    full |= {"correction": correction, "replay_fraction": replay, "seed": case["seed"]}
    config: Config = corrections.config_of(full)
    algo: Any = dataclasses.replace(config.algo, **own)
    if variant.startswith("rho_bar="):
        bound = float(variant.partition("=")[2])
        algo = dataclasses.replace(algo, rho_bar=bound, pg_rho_bar=bound)
    if variant == "q=v":
        algo = ValueTarget(**{f.name: getattr(algo, f.name) for f in dataclasses.fields(algo)})
    return dataclasses.replace(config, algo=algo)


def _late(config: Config) -> float:
    torch.set_num_threads(1)
    return float(corrections.train_late(config, REPLAY_LAG)[1]["final_return"])


def _corrections_cases(form: Form) -> list[dict[str, Any]]:
    steps = form.pick(quick=100_000, full=600_000)
    return [
        {"task": task, "steps": steps, "replay": replay, **drawn(seed), "seed": seed}
        for seed in form.seeds(medium=6, full=24)
        for replay in (0.0, 0.5)
        for task in CORRECTED
    ]


def _corrections_settings(case: Case) -> dict[str, Any]:
    configs = {name: correction_config(case, name, case["replay"]) for name in METHODS}
    return {"forced_lag": REPLAY_LAG, **configs}


def _corrections(case: Case) -> Values:
    configs = {name: correction_config(case, name, case["replay"]) for name in METHODS}
    return {name: score(case["task"], _late(one)) for name, one in configs.items()}


CORRECTIONS = Experiment(
    "impala_corrections", _corrections_cases, _corrections_settings, _corrections
)

VARIANTS = (*METHODS, "rho_bar=10", "rho_bar=100", "q=v")


def _variants_cases(form: Form) -> list[dict[str, Any]]:
    case = {"task": "CartPole-v1", "steps": 600_000}
    return [{**case, "seed": seed} for seed in form.seeds(medium=4, full=10)]


def _variants_settings(case: Case) -> dict[str, Any]:
    configs = {name: correction_config(case, name, 0.5) for name in VARIANTS}
    return {"forced_lag": REPLAY_LAG, **configs}


def _variants(case: Case) -> Values:
    return {name: _late(correction_config(case, name, 0.5)) for name in VARIANTS}


VARIANT_RUNS = Experiment("impala_variants", _variants_cases, _variants_settings, _variants)


# -- properties of V-trace -------------------------------------------------------------------------


def _theory_settings(case: Case) -> Mapping[str, Any]:
    names = ("STATES", "ACTIONS", "GAMMA", "LENGTH", "COLUMNS", "ROUNDS")
    return {name.lower(): getattr(impala_theory, name) for name in names}


THEORY = Experiment(
    "impala_vtrace",
    lambda form: [{"seed": seed} for seed in form.seeds(medium=4, full=20)],
    _theory_settings,
    impala_theory.measure,
)


# -- population-based training ---------------------------------------------------------------------


def _pbt_cases(form: Form) -> list[dict[str, Any]]:
    sizes = {"members": form.pick(quick=4, full=6), "turns": form.pick(quick=8, full=24)}
    sizes["turn_steps"] = form.pick(quick=3840, full=2560)
    return [
        {"arm": arm, **sizes, "seed": seed}
        for seed in form.seeds(medium=5, full=5)
        for arm in pbt.ARMS
    ]


def _population(case: Case, output: str) -> tuple[pbt.Args, Any]:
    sizes = {k: case[k] for k in ("members", "turns", "turn_steps")}
    args = pbt.Args(**sizes, output=Path(output))
    return args, pbt.population_of(args, case["arm"], case["seed"])


def _pbt_settings(case: Case) -> dict[str, Any]:
    _, population = _population(case, "")
    names = ("sample", "members", "interval", "burn_in", "threshold", "probability", "config")
    return {name: getattr(population, name) for name in names}


def _pbt(case: Case) -> Values:
    with tempfile.TemporaryDirectory() as folder:
        args, _ = _population(case, folder)
        return dict(pbt.measured(args, case))


PBT = Experiment("impala_pbt", _pbt_cases, _pbt_settings, _pbt, limit_s=3600)


EXPERIMENTS = (SINGLE, CORRECTIONS, VARIANT_RUNS, THEORY, PBT)

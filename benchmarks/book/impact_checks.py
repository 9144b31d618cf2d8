"""Checks of the page on IMPACT without training: probability ratios, tables of settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

import headrace as hr
from book.impact_tables import (
    ALGORITHMS,
    CHEETAH,
    NUMBER_OF_RUNS,
    SEARCHED,
    TABLE_1,
    TABLE_2,
    differences,
)
from headrace.config import Config
from headrace.ops.ratio import surrogate_log_ratio

CLIP, RHO = 0.4, 2.0  # Table 2
ACTIONS = 401
ROUNDING = 1e-5
LARGE, RARE = 3.0, 0.1  # ratio; density relative to its peak

TABLES = {
    "Pong": ("impact-discrete", "ALE/Pong-v5", TABLE_1),
    "Hopper": ("impact-continuous", "Hopper-v5", TABLE_2),
    "Humanoid": ("impact-continuous", "Humanoid-v5", TABLE_2),
    "HalfCheetah": ("impact-continuous", "HalfCheetah-v5", {**TABLE_2, **CHEETAH}),
}


def likelihood_ratios(case: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the ratios of Figure 10 for random Gaussian policies and an advantage of 1.

    Args:
        case: ``seed``, and ``policies``, the number of workers with a target and a learner each.
    """
    generator = torch.Generator().manual_seed(case["seed"])
    shape = (case["policies"], 1)

    def policy(shift: float) -> torch.distributions.Normal:
        mean = shift * torch.randn(shape, generator=generator)
        return torch.distributions.Normal(mean, (0.5 * mean).exp())

    worker, target, learner = policy(0.0), policy(0.4), policy(0.4)
    actions = torch.linspace(-4.0, 4.0, ACTIONS)
    mu, old, new = (p.log_prob(actions) for p in (worker, target, learner))
    unbounded, bounded, limited = (
        surrogate_log_ratio(new, old, mu, kind, rho).exp()
        for kind, rho in (("R2", RHO), ("R3", RHO), ("R3", 1.0))
    )
    ppo = unbounded.clamp(max=1 + CLIP)
    large = unbounded.amax(1) > LARGE
    at = unbounded.argmax(1, keepdim=True)
    rare = (mu.gather(1, at).squeeze(1) < mu.amax(1) + math.log(RARE))[large]
    smaller = (bounded.amax(1) < unbounded.amax(1))[large]
    same = surrogate_log_ratio(new, mu, mu, "R3", RHO).exp()
    return {
        "above_ppo": _share(bounded.clamp(max=1 + CLIP) > ppo + ROUNDING),
        "above_ppo_rho_1": _share(limited.clamp(max=1 + CLIP) > ppo + ROUNDING),
        "above_rho": _share(bounded > RHO * unbounded * (1 + ROUNDING)),
        "large": large.float().mean().item(),
        "large_is_rare": rare.float().mean().item(),
        "large_is_smaller": smaller.float().mean().item(),
        "differs_on_policy": (same - unbounded).abs().max().item(),
    }


def _share(wrong: torch.Tensor) -> float:
    """Return the share of rows with a true element."""
    return wrong.any(1).float().mean().item()


def recipes_of(case: Mapping[str, Any]) -> dict[str, Config]:
    """Return the recipes of a task by algorithm, the columns of Table 1 or 2."""
    name, env, _ = TABLES[case["task"]]
    return {algorithm: hr.recipe(name, algorithm, env=env) for algorithm in ALGORITHMS}


def compare_with_table(case: Mapping[str, Any]) -> dict[str, Any]:
    """Count the settings of a table, and those that differ in the recipes."""
    table = TABLES[case["task"]][2]
    wrong = [name for each in recipes_of(case).values() for name in differences(each, table)]
    return {"settings": len(table) * len(ALGORITHMS), "differing": len(wrong)}


def searched(case: Mapping[str, Any]) -> dict[str, Any]:
    """Count the values of Table 3 or 4 that are valid settings, and the runs that it states."""
    kind, count, agree = case["kind"], 0, True
    for algorithm, stated in NUMBER_OF_RUNS[kind].items():
        tried = [(name, x) for name, each in SEARCHED[kind, algorithm].items() for x in each]
        for name, value in tried:
            _changed(hr.recipe(f"impact-{kind}", algorithm, num_actors=4), name, value)
        count, agree = count + len(tried), agree and len(tried) == stated
    return {"values": count, "agree": agree}


def _changed(config: Config, name: str, value: Any) -> Config:
    if name != "batch_size":
        return dataclasses.replace(config, algo=dataclasses.replace(config.algo, **{name: value}))
    return dataclasses.replace(config, num_actors=1, batch_size=value)


def table_cases(form: Any) -> list[dict[str, Any]]:
    """Return a case per task of Tables 1 and 2."""
    return [{"task": task} for task in TABLES]


def search_cases(form: Any) -> list[dict[str, Any]]:
    """Return a case for each of Tables 3 and 4."""
    return [{"kind": kind} for kind in NUMBER_OF_RUNS]


def ratio_cases(form: Any) -> list[dict[str, Any]]:
    """Return cases with random policies."""
    return [{"policies": 3000, "seed": seed} for seed in form.seeds(1, 3)]

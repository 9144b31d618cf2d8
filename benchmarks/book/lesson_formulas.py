"""Checks of the lesson's formulas: V-trace, importance ratios and batch sizes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

import headrace as hr
from headrace.ops.ratio import exp_ratio
from headrace.ops.returns import VTrace, vtrace

EXAMPLE = {
    "pi": (-0.5, -0.8, -0.4, -1.0, -0.6),
    "mu": (-0.9, -1.1, -0.7, -1.3, -1.0),
    "reward": (1.0, 0.5, 2.0, 0.0, 1.5),
    "value": (3.0, 2.8, 2.5, 2.0, 1.5, 0.0),
}
STATES, ACTIONS, GAMMA = 6, 4, 0.9
COLUMNS, LENGTH, SWEEPS = 4000, 20, 80
GREEDINESS = 3.0  # of the target policy, in standard deviations of the advantage


def plain_vtrace(log_ratio: Tensor, reward: Tensor, value: Tensor, gamma: float) -> Tensor:
    """Return targets ``[T, B]`` by the lesson's backward loop, without ends of episodes."""
    ratio = log_ratio.exp().clamp(max=1.0)
    delta = reward + gamma * value[1:] - value[:-1]
    found, running = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        running = ratio[t] * delta[t] + gamma * ratio[t] * running
        found[t] = value[t] + running
    return found


def targets(
    log_ratio: Tensor, reward: Tensor, value: Tensor, gamma: float, bar: float = 1.0
) -> VTrace:
    """Return headrace's V-trace without ends of episodes."""
    terminated, first = torch.zeros_like(reward).bool(), torch.zeros_like(value).bool()
    bars = {"rho_bar": bar, "c_bar": bar}
    return vtrace(log_ratio, reward, value, terminated, first, gamma=gamma, **bars)


def formulas(case: dict[str, Any]) -> dict[str, Any]:
    """Return errors of V-trace, its bias and variance in a random MDP, and batch sizes."""
    torch.manual_seed(case["seed"])
    columns = {name: torch.tensor(values)[:, None] for name, values in EXAMPLE.items()}
    example = (columns["pi"] - columns["mu"], columns["reward"], columns["value"], 0.99)
    random = (0.5 * torch.randn(50, 64), torch.randn(50, 64), torch.randn(51, 64), 0.99)
    _, reward, value, gamma = random
    steps = gamma ** torch.arange(50.0)[:, None]
    n_step = (steps * reward).sum(0) + gamma**50 * value[-1]
    products = random[0].exp().clamp(max=1.0).cumprod(0)
    return {
        "error": max(_distance(targets(*a).vs, plain_vtrace(*a)) for a in (example, random)),
        "error_n_step": _distance(targets(torch.zeros_like(reward), *random[1:]).vs[0], n_step),
        "ratio_8": float(exp_ratio(torch.tensor(math.log(0.8) - math.log(0.1)))),
        "ratio_32": float(exp_ratio(torch.tensor(5 * math.log(2.0)))),
        "traces_grow": float((products[1:] > products[:-1]).float().mean()),
        **biases(np.random.default_rng(case["seed"])),
        **sizes(),
    }


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def sizes() -> dict[str, Any]:
    """Return environments and batches of the lesson's two large configurations."""
    found: dict[str, Any] = {}
    for learners, actors, batch in ((1, 32, 4096), (2, 64, 8192)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = hr.Config(
                "CartPole-v1", hr.APPO(max_lag=9), num_actors=actors, envs_per_actor=16,
                fragment_length=50, batch_size=batch, num_learners=learners,
            )  # fmt: skip
        found[f"envs_{learners}"] = actors * 16
        found[f"batch_{learners}"] = config.batch_size
    return found


def biases(rng: np.random.Generator) -> dict[str, float]:
    """Evaluate a target policy from steps of a worse behaviour policy, in a random MDP.

    Returns mean differences between estimated and true values over states: by V-trace, without a
    correction, and of the behaviour policy's true values; and standard deviations of targets.
    """
    then = rng.dirichlet(np.ones(STATES), (STATES, ACTIONS))
    reward = rng.random((STATES, ACTIONS))
    mu = rng.dirichlet(np.ones(ACTIONS), STATES)
    value_mu = values(mu, then, reward)
    advantage = reward + GAMMA * then @ value_mu - value_mu[:, None]
    pi = mu * np.exp(GREEDINESS * advantage / advantage.std())
    pi /= pi.sum(1, keepdims=True)
    true = values(pi, then, reward)
    state, action = _play(rng, mu, then)
    log_ratio = torch.tensor(np.log(pi / mu)[state[:-1], action]).float()
    stream = torch.tensor(reward[state[:-1], action]).float(), torch.tensor(state)
    corrected, spread = _fitted(log_ratio, *stream, 1.0, true)
    uncorrected, _ = _fitted(torch.zeros_like(log_ratio), *stream, 1.0, true)
    _, full_spread = _fitted(log_ratio, *stream, math.inf, true)
    return {
        "gap": float((true - value_mu).mean()),
        "bias_vtrace": float((corrected - true).mean()),
        "bias_uncorrected": float((uncorrected - true).mean()),
        "sd_vtrace": spread,
        "sd_unclipped": full_spread,
    }


def values(policy: np.ndarray, then: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """Return the true values ``[states]`` of a policy."""
    transition = np.einsum("sa,sat->st", policy, then)
    return np.linalg.solve(np.eye(STATES) - GAMMA * transition, (policy * reward).sum(1))


def _play(
    rng: np.random.Generator, policy: np.ndarray, then: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return states ``[LENGTH + 1, COLUMNS]`` and actions ``[LENGTH, COLUMNS]``."""

    def draw(chances: np.ndarray) -> np.ndarray:
        edges = chances.cumsum(1)
        return (rng.random((COLUMNS, 1)) * edges[:, -1:] > edges[:, :-1]).sum(1)

    state = [rng.integers(STATES, size=COLUMNS)]
    action = []
    for _ in range(LENGTH):
        action.append(draw(policy[state[-1]]))
        state.append(draw(then[state[-1], action[-1]]))
    return np.array(state), np.array(action)


def _fitted(
    log_ratio: Tensor, reward: Tensor, state: Tensor, bar: float, true: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the values that targets converge to, and the targets' standard deviation."""
    at = torch.tensor(true).float()[state]
    deviation = float(targets(log_ratio, reward, at, GAMMA, bar).vs[0].sub(at[0]).std())
    value, flat = torch.zeros(STATES), state[:-1].flatten()
    count = torch.bincount(flat, minlength=STATES)
    for _ in range(SWEEPS if math.isfinite(bar) else 0):
        vs = targets(log_ratio, reward, value[state], GAMMA, bar).vs.flatten()
        value = torch.zeros(STATES).index_add(0, flat, vs) / count
    return value.double().numpy(), deviation

"""Checks V-trace's properties on small random problems (Espeholt et al. 2018, section 4 and A).

Each problem is a Markov decision process with a behaviour policy mu and a target policy pi, drawn
from a seed. Its operator and values are computed exactly, in float64. Targets of sampled
trajectories come from :func:`headrace.ops.returns.vtrace`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.experiment import Case
from headrace.ops.returns import gae, vtrace

STATES, ACTIONS, GAMMA = 6, 3, 0.9
LENGTH, COLUMNS = 5, 10_000  # of the sampled trajectories, per state and action
ROUNDS = 2000  # of online learning
FAR = 1e9  # a bound that no ratio reaches
NEAR = 1e-9


class Problem:
    """A random Markov decision process with two policies.

    Attributes:
        step: ``[states, actions, states]`` float64, transition probabilities.
        reward: ``[states, actions]`` float64.
        mu, pi: ``[states, actions]`` float64, probabilities of actions.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([4, seed])
        self.step = self.rng.dirichlet(np.full(STATES, 0.5), (STATES, ACTIONS))
        self.reward = self.rng.normal(size=(STATES, ACTIONS))
        self.mu, self.pi = self.rng.dirichlet(np.ones(ACTIONS), (2, STATES)) * 0.9 + 0.1 / ACTIONS

    def value(self, policy: np.ndarray) -> np.ndarray:
        """Return the value of each state under a policy."""
        steps = np.einsum("sa,sat->st", policy, self.step)
        return np.linalg.solve(np.eye(STATES) - GAMMA * steps, (policy * self.reward).sum(1))

    def between(self, rho_bar: float) -> np.ndarray:
        """Return the policy of equation 3."""
        least = np.minimum(rho_bar * self.mu, self.pi)
        return least / least.sum(1, keepdims=True)

    def operator(self, rho_bar: float, c_bar: float) -> tuple[np.ndarray, np.ndarray]:
        """Return V-trace's operator (equation 5) as a matrix and a constant."""
        rho, c = (self.mu * np.minimum(bar, self.pi / self.mu) for bar in (rho_bar, c_bar))
        trace = np.eye(STATES) - GAMMA * np.einsum("sa,sat->st", c, self.step)
        steps = GAMMA * np.einsum("sa,sat->st", rho, self.step) - np.diag(rho.sum(1))
        rewards = (rho * self.reward).sum(1)
        return np.eye(STATES) + np.linalg.solve(trace, steps), np.linalg.solve(trace, rewards)

    def play(self, state: np.ndarray, first_action: np.ndarray | None, length: int) -> Any:
        """Play mu from the given states. Return states, actions, rewards and log-ratios.

        Args:
            first_action: actions of the first step; None: drawn from mu.
        """
        states, actions = [state], []
        for t in range(length):
            forced = first_action if t == 0 else None
            actions.append(self._draw(self.mu[state]) if forced is None else forced)
            state = self._draw(self.step[state, actions[-1]])
            states.append(state)
        x, a = np.array(states), np.array(actions)
        ratio = np.log(self.pi[x[:-1], a] / self.mu[x[:-1], a])
        return x, a, self.reward[x[:-1], a], ratio

    def _draw(self, probabilities: np.ndarray) -> np.ndarray:
        bounds = probabilities.cumsum(1)
        bounds[:, -1] = 1.0
        return (self.rng.random((len(bounds), 1)) > bounds).sum(1)


def targets(values: np.ndarray, x: np.ndarray, reward: np.ndarray, ratio: np.ndarray) -> Any:
    """Return headrace's V-trace targets of trajectories without episode ends."""
    ends = torch.zeros(reward.shape, dtype=torch.bool), torch.zeros(x.shape, dtype=torch.bool)
    stream = torch.from_numpy(reward), torch.from_numpy(values[x])
    return vtrace(torch.from_numpy(ratio), *stream, *ends, gamma=GAMMA)


def measure(case: Case) -> dict[str, Any]:
    """Check all properties on one problem. Return errors by name."""
    parts: tuple[Callable[[Problem], dict[str, Any]], ...] = (exact, contraction, online, action)
    problem = Problem(case["seed"])
    return functools.reduce(lambda found, part: found | part(problem), parts, {})


def exact(problem: Problem) -> dict[str, Any]:
    """Compare headrace's targets with the definitions: equations 1 and 2, remarks 1 and 2."""
    torch.manual_seed(int(problem.rng.integers(2**31)))
    reward, ratio = torch.randn(2, 20, 8, dtype=torch.float64)
    value = torch.randn(21, 8, dtype=torch.float64)
    ends = torch.zeros(20, 8, dtype=torch.bool), torch.zeros(21, 8, dtype=torch.bool)
    zeros = torch.zeros_like(ratio)
    known: dict[str, Any] = {"gamma": GAMMA}
    on_policy = vtrace(zeros, reward, value, *ends, **known).vs
    ended = torch.zeros(20, 8, dtype=torch.bool)
    ended[-1] = True
    td = vtrace(zeros, reward, value, ended, ends[1], lam=0.7, **known).vs
    closed = torch.cat([value[:-1], torch.zeros(1, 8, dtype=torch.float64)])
    pairs = {
        "bellman_error": (on_policy, bellman(reward, value)),
        "definition_error": (
            vtrace(ratio, reward, value, *ends, **known).vs,
            by_definition(ratio, reward, value),
        ),
        "td_lambda_error": (td, lambda_return(reward, closed, 0.7)),
        "gae_error": (td, gae(reward, value, ended, ends[1], lam=0.7, **known)[1]),
    }
    return {name: float((a - b).abs().max()) for name, (a, b) in pairs.items()}


def bellman(reward: Tensor, value: Tensor) -> Tensor:
    """Return the n-step Bellman targets of equation 2."""
    target, targets = value[-1], []
    for row in reversed(reward):
        target = row + GAMMA * target
        targets.insert(0, target)
    return torch.stack(targets)


def by_definition(ratio: Tensor, reward: Tensor, value: Tensor) -> Tensor:
    """Return the sums of equation 1, with both thresholds 1."""
    weight = ratio.exp().clamp(max=1.0)
    delta = weight * (reward + GAMMA * value[1:] - value[:-1])
    vs = value[:-1].clone()
    for s in range(len(reward)):
        factor = torch.ones_like(vs[0])
        for t in range(s, len(reward)):
            vs[s] += factor * delta[t]
            factor = factor * GAMMA * weight[t]
    return vs


def lambda_return(reward: Tensor, value: Tensor, lam: float) -> Tensor:
    """Return TD(lambda)'s forward view: weighted n-step returns up to the episode's end."""
    num = len(reward)
    found = torch.zeros_like(reward)
    for s in range(num):
        rewards = torch.zeros_like(reward[0])
        for n in range(1, num - s + 1):
            rewards = rewards + GAMMA ** (n - 1) * reward[s + n - 1]
            share = lam ** (n - 1) * (1.0 if s + n == num else 1 - lam)
            found[s] += share * (rewards + GAMMA**n * value[s + n])
    return found


def contraction(problem: Problem) -> dict[str, Any]:
    """Check theorem 1 and remark 3 with several thresholds."""
    excess, errors, rates = [], [], {}
    for rho_bar, c_bar in ((1.0, 1.0), (1.0, 0.5), (1.0, 0.1), (0.5, 0.5), (10.0, 1.0)):
        matrix, constant = problem.operator(rho_bar, c_bar)
        beta = (problem.mu * np.minimum(rho_bar, problem.pi / problem.mu)).sum(1).min()
        modulus = np.abs(matrix).sum(1).max()
        excess.append(modulus - (1 - (1 - GAMMA) * min(1.0, beta)))
        values = np.zeros(STATES)
        for _ in range(2000):
            values = matrix @ values + constant
        errors.append(np.abs(values - problem.value(problem.between(rho_bar))).max())
        rates[rho_bar, c_bar] = float(np.abs(np.linalg.eigvals(matrix)).max())
    far = np.abs(problem.value(problem.between(FAR)) - problem.value(problem.pi)).max()
    near = np.abs(problem.value(problem.between(NEAR)) - problem.value(problem.mu)).max()
    return {
        "modulus_excess": float(max(excess)),
        "fixed_point_error": float(max(errors)),
        "limits_error": float(max(far, near)),
        "rate_c_1": rates[1.0, 1.0],
        "rate_c_01": rates[1.0, 0.1],
    }


def online(problem: Problem) -> dict[str, Any]:
    """Learn values from sampled trajectories with falling step sizes (theorem 2)."""
    values, columns = np.zeros(STATES), 32
    state = problem.rng.integers(STATES, size=columns)
    for k in range(ROUNDS):
        x, _, reward, ratio = problem.play(state, None, 8)
        error = targets(values, x, reward, ratio).vs.numpy() - values[x[:-1]]
        total = np.bincount(x[:-1].ravel(), error.ravel(), STATES)
        count = np.bincount(x[:-1].ravel(), minlength=STATES)
        values = values + (1 + k / 50) ** -0.7 * total / np.maximum(count, 1)
        state = x[-1]
    middle = problem.value(problem.between(1.0))
    distance = lambda other: float(np.abs(values - other).max())  # noqa: E731
    return {
        "online_error": distance(middle),
        "to_pi": distance(problem.value(problem.pi)),
        "to_mu": distance(problem.value(problem.mu)),
    }


def action(problem: Problem) -> dict[str, Any]:
    """Compare r + gamma v' and v as estimates of Q, with exact values V (appendix A.3)."""
    values = problem.value(problem.between(1.0))
    q = problem.reward + GAMMA * problem.step @ values
    pairs = np.indices((STATES, ACTIONS)).reshape(2, -1).repeat(COLUMNS, 1)
    x, _, reward, ratio = problem.play(pairs[0], pairs[1], LENGTH)
    found = targets(values, x, reward, ratio)
    biases = {}
    for name, estimate in (("q", found.advantage[0] + values[x[0]]), ("v", found.vs[0])):
        each = np.asarray(estimate).reshape(STATES, ACTIONS, COLUMNS)
        se = each.std(2) / COLUMNS**0.5
        biases[f"{name}_bias"] = float(np.abs(each.mean(2) - q).max())
        biases[f"{name}_bias_se"] = float((np.abs(each.mean(2) - q) / np.maximum(se, 1e-12)).max())
    return biases

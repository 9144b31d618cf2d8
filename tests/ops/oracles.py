"""Slow, literal forms of the papers' equations in float64, and random data to compare on.

The oracles represent episodes as lists of rows that end for a stated reason. They use neither
recursion nor masks, so they share no logic with the fast forms that they check.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Stream:
    """Experience in NEXT_STEP form; only the oracles know ``truncated`` and ``filler``."""

    log_ratio: Tensor  # [T, B] float64, NaN at reset steps
    reward: Tensor  # [T, B] float64, NaN at reset steps
    value: Tensor  # [T+1, B] float64
    terminated: Tensor  # [T, B] bool, arbitrary at reset steps
    truncated: Tensor  # [T, B] bool
    filler: Tensor  # [T, B] bool
    first: Tensor  # [T+1, B] bool

    def rows(self, start: int, stop: int) -> Stream:
        """Return the fragment of steps ``start`` to ``stop - 1``."""
        parts = {
            name: x[start : stop + (name in ("value", "first"))] for name, x in vars(self).items()
        }
        return Stream(**parts)


def random_stream(seed: int, num_steps: int, num_columns: int, end_rate: float = 0.2) -> Stream:
    """Return random terminations, truncations and both, with reset steps also in outer rows."""
    rng = random.Random(seed)
    shape = (num_steps, num_columns)
    terminated, truncated, filler = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    first = torch.zeros(num_steps + 1, num_columns, dtype=torch.bool)
    for b in range(num_columns):
        ended = rng.random() < 0.3  # the previous fragment ended with an episode
        first[0, b] = not ended and rng.random() < 0.5
        for t in range(num_steps):
            if ended:
                filler[t, b] = first[t + 1, b] = True
                terminated[t, b] = rng.random() < 0.5
                ended = False
            else:
                terminated[t, b] = rng.random() < end_rate
                truncated[t, b] = rng.random() < end_rate
                ended = bool(terminated[t, b] or truncated[t, b])
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, num_columns, generator=generator, dtype=torch.float64)

    nan = torch.tensor(math.nan, dtype=torch.float64)
    return Stream(
        log_ratio=torch.where(filler, nan, normal(num_steps)),
        reward=torch.where(filler, nan, normal(num_steps)),
        value=normal(num_steps + 1),
        terminated=terminated,
        truncated=truncated,
        filler=filler,
        first=first,
    )


def episodes(stream: Stream, b: int) -> list[range]:
    """Yield the episodes of column ``b``, without reset steps."""
    found, start = [], 0
    num_steps = len(stream.reward)
    for t in range(num_steps):
        if stream.filler[t, b]:
            start = t + 1
        elif stream.terminated[t, b] or stream.truncated[t, b] or t == num_steps - 1:
            found.append(range(start, t + 1))
            start = t + 1
    return [steps for steps in found if steps]


def values_of(stream: Stream, b: int, steps: range) -> dict[int, float]:
    """Return V(x_t) in an episode and after it: 0 if it terminated, even if also truncated."""
    v = {t: stream.value[t, b].item() for t in (*steps, steps.stop)}
    if stream.terminated[steps[-1], b]:
        v[steps.stop] = 0.0
    return v


def vtrace_oracle(
    stream: Stream, gamma: float, lam: float, rho_bar: float, c_bar: float, pg_rho_bar: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute Equation (1) of IMPALA for every s, and q_s - V(x_s) with and without weight."""
    vs = stream.value[:-1].clone()
    pg_advantage, advantage = torch.zeros_like(vs), torch.zeros_like(vs)
    for b in range(vs.shape[1]):
        for steps in episodes(stream, b):
            v = values_of(stream, b, steps)
            r = {t: stream.reward[t, b].item() for t in steps}
            ratio = {t: math.exp(stream.log_ratio[t, b].item()) for t in steps}
            target = {steps.stop: v[steps.stop]}
            for s in steps:
                target[s] = v[s]
                for t in range(s, steps.stop):
                    weight = gamma ** (t - s)
                    for i in range(s, t):
                        weight *= lam * min(c_bar, ratio[i])
                    delta = min(rho_bar, ratio[t]) * (r[t] + gamma * v[t + 1] - v[t])
                    target[s] += weight * delta
            for s in steps:
                q = r[s] + gamma * target[s + 1]
                vs[s, b] = target[s]
                advantage[s, b] = q - v[s]
                pg_advantage[s, b] = min(pg_rho_bar, ratio[s]) * (q - v[s])
    return vs, pg_advantage, advantage


def gae_oracle(stream: Stream, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return the sum of (gamma lam)^l delta_{t+l} to the episode's end, for every start t."""
    advantage = torch.zeros_like(stream.value[:-1])
    for b in range(advantage.shape[1]):
        for steps in episodes(stream, b):
            v = values_of(stream, b, steps)
            for s in steps:
                for t in range(s, steps.stop):
                    delta = stream.reward[t, b].item() + gamma * v[t + 1] - v[t]
                    advantage[s, b] += (gamma * lam) ** (t - s) * delta
    return advantage, advantage + stream.value[:-1]


def recurrence_oracle(inputs: Tensor, decays: Tensor) -> Tensor:
    """Return x_t as the sum over k >= t of inputs_k times the decays from t to k - 1."""
    x = torch.zeros_like(inputs)
    for t in range(len(inputs)):
        for k in range(t, len(inputs)):
            x[t] += inputs[k] * decays[t:k].prod(0)
    return x

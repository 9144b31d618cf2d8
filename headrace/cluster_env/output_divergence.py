"""Divergence of a worker's copy from the agent, estimated from the outputs of ``act``.

It is used for agents with neither ``distribution`` nor ``log_prob``, such as the minimal agent of
ClusterEnv (Lafuente-Mercado 2025, section III-B), which only has ``act`` and ``get_parameters``.
Both versions act several times on the same recent observations, with the same random numbers, so
that actions differ only as far as the policies do. The estimate of KL(copy || agent), in nats, is

    probabilities or logits in act's dict    the KL of categorical distributions: exact
    discrete actions with log_prob           the KL over the actions that both versions drew; all
                                             others count as one action: a lower bound
    discrete actions                         2 d², where d is the share of actions that changed:
                                             Pinsker's inequality with d for the total variation
    continuous actions                       the KL of Gaussians with the means of the draws and
                                             their variances, which are averaged over observations.
                                             Without noise, the variance over observations is used
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.cluster_env.agent import act
from headrace.cluster_env.policy_divergence import evaluating
from headrace.ops import tree
from headrace.processes import global_generators_kept, seed_global_generators

PROBABILITIES, LOGITS = ("probs", "probabilities"), ("logits", "log_probs")
MOST_DRAWS = 8
_ENOUGH = 1024  # actions drawn in total
_MOST_ACTIONS = 1000  # with more, log-probabilities aren't tabulated
_SMALL = 1e-12

Outputs = dict[str, Any]  # what act returned: arrays [n, ...]


def draws(make: Callable[[], Any], obs: Any, number: int) -> list[Outputs]:
    """Let a new copy of the agent act on observations (a tree of ``[n, ...]``) several times.

    All copies see the same random numbers of the global generators, which are restored. A copy's
    own generators start in the state in which it was packed.
    """
    agent = make()
    with global_generators_kept(), evaluating(agent):
        seed_global_generators(0, "worker")
        return [act(agent, obs)[0] for _ in range(number)]


def num_draws(count: int) -> int:
    """Return how often to act on ``count`` observations."""
    return min(MOST_DRAWS, max(2, _ENOUGH // count))


def is_repeatable(make: Callable[[], Any], obs: Any) -> bool:
    """Return whether copies of one version return the same outputs with the same random numbers."""
    one, other = (tree.leaves(draws(make, obs, 1)[0]) for _ in range(2))
    return all(map(np.array_equal, one, other))


def divergences(
    old: Sequence[Outputs], new: Sequence[Outputs], sizes: Sequence[int]
) -> list[float]:
    """Estimate the KL of each worker's rows.

    Args:
        old: draws of the copy on the rows of all workers.
        new: draws of the agent on the same rows.
        sizes: number of rows of each worker.
    """
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [max(0.0, _kl(_rows(old, part), _rows(new, part))) for part in parts]


def _rows(outputs: Sequence[Outputs], part: slice) -> list[Outputs]:
    return [tree.map_leaves(lambda x: x[part], one) for one in outputs]


def _kl(old: list[Outputs], new: list[Outputs]) -> float:
    before, after = _actions(old), _actions(new)
    one_choice = len(before) == 1 and _is_discrete(before[0]) and before[0].ndim == 2
    for name in (*PROBABILITIES, *LOGITS):
        if one_choice and all(_is_categorical(name, one[0]) for one in (old, new)):
            p, q = (_probabilities(one[0][name], name in LOGITS) for one in (old, new))
            return float((p * np.log(p / q)).sum(1).mean())
    total = sum(map(_kl_of_actions, before, after))
    actions = before[0]
    if len(before) == 1 and "log_prob" in old[0] and _is_discrete(actions) and actions.ndim == 2:
        log_p, log_q = (np.stack([x["log_prob"] for x in one]) for one in (old, new))
        total = max(total, _kl_of_drawn(actions, log_p, after[0], log_q))
    return total


def _is_categorical(name: str, outputs: Outputs) -> bool:
    """Return True if this output has the probabilities of all actions, ``[n, actions]``.

    ``log_probs`` may also be those of the taken actions, and don't sum to 1 then.
    """
    values = outputs.get(name)
    if values is None or np.ndim(values) != 2 or np.shape(values)[1] < 2:
        return False
    if name == "logits":
        return True
    values = np.asarray(values, np.float64)
    sums = (np.exp(values) if name in LOGITS else values).sum(1)
    return bool(np.allclose(sums, 1.0, atol=1e-3))


def _actions(outputs: list[Outputs]) -> list[np.ndarray]:
    """Return the actions of all draws ``[draws, n, ...]``, one array per leaf of a tree."""
    each = [tree.leaves(one["action"]) for one in outputs]
    return [np.stack(leaves) for leaves in zip(*each, strict=True)]


def _probabilities(values: np.ndarray, are_logits: bool) -> np.ndarray:
    """Return probabilities ``[n, actions]`` float64, none of which is 0."""
    values = values.astype(np.float64)
    if are_logits:
        values = np.exp(values - values.max(1, keepdims=True))
    values = values.clip(min=_SMALL)
    probabilities: np.ndarray = values / values.sum(1, keepdims=True)
    return probabilities


def _is_discrete(actions: np.ndarray) -> bool:
    return actions.dtype.kind in "biu"


def _kl_of_actions(before: np.ndarray, after: np.ndarray) -> float:
    """Estimate the KL from actions ``[draws, n, ...]``, a sum over their components."""
    shape = *before.shape[:2], -1
    before, after = before.reshape(shape), after.reshape(shape)
    if _is_discrete(before):
        return float((2.0 * (before != after).mean((0, 1)) ** 2).sum())
    before, after = before.astype(np.float64), after.astype(np.float64)
    change = ((before.mean(0) - after.mean(0)) ** 2).mean(0)
    noise = [x.var(0, ddof=1).mean(0) for x in (before, after)]
    spread = before.var((0, 1))
    total = 0.0
    for moved, mine, its, wide in zip(change, *noise, spread, strict=True):
        if min(mine, its) <= _SMALL * max(wide, _SMALL):  # no noise
            mine = its = wide
        if its > 0.0:
            total += 0.5 * (math.log(its / mine) + (mine + moved) / its - 1.0)
        elif moved > 0.0:
            return math.inf
    return total


def _kl_of_drawn(
    before: np.ndarray, log_p: np.ndarray, after: np.ndarray, log_q: np.ndarray
) -> float:
    """Return the KL over the actions that both versions drew; all others count as one action.

    Args:
        before: actions ``[draws, n]`` of the copy, with log-probabilities ``log_p``.
        after: those of the agent, with ``log_q``.
    """
    low = min(before.min(), after.min())
    count = int(max(before.max(), after.max()) - low) + 1
    if count > _MOST_ACTIONS:
        return 0.0
    p, q = np.zeros((2, before.shape[1], count))
    rows = np.arange(before.shape[1])
    for actions, values, table in ((before, log_p, p), (after, log_q, q)):
        for action, value in zip(actions - low, values, strict=True):
            table[rows, action] = np.exp(value)
    both = (p > 0.0) & (q > 0.0)
    p, q = np.where(both, p, 0.0), np.where(both, q, 0.0)
    p = np.c_[p, 1.0 - p.sum(1)].clip(min=_SMALL)
    q = np.c_[q, 1.0 - q.sum(1)].clip(min=_SMALL)
    return float((p * np.log(p / q)).sum(1).mean())

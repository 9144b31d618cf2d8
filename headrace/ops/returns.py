"""Value targets and advantages from trajectories: GAE and V-trace.

Both are a recurrence backwards in time, ``x_t = delta_t + decay_t * x_{t+1}``. Ends of episodes
need no special case. A terminated step has discount 0. A truncated step is followed by a filler,
whose ``delta`` and ``decay`` are 0, so that ``x`` is 0 there and ``vs = V``.

Both take one stream, of one floating dtype::

    reward      [T, B]       anything on fillers, NaN too; so is log_ratio = log pi - log mu
    value       [T+1, B]     the last row bootstraps
    terminated  [T, B] bool
    first       [T+1, B] bool, step t is a filler where first[t + 1]

and the discount ``gamma``; they raise ValueError for a wrong shape and TypeError for a wrong dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.ops.ratio import exp_ratio, grows_out_of_range


class VTrace(NamedTuple):
    """Results of V-trace, each ``[T, B]`` and detached; on fillers ``vs`` is V, others are 0."""

    vs: Tensor  # [T, B]  value targets
    pg_advantage: Tensor  # [T, B]  min(pg_rho_bar, ratio_t) * (q_t - V(x_t))
    advantage: Tensor  # [T, B]  q_t - V(x_t), for losses that include the ratio


@torch.no_grad()
def reverse_linear_recurrence(inputs: Tensor, decays: Tensor) -> Tensor:
    """Compute ``x_t = inputs_t + decays_t * x_{t+1}`` with ``x_T = 0`` in about log2(T) rounds.

    After the round with stride ``s``, row ``t`` holds the sum of its first ``2 s`` terms; rows
    within ``s`` of the end are already complete. If products could overflow, rows are computed one
    by one, because infinity times a decay of 0 would be NaN.

    Args:
        inputs: ``[T, B]``, floating.
        decays: ``[T, B]``, same dtype; finite (the last row has no effect).

    Returns:
        ``x`` ``[T, B]``, detached: no gradient flows through this function.

    Raises:
        ValueError: not rank 2, T is 0, or the shapes differ.
        TypeError: dtypes differ or are not floating.
    """
    if inputs.dim() != 2 or inputs.shape != decays.shape or not len(inputs):
        raise ValueError(
            f"inputs and decays must both be [T, B] with T >= 1, got {tuple(inputs.shape)} and "
            f"{tuple(decays.shape)}"
        )
    _check_floating(inputs=inputs, decays=decays)
    num_rows = len(inputs)
    x = inputs.clone()
    if grows_out_of_range(inputs, decays):
        for t in reversed(range(num_rows - 1)):
            x[t] += torch.where(decays[t] == 0, 0.0, decays[t] * x[t + 1])
        return x
    decay = decays[:-1]  # row t: the product of the decays from t to t + stride - 1
    stride = 1
    while stride < num_rows:
        # addcmul allocates its result before anything is written: no read sees a new row.
        x[:-stride] = torch.addcmul(x[:-stride], decay, x[stride:])
        decay = decay[:-stride] * decay[stride:]
        stride *= 2
    return x


def gae(
    reward: Tensor, value: Tensor, terminated: Tensor, first: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16).

    ``A_t = sum_l (gamma lam)^l delta_{t+l}`` with ``delta_t = r_t + gamma V(x_{t+1}) - V(x_t)``,
    where V after a terminated step is 0 and the sum stops at the end of an episode.

    Returns:
        advantage ``[T, B]`` (0 on fillers) and value target ``advantage + V`` ``[T, B]``, detached.
    """
    _check_stream(terminated, first, reward=reward, value=value)
    with torch.no_grad():
        valid_t = ~first[1:]
        discount_t = (valid_t & ~terminated).to(value.dtype).mul_(gamma)
        v_t, v_tp1 = value[:-1], value[1:]
        delta_t = torch.where(valid_t, reward + discount_t * v_tp1 - v_t, 0.0)
        advantage_t = reverse_linear_recurrence(delta_t, discount_t * lam)
        return advantage_t, advantage_t + v_t


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    first: Tensor,
    *,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> VTrace:
    """V-trace targets and advantages (Espeholt et al. 2018, section 4).

    With ``ratio_t = pi(a_t | x_t) / mu(a_t | x_t)``, ``rho_t = min(rho_bar, ratio_t)`` and
    ``c_t = lam * min(c_bar, ratio_t)`` (remark 2: lambda is in c only), equation 1 in the form of
    remark 1 is::

        vs_t - V(x_t) = rho_t (r_t + gamma V(x_{t+1}) - V(x_t)) + gamma c_t (vs_{t+1} - V(x_{t+1}))

    and the advantage of section 4.2 is ``q_t - V(x_t)`` with ``q_t = r_t + gamma vs_{t+1}``, where
    vs after the last row is V(x_T). At a terminated step gamma counts as 0. After a truncated step
    the filler's vs is V of the final observation, so q bootstraps from it and the trace is cut.

    Args:
        lam: extra decay of the trace.
        rho_bar, c_bar, pg_rho_bar: upper bounds of ratios, up to ``math.inf``, which means the
            largest number of the dtype (:func:`~headrace.ops.ratio.exp_ratio`). The paper's
            analysis needs ``rho_bar >= c_bar``; this function accepts any values.

    Returns:
        ``vs``, ``pg_advantage`` and ``advantage``, all detached, also from ``log_ratio``.

    Example with one column of five steps within an episode; every ratio is clipped to 1:
        >>> log_ratio = torch.tensor([[0.4], [0.3], [0.3], [0.3], [0.4]])
        >>> reward = torch.tensor([[1.0], [0.5], [2.0], [0.0], [1.5]])
        >>> value = torch.tensor([[3.0], [2.8], [2.5], [2.0], [1.5], [0.0]])
        >>> terminated, first = (torch.zeros(n, 1, dtype=torch.bool) for n in (5, 6))
        >>> returns = vtrace(log_ratio, reward, value, terminated, first, gamma=0.99)
        >>> returns.vs.T
        tensor([[4.8961, 3.9354, 3.4701, 1.4850, 1.5000]])
        >>> returns.pg_advantage.T
        tensor([[ 1.8961,  1.1354,  0.9701, -0.5150,  0.0000]])
    """
    _check_stream(terminated, first, reward=reward, value=value, log_ratio=log_ratio)
    with torch.no_grad():
        valid_t = ~first[1:]
        discount_t = (valid_t & ~terminated).to(value.dtype).mul_(gamma)
        v_t, v_tp1 = value[:-1], value[1:]
        ratio_t = exp_ratio(torch.where(valid_t, log_ratio, 0.0))
        rho_t = ratio_t.clamp(max=rho_bar)
        c_t = ratio_t.clamp(max=c_bar).mul_(lam)
        delta_t = rho_t * torch.where(valid_t, reward + discount_t * v_tp1 - v_t, 0.0)
        vs_t = v_t + reverse_linear_recurrence(delta_t, discount_t * c_t)
        vs_tp1 = torch.cat((vs_t[1:], value[-1:]))
        advantage_t = torch.where(valid_t, reward + discount_t * vs_tp1 - v_t, 0.0)
        return VTrace(vs_t, ratio_t.clamp(max=pg_rho_bar) * advantage_t, advantage_t)


def _check_stream(terminated: Tensor, first: Tensor, **floating: Tensor) -> None:
    """Check rank, shape and dtype of a time-major stream; raises ValueError or TypeError."""
    reward = floating["reward"]
    if reward.dim() != 2 or not len(reward):
        raise ValueError(f"reward must be [T, B] with T >= 1, got {tuple(reward.shape)}")
    num_steps, num_columns = reward.shape
    _check_floating(**floating)
    for name, x in (floating | {"terminated": terminated, "first": first}).items():
        rows = num_steps + (name in ("value", "first"))
        if x.shape != (rows, num_columns):
            raise ValueError(
                f"{name} must be {(rows, num_columns)} for T={num_steps}, B={num_columns}, got "
                f"{tuple(x.shape)}"
            )
    if terminated.dtype != torch.bool or first.dtype != torch.bool:
        raise TypeError(
            f"terminated and first must be bool, got {terminated.dtype} and {first.dtype}"
        )


def _check_floating(**tensors: Tensor) -> None:
    """Check that all tensors have one floating dtype; raises TypeError."""
    dtypes = {x.dtype for x in tensors.values()}
    if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
        got = ", ".join(f"{name} {x.dtype}" for name, x in tensors.items())
        raise TypeError(f"expected one floating dtype, got {got}")

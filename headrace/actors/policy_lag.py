"""Computes the bounds on policy lag that follow from the settings."""

from __future__ import annotations

import warnings

from headrace.actors.sizes import Sizes
from headrace.actors.weight_sync import SyncRule, sync_rule
from headrace.algos.common import Hyperparameters
from headrace.validation import ranges


def num_credits(algo: Hyperparameters, sizes: Sizes, total_steps: int | None = None) -> int:
    """Return the in-flight limit of a learner in rollouts: ``(max_lag + 1) * R``.

    With gradients computed in actors, the limit is rounded up to a multiple of their number.

    Args:
        total_steps: steps of the run. The limit never exceeds the rollouts of the run and of one
            more update.
    """
    max_lag, waiting = algo.max_lag, sizes.batch_steps // sizes.rollout_steps
    if total_steps is not None:
        max_lag = min(max_lag, -(-total_steps // sizes.batch_steps))
    if algo.learns_in_actors:
        waiting = sizes.num_actors * -(-waiting // sizes.num_actors)
    return (max_lag + 1) * waiting


def warn_of_idle_actors(algo: Hyperparameters, sizes: Sizes) -> None:
    """Warn if the in-flight limit leaves some actors idle."""
    busy, max_lag = num_credits(algo, sizes), algo.max_lag
    if sizes.num_actors <= busy:
        return
    size = -(-sizes.num_actors // (max_lag + 1)) * sizes.rollout_steps
    most = -(-sizes.num_actors // (sizes.batch_steps // sizes.rollout_steps)) - 1
    warnings.warn(
        f"num_actors={sizes.num_actors}: max_lag={max_lag} allows only {busy} rollouts in "
        f"flight, so some actors are idle (none with num_actors={busy}, "
        f"batch_size={size} or max_lag={most})",
        stacklevel=7,
    )


def rule_of(
    algo: Hyperparameters, weight_sync: str, kl_threshold: float, oldest: int | None
) -> SyncRule:
    """Return the weight-sync rule that keeps rollouts within ``oldest`` updates."""
    if oldest is not None:
        oldest = max(1, oldest - algo.max_updates(algo.max_lag) + 1)
        oldest = min(oldest, int(ranges.VERSIONS.high))
    return sync_rule(weight_sync, kl_threshold, oldest)


def max_first_lag(algo: Hyperparameters, every: int | None, oldest: int | None) -> int | None:
    """Return the lag in updates above which a rollout is dropped; None: never.

    Args:
        every: versions between two pulls; None if divergence decides.
        oldest: the setting ``max_policy_lag``.
    """
    if oldest is not None or algo.learns_in_actors:
        return oldest
    return None if every is None else algo.max_updates(algo.max_lag) + every - 1


def lag_bound(algo: Hyperparameters, sizes: Sizes, first: int | None) -> int | None:
    """Return the largest lag in updates at the last use of a rollout; None: no bound.

    Args:
        first: largest lag at the first use.
    """
    columns = sizes.batch_steps // sizes.fragment_length
    return None if first is None else first + algo.reuse_updates(columns)

"""How far a learner's rollouts may lag behind it, as its settings say before any is begun."""

from __future__ import annotations

import warnings

from headrace.actors.sizes import Sizes
from headrace.actors.weight_sync import SyncRule, sync_rule
from headrace.algos.common import Hyperparameters


def num_credits(algo: Hyperparameters, sizes: Sizes) -> int:
    """Rollouts of a learner that may be begun or waiting: ``(max_lag + 1) * R``.

    Where actors learn a rollout's lag is known before it waits: as many for each actor.
    """
    waiting = sizes.batch_steps // sizes.rollout_steps
    if algo.learns_in_actors:
        waiting = sizes.num_actors * -(-waiting // sizes.num_actors)
    return (algo.max_lag + 1) * waiting


def warn_of_idle_actors(algo: Hyperparameters, sizes: Sizes) -> None:
    """Tell of actors that there are no credits for."""
    busy, max_lag = num_credits(algo, sizes), algo.max_lag
    if sizes.num_actors <= busy:
        return
    size = -(-sizes.num_actors // (max_lag + 1)) * sizes.rollout_steps
    most = -(-sizes.num_actors // (sizes.batch_steps // sizes.rollout_steps)) - 1
    warnings.warn(
        f"num_actors={sizes.num_actors}: max_lag={max_lag} lets only {busy} rollouts be begun "
        f"or waiting, so some actors idle (none does with num_actors={busy}, "
        f"batch_size={size} or max_lag={most})",
        stacklevel=7,
    )


def rule_of(
    algo: Hyperparameters, weight_sync: str, kl_threshold: float, oldest: int | None
) -> SyncRule:
    """When actors fetch weights: early enough for ``oldest`` updates if they act in time."""
    if oldest is not None:
        oldest = max(1, oldest - algo.max_updates(algo.max_lag) + 1)
    return sync_rule(weight_sync, kl_threshold, oldest)


def max_first_lag(algo: Hyperparameters, every: int | None, oldest: int | None) -> int | None:
    """Updates behind which a rollout is dropped when its turn has come; None: never.

    Args:
        every: how many versions actors skip, None where drift decides. oldest: what is set.
    """
    if oldest is not None or algo.learns_in_actors:
        return oldest
    return None if every is None else algo.max_updates(algo.max_lag) + every - 1


def lag_bound(algo: Hyperparameters, sizes: Sizes, first: int | None) -> int | None:
    """Updates, at most, between acting and the last use of what was done; None: no bound.

    Args:
        first: the bound at its first use.
    """
    columns = sizes.batch_steps // sizes.fragment_length
    return None if first is None else first + algo.reuse_updates(columns)

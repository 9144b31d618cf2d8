"""Determines a run's tasks and checks whether its other settings support several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.envs.names import check_once, env_name
from headrace.envs.suites import SUITES, the_same
from headrace.errors import ConfigError, require


def named_in(tasks: Sequence[Any], env: Any = None, default: Any = None) -> tuple[Any, ...]:
    """Return the given tasks, with a suite's name replaced by its tasks.

    Args:
        env: the setting ``env``, an error unless it is the ``default`` or the first task.

    Raises:
        ConfigError: ``env`` conflicts with the tasks, or a task is listed twice.
    """
    each = [SUITES[x].ids if isinstance(x, str) and x in SUITES else [x] for x in tasks]
    expanded = tuple(task for some in each for task in some)
    check_once([env_name(task) for task in expanded])
    in_place = env == default or env == expanded[0]
    require(in_place, "env", env, "left out with tasks, which replace it")
    return expanded


def check_network(tasks: Sequence[Any], network: Any, normalizes: bool | None) -> None:
    """Raise ConfigError if network settings for several tasks are used without tasks.

    Args:
        network: network settings of the run.
        normalizes: whether values are normalised.
    """
    for name in ("task_id", "per_task_values"):
        require(bool(tasks) or not getattr(network, name), name, True, "False without tasks")
    valid = "False where values aren't normalised (see scale_free and normalize_values)"
    possible = bool(normalizes) or not network.per_task_values
    require(possible, "per_task_values", True, valid)


def check_shares(
    tasks: Sequence[Any], num_learners: int, sizes: Any, min_actors: int | None
) -> None:
    """Raise ConfigError unless each learner has as many actors, and as much data, of each task.

    Args:
        sizes: sizes of the run (``actors/sizes.py``), if known.
    """
    count, actors = len(tasks), sizes.num_actors
    if count < 2:
        return
    valid = "None with tasks, each of which needs its own actors"
    require(min_actors is None, "min_actors", min_actors, valid)
    unit = count * num_learners
    share = f"equally many for each of {count} tasks"
    if num_learners > 1:
        share += f" and {num_learners} learners"
    _check_multiple("num_actors", actors, unit, share)
    if sizes.are_known:
        unit *= sizes.rollout_steps
        _check_multiple("batch_size", sizes.batch_steps, unit, f"in whole rollouts {share}")


def _check_multiple(name: str, value: Any, unit: int, why: str) -> None:
    if isinstance(value, int) and value % unit:
        low = value // unit * unit
        near = " or ".join(str(x) for x in (low, low + unit) if x > 0)
        raise ConfigError(f"{name}={value} must be a multiple of {unit}, {why}; nearest: {near}")


def check_order(names: tuple[str, ...], trained: tuple[str, ...]) -> None:
    """Raise ConfigError if tasks are in another order than in training."""
    trained = tuple(the_same(name, names) or name.rpartition(".")[2] for name in trained)
    if names != trained and sorted(names) == sorted(trained):
        raise ConfigError(
            f"tasks={','.join(names)} must be in the order that the policy was trained in, "
            f"because it observes task numbers: {','.join(trained)}"
        )

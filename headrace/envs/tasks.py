"""Which tasks a run has, and whether its other settings fit several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.envs.names import check_once, env_name
from headrace.envs.suites import SUITES, the_same
from headrace.errors import ConfigError, require


def named_in(given: Sequence[Any], env: Any = None, default: Any = None) -> tuple[Any, ...]:
    """The tasks that are given, and those of a suite in place of its name.

    Args:
        env: that is given as well, by mistake unless it is the ``default`` or the first task.

    Raises:
        ConfigError: it isn't, or a task is there twice.
    """
    each = [SUITES[x].ids if isinstance(x, str) and x in SUITES else [x] for x in given]
    tasks = tuple(task for some in each for task in some)
    check_once([env_name(task) for task in tasks])
    in_place = env == default or env == tasks[0]
    require(in_place, "env", env, "left out with tasks, which are in its place")
    return tasks


def check_network(tasks: Sequence[Any], network: Any, normalizes: bool | None) -> None:
    """Raise ConfigError where a network's settings are of tasks, and there are none.

    Args:
        network: of a run. normalizes: whether it learns normalised values.
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
        sizes: of a run (``actors/sizes.py``), as far as they are known.
    """
    count, actors = len(tasks), sizes.num_actors
    if count < 2:
        return
    valid = "None with tasks, each of which needs its actors"
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


def check_order(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raise ConfigError where a policy would be told other numbers of tasks than in training."""
    known = tuple(the_same(name, names) or name.rpartition(".")[2] for name in known)
    if names != known and sorted(names) == sorted(known):
        raise ConfigError(
            f"tasks={','.join(names)} must be in the order in which the policy was trained on "
            f"them, for it is told their numbers: {','.join(known)}"
        )

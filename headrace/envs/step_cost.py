"""Times an environment's steps before sizes are chosen."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from gymnasium.vector import VectorEnv

from headrace.envs.context import EnvContext
from headrace.envs.make import opened
from headrace.envs.names import Tasks
from headrace.envs.random_play import allowed_action
from headrace.games.vector import in_turns
from headrace.spaces.masks import MASK


class StepCost(NamedTuple):
    """Cost of a step of one environment, when several are stepped together."""

    seconds: float
    busy: float  # compute share of that time; below 1 if it waits


_GROWTH, _MOST = 4, 32  # more environments are made while they make a step cheaper
_CHEAPER = 0.75
_STEPPING_S, _TOTAL_S = 0.02, 0.7
_TIMED_TASKS = 4


def step_cost(
    env: Any, engine: str, env_kwargs: dict[str, Any], seed: int, first_index: int = 0
) -> StepCost | None:
    """Time an environment for less than a second, unless making or stepping one takes longer.

    Actions are random. It tries 1, 4, 16 and 32 environments as long as they are made quickly
    and make a step cheaper, as vectorised ones do.

    Args:
        env: resolved environment; for several tasks, the mean of the first ones.
        first_index: index of the first environment, see
            :class:`~headrace.envs.context.EnvContext`.

    Returns:
        None if it fails; the run reports the reason.
    """
    if isinstance(env, Tasks):
        how = engine, env_kwargs, seed, first_index
        return mean_cost(step_cost(one, *how) for one in timed_tasks(env))
    engine, cost, count = "sync" if engine == "async" else engine, None, 1
    end = time.perf_counter() + _TOTAL_S
    # The user's environment may raise anything; the probe has already shown its warnings.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            start = time.perf_counter()
            context = EnvContext(first_index, role="probe")
            made = opened(env, count, engine, env_kwargs, checked_steps=1, context=context)[1]
            with contextlib.closing(made) as envs:
                first = envs.reset(seed=seed)
                made_s = time.perf_counter() - start
                candidate = timed(envs, first)
            cheaper = cost is None or candidate.seconds < _CHEAPER * cost.seconds
            cost = candidate if cost is None or candidate.seconds < cost.seconds else cost
            more = min(_MOST, _GROWTH * count)
            next_s = more / count * made_s + max(_STEPPING_S, more * cost.seconds)
            if not cheaper or more == count or time.perf_counter() + next_s > end:
                break
            count = more
    return cost


def timed_tasks(tasks: Tasks) -> tuple[Any, ...]:
    """Return the tasks that are timed."""
    return tasks.envs[:_TIMED_TASKS]


def mean_cost(costs: Iterable[StepCost | None]) -> StepCost | None:
    """Return the mean of the costs that aren't None; None if there are none."""
    measured = [one for one in costs if one is not None]
    return StepCost(*map(statistics.fmean, zip(*measured, strict=True))) if measured else None


def takes_some_only(envs: VectorEnv, obs: Any, infos: dict[str, Any]) -> bool:
    """Return whether some actions may be illegal, which may end a game or raise."""
    has_mask = isinstance(obs, dict) and MASK in obs
    return in_turns(envs) or MASK in infos or has_mask


def timed(
    envs: VectorEnv, first: tuple[Any, dict[str, Any]], stepping_s: float = _STEPPING_S
) -> StepCost:
    """Return the mean seconds per step, or those of the faster steps if it mostly waits.

    Other load on the machine doesn't lengthen either.

    Args:
        envs: environments after a reset.
        first: observations and infos of the reset.
        stepping_s: approximate duration of the measurement, in seconds.
    """
    actions = itertools.cycle([envs.action_space.sample() for _ in range(16)])
    moving = envs.games.num_envs if in_turns(envs) else envs.num_envs
    obs, infos = first
    guided = takes_some_only(envs, obs, infos)
    times, computing_s, end = list[float](), 0.0, time.perf_counter() + stepping_s
    while not times or time.perf_counter() < end:
        action = allowed_action(envs, obs, infos) if guided else next(actions)
        start, before_s = time.perf_counter(), time.process_time()
        obs, *_, infos = envs.step(action)
        times.append(time.perf_counter() - start)
        computing_s += time.process_time() - before_s
    computing_s /= len(times)
    seconds = max(computing_s, sorted(times)[len(times) // 4], 1e-9)
    return StepCost(seconds / moving, computing_s / seconds)

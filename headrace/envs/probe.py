"""A first look at a run's environment, before anything is built or started for it."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.envs.make import make_vec
from headrace.envs.names import resolve
from headrace.spaces.actions import MASK


@dataclass(frozen=True)
class Probe:
    """What an environment turned out to be."""

    env: Any  # resolved, see headrace.envs.names.resolve
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    info_mask: bool  # whether it shows an action mask in its infos


def probe(env: Any, engine: str, env_kwargs: dict[str, Any], seed: int) -> Probe:
    """Make the environment once, as ``headrace.envs.make_vec`` does, and reset it.

    Raises:
        ConfigError: there is none of this name, or it can't be made.
    """
    env = resolve(env)
    engine = "sync" if engine == "async" else engine
    with contextlib.closing(make_vec(env, 1, engine, env_kwargs)) as envs:
        _, infos = envs.reset(seed=seed)
        return Probe(env, envs.single_observation_space, envs.single_action_space, MASK in infos)


class StepCost(NamedTuple):
    """What a step of one environment takes, of several that are stepped together."""

    seconds: float
    busy: float  # share of that time in which it computes: below 1 where it waits


_GROWTH, _MOST = 4, 32  # environments are made until a step gets no cheaper by more of them
_CHEAPER = 0.75
_STEPPING_S, _TOTAL_S = 0.02, 0.7


def step_cost(env: Any, engine: str, env_kwargs: dict[str, Any], seed: int) -> StepCost | None:
    """Time an environment for less than a second, unless making or stepping one takes longer.

    Actions are random. The numbers of environments tried are 1, 4, 16 and 32, as long as more of
    them are quickly made and make a step cheaper, as vectorised ones do.

    Args:
        env: resolved.

    Returns:
        None if it fails: whoever steps it in the run will say why.
    """
    engine, cost, count = "sync" if engine == "async" else engine, None, 1
    end = time.perf_counter() + _TOTAL_S
    # The user's environment may raise anything; what it warns of has been said by the first look.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            start = time.perf_counter()
            with contextlib.closing(make_vec(env, count, engine, env_kwargs)) as envs:
                envs.reset(seed=seed)
                made_s = time.perf_counter() - start
                found = _timed(envs)
            cheaper = cost is None or found.seconds < _CHEAPER * cost.seconds
            cost = found if cost is None or found.seconds < cost.seconds else cost
            more = min(_MOST, _GROWTH * count)
            next_s = more / count * made_s + max(_STEPPING_S, more * cost.seconds)
            if not cheaper or more == count or time.perf_counter() + next_s > end:
                break
            count = more
    return cost


def _timed(envs: VectorEnv) -> StepCost:
    """Seconds that a step computes on average, or those of the quicker steps if it rather waits.

    Neither is longer on a machine on which other things run.
    """
    actions = itertools.cycle([envs.action_space.sample() for _ in range(16)])
    times, computing_s, end = list[float](), time.process_time(), time.perf_counter() + _STEPPING_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        envs.step(next(actions))
        times.append(time.perf_counter() - start)
    computing_s = (time.process_time() - computing_s) / len(times)
    seconds = max(computing_s, sorted(times)[len(times) // 4], 1e-9)
    return StepCost(seconds / envs.num_envs, computing_s / seconds)

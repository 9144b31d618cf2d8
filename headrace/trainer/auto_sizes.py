"""Resolves sizes left to "auto": numbers of actors and environments, rollout and batch sizes.

Each algorithm declares the sizes at which it trained well (``Hyperparameters.learns_at``). The
measured cost of an environment step moves the choice within these limits: how many actors share
the environments, and how many environments there are if an update would take seconds. Costs are
rounded to powers of two, so that a little extra load on the machine doesn't change the choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from headrace.actors.sizes import AUTO, SIZES, Sizes
from headrace.algos.common import Span
from headrace.config import Config
from headrace.envs.first_look import EnvProber, LocalProber
from headrace.envs.probe import Probe, beyond
from headrace.envs.step_cost import StepCost
from headrace.errors import ConfigError, setting
from headrace.processes import num_cores
from headrace.processes.ray_package import ray_package
from headrace.rundir import checkpoint

_CHEAP_S = 8e-6  # below, one actor's environments are faster than a learner
_ACTOR_S = 100e-6  # environment time per actor step at which the policy's cost is small
_SLOW_S = 1e-3  # above, an environment may wait for I/O while others act
_BUSY = 0.5  # share of computing below which an environment mostly waits
_WAITING = 4  # largest number of actors per core where environments wait
_UPDATE_S = 1.5  # updates longer than this reduce the number of environments
_HERE = LocalProber()
FEWEST_STEPS = 500  # fewest optimiser steps of a successful run (docs/results/learning.md)
_MOST_PARTS = 4  # largest multi-task batch, in batches of a single task
_TRIES = 32  # batch sizes tried in search of the nearest valid one


class PreferredSizes(NamedTuple):
    """Preferred sizes of a run if nothing is set: totals over all learners, for one task."""

    num_actors: int
    num_envs: int
    fragment_length: int
    batch_size: int


def sized(
    config: Config, probe: Probe, run_dir: Path, look: EnvProber = _HERE
) -> tuple[Config, str]:
    """Return the config with a number for every size, and a line about the choice, or "".

    A resumed run keeps its sizes. With ``deterministic`` nothing is measured, and the choice is
    the same on any machine.

    Raises:
        ConfigError: no sizes fit the ones that are set.
        CheckpointError: the run to resume doesn't exist.
    """
    if config.is_sized:
        return choose(config, None, cores=1), ""
    if config.resume:
        missing = [name for name in SIZES if getattr(config, name) == AUTO]
        saved = checkpoint.read_config(checkpoint.find(run_dir))["config"]
        return replace(config, **{name: saved[name] for name in missing}), ""
    cores, there = _cores(config)
    cost, why = None, "deterministic=True skips the measurement"
    if not config.deterministic:
        first = beyond(config.num_learners)
        cost = look.step_cost(probe.env, config.engine, config.env_kwargs, config.seed, first)
        why = "the environment failed while its steps were timed"
    if cost is not None:
        duration = _duration(cost.seconds)
        why = f"an environment step takes {duration}, {_count(cores, 'core')}{there}"
        if cost.seconds > _SLOW_S and cost.busy < _BUSY and config.engine != "threads":
            waits = f"it waits for {1 - cost.busy:.0%} of that time"
            why += f"; {waits}: try {setting('engine', repr('threads'))}"
    filled = config.mixture is not None and config.envs_per_actor != AUTO  # up, by opponents
    config = choose(config, cost, cores, 1 if filled else probe.num_columns)
    return config, f"auto: sizes chosen automatically ({why})"


def _cores(config: Config) -> tuple[int, str]:
    """Count the cores of each learner and its actors, and name their place unless it is here."""
    if config.cluster is not None:
        cores = ray_package("connection").cores_there(config.cluster)
        if cores is not None:
            return max(1, cores // config.num_learners), " of the cluster"
    return config.cores_per_learner or max(1, num_cores() // config.learners_here), ""


def few_steps(config: Config) -> str | None:
    """Return a warning if a run has fewer optimiser steps than any successful benchmark run.

    Args:
        config: settings with a number for every size.
    """
    size, each = config.resolved_batch_size, config.algo.steps_per_batch
    steps = math.ceil(config.total_steps / size) * each
    if steps >= FEWEST_STEPS:
        return None
    return (
        f"warning: total_steps={config.total_steps:,} in batches of {size:,}, {each} optimiser "
        f"step{'s' if each > 1 else ''} each, make {steps:,} optimiser steps; no benchmark trained "
        f"in fewer than {FEWEST_STEPS}: use more steps, a smaller batch_size, or more passes"
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _duration(seconds: float) -> str:
    scaled, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "us")
    return f"{scaled:,.{0 if scaled >= 9.5 else 1}f} {unit}"


def choose(config: Config, cost: StepCost | None, cores: int, num_columns: int = 1) -> Config:
    """Return the config with a number for every size: the valid sizes nearest to the preferred.

    Args:
        cost: cost of an environment step; None if unknown, which gives each learner one actor.
        cores: number of cores of each learner.
        num_columns: columns per environment: the agents of a game, all stepped by one actor.

    Raises:
        ConfigError: no sizes fit the ones that are set; names the nearest valid value.
    """
    if config.is_sized:  # None, so that it also holds if a resumed run gets other sizes
        return config if isinstance(config.batch_size, int) else replace(config, batch_size=None)
    preferred = _preferred(config, cost, cores)
    fitting = _fitting(config, preferred, config.batch_size, num_columns)
    best = min(
        fitting, key=lambda sizes: (_distance(config, sizes, preferred), sizes), default=None
    )
    if best is None:
        raise _misfit(config, preferred, num_columns)
    return replace(config, **best._asdict())


def _preferred(config: Config, cost: StepCost | None, cores: int) -> PreferredSizes:
    """Adjust the algorithm's preferred sizes to the measured costs."""
    learns, learners = config.algo.learns_at, config.num_learners
    envs, steps = learns.num_envs.best, learns.fragment_length.best
    actors = 1
    if cost is not None:
        step_s = 2.0 ** round(math.log2(cost.seconds))
        waiting = min(_WAITING, int(1 / max(cost.busy, 0.1))) if step_s > _SLOW_S else 1
        together = envs if config.engine == "threads" else cores * waiting  # of one learner
        while (
            envs > max(learns.num_envs.least, learners * together)
            and envs * steps * step_s / (learners * together) > _UPDATE_S
        ):
            envs //= 2
        if config.transport == "shm" and config.engine != "threads" and cost.seconds > _CHEAP_S:
            apart = config.cluster not in (None, "ray")  # all cores there are for actors
            learner = int(config.algo.max_lag > 0 and cores > 2 and not apart)  # needs its own core
            enough = envs // learners / max(1.0, _ACTOR_S / step_s)
            actors = max(1, min((cores - learner) * waiting, int(enough)))
    batch = learns.batch_size.best * envs // learns.num_envs.best
    return PreferredSizes(actors * learners, envs, steps, max(batch, learns.batch_size.least))


def _parts(config: Config) -> int:
    """Return the batch size of a multi-task run, in batches of a single task.

    With the batch size of one task, LunarLanderContinuous doesn't train together with Pendulum and
    InvertedPendulum.
    """
    return max(1, min(len(config.tasks), _MOST_PARTS))


def _fitting(
    config: Config, preferred: PreferredSizes, batch_size: int | str | None, num_columns: int
) -> Iterator[Sizes]:
    """Yield the valid sizes of a run with this batch size and the sizes that are set."""
    learns, learners, sync = config.algo.learns_at, config.num_learners, config.algo.max_lag == 0
    columns = getattr(config.algo, "minibatches", 1) if config.network.core is not None else 1
    fixed = [None if x == AUTO else x for x in config.sizes[:3]]
    tasks, most_envs = max(1, len(config.tasks)), _parts(config) * learns.num_envs.most
    step = tasks * learners if tasks > 1 else 1  # each learner has as many actors of each task
    most = -(-preferred.num_actors // step) * step
    lengths = [fixed[2]] if fixed[2] else _lengths(learns.fragment_length, batch_size)
    for actors in [fixed[0]] if fixed[0] else range(step, most + 1, step):
        shared = learners * -(-actors // learners)  # actors of all learners
        counts = {*range(1, most_envs // actors + 1), shared // math.gcd(actors, shared)}
        counts = {envs * num_columns for envs in counts}
        for envs, steps in itertools.product([fixed[1]] if fixed[1] else counts, lengths):
            if actors * envs % shared:
                continue
            together = actors * envs * steps  # a rollout from every actor
            own = learners * (actors * envs // shared)  # environments of an actor of each learner
            if actors * envs // shared % num_columns:
                continue
            unit = together if sync else math.lcm(envs, own) * steps * tasks
            least = learners * columns * steps
            size = together if batch_size is None else batch_size
            if size == AUTO:
                rounds = max(
                    1,
                    round(_parts(config) * preferred.batch_size / together),
                    -(-least // together),
                )
                size = rounds * together
            assert isinstance(size, int)
            if size % unit == 0 and size >= least:
                yield Sizes(actors, envs, steps, size)


def _lengths(learns: Span, batch_size: int | str | None) -> list[int]:
    """List candidate rollout lengths: powers of two, or the divisors of a fixed batch size."""
    if isinstance(batch_size, int):
        return [n for n in range(1, learns.most + 1) if batch_size % n == 0]
    return [learns.least * 2**i for i in range(int(math.log2(learns.most / learns.least)) + 1)]


def _distance(config: Config, sizes: Sizes, preferred: PreferredSizes) -> float:
    """Return the distance to the preferred sizes in powers of two, with penalties."""
    learns, parts = config.algo.learns_at, _parts(config)
    actors, envs, steps, batch = sizes
    assert isinstance(batch, int)
    begun = (config.algo.max_lag + 1) * batch / (envs * steps)  # rollouts, as in num_credits
    distance = abs(math.log2(actors / preferred.num_actors))
    distance += 100 * max(0.0, math.log2(actors / begun))
    own = actors * envs / parts, steps, batch / parts
    for span, best, x in zip(learns, preferred[1:], own, strict=True):
        beyond = max(0.0, math.log2(span.least / x), math.log2(x / span.most))
        distance += abs(math.log2(x / best)) + 100 * beyond
    return round(distance, 6)


def _misfit(config: Config, preferred: PreferredSizes, num_columns: int) -> ConfigError:
    """Build the error for settings that no sizes fit."""
    size, learners = config.batch_size, config.num_learners
    if isinstance(size, int):
        unit = math.lcm(
            math.prod(config.sizes.factors(config.algo.max_lag == 0).values()), learners
        )
        low = size // unit * unit
        for i in range(_TRIES):
            near = [x for x in (low - i * unit, low + (i + 1) * unit) if x > 0]
            near = [x for x in near if any(_fitting(config, preferred, x, num_columns))]
            if near:
                return ConfigError(
                    f"batch_size={size} is not a whole number of rollouts for each of "
                    f"num_learners={learners} with the other settings; nearest: "
                    + " or ".join(map(str, near))
                )
    actors, envs = config.sizes[:2]
    whole = f" into whole games of {num_columns} agents" if num_columns > 1 else ""
    return ConfigError(
        f"num_learners={learners} can't divide num_actors={actors} with envs_per_actor={envs} "
        f"environments evenly{whole} (nearest: leave one of them 'auto')"
    )

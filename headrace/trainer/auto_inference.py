"""Who acts, where that is left to "auto": each actor, or one process for all (``acting``)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from headrace.actors.sizes import AUTO
from headrace.config import Config
from headrace.envs.first_look import first_look
from headrace.envs.probe import Probe, beyond
from headrace.learner import step_costs
from headrace.learner.chunks import max_steps
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy import Policy
from headrace.processes import num_cores
from headrace.rundir import checkpoint
from headrace.trainer.auto_precision import act_s, learn_s
from headrace.transport.request_channel import MAX_CALLERS
from headrace.types import Group

Inference: TypeAlias = Literal["actor", "shared"]

_LARGE = 2_000_000  # multiplications of a step, below which a call costs more than batches save
_FEW = 4  # actors, half of which make no batch
_ROWS, _LEARNT, _ROUNDS = 64, 16, 5  # of the trial
_LOOK = 10_000  # number of this probe, beyond those of learners
_STEP_S, _CALL_S = 300e-6, 250e-6  # of the processors: an actor's own work a step; asking, on top
_IDLE_S = 0.6e-3  # that cores wait while one process answers half of the actors
GAIN = 1.12  # of steps per second and of the processors' time; below, what is promised may be none


class InferenceCosts(NamedTuple):
    """Seconds per environment step."""

    own: float  # an actor acts for its environments
    shared: float  # one process acts for half of all
    learning: float  # on the CPU, with the pass that computes targets
    env: float
    busy: float  # share of ``env`` in which it computes


def settle(
    config: Config, policy: AnyPolicy, found: Probe, group: Group, notify: Callable[[str], None]
) -> Config:
    """The settings with a choice of who acts. Rank 0 decides; a resumed run keeps its choice.

    Nothing is measured for a small network, less than four actors without a GPU, with
    ``deterministic``, or where only actors can act.

    Args:
        notify: called with a line about what was measured.
    """
    chosen, line = _chosen(config, policy, found) if group.rank == 0 else ("actor", "")
    if group.size > 1:
        chosen = group.broadcast(chosen)
    if line:
        notify(line)
    return replace(config, inference=chosen)


def _chosen(config: Config, policy: AnyPolicy, found: Probe) -> tuple[Inference, str]:
    if config.inference != AUTO:
        return config.inference, ""  # type: ignore[return-value]
    share = config.per_learner
    here = config.transport == "shm" and config.cluster is None
    unable = not here or config.algo.learns_in_actors or config.deterministic
    if unable or isinstance(policy, MultiPolicy) or share.num_actors > MAX_CALLERS:
        return "actor", ""
    if config.resume:
        saved = checkpoint.read_config(checkpoint.find(Path(str(config.run_dir))))["config"]
        return "shared" if saved.get("inference") == "shared" else "actor", ""
    if share.num_actors < _FEW and config.device == "cpu":
        return "actor", ""
    if step_costs.step_cost(policy).products < _LARGE:
        return "actor", ""
    measured = measure(share, policy, found)
    if measured is None:
        return "actor", ""
    cores = config.cores_per_learner or max(1, num_cores() // config.learners_here)
    faster = gain(measured, share.num_actors, share.envs_per_actor, cores)
    own, shared = (f"{1e3 * x:.2g} ms" for x in measured[:2])
    told = f"acting takes {own} a step in an actor, {shared} in one process for all"
    if faster < GAIN:
        return "actor", f"auto: actors act themselves ({told})"
    return "shared", f"auto: shared inference ({told})"


def measure(config: Config, policy: Policy, found: Probe) -> InferenceCosts | None:
    """What a step costs, from a few rows and a short look at the environment; None: not known.

    Args:
        config: of one learner.
    """
    precision, envs = policy.precision, config.envs_per_actor
    many = min(_ROWS, max(1, config.num_actors // 2) * envs)
    few, batch = min(_ROWS, envs), max_steps(step_costs.step_cost(policy), _LEARNT)
    acting, served = copy.deepcopy(policy).cpu(), copy.deepcopy(policy).to(config.device)
    trials = [(act_s, acting, few), (act_s, served, many)]
    if config.device == "cpu":
        trials.append((learn_s, served, batch))
    best = [float("inf")] * 2 + [0.0 if config.device != "cpu" else float("inf")]
    for turn in range(1 + _ROUNDS):
        for i, (seconds, tried, num) in enumerate(trials):
            took = seconds(tried, num, precision) / num
            if turn:  # the first one is slow, whatever is measured
                best[i] = min(best[i], took)
    own, shared, learning = best
    learning *= config.algo.steps_per_batch / getattr(config.algo, "minibatches", 1)
    learning += shared * (config.algo.steps_per_batch > 1 and config.device == "cpu")
    if own / shared < GAIN:
        return InferenceCosts(own, shared, learning, 0.0, 1.0)  # whatever an environment costs
    apart = config.transport == "shm"
    how = found.env, config.engine, config.env_kwargs, config.seed, beyond(config.num_learners)
    with first_look(apart, config.seed, config.actor_timeout_s, _LOOK) as look:
        cost = look.step_cost(*how)
    return None if cost is None else InferenceCosts(own, shared, learning, *cost)


def gain(step_costs: InferenceCosts, num_actors: int, envs_per_actor: int, cores: int) -> float:
    """Steps per second with shared inference, of those without it, by what each step costs.

    Either is bounded by the cores, which share all work, and by the time that a step takes: an
    actor's own, or the environment's and then that of one thread for all others. Cores wait, too,
    while actors do for one another's answers. No more is promised than the processors are spared,
    whoever waits for whom.
    """
    own, shared, learning, env, busy = step_costs
    shared, step = shared + _CALL_S / envs_per_actor, _STEP_S / envs_per_actor
    rest = env * busy + learning + step
    alone = min(cores / (own + rest), num_actors / (own + env + step))
    idle = _IDLE_S / (num_actors * envs_per_actor / 2)
    busy_s = (shared + rest) / cores
    together = min(1 / (busy_s + idle), 1 / (shared + (env + step) / num_actors))
    return min(together / alone, (own + rest) / (shared + rest))

"""Resolves ``inference="auto"``: acting in each actor, or one shared inference server."""

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

_LARGE = 2_000_000  # multiplications per step; below, a request costs more than batching saves
_FEW = 4  # actors; half of fewer don't fill a batch
_ROWS, _TRAINED, _ROUNDS = 64, 16, 5  # of the benchmark
_LOOK = 10_000  # index of this probe, larger than any learner's
_STEP_S, _CALL_S = 300e-6, 250e-6  # CPU time per step of an actor, and extra per request
_IDLE_S = 0.6e-3  # idle time of the cores while the server answers half of the actors
GAIN = 1.12  # least predicted speedup; smaller ones are within the model's error


class InferenceCosts(NamedTuple):
    """Measured costs of acting and learning, in seconds per environment step."""

    own: float  # each actor acts for its environments
    shared: float  # one server acts for half of all environments
    learning: float  # on the CPU, with the pass that computes targets
    env: float
    busy: float  # fraction of ``env`` spent computing


def settle(
    config: Config, policy: AnyPolicy, probe: Probe, group: Group, notify: Callable[[str], None]
) -> Config:
    """Return the config with ``inference`` resolved by rank 0; a resumed run keeps its choice.

    Small networks, fewer than four actors without a GPU, ``deterministic`` and configurations
    without shared inference are decided without measuring.

    Args:
        notify: called with one line about the measurement.
    """
    chosen, line = _chosen(config, policy, probe) if group.rank == 0 else ("actor", "")
    if group.size > 1:
        chosen = group.broadcast(chosen)
    if line:
        notify(line)
    return replace(config, inference=chosen)


def _chosen(config: Config, policy: AnyPolicy, probe: Probe) -> tuple[Inference, str]:
    if config.inference != AUTO:
        return config.inference, ""  # type: ignore[return-value]
    share = config.per_learner
    here = config.transport == "shm" and config.cluster is None
    unable = not here or config.algo.learns_in_actors or config.deterministic
    unable |= config.network.use_sde
    if unable or isinstance(policy, MultiPolicy) or share.num_actors > MAX_CALLERS:
        return "actor", ""
    if config.resume:
        saved = checkpoint.read_config(checkpoint.find(Path(str(config.run_dir))))["config"]
        return "shared" if saved.get("inference") == "shared" else "actor", ""
    if share.num_actors < _FEW and config.device == "cpu":
        return "actor", ""
    if step_costs.step_cost(policy).products < _LARGE:
        return "actor", ""
    measured = measure(share, policy, probe)
    if measured is None:
        return "actor", ""
    cores = config.cores_per_learner or max(1, num_cores() // config.learners_here)
    faster = gain(measured, share.num_actors, share.envs_per_actor, cores)
    own, shared = (f"{1e3 * x:.2g} ms" for x in measured[:2])
    costs = f"acting takes {own} per step in an actor, {shared} in a shared inference server"
    if faster < GAIN:
        return "actor", f"auto: inference in each actor ({costs})"
    return "shared", f"auto: shared inference ({costs})"


def measure(config: Config, policy: Policy, probe: Probe) -> InferenceCosts | None:
    """Measure the costs of a step with a few rows and a short environment trial.

    Args:
        config: settings of one learner.

    Returns:
        None if the environment could not be timed.
    """
    precision, envs = policy.precision, config.envs_per_actor
    many = min(_ROWS, max(1, config.num_actors // 2) * envs)
    few, batch = min(_ROWS, envs), max_steps(step_costs.step_cost(policy), _TRAINED)
    acting, served = copy.deepcopy(policy).cpu(), copy.deepcopy(policy).to(config.device)
    trials = [(act_s, acting, few), (act_s, served, many)]
    if config.device == "cpu":
        trials.append((learn_s, served, batch))
    best = [float("inf")] * 2 + [0.0 if config.device != "cpu" else float("inf")]
    for turn in range(1 + _ROUNDS):
        for i, (seconds, tried, num) in enumerate(trials):
            step_s = seconds(tried, num, precision) / num
            if turn:  # the first round warms up
                best[i] = min(best[i], step_s)
    own, shared, learning = best
    learning *= config.algo.steps_per_batch / getattr(config.algo, "minibatches", 1)
    learning += shared * (config.algo.steps_per_batch > 1 and config.device == "cpu")
    if own / shared < GAIN:
        return InferenceCosts(own, shared, learning, 0.0, 1.0)  # no gain at any environment cost
    apart = config.transport == "shm"
    how = probe.env, config.engine, config.env_kwargs, config.seed, beyond(config.num_learners)
    with first_look(apart, config.seed, config.actor_timeout_s, _LOOK) as look:
        cost = look.step_cost(*how)
    return None if cost is None else InferenceCosts(own, shared, learning, *cost)


def gain(step_costs: InferenceCosts, num_actors: int, envs_per_actor: int, cores: int) -> float:
    """Predict the throughput of shared inference relative to acting in each actor.

    Throughput is bounded by the cores, which share all work, and by the latency of a step. With
    shared inference, cores are also idle while actors wait for each other's answers. The result
    never exceeds the saving in CPU time.
    """
    own, shared, learning, env, busy = step_costs
    shared, step = shared + _CALL_S / envs_per_actor, _STEP_S / envs_per_actor
    rest = env * busy + learning + step
    alone = min(cores / (own + rest), num_actors / (own + env + step))
    idle = _IDLE_S / (num_actors * envs_per_actor / 2)
    busy_s = (shared + rest) / cores
    together = min(1 / (busy_s + idle), 1 / (shared + (env + step) / num_actors))
    return min(together / alone, (own + rest) / (shared + rest))

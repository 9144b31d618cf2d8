"""How a run begins, however many learners train, and how its policy is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headrace.acting.fleet import start_fork_server
from headrace.acting.sizes import Sizes
from headrace.config import Config
from headrace.envs.names import env_name, resolve
from headrace.envs.probe import Probe, probe
from headrace.evaluation import Evaluation, evaluate
from headrace.learning.hogwild import SharedModel
from headrace.learning.learner import Learner
from headrace.nn.policy import Policy
from headrace.process import torch_threads
from headrace.records.checkpoint import default_run_dir
from headrace.training.sizes import choose, sized
from headrace.types import Group


def begin(
    config: Config, needs_processes: bool, group: Group, notify: Callable[[str], None]
) -> tuple[Config, Probe, Path]:
    """Look at the environment while the fork server, if it is needed, gets ready.

    Args:
        group: of the learners; rank 0 decides what is left to "auto".
        notify: called with a line of text about that.

    Returns:
        the settings with all of them decided, what the environment turned out to be, and the run
        directory.

    Raises:
        ConfigError: there is no such environment, or settings don't fit each other (nothing was
            started), or it can't be made.
        CheckpointError: there is no run to resume.
    """
    config = config.settled
    resolve(config.env)  # complains before anything is started
    if not config.is_sized:
        choose(config, None, cores=1)  # so does this
    if needs_processes:
        start_fork_server()
    found = probe(config.env, config.engine, config.env_kwargs, config.seed)
    name = config.run_dir or default_run_dir(env_name(config.env), config.algo_name)
    chosen, line = sized(config, found, Path(name)) if group.rank == 0 else (config, "")
    if line:
        notify(line)
    if not config.is_sized:
        chosen = replace(config, **Sizes(*group.broadcast(list(chosen.sizes)))._asdict())
    return chosen, found, Path(name)


def built(config: Config, found: Probe, group: Group) -> tuple[Policy, Learner]:
    """The policy and one of its learners; the same weights on each."""
    device = config.device
    if device == "cuda" and group.size > 1:
        device = f"cuda:{group.local_rank}"
    # One thread: the bits of the initial weights must not depend on the number of cores.
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(config.seed)
        spaces = found.observation_space, found.action_space
        policy = Policy(*spaces, config.network, found.info_mask)
        learner = Learner(
            policy,
            config.per_learner.algo,
            num_threads=config.resolved_learner_threads,
            device=device,
            group=group,
        )
    return policy, learner


def shared_model(config: Config, learner: Learner) -> SharedModel | None:
    """What actors apply gradients to, if they compute any."""
    if not config.algo.learns_in_actors:
        return None
    sizes = config.num_actors, config.rollouts_per_update
    return SharedModel(learner, *sizes, shared=config.transport == "shm")


def evaluated(config: Config, env: Any, policy: Policy) -> Evaluation:
    """Episodes as the settings say, with a copy of the policy; ``env`` is resolved."""
    kwargs: dict[str, Any] = {"engine": config.engine, "env_kwargs": config.env_kwargs}
    return evaluate(copy.deepcopy(policy).cpu(), env, config.eval_episodes, **kwargs)

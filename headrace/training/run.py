"""How a run begins, however many learners train, and how its policy is evaluated."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from headrace.acting.fleet import start_fork_server
from headrace.config import Config
from headrace.envs.names import env_name, resolve
from headrace.envs.probe import Probe, probe
from headrace.evaluation import Evaluation, evaluate
from headrace.nn.policy import Policy
from headrace.records.checkpoint import default_run_dir


def begin(config: Config, needs_processes: bool) -> tuple[Probe, Path]:
    """Look at the environment while the fork server, if it is needed, gets ready.

    Returns:
        what the environment turned out to be, and the run directory.

    Raises:
        ConfigError: there is no such environment (nothing was started), or it can't be made.
    """
    resolve(config.env)  # complains before anything is started
    if needs_processes:
        start_fork_server()
    found = probe(config.env, config.engine, config.env_kwargs, config.seed)
    run_dir = config.run_dir or default_run_dir(env_name(config.env), config.algo_name)
    return found, Path(run_dir)


def evaluated(config: Config, env: Any, policy: Policy) -> Evaluation:
    """Episodes as the settings say, with a copy of the policy; ``env`` is resolved."""
    kwargs: dict[str, Any] = {"engine": config.engine, "env_kwargs": config.env_kwargs}
    return evaluate(copy.deepcopy(policy).cpu(), env, config.eval_episodes, **kwargs)

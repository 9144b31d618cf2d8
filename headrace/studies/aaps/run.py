"""One run of ``headrace bench aaps`` in a process of its own: PPO over a ClusterEnv.

Writes ``settings.json``, ``curve.jsonl``, a line per iteration, and at the end ``result.json``.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.algos import PPO
from headrace.cluster import ClusterEnv, LocalConfig
from headrace.errors import ConfigError
from headrace.evaluation import evaluate
from headrace.learning.learner import Learner, gather
from headrace.nn.policy import Policy
from headrace.process import keep_freed_memory
from headrace.records.checkpoint import write_json
from headrace.studies.aaps.settings import Aaps
from headrace.studies.table import Case

WINDOW = 100  # latest training episodes whose mean return is reported


class PolicyAgent(nn.Module):
    """headrace's own policy as an agent of a ClusterEnv.

    Args:
        policy: without recurrence, masks or previous inputs, of discrete actions.

    Raises:
        ConfigError: it is another one.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        simple = policy.inputs.plain and policy.core is None and policy.log_std is None
        if not simple or not isinstance(policy.inputs.zero_action(1), Tensor):
            raise ConfigError(
                "this study needs an environment of plain observations (Box) and one discrete "
                f"action, not of {policy.observation_space} and {policy.action_space}"
            )
        self.policy = policy

    def _params(self, obs: Tensor) -> Tensor:
        return self.policy.act(obs, torch.zeros(len(obs), dtype=torch.bool), ())[0]

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled actions and their log-probabilities ``[B]``."""
        params, distribution = self._params(obs), self.policy.distribution
        action = distribution.sample(params, distribution.noise((len(obs),), None))
        return action, distribution.log_prob(params, action)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Of actions ``[B]``."""
        return self.policy.distribution.log_prob(self._params(obs), action)


def train(aaps: Aaps, case: Case, folder: Path) -> dict[str, Any]:
    """Train, write a line per iteration, and return the results."""
    torch.manual_seed(case["seed"])
    shared = {name: getattr(aaps, name) for name in ("envs_per_node", "engine", "max_policy_lag")}
    own = {name: case[name] for name in ("weight_sync", "kl_threshold", "seed")}
    settings = {"env_name": aaps.env_id, **shared, **own}
    with ClusterEnv(settings, LocalConfig(nodes=aaps.nodes)) as envs:
        policy = Policy(envs.single_observation_space, envs.single_action_space)
        agent = PolicyAgent(policy)
        hyper = {f.name for f in fields(PPO)} & {f.name for f in fields(aaps)}
        learner = Learner(policy, PPO(**{name: getattr(aaps, name) for name in hyper}))
        envs.reset(seed=case["seed"])
        returns: deque[float] = deque(maxlen=WINDOW)
        env_steps, start = 0, time.monotonic()
        with (folder / "curve.jsonl").open("w", encoding="utf-8") as file:
            for iteration in range(aaps.iterations):
                rollout = envs.collect(agent, aaps.num_steps)
                ended = rollout.episode_return[~rollout.episode_return.isnan()]
                returns.extend(ended.tolist())
                env_steps += int((~rollout.first[1:]).sum())
                left = 1.0 - iteration / aaps.iterations
                metrics = learner.update(lambda: gather([rollout]), aaps.learning_rate * left)  # noqa: B023
                line: dict[str, Any] = {"iteration": iteration + 1, "env_steps": env_steps}
                line |= {"return": sum(returns) / len(returns) if returns else None}
                line |= {"approx_kl": metrics["approx_kl"], **_synced(envs)}
                file.write(json.dumps(line) + "\n")
        seconds, synced = time.monotonic() - start, _synced(envs)
    learner.close()
    found = evaluate(policy, aaps.env_id, aaps.eval_episodes, engine=aaps.engine)
    return {
        "final_return": sum(returns) / len(returns) if returns else math.nan,
        "eval_return": found.mean,
        "syncs_per_worker": synced["syncs"],
        "kilobytes": synced["bytes"] / 1e3,
        "iterations": aaps.iterations,
        "env_steps": env_steps,
        "sps": env_steps / seconds,
    }


def _synced(envs: ClusterEnv) -> dict[str, float]:
    """Weights fetched so far: per worker, and bytes of all."""
    info = envs.sync_info
    return {"syncs": float(info["weight_syncs"].mean()), "bytes": int(info["weight_bytes"].sum())}


def train_case(request: dict[str, Any]) -> dict[str, Any]:
    """Train a ``case`` of a ``study`` and write to ``folder``."""
    keep_freed_memory()
    torch.set_num_threads(1)
    folder, settings = Path(request["folder"]), request["study"] | request["case"]
    write_json(folder / "settings.json", settings)
    result = train(Aaps(**request["study"]), request["case"], folder)
    write_json(folder / "result.json", result)
    return result

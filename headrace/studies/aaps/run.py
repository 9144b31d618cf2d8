"""One run of ``headrace bench aaps`` in a process of its own: PPO over a ClusterEnv.

    python -m headrace.studies.aaps.run SETTINGS.json

Writes ``curve.jsonl``, a line per iteration, and at the end ``result.json`` beside the settings.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.algos import PPO
from headrace.cluster import ClusterEnv, LocalConfig
from headrace.errors import ConfigError
from headrace.evaluation import evaluate
from headrace.learning.learner import Learner
from headrace.nn.policy import Policy
from headrace.process import keep_freed_memory
from headrace.studies.children import end_with_starter
from headrace.types import gather

WINDOW = 100  # latest training episodes whose mean return is reported


@dataclass(frozen=True)
class Run:
    """What one run depends on."""

    env_id: str
    engine: str
    nodes: int
    envs_per_node: int
    num_steps: int
    iterations: int
    epochs: int
    minibatches: int
    learning_rate: float
    gamma: float
    lam: float
    entropy_coef: float
    reward_scale: float
    eval_episodes: int
    weight_sync: str
    kl_threshold: float
    max_policy_lag: int | None
    seed: int


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


def train(run: Run, folder: Path) -> dict[str, Any]:
    """Train, write a line per iteration, and return the results."""
    torch.manual_seed(run.seed)
    settings = {
        "env_name": run.env_id,
        "envs_per_node": run.envs_per_node,
        "engine": run.engine,
        "weight_sync": run.weight_sync,
        "kl_threshold": run.kl_threshold,
        "max_policy_lag": run.max_policy_lag,
        "seed": run.seed,
    }
    with ClusterEnv(settings, LocalConfig(nodes=run.nodes)) as envs:
        policy = Policy(envs.single_observation_space, envs.single_action_space)
        agent = PolicyAgent(policy)
        algo = PPO(
            learning_rate=run.learning_rate,
            epochs=run.epochs,
            minibatches=run.minibatches,
            gamma=run.gamma,
            lam=run.lam,
            entropy_coef=run.entropy_coef,
            reward_scale=run.reward_scale,
        )
        learner = Learner(policy, algo)
        envs.reset(seed=run.seed)
        returns: deque[float] = deque(maxlen=WINDOW)
        env_steps, start = 0, time.monotonic()
        with (folder / "curve.jsonl").open("w", encoding="utf-8") as file:
            for iteration in range(run.iterations):
                rollout = envs.collect(agent, run.num_steps)
                ended = rollout.episode_return[~rollout.episode_return.isnan()]
                returns.extend(ended.tolist())
                env_steps += int((~rollout.first[1:]).sum())
                left = 1.0 - iteration / run.iterations
                metrics = learner.update(lambda: gather([rollout]), run.learning_rate * left)  # noqa: B023
                line: dict[str, Any] = {"iteration": iteration + 1, "env_steps": env_steps}
                line |= {"return": sum(returns) / len(returns) if returns else None}
                line |= {"approx_kl": metrics["approx_kl"], **_synced(envs)}
                file.write(json.dumps(line) + "\n")
        seconds = time.monotonic() - start
        synced = _synced(envs)
    learner.close()
    found = evaluate(policy, run.env_id, run.eval_episodes, engine=run.engine)
    return {
        "final_return": sum(returns) / len(returns) if returns else math.nan,
        "eval_return": found.mean,
        "syncs_per_worker": synced["syncs"],
        "kilobytes": synced["bytes"] / 1e3,
        "iterations": run.iterations,
        "env_steps": env_steps,
        "sps": env_steps / seconds,
    }


def _synced(envs: ClusterEnv) -> dict[str, float]:
    """Weights fetched so far: per worker, and bytes of all."""
    info = envs.sync_info
    return {"syncs": float(info["weight_syncs"].mean()), "bytes": int(info["weight_bytes"].sum())}


def write_settings(run: Run, path: Path) -> None:
    """What :func:`main` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(run), indent=2) + "\n", encoding="utf-8")


def main(path: Path) -> None:
    """Train with the settings of a file."""
    end_with_starter()
    keep_freed_memory()
    torch.set_num_threads(1)
    result = train(Run(**json.loads(path.read_text(encoding="utf-8"))), path.parent)
    (path.parent / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

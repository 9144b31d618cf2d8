"""Settings of the adaptive weight synchronisation study, and one of its runs (PPO on a ClusterEnv).

A run writes ``settings.json``, a line per iteration to ``curve.jsonl``, the same values as
TensorBoard events, and ``result.json`` at the end.
"""

# Annotations are evaluated here at once: tyro reads those of Aaps.

import dataclasses
import json
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from headrace.algos import PPO
from headrace.cluster_env import ClusterEnv, LocalConfig
from headrace.cluster_env.settings import EnvConfig, as_env_config
from headrace.errors import ConfigError, require
from headrace.evaluation import evaluate
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.nn.policy import Policy
from headrace.processes import keep_freed_memory
from headrace.rundir import tensorboard_events
from headrace.rundir.atomic_files import write_json
from headrace.rundir.files import append
from headrace.studies.run_table import Case, fingerprint, grid
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

WINDOW = 100  # number of latest training episodes in the reported mean return
PAPER_THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)  # ClusterEnv, section IV-A
THRESHOLDS = (0.001, EnvConfig.kl_threshold, *PAPER_THRESHOLDS[1:])


@settings()
@dataclass(frozen=True)
class Aaps:
    """Compare divergence thresholds of adaptive weight synchronisation on one environment."""

    env_id: Annotated[str, ranges.NOT_EMPTY] = "LunarLander-v3"
    """Gymnasium id of an environment with Box observations and Discrete actions."""
    kl_thresholds: Annotated[tuple[Annotated[float, ranges.NATS], ...], ranges.A_FEW] = THRESHOLDS
    """Nats of mean KL(worker's copy || learner) above which a worker fetches weights."""
    max_policy_lag: Annotated[int | None, ranges.VERSIONS] = None
    """Lag in versions at which a worker fetches weights regardless of drift; None: never."""
    fixed_intervals: bool = True
    """Also measure fixed intervals that transfer as many bytes as each threshold."""
    repeats: Annotated[int, ranges.COUNT] = 3
    """Runs of each setting, with the seeds --seed, --seed + 1 …"""
    seed: Annotated[int, ranges.SEED] = 0
    """Random seed of the first repeat."""
    nodes: Annotated[int, ranges.NODES] = 2
    """Number of workers."""
    envs_per_node: Annotated[int, ranges.SIZE] = 32
    """Environments per worker."""
    num_steps: Annotated[int, ranges.SIZE] = 64
    """Steps of each environment per rollout; one update of the learner follows each rollout."""
    total_steps: Annotated[int, ranges.STEPS] = 1_000_000
    """Environment steps of each run, rounded up to whole rollouts."""
    epochs: Annotated[int, ranges.COUNT] = 4
    """Passes over each rollout."""
    minibatches: Annotated[int, ranges.SIZE] = 8
    """Minibatches per pass."""
    learning_rate: Annotated[float, ranges.ABOVE_0] = 1e-3
    """Learning rate at the start; it decays linearly to 0."""
    gamma: Annotated[float, ranges.FACTOR] = 0.999
    """Discount factor."""
    lam: Annotated[float, ranges.FACTOR] = 0.98
    """Lambda of generalised advantage estimation."""
    entropy_coef: Annotated[float, ranges.AT_LEAST_0] = 0.01
    """Weight of the entropy bonus."""
    reward_scale: Annotated[float, ranges.ABOVE_0] = 0.05
    """Factor that rewards are multiplied by."""
    engine: Literal["auto", "native", "envpool", "sync", "async", "threads"] = "auto"
    """How workers step their environments."""
    evaluations: Annotated[int, ranges.COUNT] = 20
    """Evaluations per run, evenly spaced over its iterations; the last is at its end."""
    eval_episodes: Annotated[int, ranges.COUNT] = 50
    """Episodes per evaluation, with the most likely actions."""
    output: Annotated[str, ranges.PATH] = "runs/aaps"
    """Folder for the table, the plots and the runs."""
    timeout_s: Annotated[float, ranges.SECONDS] = 36_000.0
    """Time limit of a run in seconds; a run that takes longer is killed and counts as failed."""

    def __post_init__(self) -> None:
        check_fields(self)
        thresholds = self.kl_thresholds
        require(len(set(thresholds)) == len(thresholds), "kl_thresholds", thresholds, "different")
        for threshold in thresholds:  # raises what a ClusterEnv would
            as_env_config(
                {
                    "env_name": self.env_id,
                    "envs_per_node": self.envs_per_node,
                    "kl_threshold": threshold,
                    "max_policy_lag": self.max_policy_lag,
                    "seed": self.seed,
                }
            )

    @property
    def iterations(self) -> int:
        """Number of rollouts, and updates, per run."""
        return -(-self.total_steps // (self.nodes * self.envs_per_node * self.num_steps))

    def evaluated(self, iteration: int) -> bool:
        """Return whether the policy is evaluated after this iteration, of 1 to ``iterations``."""
        share = min(self.evaluations, self.iterations)
        return iteration * share // self.iterations > (iteration - 1) * share // self.iterations

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that a run depends on besides its case."""
        values = dataclasses.asdict(self)
        for name in ("kl_thresholds", "fixed_intervals", "repeats", "seed", "output", "timeout_s"):
            del values[name]
        return fingerprint(values)


PRESETS = {
    "machine": Aaps(),
    "paper": Aaps(  # ClusterEnv, section IV-A
        kl_thresholds=PAPER_THRESHOLDS,
        nodes=4,
        envs_per_node=64,
        num_steps=1024,
        total_steps=5_000_000,
        epochs=30,
        learning_rate=5e-4,
        gamma=0.99,
        lam=0.95,
        reward_scale=1.0,
    ),
}


def cases_of(aaps: Aaps, kinds: Sequence[tuple[str, float]]) -> list[Case]:
    """Return the cases of these (weight_sync, kl_threshold), seeds outermost."""
    settings, seeds = {"settings": aaps.fingerprint}, range(aaps.seed, aaps.seed + aaps.repeats)
    return [
        {"weight_sync": sync, "kl_threshold": threshold, **case}
        for case in grid(settings, seed=seeds)
        for sync, threshold in kinds
    ]


# -- a run -----------------------------------------------------------------------------------------


class PolicyAgent(nn.Module):
    """Adapter that uses a headrace policy as the agent of a ClusterEnv.

    Args:
        policy: policy of discrete actions without recurrence, masks or previous inputs.

    Raises:
        ConfigError: the policy is of another kind.
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
        """Sample actions and return their log-probabilities ``[B]``."""
        params, distribution = self._params(obs), self.policy.distribution
        action = distribution.sample(params, distribution.noise((len(obs),), None))
        return action, distribution.log_prob(params, action)

    def distribution(self, obs: Tensor) -> Categorical:
        """Return the action distribution in ``obs``, on which drift is measured."""
        return Categorical(logits=self._params(obs))


def train(aaps: Aaps, case: Case, folder: Path) -> dict[str, Any]:
    """Train, write a line per iteration, and return the results."""
    torch.manual_seed(case["seed"])
    shared = {name: getattr(aaps, name) for name in ("envs_per_node", "engine", "max_policy_lag")}
    of_case = {name: case[name] for name in ("weight_sync", "kl_threshold", "seed")}
    settings = {"env_name": aaps.env_id, **shared, **of_case}
    with ClusterEnv(settings, LocalConfig(nodes=aaps.nodes)) as envs:
        policy = Policy(envs.single_observation_space, envs.single_action_space)
        names = {field.name for field in dataclasses.fields(PPO)}
        hyper = {name: value for name, value in vars(aaps).items() if name in names}
        learner = Learner(policy, PPO(**hyper))
        envs.reset(seed=case["seed"])
        lines, start = [], time.monotonic()
        for line in _iterations(aaps, envs, policy, learner):
            lines.append(line)
            _write(folder, line)
        seconds = time.monotonic() - start
    learner.close()
    last = lines[-1]
    return {
        "final_return": math.nan if last["return"] is None else last["return"],
        "eval_return": last["evaluated"],
        "syncs_per_worker": last["syncs"],
        "kilobytes": last["bytes"] / 1e3,
        "max_divergence": max(
            (d for x in lines if (d := x["divergence"]) is not None), default=None
        ),
        "iterations": aaps.iterations,
        "env_steps": last["env_steps"],
        "sps": last["env_steps"] / (seconds - last["eval_seconds"]),
    }


def _iterations(
    aaps: Aaps, envs: ClusterEnv, policy: Policy, learner: Learner
) -> Iterator[dict[str, Any]]:
    """Collect, train and, if due, evaluate; yield the metrics of each iteration."""
    agent, env_steps, eval_s = PolicyAgent(policy), 0, 0.0
    returns: deque[float] = deque(maxlen=WINDOW)
    for iteration in range(1, aaps.iterations + 1):
        rollout = envs.collect(agent, aaps.num_steps)
        ended = rollout.episode_return[~rollout.episode_return.isnan()]
        returns.extend(ended.tolist())
        env_steps += int((~rollout.first[1:]).sum())
        left = 1.0 - (iteration - 1) / aaps.iterations
        batch = gather([rollout])
        metrics = learner.update(lambda: batch, aaps.learning_rate * left)  # noqa: B023
        eval_return, start = None, time.monotonic()
        if aaps.evaluated(iteration):
            eval_return = evaluate(policy, aaps.env_id, aaps.eval_episodes, engine=aaps.engine).mean
        eval_s += time.monotonic() - start
        info = envs.sync_info
        yield {
            "iteration": iteration,
            "env_steps": env_steps,
            "return": sum(returns) / len(returns) if returns else None,
            "evaluated": eval_return,
            "approx_kl": metrics["approx_kl"],
            "divergence": float(info["divergence"].max()) if info["_divergence"].any() else None,
            "syncs": float(info["weight_syncs"].mean()),
            "bytes": int(info["weight_bytes"].sum()),
            "eval_seconds": eval_s,
        }


NAMES = {
    "return": "charts/episodic_return",
    "evaluated": "eval/episodic_return",
    "approx_kl": "losses/approx_kl",
    "divergence": "sync/divergence",
    "syncs": "sync/weights_per_worker",
    "bytes": "sync/bytes",
}
"""TensorBoard names of the metrics in a line."""


def _write(folder: Path, line: dict[str, Any]) -> None:
    """Append metrics to ``curve.jsonl`` and to TensorBoard's events."""
    append(folder / "curve.jsonl", (json.dumps(line) + "\n").encode())
    present = {name: line[key] for key, name in NAMES.items() if line[key] is not None}
    path = next(folder.glob("events.*"), folder / tensorboard_events.file_name())
    first = b"" if path.exists() else tensorboard_events.header(None)
    append(path, first + tensorboard_events.scalars(present, line["env_steps"]))


def train_case(request: dict[str, Any]) -> dict[str, Any]:
    """Train a ``case`` of a ``study`` and write to ``folder``."""
    keep_freed_memory()
    torch.set_num_threads(1)
    folder = Path(request["folder"])
    for old in (*folder.glob("events.*"), *folder.glob("curve.jsonl")):
        old.unlink()  # left by an interrupted run
    write_json(folder / "settings.json", request["study"] | request["case"])
    result = train(Aaps(**request["study"]), request["case"], folder)
    write_json(folder / "result.json", result)
    return result

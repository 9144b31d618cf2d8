"""Plays whole episodes with a policy and reports their returns."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from headrace.actors.task_adapter import fitting, joined_for
from headrace.envs.atari import human_normalized
from headrace.envs.changes import EnvChange, apply
from headrace.envs.context import EnvContext
from headrace.envs.info_metrics import PREFIX, InfoMetrics, InfoNames, means_of, written
from headrace.envs.make import opened
from headrace.envs.names import Prepared, Tasks, env_name, resolve
from headrace.envs.tasks import named_in
from headrace.errors import EnvironmentFault
from headrace.games.vector import GameVector, absent_in, agents_of, in_turns
from headrace.nn.encoder import Encoder
from headrace.nn.inputs import evaluated_mask
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.ops import tree
from headrace.processes import (
    global_generators_kept,
    keep_torch_defaults_apart,
    library_defaults,
    num_cores,
    seed_global_generators,
    torch_threads,
)
from headrace.types import Tree
from headrace.validation import ranges
from headrace.validation.fields import checked

MAX_PARALLEL = 128  # environments per evaluation
_PATIENCE = 10  # an agent is given up when another has had this many times its episodes


@dataclass(frozen=True)
class Evaluation:
    """Returns of complete episodes; ``std`` is their standard deviation."""

    episodes: int
    mean: float
    std: float
    min: float
    max: float
    mean_length: float
    returns: tuple[float, ...] = ()
    """Return of each episode, in the order in which they ended."""
    lengths: tuple[int, ...] = ()
    """Steps of each episode, in the same order."""
    deterministic: bool = True
    """True if the most likely actions were played, False if actions were sampled."""
    human_normalized: float | None = None
    """Mean return scaled to 0 for a random player and 1 for a human, for whole ALE games; None
    otherwise. With several tasks the mean of theirs, each capped at 1."""
    tasks: dict[str, Evaluation] | None = None
    """Evaluations of each of several tasks by name; other fields are over all episodes."""
    agents: dict[str, Evaluation] | None = None
    """Evaluations of each agent that played, by name; other fields are over all episodes."""
    policies: dict[str, Evaluation] | None = None
    """Evaluations of each of several policies by name, over the episodes of its agents."""
    metrics: dict[str, float] | None = None
    """Means over episodes of numbers in infos, by name."""
    others: dict[str, Evaluation] | None = None
    """Evaluations on the run's ``eval_envs``, by name. The other fields describe the run's own."""
    other_mode: Evaluation | None = None
    """The same evaluation with ``deterministic`` inverted, at the end of a run."""

    @staticmethod
    def of(returns: list[float], lengths: list[int]) -> Evaluation:
        """Summarize one or more episodes."""
        mean, std, least, most = (float(f(returns)) for f in (np.mean, np.std, np.min, np.max))
        each = tuple(returns), tuple(lengths)
        return Evaluation(len(returns), mean, std, least, most, float(np.mean(lengths)), *each)

    def named_metrics(self) -> dict[str, float]:
        """Return the metrics by their names in files.

        Numbers in infos are ``eval/env/…``. Each of ``eval_envs`` has ``eval/NAME/mean``,
        ``eval/NAME/std`` and ``eval/NAME/env/…``.
        """
        metrics = {f"eval/{PREFIX}{name}": value for name, value in (self.metrics or {}).items()}
        for name, one in (self.others or {}).items():
            metrics |= {f"eval/{name}/mean": one.mean, f"eval/{name}/std": one.std}
            own = one.metrics or {}
            metrics |= {f"eval/{name}/{PREFIX}{key}": value for key, value in own.items()}
        return metrics

    def to_json(self) -> str:
        """Format as one line of JSON."""
        return json.dumps(asdict(self))


@library_defaults()
@checked
def evaluate(
    policy: AnyPolicy,
    env: Any,
    episodes: Annotated[int, ranges.COUNT] = 20,
    seed: Annotated[int, ranges.SEED] = 1_000_000,
    engine: str = "auto",
    *,
    env_kwargs: dict[str, Any] | None = None,
    deterministic: bool = True,
    on_step: Callable[[], object] = lambda: None,
    info_metrics: InfoNames = None,
    first_index: int = 0,
    env_changes: Sequence[EnvChange] = (),
) -> Evaluation:
    """Play ``episodes`` episodes in parallel environments.

    Every environment contributes equally many episodes, up to one, counted from its start, so that
    short episodes are not favoured.

    Args:
        env, engine, env_kwargs: see ``headrace.envs.make_vec``; or the list of tasks of a run.
        episodes: number of episodes, of each of several tasks or of a game's agents. Agents that
            are rarely present have fewer, and absent ones none: no agent has more than 10 times
            as many.
        seed: seed of environments and sampled actions; differs from training by default.
        deterministic: play the most likely actions; False: sample actions.
        on_step: called before each step of the environments.
        env_changes: changes to apply to the environments before they are reset.
        first_index: index of the first environment, see
            :class:`~headrace.envs.context.EnvContext`.
        info_metrics: numbers in infos to collect, as in the setting of a run.

    Raises:
        ConfigError: the environment can't be made or its spaces differ from the policy's, or
            ``episodes`` is invalid.
        EnvironmentFault: the return of an episode is not finite.
    """
    if isinstance(env, list | tuple):
        shown = policy.network.task_id or policy.network.per_task_values
        env = Tasks(named_in(env), shown)
    env = resolve(env)
    if isinstance(env, Tasks):
        how: dict[str, Any] = {"env_kwargs": env_kwargs, "deterministic": deterministic}
        how |= {"episodes": episodes, "seed": seed, "engine": engine, "on_step": on_step}
        how |= {"info_metrics": info_metrics, "first_index": first_index}
        how["env_changes"] = env_changes
        env = joined_for(policy, env, engine, env_kwargs or {}, seed)
        names = zip(env.names, env.envs, strict=True)
        of_tasks = {name: evaluate(policy, one, **how) for name, one in names}
        scores = [one.human_normalized for one in of_tasks.values()]
        capped = [min(1.0, score) for score in scores if score is not None]
        mean = statistics.fmean(capped) if len(capped) == len(scores) else None
        evaluation = _together(of_tasks, deterministic=deterministic, tasks=of_tasks)
        return replace(evaluation, human_normalized=mean)
    num_envs = min(episodes, MAX_PARALLEL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(global_generators_kept())
        seed_global_generators(seed, "evaluation")
        context = EnvContext(first_index)
        engine, envs = opened(env, num_envs, engine, env_kwargs, seed, context=context)
        stack.enter_context(contextlib.closing(envs))
        for change in env_changes:
            apply(envs, change, env_name(env))
        policy = fitting(policy, envs, env_name(env))
        stack.enter_context(policy.frozen_weights())
        one = policy.alike if isinstance(policy, MultiPolicy) else policy
        threads = min(torch.get_num_threads(), num_cores())
        if type(one.torso) is Encoder and one.torso.is_dense:  # threads would be slower
            threads = 1
        stack.enter_context(torch_threads(threads))
        stack.enter_context(drawing(seed, deterministic))
        keep_torch_defaults_apart(envs)
        moments, agents = played(policy, envs, seed, deterministic), agents_of(envs)
        metrics = InfoMetrics(envs.num_envs, written(info_metrics), agents)
        each = whole_episodes(moments, num_envs, episodes, on_step, max(1, len(agents)), metrics)
    values = {n.removeprefix(PREFIX): x for n, x in means_of(metrics.take()).items()}
    if not all(np.isfinite(returns).all() for returns, _ in each):
        raise EnvironmentFault(f"{env_name(env)} returned an episode whose return is not finite")
    if agents:
        of_agents = {
            name: replace(
                Evaluation.of(*one), deterministic=deterministic, metrics=_of_agent(values, name)
            )
            for name, one in zip(agents, each, strict=True)
            if one[0]
        }
        extra: dict[str, Any] = {"deterministic": deterministic, "agents": of_agents}
        extra["metrics"] = {n: x for n, x in values.items() if not n.startswith("agents/")} or None
        if isinstance(policy, MultiPolicy):
            extra["policies"] = _by_policy(policy.mapping, of_agents)
        return _together(of_agents, **extra)
    evaluation, (target, wraps) = Evaluation.of(*each[0]), Prepared.split(env)
    normalized = human_normalized(target, engine, env_kwargs or {}, wraps, evaluation.mean)
    extra = {"deterministic": deterministic, "human_normalized": normalized}
    return replace(evaluation, **extra, metrics=values or None)


def whole_episodes(
    moments: Iterator[VectorStep],
    num_envs: int,
    episodes: int,
    on_step: Callable[[], object] = lambda: None,
    num_agents: int = 1,
    metrics: InfoMetrics | None = None,
) -> list[tuple[list[float], list[int]]]:
    """Return returns and lengths of each agent's episodes, in the order in which they end.

    An agent has fewer if another one of its environment ended ``_PATIENCE`` times as often.

    Args:
        moments: steps of ``num_envs`` environments, which contribute equally many episodes, up to
            one.
        on_step: called before each step.
        num_agents: agents (columns) per environment.
        metrics: receives the infos of the episodes that count.
    """
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    most, ended = _PATIENCE * quota, np.zeros((num_envs, num_agents), int)
    quota = quota.repeat(num_agents)
    episodes_by_agent: list[tuple[list[float], list[int]]] = [([], []) for _ in range(num_agents)]
    total, length = np.zeros(len(quota)), np.zeros(len(quota), int)
    for _, reward, begins, ends, infos in moments:
        on_step()
        total += np.where(begins, 0.0, reward)
        length += ~begins
        counted = ends & ~begins & (quota > 0)
        if metrics is not None and (infos or metrics.every_step):
            metrics.note(infos, begins, ends, counted)
        for column in np.flatnonzero(counted).tolist():
            returns, lengths = episodes_by_agent[column % num_agents]
            returns.append(float(total[column]))
            lengths.append(int(length[column]))
        quota -= counted
        ended += (ends & ~begins).reshape(ended.shape)
        quota.reshape(ended.shape)[ended.max(1) >= most] = 0
        total[ends], length[ends] = 0.0, 0
        if not quota.any():
            break
    return episodes_by_agent


def _together(each: dict[str, Evaluation], **overrides: Any) -> Evaluation:
    """Combine the episodes of all tasks or agents in one evaluation."""
    returns = [value for one in each.values() for value in one.returns]
    lengths = [value for one in each.values() for value in one.lengths]
    return replace(Evaluation.of(returns, lengths), **{"metrics": _mean_metrics(each), **overrides})


def _mean_metrics(each: dict[str, Evaluation]) -> dict[str, float] | None:
    """Average each metric over the tasks or agents that have it."""
    have: dict[str, list[float]] = {}
    for one in each.values():
        for name, value in (one.metrics or {}).items():
            have.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in have.items()} or None


def _of_agent(values: dict[str, float], agent: str) -> dict[str, float] | None:
    prefix = f"agents/{agent}/{PREFIX}"
    return {n.removeprefix(prefix): x for n, x in values.items() if n.startswith(prefix)} or None


def _by_policy(mapping: PolicyMapping, of_agents: dict[str, Evaluation]) -> dict[str, Evaluation]:
    """Combine the episodes of each policy's agents; policies without episodes are missing."""
    evaluations = {}
    for policy in mapping.policies:
        own = {agent: of_agents[agent] for agent in mapping.of(policy) if agent in of_agents}
        if own:
            deterministic = next(iter(own.values())).deterministic
            evaluations[policy] = _together(own, deterministic=deterministic)
    return evaluations


class VectorStep(NamedTuple):
    """Observations, rewards and episode boundaries of N environments; each ``[N, ...]``."""

    obs: Tree
    reward: np.ndarray
    begins: np.ndarray
    """True where an episode begins with this observation."""
    ends: np.ndarray
    """True where an episode ends with it, or where a beginning agent is absent."""
    infos: dict[str, Any] = {}  # noqa: RUF012
    """Vectorised as in Gymnasium."""


@contextlib.contextmanager
def drawing(seed: int, deterministic: bool) -> Iterator[None]:
    """Sample actions with ``seed`` inside the block, unless ``deterministic``."""
    with torch.random.fork_rng([], enabled=not deterministic):
        if not deterministic:
            torch.manual_seed(seed)
        yield


def played(
    policy: AnyPolicy, envs: VectorEnv, seed: int, deterministic: bool = True
) -> Iterator[VectorStep]:
    """Play endlessly: yield the reset, then each step."""
    if in_turns(envs):
        yield from _in_turns(policy, envs, seed, deterministic)
        return
    obs, infos = envs.reset(seed=seed)
    reward, state = np.zeros(envs.num_envs), None
    begins, ends = np.ones(envs.num_envs, bool), absent_in(infos, envs.num_envs)
    while True:
        yield VectorStep(obs, reward, begins, ends, infos)
        mask = evaluated_mask(policy.inputs, infos, envs.num_envs)
        extra_inputs = {"action_mask": mask, "reward": reward}
        action, state = policy.predict(obs, state, begins, deterministic, **extra_inputs)
        obs, reward, terminated, truncated, infos = envs.step(action)
        begins, ends = ends, terminated | truncated


def _in_turns(
    policy: AnyPolicy, envs: GameVector, seed: int, deterministic: bool
) -> Iterator[VectorStep]:
    """Play a turn-based game endlessly; waiting agents have neither a step nor a beginning."""
    obs, infos = envs.reset(seed=seed)
    count, everyone = envs.num_envs, np.arange(envs.num_envs)
    rows = everyone
    reward, begins, ends = np.zeros(count), np.ones(count, bool), absent_in(infos, count)
    _, whole = policy.predict(obs, None, begins, **_shown(policy, infos, reward, rows))
    whole = tree.map_leaves(lambda x: x.clone() if isinstance(x, torch.Tensor) else x.copy(), whole)
    while True:
        yield VectorStep(obs, reward, begins, ends, infos)
        mine, state = (tree.map_leaves(lambda x, rows=rows: x[rows], x) for x in (obs, whole))
        extra_inputs = _shown(policy, infos, reward, rows)
        action, state = policy.predict(mine, state, begins[rows], deterministic, **extra_inputs)
        tree.map_leaves(lambda to, x, rows=rows: to.__setitem__(rows, x), whole, state)
        envs.send(rows, action)
        rows = envs.receive()
        (obs, *_), infos = envs.results(everyone), envs.infos(rows)
        _, own, terminated, truncated = envs.results(rows)
        reward, begins = np.zeros(count), np.ones(count, bool)
        reward[rows], begins[rows] = own, ends[rows]
        ends = ends.copy()
        ends[rows] = terminated | truncated


def _shown(
    policy: AnyPolicy, infos: dict[str, Any], reward: np.ndarray, rows: np.ndarray
) -> dict[str, Any]:
    mask = evaluated_mask(policy.inputs, infos, len(reward))
    return {"action_mask": None if mask is None else mask[rows], "reward": reward[rows]}

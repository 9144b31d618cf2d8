"""Evaluates a policy on whole episodes."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from headrace.actors.episodes import (
    MAX_STEPS,
    TIMEOUT_S,
    Limits,
    PlayedEpisodes,
    drawing,
    played,
    whole_episodes,
)
from headrace.actors.task_adapter import fitting, joined_for
from headrace.envs.atari import human_normalized
from headrace.envs.changes import EnvChange, apply
from headrace.envs.context import EnvContext
from headrace.envs.info_metrics import PREFIX, InfoMetrics, InfoNames, means_of, written
from headrace.envs.make import opened
from headrace.envs.names import Prepared, Tasks, env_name, resolve
from headrace.envs.tasks import named_in
from headrace.errors import EnvironmentFault
from headrace.games.vector import agents_of
from headrace.nn.encoder import Encoder
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.processes import (
    global_generators_kept,
    keep_torch_defaults_apart,
    library_defaults,
    num_cores,
    seed_global_generators,
    torch_threads,
)
from headrace.processes.output import print_to_stderr
from headrace.validation import ranges
from headrace.validation.fields import checked

MAX_PARALLEL = 128  # environments per evaluation


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

    def __str__(self) -> str:
        return f"return {self.mean:.2f} ± {self.std:.2f} over {self.episodes} episodes"

    unfinished: int = 0
    """Number of episodes that did not end within the limits of steps and time. They count with
    their return so far."""
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


POLICY = ranges.Constraint("a policy, as hr.load(run_dir) returns", lambda x: True, whole=True)


@library_defaults()
@checked
def evaluate(
    policy: Annotated[AnyPolicy, POLICY],
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
    max_steps: Annotated[int, ranges.STEPS] = MAX_STEPS,
    timeout_s: Annotated[float, ranges.SECONDS] = TIMEOUT_S,
    notify: Callable[[str], None] = print_to_stderr,
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
        max_steps: limit of an episode's steps. Longer episodes count as unfinished.
        timeout_s: time limit in seconds, for each task. Episodes still running then count as
            unfinished.
        notify: called with a line of text about the progress of a long evaluation, and about
            unfinished episodes.

    Raises:
        ConfigError: the environment can't be made or its spaces differ from the policy's, or
            ``episodes`` is invalid.
        EnvironmentFault: the return of an episode is not finite, or no agent had a step in time.
    """
    limits = Limits(max_steps, timeout_s)
    settings = _Settings(
        episodes, seed, engine, env_kwargs or {}, deterministic, on_step, info_metrics,
        first_index, env_changes, limits, notify,
    )  # fmt: skip
    if isinstance(env, list | tuple):
        shown = policy.network.task_id or policy.network.per_task_values
        env = Tasks(named_in(env), shown)
    env = resolve(env)
    return (_of_tasks if isinstance(env, Tasks) else _of_one)(policy, env, settings)


class _Settings(NamedTuple):
    """Arguments of :func:`evaluate`."""

    episodes: int
    seed: int
    engine: str
    env_kwargs: dict[str, Any]
    deterministic: bool
    on_step: Callable[[], object]
    info_metrics: InfoNames
    first_index: int
    env_changes: Sequence[EnvChange]
    limits: Limits
    notify: Callable[[str], None]


def _of_tasks(policy: AnyPolicy, env: Tasks, settings: _Settings) -> Evaluation:
    """Evaluate on each task."""
    env = joined_for(policy, env, settings.engine, settings.env_kwargs, settings.seed)
    names = zip(env.names, env.envs, strict=True)
    of_tasks = {name: _of_one(policy, resolve(one), settings) for name, one in names}
    scores = [one.human_normalized for one in of_tasks.values()]
    capped = [min(1.0, score) for score in scores if score is not None]
    mean = statistics.fmean(capped) if len(capped) == len(scores) else None
    evaluation = _together(of_tasks, deterministic=settings.deterministic, tasks=of_tasks)
    return replace(evaluation, human_normalized=mean)


class _Played(NamedTuple):
    """Episodes of one environment."""

    episodes: PlayedEpisodes
    agents: Sequence[str]
    metrics: dict[str, float]
    engine: str  # the chosen one


def _of_one(policy: AnyPolicy, env: Any, settings: _Settings) -> Evaluation:
    """Evaluate on one environment."""
    played_episodes, agents, values, engine = _play(policy, env, settings)
    each, deterministic = played_episodes.agents, settings.deterministic
    if not all(np.isfinite(returns).all() for returns, _ in each):
        raise EnvironmentFault(f"{env_name(env)} returned an episode whose return is not finite")
    if not any(returns for returns, _ in each):
        limit = f"{settings.limits.timeout_s:g} s"
        raise EnvironmentFault(f"no agent of {env_name(env)} had a step within {limit}")
    unfinished = played_episodes.unfinished
    if agents:
        return replace(
            _of_agents(policy, agents, each, values, deterministic), unfinished=unfinished
        )
    evaluation, (target, wraps) = Evaluation.of(*each[0]), Prepared.split(env)
    normalized = human_normalized(target, engine, settings.env_kwargs, wraps, evaluation.mean)
    extra: dict[str, Any] = {"deterministic": deterministic, "human_normalized": normalized}
    return replace(evaluation, **extra, metrics=values or None, unfinished=unfinished)


def _play(policy: AnyPolicy, env: Any, settings: _Settings) -> _Played:
    """Play the episodes in new environments."""
    seed, deterministic = settings.seed, settings.deterministic
    num_envs = min(settings.episodes, MAX_PARALLEL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(global_generators_kept())
        seed_global_generators(seed, "evaluation")
        context = EnvContext(settings.first_index)
        engine, envs = opened(
            env, num_envs, settings.engine, settings.env_kwargs, seed, context=context
        )
        stack.enter_context(contextlib.closing(envs))
        for change in settings.env_changes:
            apply(envs, change, env_name(env))
        policy = fitting(policy, envs, env_name(env))
        stack.enter_context(policy.frozen_weights())
        stack.enter_context(torch_threads(_num_threads(policy)))
        stack.enter_context(drawing(seed, deterministic))
        keep_torch_defaults_apart(envs)
        moments, agents = played(policy, envs, seed, deterministic), agents_of(envs)
        metrics = InfoMetrics(envs.num_envs, written(settings.info_metrics), agents)
        counted = num_envs, settings.episodes, settings.on_step, max(1, len(agents)), metrics
        each = whole_episodes(moments, *counted, settings.limits, settings.notify)
    values = {n.removeprefix(PREFIX): x for n, x in means_of(metrics.take()).items()}
    return _Played(each, agents, values, engine)


def _num_threads(policy: AnyPolicy) -> int:
    """Return the number of threads for acting with a policy."""
    one = policy.alike if isinstance(policy, MultiPolicy) else policy
    if type(one.torso) is Encoder and one.torso.is_dense:  # threads would be slower
        return 1
    return min(torch.get_num_threads(), num_cores())


def _of_agents(
    policy: AnyPolicy,
    agents: Sequence[str],
    each: Sequence[tuple[list[float], list[int]]],
    values: dict[str, float],
    deterministic: bool,
) -> Evaluation:
    """Summarize the episodes of a game's agents; ``values`` are their metrics."""
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


def _together(each: dict[str, Evaluation], **overrides: Any) -> Evaluation:
    """Combine the episodes of all tasks or agents in one evaluation."""
    returns = [value for one in each.values() for value in one.returns]
    lengths = [value for one in each.values() for value in one.lengths]
    common: dict[str, Any] = {"metrics": _mean_metrics(each)}
    common |= {"unfinished": sum(one.unfinished for one in each.values())}
    return replace(Evaluation.of(returns, lengths), **{**common, **overrides})


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

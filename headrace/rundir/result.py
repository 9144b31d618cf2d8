"""Results that a run reports: one table of all metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headrace.errors import nearest
from headrace.rundir.episodes import Episodes
from headrace.rundir.per_task_metrics import PartResult, PolicyResult


def _each(parts: Mapping[str, Episodes]) -> dict[str, PartResult] | None:
    """Return part results by task or agent; None without any."""
    results = {
        name: PartResult(one.mean_return, one.mean_length, one.count, one.env_steps)
        for name, one in parts.items()
    }
    return results or None


@dataclass(frozen=True)
class Mean:
    """A source: the mean of values that a learner noted under the field's name."""

    by_rank: bool = False  # also gathered from each rank, for the lines of iterations


@dataclass(frozen=True)
class Greatest:
    """A source: the maximum over learners, an integer of 0 or more."""


@dataclass(frozen=True)
class Total:
    """A source: a count since the start, kept in the run's progress."""

    of: str


@dataclass(frozen=True)
class Ratio:
    """A source: a count since the last result, divided by another count.

    Both are names separated by spaces. Sums of seconds end in ``_s``, others are integers.
    """

    of: str
    over: str = "num_learners"  # a constant, not a sum
    unit: float = 1.0  # unit of ``of``
    empty: float | None = None  # value if ``over`` is 0
    others: bool = False  # None with a single learner


@dataclass(frozen=True)
class Latest:
    """A source: the latest training episodes of all learners."""

    of: Callable[[Episodes], Any]


def metric(file: str | None = None, source: Any = None) -> Any:
    """Define a field of :class:`Result`.

    Args:
        file: name in ``metrics.jsonl`` and TensorBoard; None: in neither.
        source: source of its value, one of the classes above; None: set by the caller.
    """
    return field(metadata={"file": file, "source": source})


_ELSEWHERE = {  # names of RLlib's results
    "episode_reward_mean": "episode_return",
    "episode_return_mean": "episode_return",
    "episode_reward_min": "episode_return_min",
    "episode_reward_max": "episode_return_max",
    "episode_len_mean": "episode_length",
    "timesteps_total": "env_steps",
    "num_env_steps_sampled_lifetime": "env_steps",
    "time_total_s": "seconds",
    "vf_loss": "value_loss",
    "vf_explained_var": "explained_variance",
}


@dataclass(frozen=True)
class Result(Mapping[str, Any]):
    """A report of a run's progress; fields are None until they have a value.

    It is also a read-only dict of its fields and of ``metrics``: ``result["env_steps"]`` is
    ``result.env_steps``, and ``result["env/success"]`` is ``result.metrics["env/success"]``.

    Returns and lengths are over the last 100 training episodes, losses over the updates since the
    previous result. This is the table of all metrics, which determines the learners' counts, the
    metrics all-reduce and the files. Metrics of built-in losses need a line here; those without a
    line, such as from custom losses, are in ``metrics``.
    """

    env_steps: int = metric(None, Total("env_steps"))
    frames: int | None = metric("charts/frames")  # None: a step is one frame
    seconds: float = metric()
    """Seconds of training up to the latest update, without start-up and without evaluations that
    training waited for. A resumed run continues the count."""
    episode_return: float | None = metric("charts/episodic_return", Latest(lambda e: e.mean_return))
    episode_return_min: float | None = metric(None, Latest(lambda e: min(e.windows, default=None)))
    episode_return_max: float | None = metric(None, Latest(lambda e: max(e.windows, default=None)))
    episode_length: float | None = metric("charts/episodic_length", Latest(lambda e: e.mean_length))
    episodes: int = metric("charts/episodes", Latest(lambda e: e.count))  # since the start
    tasks: Mapping[str, PartResult] | None = metric(None, Latest(lambda e: _each(e.by_task)))
    """Results of each of several tasks by name; in files ``tasks/<name>/…``."""
    agents: Mapping[str, PartResult] | None = metric(None, Latest(lambda e: _each(e.by_agent)))
    """Results of each agent of a game by name; in files ``agents/<name>/…``."""
    policies: Mapping[str, PolicyResult] | None = metric()
    """Results of each of several policies by name; in files ``policies/<name>/…``."""
    sps: float = metric("charts/SPS")  # environment steps per second since the previous result
    learning_rate: float = metric("charts/learning_rate")
    updates: int = metric("charts/updates")
    policy_loss: float | None = metric("losses/policy_loss", Mean())
    value_loss: float | None = metric("losses/value_loss", Mean(by_rank=True))
    entropy: float | None = metric("losses/entropy", Mean(by_rank=True))
    approx_kl: float | None = metric("losses/approx_kl", Mean(by_rank=True))
    """KL(behaviour || current)."""
    target_kl: float | None = metric("losses/target_kl", Mean())  # KL(target || current) in IMPACT
    clipfrac: float | None = metric("losses/clipfrac", Mean(by_rank=True))
    explained_variance: float | None = metric("losses/explained_variance", Mean())
    grad_norm: float | None = metric("losses/grad_norm", Mean())
    mean_size: float | None = metric("losses/mean_size", Mean())
    """Mean distance of continuous actions' means from the middle of their bounds, relative to the
    bounds: 1 is at a bound."""
    lag_mean: float | None = metric("lag/mean", Ratio("lag_sum", "num_lags"))
    """Policy lag in updates between acting and training, at each optimiser step."""
    lag_max: int | None = metric("lag/max", Greatest())
    lag_steps: float | None = metric("lag/steps", Ratio("lag_steps_sum", "num_lags"))
    """Policy lag in optimiser steps, including those of the update itself."""
    lag_steps_max: int | None = metric("lag/steps_max", Greatest())
    dropped: int = metric("lag/dropped", Total("dropped"))  # rollouts, since the start
    restarts: int = metric()  # actor restarts since the start
    lost: int = metric("queue/lost", Total("lost"))  # unfinished rollouts of dead actors, likewise
    time_wait: float = metric("time/wait", Ratio("wait_s"))
    """Mean seconds of a learner since the previous result: waiting for rollouts."""
    time_learn: float = metric("time/learn", Ratio("learn_s"))  # computing
    time_publish: float = metric("time/publish", Ratio("publish_s"))  # publishing weights
    time_comm: float | None = metric("time/comm", Ratio("comm_s", others=True))
    """All-reduce with the other learners, after all have arrived."""
    time_sync: float | None = metric("time/sync", Ratio("sync_s", others=True))
    """Waiting for the other learners."""
    eval_return: float | None = metric("eval/episodic_return")
    """Mean of the latest evaluation during training."""
    utilisation_learner: float = metric(
        "utilisation/learner",
        Ratio("learn_s publish_s comm_s", "wait_s sync_s learn_s publish_s comm_s", empty=0.0),
    )
    """Share of time in which the learner waited neither for rollouts nor for other learners."""
    utilisation_actor: float | None = metric(
        "utilisation/actor", Ratio("acting_ns", "acting_ns waiting_ns")
    )
    """Acting / (acting + waiting for slots)."""
    utilisation_environment: float | None = metric(
        "utilisation/environment", Ratio("stepping_ns", "acting_ns")
    )
    """Share of acting spent on stepping or waiting for environments."""
    memory_learner: int | None = metric("memory/learner_bytes")
    """Resident memory of the first learner's process; None if the system doesn't report it."""
    memory_free: int | None = metric("memory/free_bytes")  # free for processes there
    cores_own: float | None = metric("cores/own")
    """Mean number of cores in use by the run since the previous measurement, which is at least one
    second ago. Only cores that the run may use count. None with several learners or a cluster, or
    if the system doesn't report it."""
    cores_other: float | None = metric("cores/other")  # in use by other programs
    cores_idle: float | None = metric("cores/idle")
    cores_learner: float | None = metric("cores/learner")  # used by the learner process
    queue_depth: float | None = metric("queue/depth", Mean())
    """Rollouts still waiting after the learner has taken its batch."""
    sync_pulls: int = metric("sync/pulls", Total("pulls"))
    """Number of times that actors pulled weights, since the start."""
    sync_bytes: int = metric("sync/bytes")  # bytes pulled
    sync_divergence: float | None = metric(
        "sync/divergence", Ratio("divergence_nano", "num_measured", unit=1e-9)
    )
    """Mean KL(behaviour || learner) reported to actors, in nats."""
    league_win_rate: float | None = metric("league/win_rate")
    """Win rate against the run's newest snapshot; None before a game against it."""
    league_least_win_rate: float | None = metric("league/least_win_rate")
    """Least win rate among snapshots with at least 100 games."""
    league_snapshots: int | None = metric("league/snapshots")  # of all runs in the league

    metrics: Mapping[str, float] = field(
        default_factory=dict, metadata={"file": None, "source": None}
    )
    """Metrics from infos (``env/…``), evaluations (``eval/…``), callbacks (``custom/…``) and
    custom losses (``losses/…``).

    Metrics from infos are means over the episodes that ended since the previous result.
    """

    def __getitem__(self, name: str) -> Any:
        if name in type(self).__dataclass_fields__:
            return getattr(self, name)
        if name in self.metrics:
            return self.metrics[name]
        use = _ELSEWHERE.get(name)
        hint = f" {name} is RLlib's name; use {use!r}." if use else nearest(str(name), self)
        raise KeyError(f"a result has no {name!r}.{hint}")

    def __iter__(self) -> Iterator[str]:
        yield from type(self).__dataclass_fields__
        yield from self.metrics

    def __len__(self) -> int:
        return len(type(self).__dataclass_fields__) + len(self.metrics)

    def scalars(self) -> dict[str, float]:
        """Return the metrics under their names in files; absent while None."""
        values = {f.metadata["file"]: getattr(self, f.name) for f in fields(self)}
        of_parts = {
            f"{kind}/{part}/{name}": value
            for kind in ("tasks", "agents", "policies")
            for part, one in (getattr(self, kind) or {}).items()
            for name, value in one.scalars().items()
        }
        scalars = {k: float(v) for k, v in values.items() if k is not None and v is not None}
        return scalars | of_parts | dict(self.metrics)

"""What a run reports: one table of fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headrace.rundir.episodes import Episodes
from headrace.rundir.per_task_metrics import PartResult, PolicyResult


def _each(parts: Mapping[str, Episodes]) -> dict[str, PartResult] | None:
    """By the names of tasks, or agents."""
    found = {
        name: PartResult(one.mean_return, one.mean_length, one.count, one.env_steps)
        for name, one in parts.items()
    }
    return found or None


@dataclass(frozen=True)
class Mean:
    """A source: the mean of what a learner noted under the field's name."""

    by_rank: bool = False  # learners tell each other their own, for the lines of iterations


@dataclass(frozen=True)
class Greatest:
    """A source: the greatest that any learner counted, a whole number of 0 or more."""


@dataclass(frozen=True)
class Total:
    """A source: what learners counted since the start, which the run's progress keeps."""

    of: str


@dataclass(frozen=True)
class Ratio:
    """A source: what learners counted since the last result, over something else they counted.

    Both are names separated by blanks; a sum of seconds ends in ``_s``, others are whole numbers.
    """

    of: str
    over: str = "num_learners"  # which is no sum
    unit: float = 1.0  # of what ``of`` names
    empty: float | None = None  # what it is if ``over`` is 0
    others: bool = False  # it is None where there are no other learners


@dataclass(frozen=True)
class Latest:
    """A source: the latest training episodes of all learners."""

    of: Callable[[Episodes], Any]


def metric(file: str | None = None, source: Any = None) -> Any:
    """A field of :class:`Result`.

    Args:
        file: its name in ``metrics.jsonl`` and TensorBoard; None: it is in neither.
        source: of its value, one of the classes above; None: whoever makes the result knows it.
    """
    return field(metadata={"file": file, "source": source})


@dataclass(frozen=True)
class Result:
    """One report of a run; a field is None until it has a value.

    Returns and lengths are over the last 100 training episodes, losses over the updates since the
    previous result. This is the table of all metrics: what learners count and tell each other, and
    what is written, follow from it. The metric of a built-in loss needs a line here; one without
    a line, as custom losses report, is in ``metrics``.
    """

    env_steps: int = metric(None, Total("env_steps"))
    frames: int | None = metric("charts/frames")  # that these were; None: a step is one frame
    seconds: float = metric()  # since the trainer was built
    episode_return: float | None = metric("charts/episodic_return", Latest(lambda e: e.mean_return))
    episode_return_min: float | None = metric(None, Latest(lambda e: min(e.windows, default=None)))
    episode_return_max: float | None = metric(None, Latest(lambda e: max(e.windows, default=None)))
    episode_length: float | None = metric("charts/episodic_length", Latest(lambda e: e.mean_length))
    episodes: int = metric("charts/episodes", Latest(lambda e: e.count))  # since the start
    tasks: Mapping[str, PartResult] | None = metric(None, Latest(lambda e: _each(e.by_task)))
    """Of each task by its name, where there are several; in files ``tasks/<name>/…``."""
    agents: Mapping[str, PartResult] | None = metric(None, Latest(lambda e: _each(e.by_agent)))
    """Of each agent of a game by its name; in files ``agents/<name>/…``."""
    policies: Mapping[str, PolicyResult] | None = metric()
    """Of each policy by its name, where there are several; in files ``policies/<name>/…``."""
    sps: float = metric("charts/SPS")  # environment steps per second since the previous result
    learning_rate: float = metric("charts/learning_rate")
    updates: int = metric("charts/updates")
    policy_loss: float | None = metric("losses/policy_loss", Mean())
    value_loss: float | None = metric("losses/value_loss", Mean(by_rank=True))
    entropy: float | None = metric("losses/entropy", Mean(by_rank=True))
    approx_kl: float | None = metric("losses/approx_kl", Mean(by_rank=True))
    """KL(behaviour || current)."""
    target_kl: float | None = metric("losses/target_kl", Mean())  # KL(target || current), of IMPACT
    clipfrac: float | None = metric("losses/clipfrac", Mean(by_rank=True))
    explained_variance: float | None = metric("losses/explained_variance", Mean())
    grad_norm: float | None = metric("losses/grad_norm", Mean())
    lag_mean: float | None = metric("lag/mean", Ratio("lag_sum", "num_lags"))
    """Updates between acting and learning, at each optimiser step that learns from it."""
    lag_max: int | None = metric("lag/max", Greatest())
    lag_steps: float | None = metric("lag/steps", Ratio("lag_steps_sum", "num_lags"))
    """The same in optimiser steps, those of the update itself included."""
    lag_steps_max: int | None = metric("lag/steps_max", Greatest())
    dropped: int = metric("lag/dropped", Total("dropped"))  # rollouts, since the start
    restarts: int = metric()  # of actors, since the start
    lost: int = metric("queue/lost", Total("lost"))  # rollouts that dead actors had begun, likewise
    time_wait: float = metric("time/wait", Ratio("wait_s"))
    """Mean seconds of a learner since the previous result: waiting for rollouts."""
    time_learn: float = metric("time/learn", Ratio("learn_s"))  # computing
    time_publish: float = metric("time/publish", Ratio("publish_s"))  # publishing weights
    time_comm: float | None = metric("time/comm", Ratio("comm_s", others=True))
    """Exchanging with the other learners, when all were there."""
    time_sync: float | None = metric("time/sync", Ratio("sync_s", others=True))
    """Waiting for the others."""
    eval_return: float | None = metric("eval/episodic_return")
    """Mean of the latest evaluation during training."""
    utilisation_learner: float = metric(
        "utilisation/learner",
        Ratio("learn_s publish_s comm_s", "wait_s sync_s learn_s publish_s comm_s", empty=0.0),
    )
    """Share of its time in which it waited neither for rollouts nor for others."""
    utilisation_actor: float | None = metric(
        "utilisation/actor", Ratio("acting_ns", "acting_ns waiting_ns")
    )
    """Acting / (acting + waiting for slots)."""
    utilisation_environment: float | None = metric(
        "utilisation/environment", Ratio("stepping_ns", "acting_ns")
    )
    """Share of acting in which environments were stepped or waited for."""
    memory_learner: int | None = metric("memory/learner_bytes")
    """Of the first learner's process, in main memory; None where the system doesn't say."""
    memory_free: int | None = metric("memory/free_bytes")  # that processes there may still take
    queue_depth: float | None = metric("queue/depth", Mean())
    """Rollouts left waiting when the learner had taken its batch."""
    sync_pulls: int = metric("sync/pulls", Total("pulls"))
    """Times that actors copied weights before a rollout, since the start."""
    sync_bytes: int = metric("sync/bytes")  # that they copied
    sync_divergence: float | None = metric(
        "sync/divergence", Ratio("divergence_nano", "num_measured", unit=1e-9)
    )
    """Mean KL(behaviour || learner) that actors were told, nats."""
    league_win_rate: float | None = metric("league/win_rate")
    """Of a run with opponents, against its newest snapshot; None before a game against it."""
    league_least_win_rate: float | None = metric("league/least_win_rate")
    """The least of those against snapshots that it has played 100 games against."""
    league_snapshots: int | None = metric("league/snapshots")  # in the league, other runs' too

    metrics: Mapping[str, float] = field(
        default_factory=dict, metadata={"file": None, "source": None}
    )
    """Metrics from infos (``env/…``), evaluations (``eval/…``), callbacks (``custom/…``) and
    custom losses (``losses/…``).

    Metrics from infos are means over the episodes that ended since the previous result.
    """

    def scalars(self) -> dict[str, float]:
        """The metrics under the names that they have in files; absent while None."""
        values = {f.metadata["file"]: getattr(self, f.name) for f in fields(self)}
        of_parts = {
            f"{kind}/{part}/{name}": value
            for kind in ("tasks", "agents", "policies")
            for part, one in (getattr(self, kind) or {}).items()
            for name, value in one.scalars().items()
        }
        known = {k: float(v) for k, v in values.items() if k is not None and v is not None}
        return known | of_parts | dict(self.metrics)

"""What a run reports: results with named fields, running sums between them, and files."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.transport.queue import Header

EPISODE_WINDOW = 100
LOSSES = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "explained_variance",
    "target_kl", "grad_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One report of a run; a field is None until it has a value.

    Returns and lengths are over the last 100 training episodes, losses over the updates since the
    previous result.
    """

    env_steps: int
    updates: int
    seconds: float  # since the trainer was built
    sps: float  # environment steps per second since the previous result
    episode_return: float | None
    episode_return_min: float | None
    episode_return_max: float | None
    episode_length: float | None
    episodes: int
    policy_loss: float | None
    value_loss: float | None
    entropy: float | None
    approx_kl: float | None  # KL(behaviour || current)
    target_kl: float | None  # KL(target || current), of IMPACT
    clipfrac: float | None
    explained_variance: float | None
    grad_norm: float | None
    learning_rate: float
    lag_mean: float | None  # updates between acting and learning
    lag_max: int | None
    dropped: int  # rollouts, since the start
    restarts: int  # of actors, since the start
    time_wait: float  # seconds of the learner since the previous result: waiting for rollouts
    time_learn: float  # computing
    time_sync: float  # publishing weights
    utilisation_learner: float  # 1 - waiting / total
    utilisation_actor: float | None  # acting / (acting + waiting for slots)
    queue_depth: float | None  # rollouts left waiting when the learner had taken its batch

    def scalars(self) -> dict[str, float]:
        """The metrics under the names that they have in files; absent while None."""
        names = {
            "charts/episodic_return": self.episode_return,
            "charts/episodic_length": self.episode_length,
            "charts/SPS": self.sps,
            "charts/learning_rate": self.learning_rate,
            "charts/updates": self.updates,
            "losses/policy_loss": self.policy_loss,
            "losses/value_loss": self.value_loss,
            "losses/entropy": self.entropy,
            "losses/approx_kl": self.approx_kl,
            "losses/target_kl": self.target_kl,
            "losses/clipfrac": self.clipfrac,
            "losses/explained_variance": self.explained_variance,
            "losses/grad_norm": self.grad_norm,
            "lag/mean": self.lag_mean,
            "lag/max": self.lag_max,
            "lag/dropped": self.dropped,
            "time/wait": self.time_wait,
            "time/learn": self.time_learn,
            "time/sync": self.time_sync,
            "utilisation/learner": self.utilisation_learner,
            "utilisation/actor": self.utilisation_actor,
            "queue/depth": self.queue_depth,
        }
        return {name: float(value) for name, value in names.items() if value is not None}


@dataclass
class Episodes:
    """Returns and lengths of the last episodes of training."""

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=EPISODE_WINDOW))
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=EPISODE_WINDOW))
    count: int = 0

    def add(self, episode_return: np.ndarray, episode_length: np.ndarray) -> None:
        """Take the episodes of one rollout: ``[T, B]``, NaN where none ends."""
        ends = ~np.isnan(episode_return)
        self.returns.extend(episode_return[ends].tolist())
        self.lengths.extend(episode_length[ends].tolist())
        self.count += int(ends.sum())

    @property
    def mean_return(self) -> float | None:
        """Mean over the window, None before the first episode."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def full(self) -> bool:
        """Whether the window holds 100 episodes."""
        return len(self.returns) == EPISODE_WINDOW


class Meter:
    """Sums over some updates: one, those between two results, or the whole run."""

    def __init__(self) -> None:
        self.wait_s = self.learn_s = self.sync_s = 0.0
        self.acting_ns = self.waiting_ns = 0
        self.num_rollouts = self.lag_sum = self.env_steps = 0
        self.lag_max: int | None = None
        self.depths: list[int] = []
        self.losses: list[dict[str, float]] = []

    def rollout(self, header: Header, lag: int) -> None:
        """Note a rollout that is trained on."""
        self.acting_ns += header.acting_ns
        self.waiting_ns += header.waiting_ns
        self.env_steps += header.valid_steps
        self.num_rollouts += 1
        self.lag_sum += lag
        self.lag_max = lag if self.lag_max is None else max(lag, self.lag_max)

    def add(self, other: Meter) -> None:
        """Add another meter's sums to this one's."""
        self.wait_s += other.wait_s
        self.learn_s += other.learn_s
        self.sync_s += other.sync_s
        self.acting_ns += other.acting_ns
        self.waiting_ns += other.waiting_ns
        self.env_steps += other.env_steps
        self.num_rollouts += other.num_rollouts
        self.lag_sum += other.lag_sum
        known = [lag for lag in (self.lag_max, other.lag_max) if lag is not None]
        self.lag_max = max(known, default=None)
        self.depths = (self.depths + other.depths)[-1000:]
        self.losses = (self.losses + other.losses)[-1000:]

    def loss(self, name: str) -> float | None:
        """Mean of a loss over the updates that have it."""
        values = [losses[name] for losses in self.losses if name in losses]
        return sum(values) / len(values) if values else None

    @property
    def lag_mean(self) -> float | None:
        """Mean over rollouts of the updates between acting and learning."""
        return self.lag_sum / self.num_rollouts if self.num_rollouts else None

    @property
    def utilisation_actor(self) -> float | None:
        """Share of their time in which actors acted."""
        total = self.acting_ns + self.waiting_ns
        return self.acting_ns / total if total else None

    @property
    def utilisation_learner(self) -> float:
        """Share of its time in which the learner did not wait for rollouts."""
        total = self.wait_s + self.learn_s + self.sync_s
        return 1.0 - self.wait_s / total if total else 0.0

    def result(self, episodes: Episodes, **known: Any) -> Result:
        """The :class:`Result` of these sums; ``known`` are the fields that a meter can't know."""
        returns, lengths = episodes.returns, episodes.lengths
        losses: dict[str, Any] = {name: self.loss(name) for name in LOSSES}
        return Result(
            episode_return=episodes.mean_return,
            episode_return_min=min(returns, default=None),
            episode_return_max=max(returns, default=None),
            episode_length=sum(lengths) / len(lengths) if lengths else None,
            episodes=episodes.count,
            lag_mean=self.lag_mean,
            lag_max=self.lag_max,
            time_wait=self.wait_s,
            time_learn=self.learn_s,
            time_sync=self.sync_s,
            utilisation_learner=self.utilisation_learner,
            utilisation_actor=self.utilisation_actor,
            queue_depth=sum(self.depths) / len(self.depths) if self.depths else None,
            **losses,
            **known,
        )


class Writer:
    """``metrics.jsonl`` and TensorBoard events in a run directory.

    Args:
        path: the run directory. keep_until: when resuming, drop lines beyond these env_steps.
    """

    def __init__(self, path: Path, keep_until: int | None = None) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        file = path / "metrics.jsonl"
        if keep_until is not None and file.exists():
            lines = [line for line in read_jsonl(file) if line["env_steps"] <= keep_until]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._file = file.open("a", encoding="utf-8")
        self._events = EventFileWriter(str(path))

    def write(self, result: Result) -> None:
        """Append one result."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = result.scalars()
        line: dict[str, Any] = {"env_steps": result.env_steps, "seconds": round(result.seconds, 4)}
        self._file.write(json.dumps(line | scalars) + "\n")
        self._file.flush()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        event = Event(wall_time=time.time(), step=result.env_steps, summary=Summary(value=values))
        self._events.add_event(event)

    def close(self) -> None:
        """Flush and close both files."""
        self._file.close()
        self._events.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a last line cut short by a crash is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines

"""What a run reports: results with named fields, running sums between them, and files."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.transport.queue import Header, nano
from headrace.types import LOSSES

EPISODE_WINDOW = 100


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
    time_wait: float  # seconds of a learner since the previous result: waiting for rollouts
    time_learn: float  # computing
    time_publish: float  # publishing weights
    time_comm: float | None  # exchanging with the other learners, when all were there
    time_sync: float | None  # waiting for the others
    eval_return: float | None  # mean of the latest evaluation during training
    utilisation_learner: float  # 1 - waiting / total
    utilisation_actor: float | None  # acting / (acting + waiting for slots)
    queue_depth: float | None  # rollouts left waiting when the learner had taken its batch
    sync_pulls: int  # times that actors copied weights before a rollout, since the start
    sync_bytes: int  # that they copied
    sync_divergence: float | None  # mean KL(behaviour || learner) that actors were told, nats

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
            "time/publish": self.time_publish,
            "time/comm": self.time_comm,
            "time/sync": self.time_sync,
            "eval/episodic_return": self.eval_return,
            "utilisation/learner": self.utilisation_learner,
            "utilisation/actor": self.utilisation_actor,
            "queue/depth": self.queue_depth,
            "sync/pulls": self.sync_pulls,
            "sync/bytes": self.sync_bytes,
            "sync/divergence": self.sync_divergence,
        }
        return {name: float(value) for name, value in names.items() if value is not None}


@dataclass
class Episodes:
    """Returns and lengths of the last episodes of training.

    Args:
        window: how many.
    """

    window: int = EPISODE_WINDOW
    count: int = 0

    def __post_init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=self.window)
        self.lengths: deque[float] = deque(maxlen=self.window)

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

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "count": self.count,
        }

    def load_share(self, saved: list[dict[str, Any]], rank: int, size: int) -> None:
        """Take what one of ``size`` learners has of the episodes that each learner saved."""
        if size == len(saved):
            saved, rank, size = [saved[rank]], 0, 1
        for name in ("returns", "lengths"):
            everyone = [value for one in saved for value in one[name]]
            getattr(self, name).extend(everyone[rank::size])
        self.count = sum(one["count"] for one in saved) if rank == 0 else 0

    @property
    def full(self) -> bool:
        """Whether the window holds as many episodes as it can."""
        return len(self.returns) == self.window


class Meter:
    """Sums over some updates: one, those between two results, or the whole run."""

    SUMS = (
        "wait_s", "learn_s", "publish_s", "comm_s", "sync_s", "acting_ns", "waiting_ns",
        "num_rollouts", "lag_sum", "env_steps", "dropped", "pulls", "num_measured",
        "divergence_nano",
    )  # fmt: skip

    def __init__(self) -> None:
        self.wait_s = self.learn_s = self.publish_s = self.comm_s = self.sync_s = 0.0
        self.acting_ns = self.waiting_ns = self.dropped = 0
        self.num_rollouts = self.lag_sum = self.env_steps = 0
        self.pulls = self.num_measured = self.divergence_nano = 0
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

    def divergence(self, nats: float) -> None:
        """Note what an actor is told of a rollout."""
        self.divergence_nano += nano(nats)
        self.num_measured += 1

    def add(self, other: Meter) -> None:
        """Add another meter's sums to this one's."""
        for name in Meter.SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        known = [lag for lag in (self.lag_max, other.lag_max) if lag is not None]
        self.lag_max = max(known, default=None)
        self.depths = (self.depths + other.depths)[-1000:]
        self.losses = (self.losses + other.losses)[-1000:]

    def numbers(self) -> list[float]:
        """The sums and the greatest lag (-1: none), which other learners are told."""
        return [
            *(getattr(self, k) for k in Meter.SUMS),
            -1 if self.lag_max is None else self.lag_max,
        ]

    def add_numbers(self, numbers: list[float]) -> None:
        """Add what another learner's :meth:`numbers` returned."""
        other = Meter()
        *sums, lag_max = numbers
        for name, value in zip(Meter.SUMS, sums, strict=True):
            setattr(other, name, value if name.endswith("_s") else int(value))
        other.lag_max = None if lag_max < 0 else int(lag_max)
        self.add(other)

    def loss(self, name: str) -> float | None:
        """Mean of a loss over the updates that have it."""
        values = [losses[name] for losses in self.losses if name in losses]
        return sum(values) / len(values) if values else None

    @property
    def lag_mean(self) -> float | None:
        """Mean over rollouts of the updates between acting and learning."""
        return self.lag_sum / self.num_rollouts if self.num_rollouts else None

    @property
    def divergence_mean(self) -> float | None:
        """Mean over the rollouts that were measured, nats."""
        return 1e-9 * self.divergence_nano / self.num_measured if self.num_measured else None

    @property
    def utilisation_actor(self) -> float | None:
        """Share of their time in which actors acted."""
        total = self.acting_ns + self.waiting_ns
        return self.acting_ns / total if total else None

    @property
    def utilisation_learner(self) -> float:
        """Share of its time in which the learner waited neither for rollouts nor for others."""
        idle = self.wait_s + self.sync_s
        total = idle + self.learn_s + self.publish_s + self.comm_s
        return 1.0 - idle / total if total else 0.0

    def times(self, num_learners: int = 1) -> dict[str, float | None]:
        """Mean seconds of a learner, by what it did; None where there are no others."""
        several = num_learners > 1
        return {
            "wait": self.wait_s / num_learners,
            "learn": self.learn_s / num_learners,
            "publish": self.publish_s / num_learners,
            "comm": self.comm_s / num_learners if several else None,
            "sync": self.sync_s / num_learners if several else None,
        }

    def result(self, episodes: Episodes, num_learners: int, **known: Any) -> Result:
        """The :class:`Result` of these sums; ``known`` are the fields that a meter can't know."""
        returns, lengths = episodes.returns, episodes.lengths
        losses: dict[str, Any] = {name: self.loss(name) for name in LOSSES}
        times: dict[str, Any] = {f"time_{k}": v for k, v in self.times(num_learners).items()}
        return Result(
            episode_return=episodes.mean_return,
            episode_return_min=min(returns, default=None),
            episode_return_max=max(returns, default=None),
            episode_length=sum(lengths) / len(lengths) if lengths else None,
            episodes=episodes.count,
            lag_mean=self.lag_mean,
            lag_max=self.lag_max,
            utilisation_learner=self.utilisation_learner,
            utilisation_actor=self.utilisation_actor,
            queue_depth=sum(self.depths) / len(self.depths) if self.depths else None,
            sync_divergence=self.divergence_mean,
            **times,
            **losses,
            **known,
        )


class Writer:
    """``metrics.jsonl`` and TensorBoard events in a run directory.

    Args:
        path: the run directory.
        keep_until: when resuming, drop lines beyond these env_steps and updates.
    """

    def __init__(self, path: Path, keep_until: tuple[int, int] | None = None) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        file = path / "metrics.jsonl"
        if keep_until is not None:
            truncate_jsonl(file, *keep_until)
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


def truncate_jsonl(path: Path, env_steps: int, updates: int) -> None:
    """Drop the lines of a JSON-lines file, if there is one, that are beyond these counts.

    Both are needed: an update without new data, which IMPACT has, takes no env_steps.
    """

    def kept(line: dict[str, Any]) -> bool:
        update = line.get("update", line.get("charts/updates", 0))
        return bool(line["env_steps"] <= env_steps and update <= updates)

    if path.exists():
        lines = [line for line in read_jsonl(path) if kept(line)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

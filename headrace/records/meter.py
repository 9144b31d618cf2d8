"""Running sums between two results."""

from __future__ import annotations

from typing import Any

from headrace.records.result import Episodes, Result
from headrace.transport.queue import Header, nano
from headrace.types import LOSSES


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

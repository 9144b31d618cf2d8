"""What a run reports: results with named fields, and the episodes behind them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

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

"""What a learner takes in: rollouts of its actors, side by side in its own memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.acting.source import RolloutSource
from headrace.acting.weight_sync import divergence
from headrace.config import Config
from headrace.learning.hogwild import own_metrics
from headrace.records.meter import Meter
from headrace.records.result import Episodes
from headrace.types import Batch, Rollout, gather


class Intake:
    """Takes batches from a source; what is too old is dropped and counted.

    Args:
        config: of one learner.
        source: of its rollouts.
        episodes: get those that end.
        device: of the batches.
    """

    def __init__(
        self,
        config: Config,
        source: RolloutSource,
        episodes: Episodes,
        device: torch.device | str,
    ) -> None:
        self._config, self._source = config, source
        self._episodes, self._device = episodes, device
        self.taken: list[int] = []  # slots of the latest batch

    def fresh(self, meter: Meter, updates: int, stopped: Callable[[], bool]) -> Batch:
        """The next batch in learner-owned memory.

        Args:
            meter: gets what is taken. updates: so far, which lags are counted from.

        Raises:
            ActorFailed, Stopped: as :meth:`RolloutSource.take`.
        """
        self.release()  # an update that needs several batches has copied the earlier ones
        wanted, oldest = self._config.rollouts_per_update, self._config.max_policy_lag
        kept: list[Rollout] = []
        while len(kept) < wanted:
            for slot, header, rollout in self._source.take(wanted - len(kept), stopped):
                self._episodes.add(rollout.episode_return.numpy(), rollout.episode_length.numpy())
                meter.pulls += header.pulled
                lag = header.lag if header.lag >= 0 else updates - header.version
                if oldest is not None and lag > oldest:
                    meter.dropped += 1
                    self._source.release([slot])
                    continue
                self.taken.append(slot)
                kept.append(rollout)
                meter.rollout(header, lag)
                for metrics in own_metrics(rollout):
                    meter.note(**metrics)
        meter.note(queue_depth=self._source.depth)
        return gather(kept, self._device)

    def note_drift(self, meter: Meter, batch: Batch, log_ratio: Tensor) -> None:
        """Tell the latest batch's actors how far the learner's policy is from what they did.

        Args:
            meter: gets the divergence of each rollout, the mean over its valid steps.
            log_ratio: log pi - log mu ``[T, B]`` of the batch.
        """
        width = self._config.envs_per_actor
        each = (x.cpu().split(width, dim=1) for x in (log_ratio, batch.valid))
        for slot, part, valid in zip(self.taken, *each, strict=True):
            known = part[valid]
            if len(known) and not known.isnan().any():
                nats = divergence(known)
                self._source.note(slot, nats)
                meter.divergence(nats)

    def release(self) -> None:
        """Give the latest batch's slots back to their actors."""
        self._source.release(self.taken)
        self.taken = []

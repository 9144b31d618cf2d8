"""The next batch is put together while the present one is learnt from, where there is a GPU.

Without one the copy would take a core from those who compute, so there it is made when it is asked
for.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from headrace.learner.batches import gather
from headrace.ops import tree
from headrace.types import Batch, Rollout


class BatchPrefetcher:
    """Gathers rollouts into batches, one of them before it is asked for.

    Args:
        device: of the batches.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1, "headrace-ahead")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._begun: tuple[list[Rollout], Future[Batch]] | None = None

    def begin(self, rollouts: list[Rollout]) -> None:
        """Gather these in a thread; their slots stay taken until the batch was asked for."""
        self._begun = rollouts, self._pool.submit(self._gather, rollouts)

    def __call__(self, rollouts: list[Rollout]) -> Batch:
        """The batch of these rollouts, which was begun, or else is gathered now."""
        begun, self._begun = self._begun, None
        if begun is not None:
            batch = begun[1].result()
            if len(rollouts) == len(begun[0]) and all(map(lambda a, b: a is b, rollouts, begun[0])):
                return self._arrived(batch)
        return gather(rollouts, self._device)

    def _gather(self, rollouts: list[Rollout]) -> Batch:
        on = contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with on:  # so that kernels of the update don't wait for the copy, nor it for them
            return gather(rollouts, self._device)

    def _arrived(self, batch: Batch) -> Batch:
        if self._stream is not None:
            now = torch.cuda.current_stream(self._device)
            now.wait_stream(self._stream)
            for leaf in tree.leaves(vars(batch)):
                leaf.record_stream(now)  # whose memory is not reused before that is done with it
        return batch

    def close(self) -> None:
        """End the thread; what it copies is no longer read then."""
        self._pool.shutdown()

"""Prefetches the next batch in a thread while a GPU trains on the present one.

Without a GPU the copy would take a core from computation, so batches are gathered on demand.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from headrace.learner.batches import gather
from headrace.ops import tree
from headrace.types import Batch, Rollout


class BatchPrefetcher:
    """Gathers rollouts into batches, one batch ahead.

    Args:
        device: device of the batches.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1, "headrace-ahead")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._begun: tuple[list[Rollout], Future[Batch]] | None = None

    def begin(self, rollouts: list[Rollout]) -> None:
        """Gather these rollouts in a thread; their slots stay in use until it returns the batch."""
        self._begun = rollouts, self._pool.submit(self._gather, rollouts)

    def __call__(self, rollouts: list[Rollout]) -> Batch:
        """Return the batch of these rollouts: the prefetched one, or else gathered now."""
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
                leaf.record_stream(now)  # keeps its memory until that stream is done with it
        return batch

    def close(self) -> None:
        """Stop the thread; slots are no longer read afterwards."""
        self._pool.shutdown()

"""Splits batches into chunks of columns that fit the processor's cache, and maps threads over them.

The bytes that a chunk keeps for its backward pass are bounded. Deep networks therefore have short
chunks, and a large batch needs no more memory than a small one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from headrace.learner.step_costs import PolicyStepCost
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.types import Batch, Tree

_T = TypeVar("_T")
_CHUNK_BYTES = 32 << 20  # of what a backward pass needs: 111 images of the Nature network


class Chunks:
    """Splits batches and processes the chunks with several threads.

    Args:
        num_threads: number of chunks processed at a time.
        max_steps: largest number of steps in a chunk; a chunk has at least one column.
        min_steps: number of steps from which another thread is worth its overhead.
    """

    def __init__(self, num_threads: int, max_steps: int, min_steps: int) -> None:
        self.num_threads, self.max_steps, self.min_steps = num_threads, max_steps, min_steps
        self._pool = ThreadPoolExecutor(
            num_threads, "headrace-learner", initializer=torch.set_num_threads, initargs=(1,)
        )

    def columns(self, num_rows: int, num_columns: int) -> list[slice]:
        """Return slices of neighbouring columns, of about equal size, in order."""
        threads, most = self.num_threads, max(1, self.max_steps // num_rows)
        count = max(1, min(threads, -(-num_rows * num_columns // self.min_steps)))
        least = -(-num_columns // most)
        if least > count:
            count = -(-least // threads) * threads  # so that no thread waits for the last chunk
        width = max(1, -(-num_columns // count))
        return [slice(i, i + width) for i in range(0, num_columns, width)]

    def map(self, function: Callable[[slice], _T], num_rows: int, num_columns: int) -> Iterator[_T]:
        """Yield the function's result for each chunk of columns, in order, using all threads.

        No reference to a yielded result is kept.
        """
        chunks = self.columns(num_rows, num_columns)
        return map(function, chunks) if len(chunks) == 1 else self._pool.map(function, chunks)

    def of(self, function: Callable[[Batch], _T], batch: Batch) -> Iterator[_T]:
        """Yield the function's result for each chunk of a batch."""
        rows, num_columns = batch.valid.shape

        def part(at: slice) -> _T:
            return function(batch if at == slice(0, num_columns) else batch.columns(at))

        return self.map(part, rows, num_columns)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


def max_steps(cost: PolicyStepCost, at_most: int) -> int:
    """Return the steps of a chunk that keeps ``_CHUNK_BYTES`` for its backward pass; at least 1."""
    return max(1, min(at_most, _CHUNK_BYTES // max(1, cost.num_bytes)))


class ChunkedPolicy:
    """Evaluates a policy chunk by chunk to compute targets; results have no gradient."""

    def __init__(self, policy: Policy, chunks: Chunks) -> None:
        self._policy, self._chunks = policy, chunks

    def __call__(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tensor, Tree]:
        parts = self._parts(self._policy, inputs, first, core)
        params, value, cores = zip(*parts, strict=True)
        core = tree.map_leaves(lambda *x: torch.cat(x), *cores)
        return torch.cat(params, 1), torch.cat(value, 1), core

    def values(self, inputs: Tree, first: Tensor, core: Tree) -> Tensor:
        """See :meth:`Policy.values`."""
        return torch.cat(self._parts(self._policy.values, inputs, first, core), 1)

    def _parts(
        self, function: Callable[..., _T], inputs: Tree, first: Tensor, core: Tree
    ) -> list[_T]:
        @torch.no_grad()
        def part(at: slice) -> _T:
            obs = tree.map_leaves(lambda x: x[:, at], inputs)
            return function(obs, first[:, at], tree.map_leaves(lambda x: x[at], core))

        with self._policy.frozen_weights():
            return list(self._chunks.map(part, *first.shape))

    def of(self, policy: Policy) -> ChunkedPolicy:
        """Return a chunked view of another policy with the same network."""
        return ChunkedPolicy(policy, self._chunks)

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:  # as a target network
        return copy.deepcopy(self._policy, memo)

    def __getattr__(self, name: str) -> Any:
        if name == "_policy":  # before __init__, as in copies
            raise AttributeError(name)
        return getattr(self._policy, name)

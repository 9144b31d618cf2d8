"""Data structures passed from actors to the learner, and their conventions.

Everything is time-major. ``reward[t]`` is the reward *for* ``action[t]``, which was taken in
``obs[t]`` and led to ``obs[t + 1]``. Environments are driven in Gymnasium's NEXT_STEP autoreset:
the step after an episode's end ignores its action, returns the reset observation and is called a
*filler*. ``first[t + 1]`` is true exactly when step ``t`` was a filler, so two fields carry all
episode structure:

    valid_t    = not first[t + 1]                     is step t a transition?
    discount_t = gamma * (not terminated[t]) * valid_t

At a truncation the final observation is ``obs[t + 1]`` and step ``t + 1`` is the filler, so
bootstrapping from ``V(obs[t + 1])`` needs no extra field.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from headrace.ops import tree

Tree: TypeAlias = Any  # Tensor | dict[str, Tree] | tuple[Tree, ...]
Metrics: TypeAlias = dict[str, Tensor | float]  # SUMS over valid steps, 0-d
Loss: TypeAlias = tuple[Tensor, Metrics]  # SUMS over valid steps, 0-d
State: TypeAlias = dict[str, Any]  # an algorithm's own state, saved in checkpoints
METRICS_BYTES = 2048  # size of a gradient's metrics as JSON


@dataclass
class Rollout:
    """``T`` steps of ``B`` environments by one actor, under one version of the policy.

    With shared inference and an asynchronous algorithm, under that version or newer ones.
    """

    obs: Tree  # [T+1, B, ...]  inputs of the policy; the last row only bootstraps
    first: Tensor  # [T+1, B] bool  obs[t] came from a reset
    action: Tree  # [T, B, ...]
    log_prob: Tensor  # [T, B] float32  under the behaviour policy
    reward: Tensor  # [T, B] float32
    terminated: Tensor  # [T, B] bool
    core: Tree  # [B, ...]  recurrent state before first[0]'s reset; () without recurrence
    version: Tensor  # [B] int64  version of the behaviour policy
    episode_return: Tensor  # [T, B] float32  of the episode that ends with this step, else NaN
    episode_length: Tensor  # [T, B] float32  likewise
    discounted_return: Tree = ()  # [T, B] float32  of the episode so far, if needed
    metrics: Tree = ()  # [METRICS_BYTES] uint8  of the actor's gradient: JSON, then spaces
    env_id: Tree = ()  # [B] int64  ids of the environments, if a caller needs them
    extras: Tree = ()  # [T, B, ...]  other outputs of the agent


@dataclass
class Batch:
    """Data of one optimiser step in learner-owned memory, ``B`` columns of ``T`` steps.

    ``obs`` and ``first`` have ``T + 1`` rows when the bootstrap row is needed and ``T`` when the
    targets are already in ``targets`` (PPO's minibatches, where ``T`` may be 1).
    """

    obs: Tree  # [T(+1), B, ...]
    first: Tensor  # [T(+1), B] bool
    action: Tree  # [T, B, ...]
    log_prob: Tensor  # [T, B] float32  log mu(action | obs)
    reward: Tensor  # [T, B] float32
    terminated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool  false on fillers
    core: Tree  # [B, ...]
    targets: dict[str, Tensor]  # [T, B, ...] each, precomputed by the algorithm
    discounted_return: Tree = ()  # [T, B] float32 or (), see Rollout
    version: Tree = ()  # [B] int64  that acted, -1: unknown; in a minibatch: of the whole batch

    @property
    def num_steps(self) -> int:
        """Rows times columns, including fillers."""
        return self.valid.numel()

    def stream(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return reward, value ``[T+1, B]``, terminated, first: the argument order of returns."""
        return self.reward, value, self.terminated, self.first

    def columns(self, index: slice | Tensor) -> Batch:
        """Select columns (dimension 1; 0 of ``core`` and ``version``)."""

        def take(dim: int, x: Tensor) -> Tensor:
            if isinstance(index, Tensor):
                return x.index_select(dim, index)
            return x[:, index] if dim else x[index]

        return map_columns(take, self)

    def cut(self, count: int) -> list[Batch]:
        """Split into ``count`` groups of neighbouring columns of nearly equal size; views."""

        def parts(value: Tree, dim: int) -> Sequence[Tree]:
            if isinstance(value, dict):
                each = zip(*(parts(x, dim) for x in value.values()), strict=True)
                return [dict(zip(value, x, strict=True)) for x in each] or [{}] * count
            if isinstance(value, tuple):
                return list(zip(*(parts(x, dim) for x in value), strict=True)) or [()] * count
            return value.tensor_split(count, dim)

        first = ("core", "version")
        each = (parts(getattr(self, f.name), int(f.name not in first)) for f in fields(self))
        return [Batch(*x) for x in zip(*each, strict=True)]


def map_columns(function: Callable[..., Tensor], *batches: Batch) -> Batch:
    """Build the batch of ``function(dim, *leaves)`` over the leaves of equal structures.

    Args:
        function: called with the column dimension of the leaves, then the leaves.

    Raises:
        ValueError: the trees differ.
    """

    def parts(name: str) -> Tree:
        of_leaves = partial(function, 0 if name in ("core", "version") else 1)
        return tree.map_leaves(of_leaves, *(getattr(batch, name) for batch in batches))

    return Batch(**{field.name: parts(field.name) for field in fields(Batch)})


class Clock:
    """Measures seconds per phase; an inner phase stops the time of the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.waits: list[float] = []  # seconds of each collective
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to the phase ``name``."""
        self._note()
        self._open.append(name)
        try:
            yield
        finally:
            self._note()
            self._open.pop()

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Measure a collective as phase ``comm``, and record its seconds as a wait."""
        start = time.perf_counter()
        with self.phase("comm"):
            yield
        self.waits.append(time.perf_counter() - start)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the time spent inside from all phases and waits."""
        self._note()
        seconds, waits = self.take(), self.take_waits()
        try:
            yield
        finally:
            self._note()
            self.seconds, self.waits = seconds, waits

    def _note(self) -> None:
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Return the seconds of all phases since the last call."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def take_waits(self) -> list[float]:
        """Return the seconds of each collective since the last call."""
        waits, self.waits = self.waits, []
        return waits


class Group(Protocol):
    """The learners of a run, from the view of one of them."""

    @property
    def rank(self) -> int:
        """Rank of this learner."""

    @property
    def size(self) -> int:
        """Number of learners, W."""

    @property
    def local_rank(self) -> int:
        """Rank of this learner on its machine."""

    clock: Clock  # measures each sum and gather; equally many on all ranks

    def sum(self, values: Tensor) -> Tensor:
        """All-reduce ``[n]`` by summation, bitwise equal on all ranks; may overwrite ``values``."""

    def gather(self, values: Tensor) -> Tensor:
        """All-gather ``[n]`` in the order of ranks: ``[W, n]``."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather every learner's object on rank 0, in order; return an empty list elsewhere."""

    def broadcast(self, value: Any) -> Any:
        """Return the object that rank 0 passed."""

    def note(self, number: int) -> None:
        """Publish a number that other learners can read without waiting."""

    def notes(self) -> list[int]:
        """Return the latest number of each learner by rank; -1 before the first."""

    def close(self) -> None:
        """Leave the group; safe to call twice."""


class SingleLearner:
    """Group of a single learner, whose collectives return their arguments."""

    rank, size, local_rank = 0, 1, 0

    def __init__(self) -> None:
        self.clock = Clock()

    def sum(self, values: Tensor) -> Tensor:
        return values

    def gather(self, values: Tensor) -> Tensor:
        return values.unsqueeze(0)

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def note(self, number: int) -> None:
        """Do nothing, because there are no other learners."""

    def notes(self) -> list[int]:
        return []

    def close(self) -> None:
        """Do nothing."""


class ActorCritic(Protocol):
    """Interface of a policy for algorithms; see ``headrace/nn``."""

    @property
    def distribution(self) -> Any:
        """See ``headrace/ops/distributions``."""

    @property
    def popart(self) -> Any:
        """:class:`~headrace.nn.popart.PopArt` of the values, or None."""

    @property
    def action_bounds(self) -> Any:
        """:class:`~headrace.ops.action_bounds.ActionBounds` of the parameters, or None."""

    def __call__(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tensor, Tree]:
        """Return distribution parameters ``[T, B, P]``, values ``[T, B]`` and the last core."""

    def values(self, inputs: Tree, first: Tensor, core: Tree) -> Tensor:
        """Return the values alone."""


@runtime_checkable
class PolicyProxy(Protocol):
    """A proxy of a policy, which receives batches part by part."""

    def of(self, policy: Any) -> ActorCritic:
        """Wrap another policy of the same network in the same way."""


Fresh = Callable[[], Batch]

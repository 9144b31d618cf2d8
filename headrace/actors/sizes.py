"""Sizes of a run: actors, environments, steps and batch, and their shares per learner."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from headrace.errors import ConfigError, require
from headrace.validation import ranges

AUTO = "auto"
if TYPE_CHECKING:
    Size: TypeAlias = Any  # an int once the run has started
    Actors: TypeAlias = Any
    BatchSize: TypeAlias = Any
else:
    Size = Annotated[int | Literal["auto"], ranges.SIZE]
    Actors = Annotated[int | Literal["auto"], ranges.ACTORS]
    BatchSize = Annotated[int | Literal["auto"] | None, ranges.BATCH]


class Sizes(NamedTuple):
    """The four size settings of a run."""

    num_actors: Size
    envs_per_actor: Size
    fragment_length: Size
    batch_size: Size | None

    @property
    def are_known(self) -> bool:
        """True if no size is "auto"; the batch follows from the other three."""
        return AUTO not in self[:3]

    @property
    def rollout_steps(self) -> int:
        """Number of steps in one rollout.

        Raises:
            ConfigError: a size is still "auto" (see ``trainer/auto_sizes.py``).
        """
        for name, value in zip(SIZES[:3], self[:3], strict=True):
            require(value != AUTO, name, AUTO, "a number here: auto is resolved when a run starts")
        return self.fragment_length * self.envs_per_actor

    @property
    def batch_steps(self) -> int:
        """Number of steps per update."""
        steps = self.rollout_steps  # raises unless all sizes are known
        return steps * self.num_actors if self.batch_size in (None, AUTO) else self.batch_size

    def factors(self, synchronous: bool) -> dict[str, int]:
        """Return the known sizes of which a batch must be a multiple."""
        names = SIZES[2::-1] if synchronous else SIZES[2:0:-1]
        return {name: getattr(self, name) for name in names if getattr(self, name) != AUTO}

    def whole_batch(self, num_learners: int) -> int:
        """Return the batch size rounded up to whole rollouts of each asynchronous learner.

        All sizes must be numbers. The batch size is unchanged if learners can't have equally many
        environments.
        """
        assert isinstance(self.batch_size, int), self.batch_size
        actors = num_learners * -(-self.num_actors // num_learners)
        envs, odd = divmod(self.num_actors * self.envs_per_actor, actors)  # per actor
        if odd or not envs:
            return self.batch_size
        unit = math.lcm(self.rollout_steps, num_learners * self.fragment_length * envs)
        return -(-self.batch_size // unit) * unit

    def check_batch(self, synchronous: bool) -> None:
        """Raise ConfigError unless the batch is a multiple of the sizes that are set."""
        size, sizes = self.batch_size, self.factors(synchronous)
        if size is None or size == AUTO:
            return
        unit = math.prod(sizes.values())
        if size < 1 or size % unit:
            low = size // unit * unit
            near = " or ".join(str(x) for x in (low, low + unit) if x > 0)
            factors = " * ".join(f"{name}={value}" for name, value in sizes.items())
            raise ConfigError(
                f"batch_size={size} must be a multiple of {unit}{factors and ' = '}{factors}; "
                f"nearest: {near}"
            )

    def share(self, num_learners: int, synchronous: bool) -> dict[str, int] | None:
        """Return one learner's ``num_actors``, ``envs_per_actor`` and ``batch_size``.

        Each gets ``ceil(num_actors / W)`` actors with equally many environments; None if the
        environments or the batch can't be divided evenly.
        """
        num_actors = -(-self.num_actors // num_learners)
        envs, odd_envs = divmod(self.num_actors * self.envs_per_actor, num_learners * num_actors)
        size, odd_steps = divmod(self.batch_steps, num_learners)
        unit = self.fragment_length * envs * (num_actors if synchronous else 1)
        if odd_envs or odd_steps or not envs or size % unit:
            return None
        return {"num_actors": num_actors, "envs_per_actor": envs, "batch_size": size}

    def share_of(self, num_learners: int, synchronous: bool) -> dict[str, int]:
        """Return one learner's share, like :meth:`share`.

        Raises:
            ConfigError: the sizes can't be divided evenly; names the nearest valid numbers.
        """
        if (share := self.share(num_learners, synchronous)) is not None:
            return share
        num_envs = self.num_actors * self.envs_per_actor
        counts = range(1, min(num_envs, ranges.LEARNERS.high) + 1)
        rounded = not synchronous and isinstance(self.batch_size, int)
        possible = [
            w
            for w in counts
            if (self._replace(batch_size=self.whole_batch(w)) if rounded else self).share(
                w, synchronous
            )
        ]
        below = [w for w in possible if w < num_learners][-1:]
        above = [w for w in possible if w > num_learners][:1]
        raise ConfigError(
            f"num_learners={num_learners} can't divide {num_envs} environments (num_actors="
            f"{self.num_actors} * envs_per_actor={self.envs_per_actor}) and batch_size="
            f"{self.batch_steps} evenly into whole rollouts; nearest: "
            + " or ".join(map(str, below + above))
        )


SIZES = Sizes._fields

"""How several learners share out the actors, environments and batch of a run."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """What one of ``W`` learners has."""

    num_actors: int
    envs_per_actor: int
    batch_size: int


@dataclass(frozen=True)
class Whole:
    """What a run has: the settings of these names."""

    num_actors: int
    envs_per_actor: int
    fragment_length: int
    batch_size: int
    synchronous: bool  # every update takes equally many rollouts from each actor

    def share(self, num_learners: int) -> Share | None:
        """The part of one learner: ``ceil(num_actors / W)`` actors with equally many environments.

        None if environments or batch can't be shared out so.
        """
        num_actors = -(-self.num_actors // num_learners)
        envs, odd_envs = divmod(self.num_actors * self.envs_per_actor, num_learners * num_actors)
        batch_size, odd_steps = divmod(self.batch_size, num_learners)
        if odd_envs or odd_steps or not envs:
            return None
        unit = self.fragment_length * envs * (num_actors if self.synchronous else 1)
        return None if batch_size % unit else Share(num_actors, envs, batch_size)

    def checked(self, num_learners: int) -> Share:
        """Like :meth:`share`.

        Raises:
            ConfigError: it can't be shared out; the message names the nearest numbers that can.
        """
        share = self.share(num_learners)
        if share is not None:
            return share
        num_envs = self.num_actors * self.envs_per_actor
        possible = [w for w in range(1, num_envs + 1) if self.share(w)]
        below = [w for w in possible if w < num_learners][-1:]
        above = [w for w in possible if w > num_learners][:1]
        near = " or ".join(str(w) for w in below + above)
        raise ConfigError(
            f"num_learners={num_learners} can't share out {num_envs} environments (num_actors="
            f"{self.num_actors} * envs_per_actor={self.envs_per_actor}) and batch_size="
            f"{self.batch_size} into equal parts of whole rollouts; nearest: {near}"
        )

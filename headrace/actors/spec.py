"""What an actor is built from, and the memory that it shares with its learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headrace.actors.collector import rollout_spec
from headrace.actors.weight_sync import SyncRule
from headrace.algos.common import Hyperparameters
from headrace.envs.names import envs_of
from headrace.league.opponent_sampling import SeatAssignment
from headrace.nn.multi_policy import AnyPolicy
from headrace.transport.ray import LatestWeights
from headrace.transport.request_channel import ChannelEnd


@dataclass(frozen=True)
class ActorSpec:
    """All that a learner's actors are built from and run by: one object from trainer to actor.

    Fields with the name of a setting have its value (``Config.actor_spec``).
    """

    env: Any  # an EnvSpec, an Env class, a callable or Tasks (``headrace.envs.names.resolve``)
    policy: AnyPolicy  # on the CPU
    algo: Hyperparameters
    envs_per_actor: int
    fragment_length: int
    engine: str = "auto"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    transport: str = "serial"
    cluster: str | None = None  # of Ray, where actors are to live
    num_actors: int = 1
    min_actors: int | None = None  # on a cluster, while nodes are missing; None: all
    num_places: int | None = None  # that the whole run asks of it; None: so many
    slots_per_actor: int = 1
    num_credits: int | None = None  # rollouts begun or waiting at a time; None: as many as slots
    actor_restarts: int = 0  # deaths that are made good
    actor_timeout_s: float = 300.0
    stacked_frames: str = "whole"  # how stacks of pictures are held
    max_rollout_seconds: float | None = None  # a rollout is cut short after so long
    sync: SyncRule = field(default_factory=SyncRule)  # when weights are pulled
    first_actor: int = 0  # number of actor 0 among those of all learners
    rank: int = 0  # of the learner
    may_be_cut: bool = False  # the learner may ask for it through the weight store
    processors: frozenset[int] | None = None  # where actor processes stay; None: anywhere
    inference: str = "actor"  # "shared": one process has the weights and acts for all actors
    max_wait_ms: float = 5.0  # for others to act on together
    device: str = "cpu"  # where shared inference computes
    agents: tuple[str, ...] = ()  # of a game of several, whose columns take turns; (): of none
    seating: SeatAssignment | None = (
        None  # who plays the seats that aren't trained on; None: none are
    )
    info_metrics: str | None = None  # the setting, as text
    zero_sum: bool = False  # rewards of a game's agents are held to add up to 0

    @property
    def num_slots(self) -> int:
        """Of all actors."""
        return self.num_actors * self.slots_per_actor

    @property
    def envs_made(self) -> int:
        """How many an actor makes: games, of several agents."""
        num_agents = max(1, len(self.agents))
        if self.seating is not None:
            return self.seating.num_games(self.envs_per_actor, num_agents)
        return self.envs_per_actor // num_agents

    @property
    def num_tasks(self) -> int:
        """Which actors take turns at."""
        return len(envs_of(self.env))

    def layout(self) -> dict[str, Any]:
        """The tree of :class:`ArraySpec` of one slot."""
        gamma = self.algo.gamma if self.algo.normalize_returns else None
        shape = self.fragment_length, self.envs_per_actor
        learns, once = self.algo.learns_in_actors, self.stacked_frames == "once"
        return rollout_spec(self.policy, *shape, gamma, learns, once)


@dataclass(frozen=True)
class Memory:
    """What a learner and its actors share, in one process or several: flat buffers, uint8."""

    slots: Tensor  # of a Slab
    weights: Tensor | LatestWeights  # Tensor: of a WeightStore
    model: Tensor | None = None  # of a SharedModel, where actors learn
    orders: tuple[bytes, ...] = ()  # changes made before this actor started
    line: ChannelEnd | None = None  # of one actor, to the process that acts for it

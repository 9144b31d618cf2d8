"""Specification of an actor, and the memory that it shares with its learner."""

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
    """Settings of a learner's actors: one object from trainer to actor.

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
    cluster: str | None = None  # Ray cluster that runs the actors
    num_actors: int = 1
    min_actors: int | None = None  # on a cluster, enough to start with; None: all
    num_places: int | None = None  # cluster places of the whole run; None: num_actors
    slots_per_actor: int = 1
    num_credits: int | None = None  # in-flight limit, in rollouts; None: the number of slots
    actor_restarts: int = 0  # largest number of restarts
    actor_timeout_s: float = 300.0
    stacked_frames: str = "whole"  # storage of frame stacks
    max_rollout_seconds: float | None = None  # rollouts are cut short after this time
    sync: SyncRule = field(default_factory=SyncRule)  # when weights are pulled
    first_actor: int = 0  # number of actor 0 among those of all learners
    rank: int = 0  # of the learner
    may_be_cut: bool = False  # the learner may cut rollouts through the weight store
    processors: frozenset[int] | None = None  # CPU affinity of actor processes; None: any
    inference: str = "actor"  # "shared": one inference server acts for all actors
    max_wait_ms: float = 5.0  # longest wait for a shared inference batch
    device: str = "cpu"  # device of shared inference
    agents: tuple[str, ...] = ()  # agents of a game, in column order; (): single-agent
    seating: SeatAssignment | None = None  # opponents in seats that don't train; None: none
    info_metrics: str | None = None  # the setting as text
    zero_sum: bool = False  # check that the rewards of a game's agents sum to 0

    @property
    def num_slots(self) -> int:
        """Number of slots of all actors."""
        return self.num_actors * self.slots_per_actor

    @property
    def envs_made(self) -> int:
        """Number of environments that an actor makes; for multi-agent games, of games."""
        num_agents = max(1, len(self.agents))
        if self.seating is not None:
            return self.seating.num_games(self.envs_per_actor, num_agents)
        return self.envs_per_actor // num_agents

    @property
    def num_tasks(self) -> int:
        """Number of tasks, assigned to actors in rotation."""
        return len(envs_of(self.env))

    def layout(self) -> dict[str, Any]:
        """Return the tree of :class:`ArraySpec` of one slot."""
        gamma = self.algo.gamma if self.algo.normalize_returns else None
        shape = self.fragment_length, self.envs_per_actor
        learns, once = self.algo.learns_in_actors, self.stacked_frames == "once"
        return rollout_spec(self.policy, *shape, gamma, learns, once)


@dataclass(frozen=True)
class Memory:
    """Flat uint8 buffers shared by a learner and its actors, in one or several processes."""

    slots: Tensor  # of a Slab
    weights: Tensor | LatestWeights  # Tensor: of a WeightStore
    model: Tensor | None = None  # of a SharedModel, if actors compute gradients
    orders: tuple[bytes, ...] = ()  # changes made before this actor started
    line: ChannelEnd | None = None  # an actor's channel to the inference server

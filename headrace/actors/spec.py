"""Specification of an actor, and the memory that it shares with its learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.actors.collector import rollout_spec
from headrace.actors.weight_sync import SyncRule
from headrace.algos.common import Hyperparameters
from headrace.envs.names import envs_of
from headrace.games.opponent_sampling import SeatAssignment
from headrace.nn.multi_policy import AnyPolicy
from headrace.transport.request_channel import ChannelEnd
from headrace.transport.weights import WeightSource


@dataclass(frozen=True)
class ActorSettings:
    """The settings of a run that its actors use: a view of ``Config``, which they don't import.

    Each field has the name of an attribute of ``Config`` and no default, so that
    ``Config.actor_spec`` fails if either is renamed alone. Sizes are those of one learner.
    """

    algo: Hyperparameters
    envs_per_actor: int
    fragment_length: int
    engine: str
    env_kwargs: dict[str, Any]
    seed: int
    transport: str
    cluster: str | None  # Ray cluster that runs the actors
    num_actors: int
    min_actors: int | None  # on a cluster, enough to start with; None: all
    slots_per_actor: int
    num_credits: int  # in-flight limit, in rollouts
    actor_restarts: int  # largest number of restarts
    actor_timeout_s: float
    stacked_frames: str  # storage of frame stacks
    max_rollout_seconds: float | None  # rollouts are cut short after this time
    sync: SyncRule  # when weights are pulled
    inference: str  # "shared": one inference server acts for all actors
    max_wait_ms: float  # longest wait for a shared inference batch
    info_metrics: str | None  # the setting as text
    zero_sum: bool  # check that the rewards of a game's agents sum to 0


@dataclass(frozen=True)
class ActorSpec:
    """Everything that the actors of a learner are built from."""

    settings: ActorSettings
    env: Any  # an EnvSpec, an Env class, a callable or Tasks (``headrace.envs.names.resolve``)
    policy: AnyPolicy  # on the CPU
    device: str  # device of shared inference
    num_places: int | None = None  # cluster places of the whole run; None: num_actors
    first_actor: int = 0  # number of actor 0 among those of all learners
    rank: int = 0  # of the learner
    may_be_cut: bool = False  # the learner may cut rollouts through the weight store
    processors: frozenset[int] | None = None  # CPU affinity of actor processes; None: any
    agents: tuple[str, ...] = ()  # agents of a game, in column order; (): single-agent
    seating: SeatAssignment | None = None  # opponents in seats that don't train; None: none

    @property
    def num_slots(self) -> int:
        """Number of slots of all actors."""
        return self.settings.num_actors * self.settings.slots_per_actor

    @property
    def envs_made(self) -> int:
        """Number of environments that an actor makes; for multi-agent games, of games."""
        num_envs, num_agents = self.settings.envs_per_actor, max(1, len(self.agents))
        if self.seating is not None:
            return self.seating.num_games(num_envs, num_agents)
        return num_envs // num_agents

    @property
    def num_tasks(self) -> int:
        """Number of tasks, assigned to actors in rotation."""
        return len(envs_of(self.env))

    def layout(self) -> dict[str, Any]:
        """Return the tree of :class:`ArraySpec` of one slot."""
        settings = self.settings
        algo, shape = settings.algo, (settings.fragment_length, settings.envs_per_actor)
        gamma = algo.gamma if algo.normalize_returns else None
        learns, once = algo.learns_in_actors, settings.stacked_frames == "once"
        return rollout_spec(self.policy, *shape, gamma, learns, once)


@dataclass(frozen=True)
class Memory:
    """Flat uint8 buffers shared by a learner and its actors, in one or several processes."""

    slots: Tensor  # of a Slab
    weights: Tensor | WeightSource  # Tensor: of a WeightStore
    model: Tensor | None = None  # of a SharedModel, if actors compute gradients
    orders: tuple[bytes, ...] = ()  # changes made before this actor started
    line: ChannelEnd | None = None  # an actor's channel to the inference server

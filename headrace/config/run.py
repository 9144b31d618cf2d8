"""The settings of a run, checked as a whole before any process starts."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import tyro

from headrace.actors import policy_lag
from headrace.actors.sizes import AUTO, SIZES, Actors, BatchSize, Size, Sizes
from headrace.actors.spec import ActorSettings, ActorSpec
from headrace.actors.weight_sync import SyncRule
from headrace.algos import APPO
from headrace.algos.common import Hyperparameters
from headrace.config import algorithms, eval_envs
from headrace.config.checks import check_together
from headrace.config.setting_types import CLUSTER, ENV, KINDS, WRAPPER, InfoNames, PlayedBy
from headrace.envs import info_metrics, scripts
from headrace.envs.engines import Engine
from headrace.envs.names import Tasks, import_path, refuse_instance
from headrace.envs.tasks import named_in
from headrace.errors import ConfigError
from headrace.league.opponent_mix import OpponentMix
from headrace.nn.multi_policy import AnyPolicy
from headrace.nn.network import Network
from headrace.nn.policy_mapping import SHARED, PolicyMapping, roster_of, written
from headrace.processes import num_cores
from headrace.validation import owners, ranges
from headrace.validation.fields import check_fields, settings
from headrace.validation.flag_syntax import IDS, JSON


def _named(code: Any) -> str:
    """An id or name, or where it can be imported from."""
    return code if isinstance(code, str) else scripts.name_of(import_path(code))


def unknown_setting(name: str, algo: Hyperparameters | None = None) -> ConfigError:
    """The error for a keyword that is not a setting; says where it belongs or what is close to it.

    Args:
        algo: algorithm of the run.
    """
    known = [f.name for f in dataclasses.fields(Config)]
    kind = None if algo is None else type(algo)
    return ConfigError(f"setting {name!r} is unknown.{owners.explained(name, known, kind)}")


_WIDE = (256, 256)  # units of a perceptron that learns several tasks


@settings()
@dataclass(frozen=True)
class Config:
    """Everything that a run depends on; written to ``config.json`` in its directory."""

    env: Annotated[Any, ENV, tyro.conf.arg(name="env-id", constructor=str)] = "CartPole-v1"
    """Gymnasium id, Env class, or a callable that returns an Env; or a game of several agents, as
    in pettingzoo:classic/connect_four_v3."""
    algo: Hyperparameters = field(default_factory=APPO)
    """The algorithm and its hyperparameters."""
    tasks: Annotated[tuple[Annotated[Any, ENV], ...], IDS] = ()
    """Several tasks in place of env, for one policy, each with as many actors: ids with commas
    between them, or a suite's name."""
    env_kwargs: Annotated[dict[str, Any], JSON] = field(default_factory=dict)
    """Keyword arguments of the environment; on the command line as name=value pairs or a JSON
    object."""
    env_file: Annotated[str | None, tyro.conf.Suppress] = None
    """The file of the script that defines the environment; found by itself."""
    wrappers: Annotated[
        tuple[Annotated[Any, WRAPPER, tyro.conf.arg(constructor=str)], ...],
        tyro.conf.arg(name="wrapper", metavar="NAME[:JSON]"),
        tyro.conf.UseAppendAction,
    ] = ()
    """Around each environment, in this order: one of gymnasium.wrappers with its arguments, as in
    ResizeObservation:{"shape":[84,84]}, or your own, as module:name; may be repeated."""
    engine: Engine = "auto"
    """How environments are vectorised: auto, native, envpool, sync, async (a process each) or
    threads (a thread each, in which they advance at their own pace)."""
    transport: Literal["shm", "serial"] = "shm"
    """Actors as processes with shared memory, or all in one process."""
    cluster: Annotated[str | None, CLUSTER, tyro.conf.arg(metavar="ray[:ADDRESS]")] = None
    """Actors, and learners where there are several, on a Ray cluster: ray starts one on this
    machine, ray:auto and ray:10.0.0.1:6379 take one that runs; None: here, without Ray."""
    min_actors: Annotated[int | None, ranges.ACTORS] = None
    """On a cluster, go on with so many of the actors while nodes are missing; the others begin on
    nodes that join. None: all."""
    num_learners: Annotated[int, ranges.LEARNERS] = 1
    """Learners that take every step together; they share out what all other settings describe."""
    num_actors: Actors = AUTO
    """Actors, each a process of its own with transport=shm; auto: by what an environment's step
    costs and the cores. Of this and the next three, what is not given is fitted to what is."""
    envs_per_actor: Size = AUTO
    """Environments that each actor steps together, each agent of a game being one; auto: as many,
    in all, as learning was shown to bear, and fewer where an update would take seconds."""
    fragment_length: Size = AUTO
    """Steps per rollout; auto: as learning was shown to bear."""
    batch_size: BatchSize = AUTO
    """Steps per update; None, and auto where the three above are given: one rollout from every
    actor."""
    total_steps: Annotated[int, ranges.STEPS] = 1_000_000
    """Environment steps after which training ends."""
    stop_return: Annotated[float | None, ranges.RETURN] = None
    """End once the mean return of the last 100 training episodes reaches this."""
    scale_free: bool = True
    """Make training independent of the units of rewards, observations and actions: normalise values
    (PopArt), advantages and the numbers of Box observations, and scale Box actions to [-1, 1].
    False: as in the papers. The settings normalize_… and scale_actions override it."""
    seed: Annotated[int, ranges.SEED] = 0
    """Of weights, environments, actions and shuffling."""
    network: Network = field(default_factory=Network)
    """The policy's torsos."""
    policies: PlayedBy = SHARED
    """Who plays the agents of a game: one policy all of them (shared), each its own (per-agent), or
    the policy that is named for each, as in wolf:hunter,sheep_0:runner,sheep_1:runner; each policy
    has its own weights, optimiser and statistics."""
    opponents: Annotated[str | None, ranges.NOT_EMPTY, KINDS] = None
    """Who plays the other seats of a game of several agents, in which shares, as in
    latest:0.5,pfsp:0.5: the policy itself (latest, every seat is trained on), its newest snapshot
    (naive), or snapshots of the league: any (uniform), those it rarely beats (pfsp), or those of
    its strength (pfsp-var); None: the policy itself, without a league."""
    league: Annotated[str | None, ranges.NOT_EMPTY] = None
    """The folder of snapshots and of games against them, which runs may share; None: league in
    run_dir."""
    snapshot_every_steps: Annotated[int | None, ranges.STEPS] = None
    """Environment steps between snapshots; None: a twentieth of total_steps."""
    snapshot_win_rate: Annotated[float | None, ranges.SHARE] = None
    """Take a snapshot earlier, once this share of games is won against each opponent."""
    exploit: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Train against this policy alone: a run directory, a checkpoint, or a snapshot of the
    league."""
    zero_sum: bool = False
    """Rewards of a game's agents add up to 0 at every step, or in turns over a whole game: refuse a
    game in which they don't."""
    device: str = "cpu"
    """Where the learner computes: cpu, cuda, cuda:1 …"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """In which images are computed, to act and to learn: auto measures at the start where there are
    convolutions and takes bfloat16 if it is faster; all else is float32 always."""
    stacked_frames: Literal["auto", "once", "whole"] = "auto"
    """How stacked frames are stored: each frame once, or whole stacks. auto: once if the probe at
    the start finds stacks, and whole from the moment that a later observation isn't one."""
    inference: Literal["auto", "actor", "shared"] = "auto"
    """Who acts: each actor with weights of its own, or one process for all actors of a learner, in
    batches; auto compares at the start what both cost, where an image's network is large."""
    max_wait_ms: Annotated[float, ranges.MILLISECONDS] = 5.0
    """How long shared inference waits for other actors once one has asked."""
    compile: bool = False
    """Translate the learner's torsos with torch.compile, which takes a minute at the start."""
    learner_threads: Annotated[int | None, ranges.PROCESSORS] = None
    """Threads that compute gradients on a CPU; None: one per core, 1 with transport=serial."""
    cores_per_learner: Annotated[int | None, ranges.PROCESSORS] = None
    """Keep each learner and its actors on so many cores of their own; None: on all."""
    max_rollout_seconds: Annotated[float | None, ranges.SECONDS] = None
    """Cut rollouts short that take longer; None: never."""
    preempt_fraction: Annotated[float | None, ranges.SHARE] = None
    """Once this share of learners, or all others, have their rollouts, a learner ends its own."""
    max_policy_lag: Annotated[int | None, ranges.LAG] = None
    """Drop (and count) rollouts that are more updates older than this when their turn comes;
    None: than max_lag makes them that nothing overtook (never, with weight_sync=adaptive)."""
    weight_sync: str = "every"
    """When actors fetch weights: at every update, every-<k>, or adaptive: once they lag in KL."""
    kl_threshold: Annotated[float, ranges.NATS] = 0.005
    """Nats of KL(behaviour || learner) on its rollouts above which an adaptive actor fetches."""
    deterministic: bool = False
    """Each checkpoint resets all environments, so that resuming changes nothing."""
    checkpoint_interval: Annotated[int, ranges.STEPS] = 1_000_000
    """Environment steps between checkpoints; one more is written at the end."""
    keep_checkpoints: Annotated[int, ranges.COUNT] = 3
    """How many of the latest checkpoints stay on disk, besides the best."""
    eval_episodes: Annotated[int, ranges.COUNT_OR_0] = 20
    """Episodes of an evaluation; 0: none."""
    eval_env_kwargs: Annotated[dict[str, Any], JSON] = field(default_factory=dict)
    """Keyword arguments that evaluations change in env_kwargs or add to it, in the same form."""
    eval_envs: Annotated[dict[str, Any], JSON] = field(default_factory=dict)
    """Additional evaluation environments by name, as a JSON object. Each may have env_kwargs,
    wrappers, episodes and another env. Only the run's own evaluation chooses best."""
    eval_deterministic: bool = True
    """Evaluate the most likely actions; False: actions are drawn, as in training."""
    info_metrics: InfoNames = None
    """Numbers in infos to report as env/NAME, and how to reduce them over an episode (mean, last,
    sum, min or max), as in is_success:last,reward_parts/drive:mean. In Python also a dict or a list
    of names. None: all numbers in the info of an episode's last step; none: no numbers."""
    eval_interval: Annotated[int | None, ranges.STEPS] = None
    """Environment steps between evaluations, which then choose what is kept as best; None: one at
    the end, and the training return chooses."""
    target_return: Annotated[float | None, ranges.RETURN] = None
    """End once such an evaluation reaches this mean return."""
    run_dir: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Where results go; None: runs/<environment>-<algorithm>-<time>."""
    init_from: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Begin with the policy of this run directory or checkpoint, whose spaces and network must be
    the same: weights, and running statistics of observations and values; the optimiser and all
    counters begin anew."""
    resume: bool = False
    """Continue the run in run_dir."""
    overwrite: bool = False
    """Delete first what a run left in run_dir; refused where anything else is there."""
    max_restarts: Annotated[int | None, ranges.COUNT_OR_0] = None
    """Deaths of actors, and of learners, that are made good; None: 10 of actors, 0 of learners."""
    actor_timeout_s: Annotated[float, ranges.SECONDS] = 300.0
    """An actor that delivers nothing for so long is killed and replaced."""
    learner_timeout_s: Annotated[float, ranges.SECONDS] = 1800.0
    """A learner that others wait for so long ends the run, or restarts all of them."""
    log_interval_s: Annotated[float, ranges.SOME_SECONDS] = 1.0
    """Seconds between results."""
    log_iterations: bool | None = None
    """Write a line per update and learner; None: with 2 to 32 learners."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "algo", algorithms.instance(self.algo))
        algorithms.check(self.algo)
        object.__setattr__(self, "policies", written(self.policies))
        object.__setattr__(self, "env", scripts.from_file("env", self.env))
        object.__setattr__(self, "info_metrics", info_metrics.written(self.info_metrics))
        object.__setattr__(self, "eval_envs", eval_envs.prepared(self.eval_envs))
        refuse_instance(self.env)
        check_fields(self)
        for name in ("tasks", "wrappers"):
            if several := getattr(self, name):
                each = tuple(scripts.from_file(name.removesuffix("s"), one) for one in several)
                object.__setattr__(self, name, each)
        if self.tasks:
            object.__setattr__(self, "tasks", named_in(self.tasks, self.env, type(self).env))
            object.__setattr__(self, "env", self.tasks[0])
        if self.env_file is None:
            others = eval_envs.code_of(self.eval_envs)
            file = scripts.file_of(*self.played, *self.wrappers, self.network.torso, *others)
            object.__setattr__(self, "env_file", file)
        check_together(self)

    @property
    def played(self) -> tuple[Any, ...]:
        """The tasks, or the only environment."""
        return self.tasks or (self.env,)

    @property
    def environment(self) -> Any:
        """The environment, or all tasks as one object."""
        shown = self.network.task_id or self.network.per_task_values
        return Tasks(self.tasks, shown) if self.tasks else self.env

    @property
    def evaluates_while_training(self) -> bool:
        """Whether evaluations are played every ``eval_interval`` steps; they choose ``best``."""
        return self.eval_interval is not None and self.eval_episodes > 0

    @property
    def evaluated_kwargs(self) -> dict[str, Any]:
        """Of the environment in evaluations."""
        return self.env_kwargs | self.eval_env_kwargs

    @property
    def mixture(self) -> OpponentMix | None:
        """Of opponents; None where every seat is the policy's, and there is no league."""
        if self.exploit is not None:
            return OpponentMix((("exploit", 1.0),))
        return None if self.opponents is None else OpponentMix.of(self.opponents)

    @property
    def snapshot_steps(self) -> int:
        """Environment steps between snapshots."""
        return self.snapshot_every_steps or max(1, self.total_steps // 20)

    @property
    def learners_here(self) -> int:
        """Learners on this machine, as far as is known."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.num_learners))  # torchrun sets it

    @property
    def _synchronous(self) -> bool:
        return self.algo.max_lag == 0

    @property
    def sizes(self) -> Sizes:
        """As they are set, of all learners together."""
        return Sizes(*(getattr(self, name) for name in SIZES))

    @property
    def is_sized(self) -> bool:
        """Whether all sizes are known; a batch follows from the other three."""
        return self.sizes.are_known

    def share(self, num_learners: int) -> dict[str, int] | None:
        """The sizes of one of so many learners; None if they can't be shared out."""
        return self.sizes.share(num_learners, self._synchronous)

    @property
    def per_learner(self) -> Config:
        """The settings of one of the learners: its share of actors, environments and batch.

        Raises:
            ConfigError: they can't be shared out; the message names the nearest numbers that can.
        """
        count, _ = self.num_learners, self.rollout_steps  # raises unless all sizes are known
        if count == 1:
            return self
        share: dict[str, Any] = self.sizes.share_of(count, self._synchronous)
        if self.transport == "serial":
            share["cluster"] = None  # that's where learners are, who act themselves
        elif self.min_actors is not None:
            share["min_actors"] = -(-self.min_actors // count)
        algo = self.algo.per_learner(count)
        return replace(self, algo=algo, num_learners=1, preempt_fraction=None, **share)

    @property
    def settled(self) -> Config:
        """With all decided that may be left to the run, and absolute paths to opponents."""
        network, algo, free = self.network, self.algo, self.scale_free
        if network.hidden is None:
            network = replace(network, hidden=_WIDE if len(self.tasks) > 1 else network.units)
        of_values = free and not algo.learns_in_actors  # they have no statistics in common
        if network.normalize_observations is None:
            network = replace(network, normalize_observations=free and network.torso is None)
        if network.normalize_values is None:
            network = replace(network, normalize_values=of_values)
        if network.scale_actions is None:
            network = replace(network, scale_actions=free)
        if algo.normalize_advantage is None:
            algo = replace(algo, normalize_advantage=of_values)
        league = self.league and os.path.abspath(self.league)
        exploit = self.exploit
        if exploit is not None and (league is None or os.path.exists(exploit)):
            exploit = os.path.abspath(exploit)  # or else it is a snapshot of the league
        return replace(self, network=network, algo=algo, league=league, exploit=exploit)

    def again(self, saved: bool) -> Config:
        """The settings to start this run with again, whether a checkpoint was saved or not."""
        init_from = None if saved else self.init_from
        return replace(self, resume=saved, overwrite=not saved, init_from=init_from)

    def roster(self, agents: tuple[str, ...], name: str) -> PolicyMapping | None:
        """Who plays whom in a game of this name; None: one policy all. See :func:`roster_of`."""
        return roster_of(str(self.policies), agents, name)

    def actor_spec(self, env: Any, policy: AnyPolicy, **known: Any) -> ActorSpec:
        """Build what the actors of this learner are started from.

        Args:
            env: resolved. policy: on the CPU. known: further fields of the spec.
        """
        names = [f.name for f in dataclasses.fields(ActorSettings)]
        view = ActorSettings(**{name: getattr(self, name) for name in names})
        return ActorSpec(view, env, policy, **{"device": self.device, **known})

    @property
    def algo_name(self) -> str:
        """The command-line name of a built-in algorithm, or the class name of a custom one."""
        return algorithms.short_name(type(self.algo))

    @property
    def rollout_steps(self) -> int:
        """Steps in one rollout."""
        return self.sizes.rollout_steps

    @property
    def resolved_batch_size(self) -> int:
        """Steps per update."""
        return self.sizes.batch_steps

    @property
    def rollouts_per_update(self) -> int:
        """R: rollouts that one update consumes."""
        return self.resolved_batch_size // self.rollout_steps

    @property
    def num_credits(self) -> int:
        """Rollouts of a learner that may be begun or waiting."""
        return policy_lag.num_credits(self.algo, self.sizes)

    @property
    def slots_per_actor(self) -> int:
        """As few as ``num_credits`` takes."""
        return -(-self.num_credits // (self.min_actors or self.num_actors))

    @property
    def num_places(self) -> int:
        """Actors, and learners but the first, that each ask for a place on a cluster."""
        share = self.per_learner
        actors = 0 if self.transport == "serial" else share.min_actors or share.num_actors
        return self.num_learners * (actors + 1) - 1

    @property
    def max_first_lag(self) -> int | None:
        """Updates behind which a rollout is dropped when its turn has come; None: never."""
        return policy_lag.max_first_lag(self.algo, self.sync.every, self.max_policy_lag)

    @property
    def lag_bound(self) -> int | None:
        """Updates, at most, between acting and the last use of what was done; None: no bound."""
        return policy_lag.lag_bound(self.algo, self.sizes, self.max_first_lag)

    @property
    def sync(self) -> SyncRule:
        """When actors fetch weights: early enough for ``max_policy_lag`` if they act in time."""
        return policy_lag.rule_of(
            self.algo, self.weight_sync, self.kl_threshold, self.max_policy_lag
        )

    @property
    def resolved_learner_threads(self) -> int:
        """Threads that compute gradients."""
        if self.learner_threads is not None:
            return self.learner_threads
        if self.transport == "serial":
            return 1
        return max(1, self.cores_per_learner or num_cores() // self.learners_here)

    @property
    def actor_restarts(self) -> int:
        """How many deaths of actors each learner makes good."""
        return 10 if self.max_restarts is None else self.max_restarts

    @property
    def learner_restarts(self) -> int:
        """How often the group of learners is started again."""
        return self.max_restarts or 0

    def to_json(self) -> dict[str, Any]:
        """A plain dict that :func:`headrace.rundir.config_file.from_json` reads back.

        An infinite number of the algorithm is text, since JSON has none.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        algo = algorithms.fields_of(self.algo).items()
        texts = {name: str(x) for name, x in algo if isinstance(x, float) and math.isinf(x)}
        kind = type(self.algo)
        values["algo"] = {"name": algorithms.path_of(kind), **dict(algo), **texts}
        if (file := algorithms.file_of(kind)) is not None:
            values["algo"]["file"] = file
        values["network"] = network = self.network.to_json()
        if network["torso"] is not None:
            network["torso"] = scripts.name_of(network["torso"])
        values["env"] = _named(self.env)
        values["tasks"] = [_named(task) for task in self.tasks]
        values["wrappers"] = [_named(wrapper) for wrapper in self.wrappers]
        values["eval_envs"] = eval_envs.mapped(self.eval_envs, lambda _, code: _named(code))
        return values

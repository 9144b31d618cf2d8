"""Settings of a run, validated together before any process starts."""

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
from headrace.config.checks import check_together, whole_batch
from headrace.config.setting_types import CLUSTER, ENV, KINDS, WRAPPER, InfoNames, PlayedBy
from headrace.envs import info_metrics, scripts
from headrace.envs.engines import Engine
from headrace.envs.names import Tasks, import_path, refuse_instance
from headrace.envs.tasks import named_in
from headrace.errors import ConfigError
from headrace.games.opponent_mix import OpponentMix
from headrace.nn.multi_policy import AnyPolicy
from headrace.nn.network import Network
from headrace.nn.policy_mapping import SHARED, PolicyMapping, mapping_of, written
from headrace.processes import num_cores
from headrace.validation import owners, ranges
from headrace.validation.fields import check_fields, settings
from headrace.validation.flag_syntax import IDS, JSON


def _named(code: Any) -> str:
    """Return an id or name, or the import path of an object."""
    return code if isinstance(code, str) else scripts.name_of(import_path(code))


def _infinite_as_text(values: dict[str, Any]) -> dict[str, str]:
    return {k: str(x) for k, x in values.items() if isinstance(x, float) and math.isinf(x)}


def unknown_setting(name: str, algo: Hyperparameters | None = None) -> ConfigError:
    """Build the error for a keyword that is not a setting, with the nearest one or its owner.

    Args:
        algo: algorithm of the run.
    """
    names = [f.name for f in dataclasses.fields(Config)]
    kind = None if algo is None else type(algo)
    return ConfigError(f"setting {name!r} is unknown.{owners.explained(name, names, kind)}")


_WIDE = (256, 256)  # default hidden units for several tasks


@settings()
@dataclass(frozen=True)
class Config:
    """All settings of a run; written to ``config.json`` in its directory."""

    env: Annotated[Any, ENV, tyro.conf.arg(name="env-id", constructor=str)] = "CartPole-v1"
    """Gymnasium id, Env class, or a callable that returns an Env; or a multi-agent game, such as
    pettingzoo:classic/connect_four_v3."""
    algo: Hyperparameters = field(default_factory=APPO)
    """The algorithm and its hyperparameters."""
    tasks: Annotated[tuple[Annotated[Any, ENV], ...], IDS] = ()
    """Several tasks for one policy, in place of env, with equally many actors each: ids separated
    by commas, or the name of a suite."""
    env_kwargs: Annotated[dict[str, Any], JSON] = field(default_factory=dict)
    """Keyword arguments of the environment; on the command line as name=value pairs or a JSON
    object."""
    env_file: Annotated[str | None, tyro.conf.Suppress] = None
    """File of the script that defines the environment; detected automatically."""
    automatic: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """Sizes that were auto and that headrace chose at the start; recorded automatically."""
    wrappers: Annotated[
        tuple[Annotated[Any, WRAPPER, tyro.conf.arg(constructor=str)], ...],
        tyro.conf.arg(name="wrapper", metavar="NAME[:JSON]"),
        tyro.conf.UseAppendAction,
    ] = ()
    """Wrappers of each environment, in this order: one of gymnasium.wrappers with its arguments,
    such as ResizeObservation:{"shape":[84,84]}, or a custom one as module:name; may be repeated."""
    engine: Engine = "auto"
    """Vectorization of environments: auto, native, envpool, sync, async (one process each) or
    threads (one thread each, stepped asynchronously)."""
    transport: Literal["shm", "serial"] = "shm"
    """Run actors as processes with shared memory (shm), or all in one process (serial)."""
    cluster: Annotated[str | None, CLUSTER, tyro.conf.arg(metavar="ray[:ADDRESS]")] = None
    """Run actors, and learners if there are several, on a Ray cluster: ray starts a cluster on this
    machine, ray:auto and ray:10.0.0.1:6379 use a running one. None: without Ray."""
    min_actors: Annotated[int | None, ranges.ACTORS] = None
    """On a cluster, train with this many actors while nodes are missing; the others start on nodes
    that join. None: all."""
    num_learners: Annotated[int, ranges.LEARNERS] = 1
    """Number of learners, which make every update together and divide actors, environments and
    batch among them."""
    num_actors: Actors = AUTO
    """Number of actors, each a separate process with transport=shm; auto: chosen from the cost of
    an environment step and the number of cores. Unset sizes are fitted to those that are set."""
    envs_per_actor: Size = AUTO
    """Environments per actor, counting each agent of a game as one; auto: the largest total that
    still trained well in our benchmarks, and fewer if an update would take seconds."""
    fragment_length: Size = AUTO
    """Steps per rollout; auto: a length that trained well in our benchmarks."""
    batch_size: BatchSize = AUTO
    """Steps per update; None, and auto if the three settings above are set: one rollout from every
    actor. Asynchronous algorithms round it up to whole rollouts if all sizes are set."""
    total_steps: Annotated[int, ranges.STEPS] = 1_000_000
    """Environment steps after which training ends."""
    stop_time_s: Annotated[float | None, ranges.SECONDS] = None
    """Stop after this many seconds of training, with the update in progress. Evaluations don't
    count, seconds before a resume do. The run, and its schedules, end at total_steps if that comes
    first."""
    stop_return: Annotated[float | None, ranges.RETURN] = None
    """Stop training once the mean return of the last 100 training episodes reaches this and an
    evaluation confirms it (not with eval_env_kwargs or eval_episodes=0)."""
    scale_free: bool = True
    """Make training independent of the units of rewards, observations and actions: normalise values
    (PopArt), advantages and Box observations, and scale Box actions to [-1, 1].
    False: as in the papers. The settings normalize_… and scale_actions override it."""
    seed: Annotated[int, ranges.SEED] = 0
    """Random seed for weights, environments, actions and shuffling."""
    network: Network = field(default_factory=Network)
    """Network of the policy."""
    policies: PlayedBy = SHARED
    """Policy of each agent of a game: one for all (shared), one each (per-agent), or named policies
    such as wolf:hunter,sheep_0:runner,sheep_1:runner. Each policy has its own weights, optimiser
    and statistics."""
    opponents: Annotated[str | None, ranges.NOT_EMPTY, KINDS] = None
    """Opponents in a multi-agent game and their shares, such as latest:0.5,pfsp:0.5: the policy
    itself (latest, trains on every seat), its newest snapshot (naive), or snapshots of the league:
    any (uniform), those it rarely beats (pfsp), or those of similar strength (pfsp-var). None: the
    policy itself, without a league."""
    league: Annotated[str | None, ranges.PATH] = None
    """Folder of snapshots and game results, which runs may share; None: league in run_dir."""
    snapshot_every_steps: Annotated[int | None, ranges.STEPS] = None
    """Environment steps between snapshots; None: a twentieth of total_steps."""
    snapshot_win_rate: Annotated[float | None, ranges.SHARE] = None
    """Take a snapshot earlier, once this share of games is won against each opponent."""
    exploit: Annotated[str | None, ranges.PATH] = None
    """Train against this policy alone: a run directory, a checkpoint, or a snapshot of the
    league."""
    zero_sum: bool = False
    """Require that the rewards of a game's agents sum to 0 at every step, or in turn-based games
    over a whole game; other games raise an error."""
    device: str = "cpu"
    """Device of the learner: cpu, cuda, cuda:1 …"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of convolutions, in acting and training: auto measures at the start and uses
    bfloat16 if it is faster. Everything else is float32."""
    stacked_frames: Literal["auto", "once", "whole"] = "auto"
    """Storage of frame stacks: each frame once, or whole stacks. auto: once if the probe at the
    start finds stacks, and whole as soon as a later observation isn't one."""
    inference: Literal["auto", "actor", "shared"] = "auto"
    """Inference in each actor with its own weights (actor), or in one server that batches requests
    of all actors of a learner (shared); auto compares both at the start for large image
    networks."""
    max_wait_ms: Annotated[float, ranges.MILLISECONDS] = 5.0
    """Longest wait of shared inference for further requests after the first, in milliseconds."""
    compile: bool = False
    """Compile the learner's torsos with torch.compile, which takes a minute at the start."""
    learner_threads: Annotated[int | None, ranges.PROCESSORS] = None
    """Threads that compute gradients on a CPU; None: one per core, 1 with transport=serial."""
    cores_per_learner: Annotated[int | None, ranges.PROCESSORS] = None
    """Restrict each learner and its actors to this many separate cores; None: all cores."""
    max_rollout_seconds: Annotated[float | None, ranges.SECONDS] = None
    """Cut rollouts short after this time; None: never."""
    preempt_fraction: Annotated[float | None, ranges.SHARE] = None
    """Cut a learner's rollouts short once this share of learners, or all others, have theirs."""
    max_policy_lag: Annotated[int | None, ranges.LAG] = None
    """Drop rollouts older than this many updates. None: use the bound implied by max_lag (never
    drop with weight_sync=adaptive)."""
    weight_sync: str = "every"
    """When actors pull weights: at every update, every-<k> updates, or adaptive: on divergence."""
    kl_threshold: Annotated[float, ranges.NATS] = 0.005
    """KL(behaviour || learner) in nats above which an adaptive actor pulls weights."""
    deterministic: bool = False
    """Reset all environments at each checkpoint, so that resuming reproduces the run exactly."""
    checkpoint_interval: Annotated[int, ranges.STEPS] = 1_000_000
    """Environment steps between checkpoints; a last one is written at the end."""
    checkpoint_interval_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Seconds after which a checkpoint is written even before checkpoint_interval. inf, or
    deterministic=True: save by steps alone."""
    keep_checkpoints: Annotated[int, ranges.COUNT] = 3
    """Number of latest checkpoints to keep, in addition to the best."""
    eval_episodes: Annotated[int, ranges.COUNT_OR_0] = 20
    """Episodes per evaluation; 0: no evaluation."""
    eval_env_kwargs: Annotated[dict[str, Any], JSON] = field(default_factory=dict)
    """Keyword arguments that evaluations override in env_kwargs or add to it."""
    eval_envs: Annotated[dict[str, Any], JSON] = field(default_factory=dict)
    """Additional evaluation environments by name, as a JSON object. Each may have env_kwargs,
    wrappers, episodes and another env. Only the run's own evaluation chooses best."""
    eval_max_steps: Annotated[int, ranges.STEPS] = 100_000
    """Limit of an evaluation episode's steps. Longer episodes count as unfinished, with their
    return so far."""
    eval_timeout_s: Annotated[float, ranges.SECONDS] = 900.0
    """Time limit of an evaluation in seconds, for each task and each of eval_envs. Episodes still
    running then count as unfinished."""
    eval_deterministic: bool = True
    """Evaluate with the most likely actions; False: sample actions, as in training."""
    info_metrics: InfoNames = None
    """Numbers in infos to report as env/NAME, and how to reduce them over an episode (mean, last,
    sum, min or max), as in is_success:last,reward_parts/drive:mean. In Python also a dict or a list
    of names. None: all numbers in the info of an episode's last step; none: no numbers."""
    eval_interval: Annotated[int | None, ranges.STEPS] = None
    """Environment steps between evaluations, which then select the best checkpoint; None: evaluate
    once at the end, and select by training return."""
    target_return: Annotated[float | None, ranges.RETURN] = None
    """Stop training once such an evaluation reaches this mean return."""
    run_dir: Annotated[str | None, ranges.PATH] = None
    """Run directory; None: runs/<environment>-<algorithm>-<time>."""
    init_from: Annotated[str | None, ranges.PATH] = None
    """Initialize weights and running statistics from the policy of this run directory or
    checkpoint, whose spaces and network must be the same. The optimiser and all counters start from
    zero."""
    resume: bool = False
    """Continue the run in run_dir."""
    overwrite: bool = False
    """Delete the files of a previous run in run_dir; an error if it contains other files."""
    max_restarts: Annotated[int | None, ranges.COUNT_OR_0] = None
    """Largest number of restarts of actors and of learners; None: 10 for actors, 0 for learners."""
    actor_timeout_s: Annotated[float, ranges.SECONDS] = 300.0
    """Kill and restart an actor that delivers nothing for this long."""
    learner_timeout_s: Annotated[float, ranges.SECONDS] = 1800.0
    """Fail the run, or restart all learners, if others wait for a learner for this long."""
    log_interval_s: Annotated[float, ranges.SOME_SECONDS] = 1.0
    """Seconds between results, which come more often in short runs and at the start."""
    log_iterations: bool | None = None
    """Write a line per update and learner; None: with 2 to 32 learners."""

    def __post_init__(self) -> None:
        algorithms.check_order(self.env, self.algo, "Config")
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
        object.__setattr__(self, "batch_size", whole_batch(self))
        check_together(self)

    @property
    def played(self) -> tuple[Any, ...]:
        """Tasks, or the only environment."""
        return self.tasks or (self.env,)

    @property
    def environment(self) -> Any:
        """Environment, or all tasks as one object."""
        shown = self.network.task_id or self.network.per_task_values
        return Tasks(self.tasks, shown) if self.tasks else self.env

    @property
    def evaluates_while_training(self) -> bool:
        """True if evaluations run every ``eval_interval`` steps and select ``best``."""
        return self.eval_interval is not None and self.eval_episodes > 0

    @property
    def evaluated_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the environment in evaluations."""
        return self.env_kwargs | self.eval_env_kwargs

    @property
    def mixture(self) -> OpponentMix | None:
        """Mixture of opponents; None without opponents and league."""
        if self.exploit is not None:
            return OpponentMix((("exploit", 1.0),))
        return None if self.opponents is None else OpponentMix.of(self.opponents)

    @property
    def snapshot_steps(self) -> int:
        """Environment steps between snapshots."""
        return self.snapshot_every_steps or max(1, self.total_steps // 20)

    @property
    def learners_here(self) -> int:
        """Number of learners on this machine, as far as known."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.num_learners))  # torchrun sets it

    @property
    def _synchronous(self) -> bool:
        return self.algo.max_lag == 0

    @property
    def sizes(self) -> Sizes:
        """Sizes as set, totals of all learners."""
        return Sizes(*(getattr(self, name) for name in SIZES))

    @property
    def is_sized(self) -> bool:
        """True if all sizes are known; the batch follows from the other three."""
        return self.sizes.are_known

    def share(self, num_learners: int) -> dict[str, int] | None:
        """Return the sizes of one of ``num_learners`` learners; None if they can't be divided."""
        return self.sizes.share(num_learners, self._synchronous)

    @property
    def per_learner(self) -> Config:
        """Settings of one learner: its share of actors, environments and batch.

        Raises:
            ConfigError: they can't be divided evenly; names the nearest valid numbers.
        """
        count, _ = self.num_learners, self.rollout_steps  # raises unless all sizes are known
        if count == 1:
            return self
        share: dict[str, Any] = self.sizes.share_of(count, self._synchronous)
        if self.transport == "serial":
            share["cluster"] = None  # learners on the cluster act themselves
        elif self.min_actors is not None:
            share["min_actors"] = -(-self.min_actors // count)
        algo = self.algo.per_learner(count)
        return replace(self, algo=algo, num_learners=1, preempt_fraction=None, **share)

    @property
    def settled(self) -> Config:
        """Settings with all defaults left to the run resolved, and absolute paths to opponents."""
        network, algo, free = self.network, self.algo, self.scale_free
        if network.hidden is None:
            network = replace(network, hidden=_WIDE if len(self.tasks) > 1 else network.units)
        of_values = free and not algo.learns_in_actors  # actors share no statistics
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
            exploit = os.path.abspath(exploit)  # otherwise a snapshot of the league
        return replace(self, network=network, algo=algo, league=league, exploit=exploit)

    def again(self, saved: bool) -> Config:
        """Return the settings for restarting this run, with or without a saved checkpoint."""
        init_from = None if saved else self.init_from
        return replace(self, resume=saved, overwrite=not saved, init_from=init_from)

    def policy_mapping(self, agents: tuple[str, ...], name: str) -> PolicyMapping | None:
        """Return the policy mapping of a game; None for a single policy. See :func:`mapping_of`."""
        return mapping_of(str(self.policies), agents, name)

    def actor_spec(self, env: Any, policy: AnyPolicy, **fields: Any) -> ActorSpec:
        """Build what the actors of this learner are started from.

        Args:
            env: resolved environment.
            policy: policy on the CPU.
            fields: further fields of the spec.
        """
        names = [f.name for f in dataclasses.fields(ActorSettings)]
        view = ActorSettings(**{name: getattr(self, name) for name in names})
        return ActorSpec(view, env, policy, **{"device": self.device, **fields})

    @property
    def algo_name(self) -> str:
        """Command-line name of a built-in algorithm, or class name of a custom one."""
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
        """Number of rollouts per update, R."""
        return self.resolved_batch_size // self.rollout_steps

    @property
    def num_credits(self) -> int:
        """In-flight limit of a learner in rollouts."""
        return policy_lag.num_credits(self.algo, self.sizes, self.total_steps)

    @property
    def slots_per_actor(self) -> int:
        """Smallest number of slots per actor for ``num_credits``."""
        return -(-self.num_credits // (self.min_actors or self.num_actors))

    @property
    def num_places(self) -> int:
        """Number of actors, and learners except the first, that need resources of a cluster."""
        share = self.per_learner
        actors = 0 if self.transport == "serial" else share.min_actors or share.num_actors
        return self.num_learners * (actors + 1) - 1

    @property
    def max_first_lag(self) -> int | None:
        """Lag in updates above which a rollout is dropped; None: never."""
        return policy_lag.max_first_lag(self.algo, self.sync.every, self.max_policy_lag)

    @property
    def lag_bound(self) -> int | None:
        """Largest lag in updates at the last use of a rollout; None: no bound."""
        return policy_lag.lag_bound(self.algo, self.sizes, self.max_first_lag)

    @property
    def sync(self) -> SyncRule:
        """Rule for pulling weights, early enough for ``max_policy_lag``."""
        return policy_lag.rule_of(
            self.algo, self.weight_sync, self.kl_threshold, self.max_policy_lag
        )

    @property
    def resolved_learner_threads(self) -> int:
        """Number of threads that compute gradients."""
        if self.learner_threads is not None:
            return self.learner_threads
        if self.transport == "serial":
            return 1
        return max(1, self.cores_per_learner or num_cores() // self.learners_here)

    @property
    def actor_restarts(self) -> int:
        """Largest number of actor restarts per learner."""
        return 10 if self.max_restarts is None else self.max_restarts

    @property
    def learner_restarts(self) -> int:
        """Largest number of restarts of the group of learners."""
        return self.max_restarts or 0

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that :func:`headrace.rundir.config_file.from_json` reads.

        Infinite numbers are text, because JSON has no infinity.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        algo, kind = algorithms.fields_of(self.algo), type(self.algo)
        values |= _infinite_as_text(values)
        values["algo"] = {"name": algorithms.path_of(kind), **algo, **_infinite_as_text(algo)}
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

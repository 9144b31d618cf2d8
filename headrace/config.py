"""The settings of a run, checked as a whole before any process starts."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

import torch
import tyro

from headrace.acting import lag
from headrace.acting.actor import ActorSpec
from headrace.acting.sizes import AUTO, SIZES, Size, Sizes
from headrace.acting.weight_sync import SyncRule, sync_rule
from headrace.algos import ALGORITHMS, APPO
from headrace.algos.common import Hyperparameters
from headrace.envs.make import ENGINES
from headrace.envs.names import import_path
from headrace.errors import (
    A_COUNT,
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    ConfigError,
    Valid,
    check_fields,
    nearest,
    require,
    require_choice,
)
from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.process import check_device, num_cores

SEED = Valid("between 0 and 2147483647", lambda x: 0 <= x < 2**31)
SHARE = Valid("above 0 and below 1", lambda x: 0 < x < 1)
Count: TypeAlias = Annotated[
    int,
    Valid("a whole number (an int)", lambda x: isinstance(x, int)),
    A_COUNT,
]
TRANSPORTS = ("shm", "serial")


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on; written to ``config.json`` in its directory."""

    env: Annotated[Any, tyro.conf.arg(name="env-id", constructor=str)] = "CartPole-v1"
    """Gymnasium id, Env class, or a callable that returns an Env."""
    algo: Hyperparameters = field(default_factory=APPO)
    """The algorithm and its hyperparameters."""
    env_kwargs: Annotated[dict[str, Any], tyro.conf.arg(constructor=json.loads, metavar="JSON")] = (
        field(default_factory=dict)
    )
    """Keyword arguments of the environment, on the command line as a JSON object."""
    engine: str = "auto"
    """How environments are vectorised: auto, native, envpool, sync, async (a process each) or
    threads (a thread each, in which they advance at their own pace)."""
    transport: Literal["shm", "serial"] = "shm"
    """Actors as processes with shared memory, or all in one process."""
    num_learners: Count = 1
    """Learners that take every step together; they share out what all other settings describe."""
    num_actors: Size = AUTO
    """Actors, each a process of its own with transport=shm; auto: by what an environment's step
    costs and the cores. Of this and the next three, what is not given is fitted to what is."""
    envs_per_actor: Size = AUTO
    """Environments that each actor steps together; auto: as many, in all, as learning was shown to
    bear, and fewer where an update would take seconds."""
    fragment_length: Size = AUTO
    """Steps per rollout; auto: as learning was shown to bear."""
    batch_size: Size | None = AUTO
    """Steps per update; None, and auto where the three above are given: one rollout from every
    actor."""
    total_steps: Count = 1_000_000
    """Environment steps after which training ends."""
    stop_return: float | None = None
    """End once the mean return of the last 100 training episodes reaches this."""
    scale_free: bool = True
    """Learn alike whatever the units of rewards and observations: normalise values (PopArt),
    advantages and the numbers of Box observations; False: as in the algorithms' papers. Settings
    normalize_… decide for themselves where they are given."""
    seed: Annotated[int, SEED] = 0
    """Of weights, environments, actions and shuffling."""
    network: Network = field(default_factory=Network)
    """The policy's torsos."""
    device: str = "cpu"
    """Where the learner computes: cpu, cuda, cuda:1 …"""
    learner_threads: int | None = None
    """Threads that compute gradients on a CPU; None: one per core, 1 with transport=serial."""
    cores_per_learner: Annotated[int | None, AT_LEAST_1] = None
    """Keep each learner and its actors on so many cores of their own; None: on all."""
    max_rollout_seconds: Annotated[float | None, ABOVE_0] = None
    """Cut rollouts short that take longer; None: never."""
    preempt_fraction: Annotated[float | None, SHARE] = None
    """Once this share of learners, or all others, have their rollouts, a learner ends its own."""
    max_policy_lag: Annotated[int | None, AT_LEAST_0] = None
    """Drop (and count) rollouts that are more updates older than this when their turn comes;
    None: than max_lag makes them that nothing overtook (never, with weight_sync=adaptive)."""
    weight_sync: str = "every"
    """When actors fetch weights: at every update, every-<k>, or adaptive: once they lag in KL."""
    kl_threshold: float = 0.005
    """Nats of KL(behaviour || learner) on its rollouts above which an adaptive actor fetches."""
    deterministic: bool = False
    """Each checkpoint resets all environments, so that resuming changes nothing."""
    checkpoint_interval: Annotated[int, AT_LEAST_1] = 1_000_000
    """Environment steps between checkpoints; one more is written at the end."""
    keep_checkpoints: Annotated[int, AT_LEAST_1] = 3
    """How many of the latest checkpoints stay on disk, besides the best."""
    eval_episodes: Annotated[int, AT_LEAST_0] = 20
    """Episodes of an evaluation with the deterministic policy; 0: none."""
    eval_interval: Annotated[int | None, AT_LEAST_1] = None
    """Environment steps between evaluations; None: one at the end."""
    target_return: float | None = None
    """End once such an evaluation reaches this mean return."""
    run_dir: str | None = None
    """Where results go; None: runs/<environment>-<algorithm>-<time>."""
    resume: bool = False
    """Continue the run in run_dir."""
    overwrite: bool = False
    """Delete what is in run_dir first."""
    max_restarts: Annotated[int | None, AT_LEAST_0] = None
    """Deaths of actors, and of learners, that are made good; None: 10 of actors, 0 of learners."""
    actor_timeout_s: Annotated[float, ABOVE_0] = 300.0
    """An actor that delivers nothing for so long is killed and replaced."""
    learner_timeout_s: Annotated[float, ABOVE_0] = 1800.0
    """A learner that others wait for so long ends the run, or restarts all of them."""
    log_interval_s: float = 1.0
    """Seconds between results."""
    log_iterations: bool | None = None
    """Write a line per update and learner; None: where there are several learners."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(not (self.resume and self.overwrite), "resume", True, "alone, without overwrite")
        self._check_choices()
        self.sizes.check_batch(self._synchronous)
        self._check_times()
        if self.num_learners > 1:
            self._check_devices()
            self.algo.per_learner(self.num_learners)  # raises unless it can be shared out
        if self.is_sized:
            self._check_columns()
            _ = self.sync, self.per_learner  # raise unless there is such a rule, and shares fit
        else:
            sync_rule(self.weight_sync, self.kl_threshold)
        try:
            json.dumps(self.env_kwargs)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"env_kwargs={self.env_kwargs!r} can't be written to config.json: {error}"
            ) from error

    def _check_choices(self) -> None:
        if not isinstance(self.algo, tuple(ALGORITHMS.values())):
            raise ConfigError(
                f"algo={self.algo!r} must be an instance of one of "
                f"{', '.join(c.__name__ for c in ALGORITHMS.values())}"
            )
        for name, known in (("transport", TRANSPORTS), ("engine", ENGINES)):
            require_choice(name, getattr(self, name), known)
        check_device(self.device)
        for name, (only, why) in self.algo.only.items():
            value = getattr(self, name)
            require(value == only, name, value, f"{only!r} with {self.algo_name}, {why}")
        learns_in_actors = self.algo.learns_in_actors and self.network.normalize_values is True
        valid = f"None or False with {self.algo_name}, whose actors have no targets in common"
        require(not learns_in_actors, "normalize_values", True, valid)
        if self.engine == "async" and self.transport != "serial":
            raise ConfigError(
                "engine='async' needs transport='serial': it starts a process per environment, "
                "which an actor process can't (use engine='sync' with more actors instead)"
            )

    def _check_columns(self) -> None:
        if self.num_learners == 1:  # several are told of the share of each
            lag.warn_of_idle_actors(self.algo, self.sizes)
        columns = self.rollouts_per_update * self.envs_per_actor
        minibatches = getattr(self.algo, "minibatches", 1)
        if self.network.core is not None and minibatches > columns:
            raise ConfigError(
                f"minibatches={minibatches} is more than the {columns} environments of a learner's "
                "batch: a recurrent policy's minibatches are whole sequences of environments "
                f"(nearest: {columns})"
            )

    def _check_times(self) -> None:
        """What depends on timing, and so on chance, against what shall not."""
        limit, share = self.max_rollout_seconds, self.preempt_fraction
        own_pace, cuts = self.engine == "threads", limit is not None or share is not None
        valid = "False with engine='threads', where timing decides which rows are computed together"
        require(not (self.deterministic and own_pace), "deterministic", True, valid)
        valid = "False where rollouts are cut short by time"
        require(not (self.deterministic and cuts), "deterministic", True, valid)
        if self.deterministic and self.algo.max_lag > 0 and self.transport != "serial":
            raise ConfigError(
                "deterministic=True needs a synchronous algorithm (a2c, ppo) or "
                "transport='serial': "
                f"{self.algo_name} with transport={self.transport!r} depends on timing"
            )
        valid = "None with an asynchronous algorithm, where nobody waits for rollouts"
        require(share is None or self.algo.max_lag == 0, "preempt_fraction", share, valid)
        watched = self.eval_interval is not None and self.eval_episodes > 0
        valid = "None without eval_interval and eval_episodes"
        require(self.target_return is None or watched, "target_return", self.target_return, valid)

    def _check_devices(self) -> None:
        """A GPU for each of the learners of this machine."""
        valid = "'cpu' or 'cuda' with several learners (each takes a GPU of its own)"
        require(self.device in ("cpu", "cuda"), "device", self.device, valid)
        gpus, here = torch.cuda.device_count(), self.learners_here
        valid = f"'cpu' with {here} learners on a machine of {gpus} GPU(s): each needs its own"
        require(self.device == "cpu" or gpus >= here, "device", self.device, valid)

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
        algo = self.algo.per_learner(count)
        return replace(self, algo=algo, num_learners=1, preempt_fraction=None, **share)

    @property
    def settled(self) -> Config:
        """With every setting decided that may be left to ``scale_free``."""
        network, algo, free = self.network, self.algo, self.scale_free
        of_values = free and not algo.learns_in_actors  # they have no statistics in common
        if network.normalize_observations is None:
            network = replace(network, normalize_observations=free and network.torso is None)
        if network.normalize_values is None:
            network = replace(network, normalize_values=of_values)
        if algo.normalize_advantage is None:
            algo = replace(algo, normalize_advantage=of_values)
        return replace(self, network=network, algo=algo)

    def actor_spec(self, env: Any, policy: Policy, **known: Any) -> ActorSpec:
        """What the actors of this learner are built from: settings by name, and what is known.

        Args:
            env: resolved. policy: on the CPU. known: further fields of the spec.
        """
        known |= {"env": env, "policy": policy}
        names = {f.name for f in dataclasses.fields(ActorSpec)} - known.keys()
        return ActorSpec(**{n: getattr(self, n) for n in names if hasattr(self, n)}, **known)

    @property
    def algo_name(self) -> str:
        """The command-line name of the algorithm."""
        return next(name for name, cls in ALGORITHMS.items() if type(self.algo) is cls)

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
        return lag.num_credits(self.algo, self.sizes)

    @property
    def slots_per_actor(self) -> int:
        """As few as ``num_credits`` takes."""
        return -(-self.num_credits // self.num_actors)

    @property
    def max_first_lag(self) -> int | None:
        """Updates behind which a rollout is dropped when its turn has come; None: never."""
        return lag.max_first_lag(self.algo, self.sync.every, self.max_policy_lag)

    @property
    def lag_bound(self) -> int | None:
        """Updates, at most, between acting and the last use of what was done; None: no bound."""
        return lag.lag_bound(self.algo, self.sizes, self.max_first_lag)

    @property
    def sync(self) -> SyncRule:
        """When actors fetch weights: early enough for ``max_policy_lag`` if they act in time."""
        return lag.rule_of(self.algo, self.weight_sync, self.kl_threshold, self.max_policy_lag)

    @property
    def resolved_learner_threads(self) -> int:
        """Threads that compute gradients."""
        if self.learner_threads is not None:
            return max(1, self.learner_threads)
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
        """A plain dict that :func:`headrace.records.settings.from_json` reads back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["algo"] = {"name": self.algo_name, **dataclasses.asdict(self.algo)}
        values["network"] = self.network.to_json()
        values["env"] = self.env if isinstance(self.env, str) else import_path(self.env)
        return values


def unknown_setting(name: str) -> ConfigError:
    """The error for a keyword that is no setting, naming the closest one."""
    known = {f.name for f in dataclasses.fields(Config)}
    hint = nearest(name, known)
    for cls in ALGORITHMS.values():
        if name in {f.name for f in dataclasses.fields(cls)}:
            hint = f" It belongs to the algorithm: {cls.__name__}({name}=…)."
            break
    return ConfigError(f"setting {name!r} is unknown.{hint}")

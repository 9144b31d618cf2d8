"""Counts a run's progress and computes its results and summary."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from headrace import schedules
from headrace.config import Config
from headrace.envs.names import env_name
from headrace.errors import setting
from headrace.games import turn_based_game
from headrace.learner.multi_policy_learner import METRICS
from headrace.nn.policy_mapping import PolicyMapping
from headrace.processes import cores
from headrace.processes.core_use import CoreMeter, CoreUse
from headrace.processes.memory import free_bytes, resident_bytes
from headrace.rundir.bottleneck import ActorsAhead, RunTimes, compare
from headrace.rundir.episodes import Episodes
from headrace.rundir.metric_accumulators import SUMS, MetricAccumulator
from headrace.rundir.per_task_metrics import by_policy
from headrace.rundir.result import Result

CURVE_POINTS = 60  # fewest results of a run that reaches total_steps, unless it has fewer updates
_WAITS, _CROWDED = 0.5, 0.25  # shares of actors' time, and of the cores for other programs
_SHORT_S = 5.0  # of a run whose processor time isn't judged
_MEMORY_S = 1.0  # between measurements of memory and cores, which take some milliseconds
_SHARE_OF_RUN, _FASTEST = 1 / 40, 1 / 50  # of the seconds so far, and of the interval


@dataclass
class Progress:
    """Counters of a run, equal on each rank."""

    env_steps: int = 0  # of all learners
    updates: int = 0
    dropped: int = 0  # rollouts
    lost: int = 0  # rollouts, with their actors
    pulls: int = 0  # times that actors pulled weights
    epoch: int = 0  # resets of the environments for checkpoints
    best_return: float | None = None  # greatest training return at a checkpoint
    lr_factor: float = 1.0  # of the learning rate, reduced by kl_limit
    trained_s: float = 0.0  # seconds of training without evaluations
    agreed_s: float = 0.0  # those of rank 0 after the latest update
    env_changes: list[str] = field(default_factory=list)  # made by callbacks, as JSON, in order
    _since: float = field(default=math.nan, repr=False)
    _excluded_s: float = field(default=0.0, repr=False)  # in this session

    def start(self) -> None:
        """Start or resume the training clock."""
        self._since = time.monotonic() - self.trained_s

    def add(self, meter: MetricAccumulator) -> None:
        """Add an update's metrics of all learners."""
        self.updates += 1
        for name in self.state_dict().keys() & set(SUMS):
            setattr(self, name, getattr(self, name) + getattr(meter, name))

    def exclude(self, seconds: float) -> None:
        """Exclude seconds from the training time."""
        self._since += seconds
        self._excluded_s += seconds

    def clock(self) -> float:
        """Return the time in seconds of a monotonic clock without the excluded seconds."""
        return time.monotonic() - self._excluded_s

    def now(self) -> float:
        """Return the seconds of training so far; also kept in ``trained_s``."""
        self.trained_s = time.monotonic() - self._since
        return self.trained_s

    def steps_at_end(self, config: Config) -> float:
        """Return the environment steps at which the run ends; see schedules.steps_at_end."""
        done = self.env_steps, config.total_steps, self.agreed_s, config.stop_time_s
        return schedules.steps_at_end(*done)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        names = [f.name for f in fields(self) if not f.name.startswith("_")]
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`; missing entries keep their values."""
        for name in self.state_dict():
            setattr(self, name, saved.get(name, getattr(self, name)))
        self.agreed_s = saved.get("agreed_s", self.trained_s)


class RunProgress:
    """Counts since the last result and since the start, and measures times between.

    Args:
        progress: counters of the run.
        config: settings of the run.
        weights_bytes: bytes that an actor copies per pull.
        started: start time of the run (``time.monotonic()``).
        frames_per_step: frames per step of an environment that repeats actions.
        in_turns: agents move one at a time; each must get a turn.
    """

    def __init__(
        self,
        progress: Progress,
        config: Config,
        weights_bytes: int,
        started: float,
        frames_per_step: int = 1,
        in_turns: bool = False,
    ) -> None:
        self._progress, self._config, self._started = progress, config, started
        self._frames_per_step, self._in_turns = frames_per_step, in_turns
        self._weights_bytes = weights_bytes
        self._meter, self._total, self._episodes = (
            MetricAccumulator(),
            MetricAccumulator(),
            Episodes(),
        )
        self._later = MetricAccumulator()  # after the first update, like the speed
        self._first_update_s: float | None = None
        self._first_steps = self._last_steps = self.num_results = 0
        self._first_time = self._last_time = self._resulted_at = started
        self._mapping: PolicyMapping | None = None
        self._measured_at, self._memory = -math.inf, (0, 0)
        alone = (
            config.num_learners == 1 and config.cluster is None
        )  # all processes descend from this one
        self._cores, self._whole_use = (CoreMeter() if alone else None for _ in range(2))
        self._use: CoreUse | None = None
        self.has_news = True  # there were updates since the last result, or there is no result

    def begin(self, episodes: Episodes) -> None:
        """Begin training after these episodes of all learners."""
        self._episodes, config = episodes, self._config
        self._mapping = config.policy_mapping(episodes.agents, env_name(config.env))
        self._resulted_at = time.monotonic()
        self._first_time = self._last_time = self._progress.clock()
        self._first_steps = self._last_steps = self._progress.env_steps

    def is_due(self, interval_s: float, new_steps: int = 0) -> bool:
        """Return True if a result is due after the current update.

        Results come every ``interval_s`` seconds. Short runs have more of them: the first update
        has one, every 60th of ``total_steps`` has one, and at first a result is due when the run
        has become a fortieth longer. A long run has at most about 220 additional results.

        Args:
            new_steps: environment steps of the update, which aren't in the progress yet.
        """
        passed_s = time.monotonic() - self._resulted_at
        parts = self._part(self._progress.env_steps + new_steps) - self._part(self._last_steps)
        early_s = max(_SHARE_OF_RUN * self._progress.trained_s, _FASTEST * interval_s)
        return self.num_results == 0 or passed_s >= min(interval_s, early_s) or parts > 0

    def _part(self, env_steps: int) -> int:
        """Return the part of the run in which a step is, from 0."""
        return env_steps * CURVE_POINTS // self._config.total_steps

    def add(self, meter: MetricAccumulator) -> None:
        """Add an update's counts, over all learners."""
        self.has_news = True
        self._meter.add(meter)
        self._total.add(meter)
        if self._first_update_s is not None:
            self._later.add(meter)
        else:
            self._first_time, self._first_steps = self._progress.clock(), self._progress.env_steps
            self._first_update_s = time.monotonic() - self._started

    def _values(self, meter: MetricAccumulator) -> dict[str, Any]:
        """Return the fields of a result that follow from counts and progress."""
        progress, num_learners = self._progress, self._config.num_learners
        values = meter.values(progress.state_dict(), self._episodes, num_learners)
        copied = progress.pulls * self._weights_bytes
        own = by_policy(self._mapping, self._episodes.by_agent, meter.means(), METRICS)
        return values | {"updates": progress.updates, "sync_bytes": copied, "policies": own}

    def result(self, episodes: Episodes, **extra: Any) -> Result:
        """Return the result since the last one; the ``episodes`` are of all learners.

        Raises:
            EnvironmentFault: an agent of a turn-based game got no turn in its first games.
        """
        if self._in_turns:
            self._check_turns(episodes)
        progress, now, self._episodes = self._progress, time.monotonic(), episodes
        steps, trained_at = progress.env_steps, progress.clock()
        sps = (steps - self._last_steps) / (trained_at - self._last_time)
        extra |= {"seconds": progress.trained_s, "sps": sps, "frames": self._frames}
        if now - self._measured_at >= _MEMORY_S:
            self._measured_at, self._memory = now, (resident_bytes(), free_bytes())
            self._use = None if self._cores is None else self._cores.measure()
        extra |= dict(zip(("memory_learner", "memory_free"), self._memory, strict=True))
        used = (None,) * 4 if self._use is None else self._use
        names = "cores_own", "cores_other", "cores_idle", "cores_learner"
        extra |= dict(zip(names, used, strict=True))
        extra["metrics"] = self._meter.of_losses() | extra.get("metrics", {})
        result = Result(**self._values(self._meter), **extra)
        self._resulted_at, self._meter = now, MetricAccumulator()
        self._last_time, self._last_steps = trained_at, steps
        self.num_results += 1
        self.has_news = False
        if self._total.dropped > self._total.num_rollouts:
            warnings.warn(
                "most rollouts are dropped, because more updates overtook them than max_lag or "
                "max_policy_lag allows: raise it, or batch_size",
                stacklevel=3,
            )
        return result

    def _check_turns(self, episodes: Episodes) -> None:
        each = episodes.by_agent
        games = max((one.count for one in each.values()), default=0)  # a game is an episode of each
        idle = [name for name, one in each.items() if not (one.count or one.env_steps)]
        if idle and games >= turn_based_game.MAX_GAMES:
            name = env_name(self._config.env)
            raise turn_based_game.no_turn(name, ", ".join(idle), f"{games:,} games")

    @property
    def _frames(self) -> int | None:
        times = self._frames_per_step
        return None if times == 1 else times * self._progress.env_steps

    @property
    def sps(self) -> float:
        """Steps per second of training from the first update to the latest result."""
        seconds = self._last_time - self._first_time
        return (self._last_steps - self._first_steps) / seconds if seconds > 0 else 0.0

    def summary(self) -> dict[str, Any]:
        """Return the training section of ``summary.json``."""
        values = self._values(self._total)
        groups: dict[str, dict[str, Any]] = {}  # by the first part of the names in files
        for one in fields(Result):
            group, _, name = (one.metadata["file"] or "").partition("/")
            if one.name in values:
                groups.setdefault(group, {})[name] = values[one.name]
        return {
            "env_steps": values["env_steps"],
            "frames": self._frames,
            "frames_per_step": self._frames_per_step,
            "updates": values["updates"],
            "seconds_total": time.monotonic() - self._started,
            "seconds_to_first_update": self._first_update_s,
            "seconds_training": self._progress.trained_s,
            "sps": self.sps,
            "episodic_return": values["episode_return"],
            **{
                kind: values[kind] and {k: asdict(one) for k, one in values[kind].items()}
                for kind in ("tasks", "agents", "policies")
            },
            "utilisation": groups["utilisation"],
            "time": groups["time"],
            "lag": {name: groups["lag"][name] for name in ("mean", "max", "steps", "steps_max")}
            | {"bound": self._config.per_learner.lag_bound},
            "dropped": values["dropped"],
            "lost": values["lost"],
            "sync": groups["sync"],
            "plan": self._plan(),
        }

    @property
    def _ahead(self) -> ActorsAhead:
        config, tasks = self._config, max(1, len(self._config.tasks))
        return ActorsAhead(
            config.algo.max_lag, config.per_learner.sizes, config.num_learners, tasks
        )

    @property
    def _free_cores(self) -> int | None:
        """Cores of this machine that the run's processes don't use; None if they are elsewhere."""
        config = self._config
        if config.cluster is not None:
            return None
        learners = 0 if config.algo.max_lag == 0 else config.num_learners
        return len(cores()) - config.num_learners * config.per_learner.num_actors - learners

    def _for_waits(self, total: MetricAccumulator) -> str | None:
        """Return a setting that helps if actors computed for less than half of their time."""
        whole = None if self._whole_use is None else self._whole_use.measure(restart=False)
        passed_s = time.monotonic() - self._started
        if whole is None or passed_s < _SHORT_S:
            return None
        crowded = whole.other > _CROWDED * (whole.own + whole.other + whole.idle)
        if crowded or whole.own * passed_s > _WAITS * 1e-9 * total.acting_ns:
            return None
        if self._config.engine != "threads":
            return setting("engine", repr("threads"))
        return "more envs_per_actor"

    def _plan(self) -> dict[str, float | str] | None:
        """Compare the speed with the run's capacities; None if actors compute gradients."""
        config, total = self._config, self._later if self._later.env_steps else self._total
        if config.algo.learns_in_actors:
            return None
        spent = RunTimes(
            env_steps=total.env_steps,
            num_rollouts=total.num_rollouts,
            acting_s=1e-9 * total.acting_ns,
            learning_s=total.learn_s + total.publish_s + total.comm_s,
            num_actors=config.num_learners * config.per_learner.num_actors,
            num_learners=config.num_learners,
            synchronous=config.algo.max_lag == 0,
            one_process=config.transport == "serial",
            waiting_s=1e-9 * total.waiting_ns,
            idle_s=total.wait_s,
            ahead=self._ahead,
            free_cores=self._free_cores,
            for_waits=self._for_waits(total),
        )
        return compare(spent, self.sps)

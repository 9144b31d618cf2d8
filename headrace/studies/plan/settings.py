"""Settings of a plan, converted with measured costs to a setup and a scenario."""

# Annotations are evaluated here at once: tyro reads those of Plan.

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from headrace.config import Config
from headrace.errors import require
from headrace.studies.plan.arithmetic import Envs, Setup
from headrace.studies.plan.durations import Duration, Shape, rollout_duration
from headrace.studies.plan.measure import MeasuredCosts
from headrace.studies.plan.scenario import Scenario
from headrace.studies.plan.sharing import Cores
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

SPS = ranges.Range(0, 1e12, above=True)  # steps per second
MEASURING = ranges.Range(0, 3600, above=True, words="above 0 seconds")
UPDATES = ranges.Range(5, 10**6)
DEVIATION = ranges.Range(0, 1e3)
FACTOR = ranges.Range(1e-3, 1e3)
_MAX_ROLLOUTS = 10**6  # per simulation
DEFAULT = Config(num_actors=32, envs_per_actor=16, fragment_length=32, total_steps=50_000_000)


@settings()
@dataclass(frozen=True)
class Plan:
    """Predict the speed of a run, its bottleneck, and the effect of changes.

    The prediction uses given costs, or costs measured on this machine (--measure). With --simulate
    it also simulates actors, slots, queue and weights.
    """

    env_step_ms: Annotated[float, ranges.AT_LEAST_0] = 20.0
    """Milliseconds per step of one environment; measured with --measure."""
    envs: Envs = "waiting"
    """Environments of an actor wait in parallel; False: they compute one after the other."""
    inference_ms: Annotated[float, ranges.AT_LEAST_0] = 0.0
    """Milliseconds of inference per step of all environments of an actor; also measured."""
    learner_sps: Annotated[float, SPS] = 500_000.0
    """Steps per second that one learner can process; also measured."""
    measure: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Environment whose costs, with the algorithm and its network, are measured on this machine."""
    measure_seconds: Annotated[float, MEASURING] = 4.0
    """Duration of the measurement in seconds."""
    simulate: bool = False
    """Simulate the run, event by event, and plot the results."""
    updates: Annotated[int | None, UPDATES] = None
    """Updates to simulate; None: 300, or fewer if they exceed 100,000 rollouts."""
    step_shape: Shape = "constant"
    """Distribution of step times: constant, lognormal or gamma."""
    step_cv: Annotated[float, DEVIATION] = 0.0
    """Standard deviation of step times, relative to their mean."""
    stragglers: Annotated[int, ranges.COUNT_OR_0] = 0
    """Actors that are slower than the others."""
    straggler_factor: Annotated[float, FACTOR] = 4.0
    """Slowdown of these actors."""
    mtbf_s: Annotated[float | None, ranges.ABOVE_0] = None
    """Mean seconds of acting between two crashes of an actor; None: it never crashes."""
    restart_s: Annotated[float, ranges.AT_LEAST_0] = 5.0
    """Seconds until a crashed actor acts again."""
    drift: Annotated[float, ranges.NATS] = 0.001
    """Nats of KL per update of lag, for weight_sync=adaptive."""
    cores: Annotated[float | None, ranges.ABOVE_0] = None
    """Cores that a learner and its actors share; None: those of this machine with --measure,
    otherwise one for each."""
    bandwidth_gbps: Annotated[float | None, ranges.ABOVE_0] = None
    """Gbit/s that all transfers of rollouts and weights share; None: they take no time."""
    rollout_kb: Annotated[float, ranges.AT_LEAST_0] = 0.0
    """Kilobytes of one rollout; measured with --measure."""
    weights_kb: Annotated[float, ranges.AT_LEAST_0] = 0.0
    """Kilobytes of the weights; measured with --measure."""
    output: Path = Path("plan.png")
    """File for the plot of a simulation."""
    config: Config = field(default_factory=lambda: DEFAULT)
    """Settings of the run."""

    def __post_init__(self) -> None:
        check_fields(self)
        takes_time = self.env_step_ms + self.inference_ms > 0
        require(takes_time, "env_step_ms", self.env_step_ms, "above 0 unless inference_ms is")
        self.setup()  # raises if a setting is invalid, also if it will be measured
        most = max(UPDATES.low, _MAX_ROLLOUTS // self.config.per_learner.rollouts_per_update)
        valid = f"at most {most} with as many rollouts in each (nearest: {most})"
        require(self.updates is None or self.updates <= most, "updates", self.updates, valid)

    def setup(self, costs: MeasuredCosts | None = None) -> Setup:
        """Return the arithmetic's input: every actor and learner with its own cores.

        Args:
            costs: measured costs of one learner's share of the run; None: those of the flags.
        """
        share = self.config.per_learner
        values: dict[str, Any] = {
            "env_step_s": self.env_step_ms / 1e3,
            "envs": self.envs,
            "inference_s": self.inference_ms / 1e3,
            "learner_sps": self.learner_sps,
        }
        if costs is not None:
            step_s = costs.acting_s / share.fragment_length
            env_step_s = min(costs.env_step_s, step_s)
            values = {
                "env_step_s": env_step_s / costs.valid_share,
                "inference_s": (step_s - env_step_s) / costs.valid_share,
                "learner_sps": share.resolved_batch_size * costs.valid_share / costs.update_s,
            }
        return Setup(
            num_actors=self.config.num_learners * share.num_actors,
            envs_per_actor=share.envs_per_actor,
            num_learners=self.config.num_learners,
            synchronous=share.algo.max_lag == 0,
            total_steps=self.config.total_steps,
            **values,
        )

    def scenario(self, costs: MeasuredCosts | None = None) -> Scenario:
        """Return the simulation's input for one learner; ``costs`` as for :meth:`setup`."""
        share, gbps = self.config.per_learner, self.bandwidth_gbps
        return Scenario(
            num_actors=share.num_actors,
            slots_per_actor=share.slots_per_actor,
            num_credits=share.num_credits,
            rollouts_per_update=share.rollouts_per_update,
            synchronous=share.algo.max_lag == 0,
            steps_per_rollout=share.rollout_steps * (1.0 if costs is None else costs.valid_share),
            sync=share.sync,
            drift=self.drift,
            max_policy_lag=share.max_first_lag,
            stragglers=self.stragglers,
            straggler_factor=self.straggler_factor,
            mtbf_s=self.mtbf_s,
            restart_s=self.restart_s,
            bytes_per_s=None if gbps is None else gbps * 1e9 / 8 / self.config.num_learners,
            seed=share.seed,
            **(self._from_flags(share) if costs is None else self._from_costs(share, costs)),
        )

    def _from_flags(self, share: Config) -> dict[str, Any]:
        """Return the costs in a scenario from the flags."""
        inference_s = self.inference_ms / 1e3
        step = Duration(max(self.env_step_ms, 1e-9) / 1e3, self.step_cv, self.step_shape)
        acting = rollout_duration(
            step, share.fragment_length, share.envs_per_actor, self.envs, inference_s
        )
        computing_s = acting.mean_s if self.envs == "computing" else 0.0
        busy_s = max(computing_s, inference_s * share.fragment_length)
        cores = math.inf if self.cores is None else self.cores
        return {
            "acting": acting,
            "update": Duration(share.resolved_batch_size / self.learner_sps),
            "cores": Cores(cores, busy_s / acting.mean_s, 1.0),
            "rollout_bytes": 1e3 * self.rollout_kb,
            "weights_bytes": 1e3 * self.weights_kb,
        }

    def _from_costs(self, share: Config, costs: MeasuredCosts) -> dict[str, Any]:
        """Return the costs in a scenario from measured ones."""
        acting = Duration(costs.acting_s, costs.acting_cv, "gamma")
        if self.step_cv > 0.0:  # per row, instead of the measured one of rollouts
            row_s = costs.acting_s / share.fragment_length
            acting = Duration(row_s, self.step_cv, self.step_shape).repeated(share.fragment_length)
        return {
            "acting": acting,
            "update": Duration(costs.update_s, costs.update_cv, "gamma"),
            "pull_s": costs.pull_s,
            "cores": Cores(
                costs.cores if self.cores is None else self.cores,
                costs.acting_cores,
                costs.update_cores,
                costs.acting_crowding,
                costs.update_crowding,
            ),
            "rollout_bytes": costs.rollout_bytes,
            "weights_bytes": costs.weights_bytes,
        }

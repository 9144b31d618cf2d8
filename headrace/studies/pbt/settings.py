"""Settings of population-based training."""

# Annotations are evaluated here at once: tyro reads those of Population.

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from headrace import schedules
from headrace.algos import IMPALA
from headrace.config import Config
from headrace.envs.suites import Suite
from headrace.errors import ConfigError, require, setting
from headrace.rundir.config_file import replaced
from headrace.studies import flags, sample
from headrace.studies.fitness import fitness, suite_of
from headrace.studies.sample import Parameter, seed_of
from headrace.studies.scores.runs import RunScore
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

# Stopping by return or time would stop each turn of a member before its first step.
NO_END: dict[str, Any] = {"stop_return": None, "target_return": None, "stop_time_s": None}
SET_BY_POPULATION = {"run_dir": None, "resume": False, "overwrite": False, **NO_END}
_DRAWS = 100  # attempts to sample a valid combination
CONSTANT: dict[str, Any] = {"algo": IMPALA(lr_schedule="constant", optimizer="rmsprop")}


@settings()
@dataclass(frozen=True)
class Population:
    """Train a population whose members copy better ones and change their settings a little.

    The same command resumes the population in --output, also from other processes and machines that
    share the folder: each one trains turns of members that are free. Defaults of --members,
    --threshold, --burn-in, --factor and --probability are IMPALA's (Appendix F).
    """

    sample: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=KIND:LOW,HIGH")
    ] = ()
    """Setting that evolves, and its initial distribution, such as
    learning-rate=loguniform:5e-6,5e-3; may be repeated. Default: entropy bonus, learning rate and
    the optimiser's epsilon as in IMPALA, Table D.1."""
    members: Annotated[int, ranges.Range(2, 10_000)] = 24
    """Number of members; more members than run at a time take turns."""
    jobs: Annotated[int, ranges.PROCESSORS] = 1
    """Members that this process trains at a time."""
    interval: Annotated[int | None, ranges.STEPS] = None
    """Environment steps of a turn, after which a member is evaluated and may copy; None: a
    fiftieth of total_steps."""
    burn_in: Annotated[int, ranges.Range(0, 10**15)] = 5_000_000
    """Environment steps before which a member stays as it is. The paper's 20 million frames are 5
    million steps of 4 frames."""
    threshold: Annotated[float | None, ranges.AT_LEAST_0] = None
    """Lead in score that another member needs to be copied. None: 0.05 of the difference between a
    random and a reference player. Required, in units of returns, without a reference score."""
    factor: Annotated[float, ranges.Range(1, 1e9, above=True)] = 1.2
    """Factor that settings are multiplied or divided by when they change."""
    probability: Annotated[float, ranges.FACTOR] = 1 / 3
    """Probability that a setting changes after a turn, independently of others and of copies."""
    references: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Suite, or file of headrace references, that normalises scores for comparing members. None:
    built-in scores for the 57 Atari games, returns for other environments."""
    output: Annotated[str, ranges.PATH] = "runs/pbt"
    """Folder of the population: members, page and plot."""
    timeout_s: Annotated[float, ranges.SECONDS] = 86_400.0
    """Time limit of a turn in seconds; a turn that takes longer is killed and restarted."""
    config: Config = dataclasses.field(default_factory=lambda: Config(**CONSTANT))
    """Shared settings of all members."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, default in SET_BY_POPULATION.items():
            value = getattr(self.config, name)
            valid = f"{default!r}: the population sets it for each member"
            require(value == default, name, value, valid)
        for name in ("lr_schedule", "entropy_schedule"):
            schedule = getattr(self.config.algo, name)
            valid = "'constant': in a population, copying and changing is the schedule"
            require(schedule == "constant", name, schedule, valid)
        sampled = {one.name for one in self.parameters}
        for name, schedule in schedules.of(self.config.algo).items():
            in_steps = isinstance(schedule, schedules.Points) and not schedule.in_fractions
            valid = "points in environment steps, because each turn of a population is its own run"
            require(in_steps or name in sampled, name, str(schedule), valid)

    def check(self) -> None:
        """Raise ConfigError if nothing would change, or the threshold is unknown."""
        total = self.config.total_steps
        if self.burn_in >= total:
            raise ConfigError(
                f"burn_in={self.burn_in} must be below total_steps={total}, or nothing ever "
                f"evolves (nearest: {total // 20}, a twentieth)"
            )
        _ = self.lead

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Parameters that evolve.

        Raises:
            ConfigError: one is invalid, or can't be multiplied.
        """
        parameters = sample.parse(self.sample or sample.IMPALA, self.config)
        fields = {f.name for f in dataclasses.fields(self.config.algo)}
        for one in parameters:
            numbers = all(isinstance(x, float) and x > 0 for x in one.values)
            if one.name not in fields or not numbers:
                raise ConfigError(
                    f"sample={one.name} can't evolve: it must be a hyperparameter of "
                    f"{self.config.algo_name} that is a fraction above 0, as "
                    "learning_rate=loguniform:1e-5,1e-2"
                )
        return parameters

    @property
    def turn_steps(self) -> int:
        """Environment steps of a turn."""
        return self.interval or max(1, self.config.total_steps // 50)

    @cached_property
    def suite(self) -> Suite | None:
        """Suite that normalises scores; None: returns are compared.

        Raises:
            ConfigError: a reference score is missing.
        """
        return suite_of(self.config, self.references)

    @property
    def lead(self) -> float:
        """Lead in score that another member needs to be copied.

        Raises:
            ConfigError: neither a threshold nor reference scores are available.
        """
        if self.threshold is not None:
            return self.threshold
        if self.suite is None:
            raise ConfigError(
                f"there is no reference score of {flags.named(self.config)}: set the lead in "
                f"return that a member needs to be copied, as in {setting('threshold', '10')}, or "
                f"give {setting('references', repr('FILE'))} with a file of headrace references"
            )
        return 0.05

    def fitness(self, score: RunScore) -> float:
        """Return the fitness of a run: for several tasks the mean capped normalised score."""
        return fitness(self.suite, score.value, score.tasks)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that a resumed population must share."""
        names = ("interval", "burn_in", "factor", "probability", "references")
        return {
            "config": self.config.settled.to_json(),
            "parameters": {p.name: [p.kind, list(p.values)] for p in self.parameters},
            "members": self.members,
            "threshold": self.lead,
            **{name: getattr(self, name) for name in names},
        }

    def member_dir(self, member: int) -> Path:
        """Return the folder of a member's run and history."""
        return Path(self.output) / "members" / f"{member:03d}"

    def seed_of(self, member: int) -> int:
        """Return the seed of a member's run; populations with adjacent seeds share none."""
        return seed_of(self.config.seed, member)

    def rng(self, *where: int) -> np.random.Generator:
        """Return the random generator of a decision, independent of process and retries."""
        return np.random.default_rng([self.config.seed, *where])

    def drawn(self, *where: int) -> dict[str, float]:
        """Sample initial values.

        Raises:
            ConfigError: all of many draws were invalid combinations.
        """
        rng = self.rng(*where)
        for left in reversed(range(_DRAWS)):
            values = {one.name: float(one.draw(rng)) for one in self.parameters}
            try:
                replaced(self.config, values)
                break
            except ConfigError:
                if not left:
                    raise
        return values

    def perturbed(self, hyper: dict[str, float], rng: np.random.Generator) -> dict[str, float]:
        """Return values changed with ``probability`` each, unless the result is invalid.

        If the factor would raise a value below 1 too far, such as a discount, the factor applies to
        the difference from 1 instead. Otherwise the value could only decrease.
        """
        changed = dict(hyper)
        for name, value in hyper.items():
            changes, up = rng.random() < self.probability, rng.random() < 0.5
            if changes:
                new = value * self.factor if up else value / self.factor
                if value < 1.0 and not self._is_valid(changed, name, value * self.factor):
                    above = 1.0 - value
                    new = 1.0 - (above / self.factor if up else above * self.factor)
                if self._is_valid(changed, name, new):
                    changed[name] = new
        return changed

    def _is_valid(self, hyper: dict[str, float], name: str, value: float) -> bool:
        """Return whether a config accepts this value of a hyperparameter."""
        try:
            replaced(self.config, {**hyper, name: value})
        except ConfigError:
            return False
        return True

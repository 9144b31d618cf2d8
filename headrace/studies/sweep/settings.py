"""Settings of a sweep, and the configs of its runs."""

# Annotations are evaluated here at once: tyro reads those of Sweep.

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headrace.config import Config
from headrace.envs.suites import Suite
from headrace.errors import ConfigError, require, setting
from headrace.rundir import resolve_imports
from headrace.rundir.config_file import replaced
from headrace.studies.fitness import suite_of
from headrace.studies.sample import IMPALA, Parameter, parse
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

SET_BY_SWEEP = (("run_dir", None), ("resume", False), ("overwrite", False))


@settings()
@dataclass(frozen=True)
class Sweep:
    """Sample settings, train with each combination, and rank the results.

    The same command resumes the sweep in --output, also from other processes and machines that
    share the folder. A larger --trials adds trials.
    """

    sample: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=KIND:VALUES")
    ] = ()
    """Setting and its distribution, such as learning-rate=loguniform:5e-6,5e-3; kinds are uniform,
    loguniform, int, logint and choice; may be repeated."""
    preset: Literal["none", "impala"] = "none"
    """impala: the paper's protocol, with entropy bonus, learning rate and RMSProp's epsilon from
    Table D.1. It uses the same 24 random combinations for every environment."""
    trials: Annotated[int, ranges.COUNT] = 24
    """Total number of combinations."""
    seeds: Annotated[int, ranges.COUNT] = 1
    """Runs per combination, with the seeds --seed, --seed + 1 …; their mean is its score."""
    jobs: Annotated[int, ranges.PROCESSORS] = 1
    """Runs at a time in this process."""
    sampler: Literal["auto", "tpe", "random"] = "auto"
    """How values are sampled: tpe adapts to earlier trials; auto: tpe, or random with a preset."""
    prune: Literal["none", "median", "halving"] = "none"
    """Stop trials early: median, below the median of others at the same steps; halving, outside the
    best quarter at 1/16, 1/4 … of the steps."""
    references: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Suite, or file of headrace references, that normalises scores for ranking; several tasks use
    the mean of their capped scores. None: built-in scores for several of the 57 Atari games, mean
    returns otherwise."""
    output: Annotated[str, ranges.PATH] = "runs/sweep"
    """Folder of the sweep: journal, runs, page and plot."""
    timeout_s: Annotated[float, ranges.SECONDS] = 86_400.0
    """Time limit of a run in seconds; a run that takes longer stops, and resumes with the next
    command."""
    config: Config = dataclasses.field(default_factory=Config)
    """Shared settings of all runs."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, default in SET_BY_SWEEP:
            value = getattr(self.config, name)
            require(value == default, name, value, f"{default!r}: the sweep sets it for each run")
        if self.preset == "impala":
            valid = "'random' or 'auto' with preset='impala'"
            require(self.sampler != "tpe", "sampler", self.sampler, valid)
        _ = self.parameters

    @property
    def base(self) -> Config:
        """Shared settings of all runs, including the preset's."""
        if self.preset == "none":
            return self.config
        return replaced(self.config, {"optimizer": "rmsprop"})

    @property
    def parameters(self) -> list[Parameter]:
        """Sampled parameters; ``sample`` overrides the preset.

        Raises:
            ConfigError: one is invalid.
        """
        preset = IMPALA if self.preset == "impala" else ()
        return parse([*preset, *self.sample], self.base)

    @property
    def draws(self) -> str:
        """Name of the sampler."""
        default = "tpe" if self.preset == "none" else "random"
        return default if self.sampler == "auto" else self.sampler

    @cached_property
    def suite(self) -> Suite | None:
        """Suite that normalises scores; None: returns are compared.

        Raises:
            ConfigError: a reference score is missing.
        """
        if self.references is None and len(self.config.tasks) < 2:
            return None  # units don't affect the ranking of one task
        return suite_of(self.config, self.references)

    @property
    def suite_name(self) -> str | None:
        """Name or file of the suite."""
        return None if self.suite is None else self.references or self.suite.name

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that a resumed sweep must share."""
        parameters = {p.name: [p.kind, list(p.values)] for p in self.parameters}
        values = {"seeds": self.seeds, "sampler": self.draws, "prune": self.prune}
        values["references"] = self.suite_name
        return {"config": self.base.settled.to_json(), "parameters": parameters, **values}

    def trial_dir(self, number: int) -> Path:
        """Return the folder of a trial's runs."""
        return Path(self.output) / "trials" / f"{number:04d}"

    def run_config(self, number: int, values: dict[str, Any], repeat: int) -> Config:
        """Return the config of a trial's run.

        Raises:
            ConfigError: the values contradict each other.
        """
        run_dir = str(self.trial_dir(number) / f"seed-{self.config.seed + repeat}")
        of_run = {"seed": self.config.seed + repeat, "run_dir": run_dir}
        return replaced(self.base, {**values, **of_run})

    def check(self) -> None:
        """Raise ConfigError if nothing is sampled, a reference score is missing, or the processes
        of the runs couldn't import the code that a setting names.
        """
        if not self.parameters:
            some = "'learning_rate=loguniform:1e-5,1e-2'"
            raise ConfigError(
                f"a sweep needs a setting to sample: give {setting('sample', some)} or "
                f"{setting('preset', repr('impala'))}"
            )
        _ = self.suite
        resolve_imports.check_importable(self.base.to_json())

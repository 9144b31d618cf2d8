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
from headrace.rundir.config_file import replaced
from headrace.studies.fitness import suite_of
from headrace.studies.sample import IMPALA, Parameter, parse
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

OWN = (("run_dir", None), ("resume", False), ("overwrite", False))


@settings()
@dataclass(frozen=True)
class Sweep:
    """Draw settings, train with each, and say which learn best and what it depends on.

    The same command goes on with what is in --output, also from other processes and machines that
    share it; more --trials add some.
    """

    sample: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=KIND:VALUES")
    ] = ()
    """A setting and what it is drawn from: learning-rate=loguniform:5e-6,5e-3; kinds are uniform,
    loguniform, int, logint and choice; may be repeated."""
    preset: Literal["none", "impala"] = "none"
    """impala: the paper's protocol. Entropy bonus, learning rate and RMSProp's epsilon from Table
    D.1; the same 24 random combinations whatever is trained."""
    trials: Annotated[int, ranges.COUNT] = 24
    """Combinations, in all."""
    seeds: Annotated[int, ranges.COUNT] = 1
    """Runs of each, with the seeds --seed, --seed + 1 …; the mean of theirs is its score."""
    jobs: Annotated[int, ranges.PROCESSORS] = 1
    """Runs at a time in this process."""
    sampler: Literal["auto", "tpe", "random"] = "auto"
    """How values are drawn: tpe learns from the trials before; auto: tpe, random with a preset."""
    prune: Literal["none", "median", "halving"] = "none"
    """End trials early: median, below the median of others at as many steps; halving, outside the
    best quarter at 1/16, 1/4 … of the steps."""
    references: Annotated[str | None, ranges.NOT_EMPTY] = None
    """A suite, or a file of headrace references, whose scores trials are ranked by: of several
    tasks the mean of their capped scores. None: several of Atari's 57 games have theirs, all else
    is ranked by its mean return."""
    output: Annotated[str, ranges.NOT_EMPTY] = "runs/sweep"
    """Folder of the sweep: journal, runs, page and picture."""
    timeout_s: Annotated[float, ranges.SECONDS] = 86_400.0
    """A run that takes longer is ended, and goes on when the command is given again."""
    config: Config = dataclasses.field(default_factory=Config)
    """What is the same in all runs."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, own in OWN:
            value = getattr(self.config, name)
            require(value == own, name, value, f"{own!r}: the sweep sets it for each run")
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
        """What is drawn; ``sample`` goes before the preset.

        Raises:
            ConfigError: one is wrong.
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
            return None  # of one task any units rank alike
        return suite_of(self.config, self.references)

    @property
    def suite_name(self) -> str | None:
        """Name or file of the suite."""
        return None if self.suite is None else self.references or self.suite.name

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that a resumed sweep must share."""
        parameters = {p.name: [p.kind, list(p.values)] for p in self.parameters}
        own = {"seeds": self.seeds, "sampler": self.draws, "prune": self.prune}
        own["references"] = self.suite_name
        return {"config": self.base.settled.to_json(), "parameters": parameters, **own}

    def trial_dir(self, number: int) -> Path:
        """Return the folder of a trial's runs."""
        return Path(self.output) / "trials" / f"{number:04d}"

    def run_config(self, number: int, values: dict[str, Any], repeat: int) -> Config:
        """The settings of a trial's run.

        Raises:
            ConfigError: they contradict each other.
        """
        run_dir = str(self.trial_dir(number) / f"seed-{self.config.seed + repeat}")
        own = {"seed": self.config.seed + repeat, "run_dir": run_dir}
        return replaced(self.base, {**values, **own})

    def check(self) -> None:
        """Raise ConfigError if nothing is sampled, or a reference score is missing."""
        if not self.parameters:
            some = "'learning_rate=loguniform:1e-5,1e-2'"
            raise ConfigError(
                f"a sweep needs a setting to sample: give {setting('sample', some)} or "
                f"{setting('preset', repr('impala'))}"
            )
        _ = self.suite

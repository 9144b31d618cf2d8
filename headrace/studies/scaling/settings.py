"""Settings of a scaling study, and the configs of its runs."""

# Annotations are evaluated here at once: tyro reads those of Scaling.

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from headrace.algos import PPO
from headrace.config import Config
from headrace.errors import ConfigError, require, setting
from headrace.studies import flags
from headrace.studies.run_table import Case, fingerprint, grid
from headrace.studies.scaling.model import Link, Mode
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

EXTRAPOLATED = (32, 64, 128, 256, 512)
# One core per rank at every world size.
ONE_CORE: dict[str, Any] = {"transport": "serial", "cores_per_learner": 1, "learner_threads": 1}
DEFAULT = Config(algo=PPO(), num_actors=1, envs_per_actor=64, fragment_length=32, **ONE_CORE)


def _world_sizes(arguments: list[str]) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in arguments[0].split(","))
    except ValueError as error:
        raise ConfigError(f"must be whole numbers with commas, like 1,2,4: {error}") from error


_WORLD_SIZES = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="W,W,…",
    instance_from_str=_world_sizes,
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda sizes: [",".join(map(str, sizes))],
)


@settings()
@dataclass(frozen=True)
class Scaling:
    """Measure how training speeds up with the number of synchronous learners.

    With --target-return and --eval-interval a run trains until an evaluation reaches the target, or
    until --total-steps. Otherwise it trains --total-iters iterations.
    """

    world_sizes: Annotated[
        tuple[Annotated[int, ranges.LEARNERS], ...], ranges.A_FEW, _WORLD_SIZES
    ] = (1, 2, 4, 8)
    """Numbers of learners."""
    repeats: Annotated[int, ranges.COUNT] = 3
    """Runs of each world size, with the seeds --seed, --seed + 1 …"""
    mode: Mode = "constant-batch"
    """Divide the batch and the environments among the learners, or let both grow with them."""
    warmup_iters: Annotated[int, ranges.COUNT_OR_0] = 5
    """Iterations at the start of each run that are excluded from speeds."""
    total_iters: Annotated[int, ranges.COUNT] = 25
    """Iterations of each run, including the warm-up; ignored with --target-return."""
    output: Annotated[str, ranges.PATH] = "runs/scaling"
    """Folder for the tables, the plots and the runs."""
    timeout_s: Annotated[float, ranges.SECONDS] = 3600.0
    """Time limit of a run in seconds; a run that takes longer is killed and counts as failed."""
    network_latency_us: Annotated[float | None, ranges.AT_LEAST_0] = None
    """Additional latency of each message in the extrapolation; None: this machine's loopback."""
    network_gbps: Annotated[float | None, ranges.ABOVE_0] = None
    """Maximum bandwidth in the extrapolation, Gbit/s; None: this machine's loopback."""
    config: Config = DEFAULT
    """Shared settings of all runs."""

    def __post_init__(self) -> None:
        check_fields(self)
        sizes = self.world_sizes
        require(len(set(sizes)) == len(sizes), "world_sizes", sizes, "different from each other")
        more = f"more than warmup_iters={self.warmup_iters}"
        require(self.total_iters > self.warmup_iters, "total_iters", self.total_iters, more)
        config = self.config
        for name, default in (("run_dir", None), ("resume", False), ("overwrite", False)):
            value = getattr(config, name)
            require(value == default, name, value, f"{default!r}: the study sets it for each run")
        valid = f"1: use {setting('world_sizes', '…')}"
        require(config.num_learners == 1, "num_learners", config.num_learners, valid)

    @property
    def link(self) -> Link:
        """Network assumed by the extrapolation."""
        bytes_per_s = math.inf if self.network_gbps is None else self.network_gbps * 1e9 / 8
        return Link((self.network_latency_us or 0.0) * 1e-6, bytes_per_s)

    @property
    def cores_per_learner(self) -> int:
        """Minimum number of cores per learner."""
        return self.config.cores_per_learner or 1

    @property
    def title(self) -> str:
        """Title of the study."""
        name, env, first = self.config.algo_name, flags.named(self.config), self.config.seed
        seeds = f"seeds {first} to {first + self.repeats - 1}"
        return f"{name} on {env}, {self.mode}, {seeds if self.repeats > 1 else f'seed {first}'}"

    def run_dir(self, world_size: int, seed: int) -> Path:
        """Return the folder of a run."""
        return Path(self.output) / "runs" / f"{self.mode}-w{world_size}-seed{seed}"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that a run depends on besides mode, world size and seed."""
        values = self.config.to_json() | {"seed": None}
        for name in ("automatic", "stop_time_s"):  # unknown to earlier studies, without effect
            del values[name]
        return fingerprint([values, self.warmup_iters, self.total_iters])


# -- its runs --------------------------------------------------------------------------------------


def case_config(scaling: Scaling, world_size: int, seed: int) -> Config:
    """Return the config of one run.

    Raises:
        ConfigError: the settings can't be divided among so many learners.
    """
    base, growth = scaling.config, world_size if scaling.mode == "growing-batch" else 1
    num_actors = base.num_actors * growth
    batch_size = base.resolved_batch_size * growth
    steps = scaling.total_iters * batch_size
    if base.target_return is not None:
        steps = base.total_steps
    try:
        return dataclasses.replace(
            base,
            num_learners=world_size,
            num_actors=num_actors,
            batch_size=batch_size,
            total_steps=steps,
            stop_return=None,
            stop_time_s=None,
            log_iterations=True,
            seed=seed,
            run_dir=str(scaling.run_dir(world_size, seed)),
            overwrite=True,  # files of an interrupted run
        )
    except ConfigError as error:
        raise ConfigError(f"world size {world_size}: {error}") from error


def predictable(scaling: Scaling) -> tuple[list[int], str]:
    """Return the world sizes to extrapolate to, and why there are no larger ones."""
    for count, size in enumerate(EXTRAPOLATED):
        try:
            case_config(scaling, size, scaling.config.seed)
        except ConfigError as error:
            return list(EXTRAPOLATED[:count]), f"Larger world sizes are invalid: {error}"
    return list(EXTRAPOLATED), ""


def cases_of(scaling: Scaling) -> list[Case]:
    """Return all runs, seeds outermost, so that temporary noise affects all world sizes."""
    first = scaling.config.seed
    return grid(
        {"settings": scaling.fingerprint},
        mode=[scaling.mode],
        world_size=scaling.world_sizes,
        seed=range(first, first + scaling.repeats),
    )

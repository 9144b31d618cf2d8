"""Parses the flags of a study together with those of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from headrace import schedules
from headrace.config import Config
from headrace.config.algorithms import find
from headrace.envs.names import env_name
from headrace.envs.probe import probe
from headrace.nn.network import Network
from headrace.recipes import take_recipe
from headrace.rundir.config_file import replaced
from headrace.trainer.auto_sizes import choose
from headrace.validation.flag_rewrites import flags_of, rewritten

T = TypeVar("T")


def parse(kind: type[T], prog: str, argv: Sequence[str], default: Config, **fixed: Any) -> T:
    """Parse a study's settings, ``kind``, including a run's as ``config``.

    Args:
        default: config that the flags modify, unless they name an algorithm or a recipe.
        fixed: settings of each run, its algorithm or its network that override those of a recipe.

    Raises:
        ConfigError: there is no such algorithm or recipe, or a setting is invalid.
    """
    rest = list(argv)
    name = rest.pop(0) if rest and not rest[0].startswith("-") else default.algo_name
    base = dataclasses.replace(default, algo=find(name)())
    config, rest = take_recipe(rest, base.algo_name, base)
    names = flags_of(kind, Config, Network, type(base.algo))
    rest, scheduled = rewritten(rest, names, schedules.possible(type(base.algo)))
    study: Any = tyro.cli(
        kind,
        prog=prog,
        description=kind.__doc__,
        args=rest,
        default=kind(config=replaced(config, fixed)),  # type: ignore[call-arg]
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if scheduled:
        study = dataclasses.replace(study, config=replaced(study.config, scheduled))
    if study.config.is_sized:  # unset by some recipes, but a study needs the sizes
        return study
    return dataclasses.replace(study, config=choose(study.config, None, cores=1))


def check_made(config: Config) -> None:
    """Raise ConfigError unless the environments of a study's runs can be created."""
    arguments = config.environment, config.engine, config.env_kwargs, config.seed, config.wrappers
    probe(*arguments, looks_for_stacks=False)


def named(config: Config) -> str:
    """Return the name of the environment of a study's runs, or of their tasks."""
    return ", ".join(map(env_name, config.tasks or (config.env,)))

"""Recipes: one short function per environment, a tuned and tested Config per algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.config import Config
from headrace.envs.tasks import named_in
from headrace.errors import ConfigError, require, require_choice
from headrace.recipes import atari, impact_paper, lesson, tuned
from headrace.validation.fields import checked

RECIPES: dict[str, Callable[..., Config]] = {
    "atari": atari.atari,
    "cartpole": tuned.cartpole,
    "conjunction": tuned.conjunction,
    "halfcheetah": tuned.halfcheetah,
    "hopper": tuned.hopper,
    "impact-continuous": impact_paper.continuous,
    "impact-discrete": atari.impact_discrete,
    "lesson-conjunction": lesson.conjunction,
    "lesson-conjunction-2-learners": lesson.conjunction_two_learners,
    "lesson-satellite": lesson.satellite,
    "lunarlander": tuned.lunarlander,
    "mountaincar-continuous": tuned.mountaincar_continuous,
    "orbital": tuned.orbital,
    "pendulum": tuned.pendulum,
    "satellite": tuned.satellite,
    "swimmer": tuned.swimmer,
}


@checked
def recipe(
    name: str, algorithm: str = "appo", env: str | None = None, num_actors: int | None = None
) -> Config:
    """Return the Config of a recipe for one algorithm.

    ``hr.train(hr.recipe("lunarlander", "ppo"), seed=1)`` trains it.

    Args:
        env: environment id; settings of some recipes, such as ``impact-continuous``, depend on it.
            None: the recipe's environment.
        num_actors: number of actors; settings may depend on it, too. None: the recipe's number.

    Raises:
        ConfigError: there is no such recipe, or none for this algorithm.
    """
    require_choice("recipe", name, RECIPES)
    enough = num_actors is None or num_actors >= 1
    require(enough, "num_actors", num_actors, "1 or more (nearest: 1)")
    make, values = RECIPES[name], {"env": env, "num_actors": num_actors}
    given: dict[str, Any] = {k: value for k, value in values.items() if value is not None}
    takes = inspect.signature(make).parameters
    try:
        config = make(algorithm, **{k: given[k] for k in given if k in takes})
    except KeyError as error:
        raise ConfigError(f"recipe {name} has no setting for algorithm {algorithm!r}") from error
    return replace(config, **{k: given[k] for k in given if k not in takes})


# Flags that exclude opponents, and their values that don't.
_WITHOUT_OPPONENTS = {
    "--exploit": "None",
    "--tasks": "",
    "--policies": "shared",
    "--cluster": "None",
}


def take_recipe(argv: list[str], algorithm: str, default: Config) -> tuple[Config, list[str]]:
    """Return the recipe of ``--recipe NAME``, or ``default``, and the other arguments.

    Recipes whose settings depend on ``--env-id`` and ``--num-actors`` get the flags' values.
    Arguments ``--exploit``, ``--tasks``, ``--policies`` and ``--cluster`` remove the opponents of
    the recipe unless they have their default values; ``--opponents`` adds opponents again.

    Raises:
        ConfigError: as :func:`recipe`.
    """
    name, rest = take_flag(argv, "--recipe")
    if name is None:
        return default, rest
    config = recipe(name, algorithm, **_given(name, rest))
    values = {flag: take_flag(rest, flag)[0] for flag in _WITHOUT_OPPONENTS}
    if any(value not in (None, _WITHOUT_OPPONENTS[flag]) for flag, value in values.items()):
        config = replace(config, opponents=None)
    tasks, _ = take_flag(rest, "--tasks")
    return config if tasks is None else for_tasks(config, tasks.split(",")), rest


def _given(name: str, argv: list[str]) -> dict[str, Any]:
    """Return the arguments on which the settings of a recipe depend."""
    takes = inspect.signature(RECIPES[name]).parameters if name in RECIPES else {}
    found: dict[str, Any] = {}
    for flag in ("--env", "--env-id", "--env_id"):
        if "env" in takes and (env := take_flag(argv, flag)[0]):
            found["env"] = env
    for flag in ("--num-actors", "--num_actors"):
        text = take_flag(argv, flag)[0] or ""
        if "num_actors" in takes and text.isdecimal() and int(text) > 0:
            found["num_actors"] = int(text)
    return found


def for_tasks(config: Config, tasks: Sequence[Any]) -> Config:
    """Replace a recipe's environment by tasks or the name of a suite.

    Actors and batch grow to the next that each task can have as much of. Atari's games get all 18
    actions each, as IMPALA's agent of 57 games had.
    """
    kwargs: dict[str, Any] = {**config.env_kwargs}
    if "full_action_space" in kwargs and not config.tasks:
        kwargs["full_action_space"] = True
    count, sizes = len(named_in(tasks)), config.sizes
    actors, batch = config.num_actors, config.batch_size
    if isinstance(actors, int):
        actors = -(-actors // count) * count
    envs = sizes.envs_per_actor if isinstance(sizes.envs_per_actor, int) else 1
    if isinstance(batch, int) and isinstance(sizes.fragment_length, int):
        unit = count * envs * sizes.fragment_length
        batch = -(-batch // unit) * unit
    known: dict[str, Any] = {"num_actors": actors, "batch_size": batch, "env_kwargs": kwargs}
    return replace(config, env=Config.env, tasks=(), **known)


def take_flag(argv: list[str], name: str) -> tuple[str | None, list[str]]:
    """Return the value of ``name VALUE`` or ``name=VALUE`` or None, and the other arguments."""
    for i, argument in enumerate(argv):
        flag, equals, value = argument.partition("=")
        if flag == name:
            rest = argv[:i] + argv[i + (1 if equals else 2) :]
            return value if equals else "".join(argv[i + 1 : i + 2]), rest
    return None, argv

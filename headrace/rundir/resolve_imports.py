"""Resolves names in a run's ``config.json``: environment, wrappers, torso and algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.algos import ALGORITHMS
from headrace.config import Config, algorithms, eval_envs
from headrace.envs import scripts
from headrace.envs.names import Tasks, resolve
from headrace.rundir import import_allowlist
from headrace.rundir.config_file import from_json


def check(folder: Path, values: dict[str, Any], trusted: bool = False) -> None:
    """Raise CheckpointError if the code of a run's policy is neither this user's nor trusted.

    Its algorithm isn't checked, because only training needs it.
    """
    needed = tuple(
        name for name in import_allowlist.CODE if name not in ("algo", "eval_envs", "league")
    )
    import_allowlist.check(folder, values, trusted, needed)


def environment(folder: Path, values: dict[str, Any], trusted: bool = False) -> Any:
    """Resolve the environment of a run with its wrappers.

    Args:
        folder: folder of a run or checkpoint whose ``config.json`` has these ``values``.
        trusted: import the code it names, regardless of its author.

    Raises:
        CheckpointError: it names code and is not trusted.
        ConfigError: the code can't be found.
    """
    needed = tuple(
        name
        for name in import_allowlist.CODE
        if name not in ("torso", "algo", "eval_envs", "league")
    )
    import_allowlist.check(folder, values, trusted, needed)
    config = values["config"]
    played: Any = _env(config)
    if tasks := _tasks(config):
        network = config["network"]
        played = Tasks(tasks, bool(network.get("task_id") or network.get("per_task_values")))
    return resolve(played, _wrappers(config))


def settings(
    folder: Path, values: dict[str, Any], trusted: bool = False, overridden: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the settings of a run that name code, with the code of scripts resolved.

    Args:
        overridden: settings that will be replaced, so that their code is not imported.

    Raises:
        CheckpointError, ConfigError: see :func:`environment`.
    """
    replaced = {"torso" if name == "network" else name for name in overridden}
    needed = tuple(name for name in import_allowlist.CODE if name not in replaced)
    import_allowlist.check(folder, values, trusted, needed)
    config, resolved = values["config"], dict[str, Any]()
    if not import_allowlist.code_in(config, needed):  # so the author of the file is unknown
        resolved["env_file"] = None
    if "env" not in overridden:
        resolved["env"] = _env(config)
    if "tasks" not in overridden:
        resolved["tasks"] = _tasks(config)
    if "wrappers" not in overridden:
        resolved["wrappers"] = _wrappers(config)
    if "eval_envs" not in overridden:
        resolved["eval_envs"] = _eval_envs(config)
    if "network" not in overridden:
        resolved["network"] = network(config)
    if "algo" not in overridden:
        resolved["algo"] = algorithm(config, overridden)
    return resolved


def config(values: dict[str, Any]) -> Config:
    """Read a config that another process of this user wrote, and import the code that it names."""
    return from_json(values, **settings(Path(), {"config": values}, trusted=True))


def check_importable(values: dict[str, Any]) -> None:
    """Raise ConfigError if another process couldn't import the code that a config names.

    Args:
        values: result of ``Config.to_json``.
    """
    config(values)
    scripts.check_files(values)


def algorithm(config: dict[str, Any], overridden: tuple[str, ...] = ()) -> dict[str, Any]:
    """The saved hyperparameters, with the algorithm's class and functions of schedules imported.

    Args:
        overridden: hyperparameters that will be replaced; their functions are not imported.
    """
    saved = {
        name: value
        for name, value in config["algo"].items()
        if name not in overridden or not isinstance(value, dict)
    }
    hyperparameters = {name: algorithms.function_of(name, value) for name, value in saved.items()}
    if saved["name"] not in ALGORITHMS:
        hyperparameters["name"] = algorithms.find(saved["name"], saved.get("file"))
    return hyperparameters


def network(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the network, with its custom torso resolved."""
    saved = config["network"]
    if not isinstance(saved.get("torso"), str):
        return dict(saved)
    return {**saved, "torso": scripts.found("torso", saved["torso"], config.get("env_file"))}


def _env(config: dict[str, Any]) -> Any:
    return scripts.found("env", config["env"], config.get("env_file"))


def _tasks(config: dict[str, Any]) -> tuple[Any, ...]:
    file = config.get("env_file")
    return tuple(scripts.found("env", task, file) for task in config.get("tasks", ()))


def _wrappers(config: dict[str, Any]) -> tuple[Any, ...]:
    file = config.get("env_file")
    return tuple(_code("wrapper", one, file) for one in config.get("wrappers", ()))


def _eval_envs(config: dict[str, Any]) -> dict[str, Any]:
    file = config.get("env_file")
    return eval_envs.mapped(
        config.get("eval_envs", {}), lambda setting, name: _code(setting, name, file)
    )


def _code(setting: str, name: str, file: str | None) -> Any:
    """Import an environment or a script's wrapper; names of other wrappers are unchanged."""
    script = name.startswith("__main__:")
    return scripts.found(setting, name, file) if script or setting == "env" else name

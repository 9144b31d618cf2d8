"""Reads, compares and replaces the settings of a run as saved in ``config.json``."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from headrace.algos import ALGORITHMS
from headrace.algos.common import Hyperparameters
from headrace.config import Config, unknown_setting
from headrace.config.algorithms import RESERVED
from headrace.config.eval_envs import code_of
from headrace.envs import scripts
from headrace.errors import CheckpointError, ConfigError, nearest, require_choice
from headrace.nn.network import LEFT_TO_THE_RUN, Network
from headrace.validation import aliases
from headrace.validation.fields import checked

_OF_THE_COMMAND = (
    "resume",
    "overwrite",
    "run_dir",
    "init_from",
    "automatic",
)  # may differ when resuming
# Settings that can't change when a run is resumed, and why. The network's fields can't either.
_KEPT = {
    "tasks": "training is counted by task",
    "policies": "each has its own weights and statistics",
    "league": "the run's snapshots and win rates are there",
    "exploit": "the run plays a copy of that policy",
    "seed": "weights and random streams depend on it",
    "scale_free": "it was applied when the run started (normalize_advantage may change)",
    "optimizer": "the saved moments belong to that optimiser",
    "normalize_returns": "the saved state has its statistics, or lacks them",
}
_KEPT_WITH_REPLAY = {
    "stacked_frames": "the saved replay stores images in that format",
    "fragment_length": "the saved replay has trajectories of that length",
}


@checked
def from_json(values: dict[str, Any], **overrides: Any) -> Config:
    """Create the config that :meth:`Config.to_json` wrote, with some settings replaced.

    Args:
        values: settings by name; for a custom algorithm, the class replaces its name, see
            :func:`headrace.rundir.resolve_imports.settings`.

    Raises:
        ConfigError: a setting is unknown to this version, or invalid.
    """
    values = {**values, **overrides}
    names = {f.name for f in dataclasses.fields(Config)}
    for name in values:
        if name not in names:
            raise unknown_setting(name)
    if values.get("checkpoint_interval_s") == "inf":
        values["checkpoint_interval_s"] = math.inf
    algo, network = values.get("algo"), values.get("network")
    if isinstance(algo, dict):
        values["algo"] = _algorithm(algo)
    if isinstance(network, dict):
        values["network"] = Network(**network)
    return Config(**values)


def _algorithm(values: dict[str, Any]) -> Hyperparameters:
    """Create an algorithm from its fields, and its class or built-in name."""
    which: Any = values.get("name")
    if not isinstance(which, type):  # code is imported only after the allow-list check
        require_choice("algo", which, ALGORITHMS)
        which = ALGORITHMS[which]
    fields = _of_algo(values)
    names = {field.name for field in dataclasses.fields(which)}
    for name in fields.keys() - names:
        raise ConfigError(
            f"setting {name!r} of the saved run is unknown to {which.__name__}."
            f"{nearest(name, names)}"
        )
    return which(**fields)  # type: ignore[no-any-return]


def _of_algo(values: dict[str, Any]) -> dict[str, Any]:
    """Return an algorithm's fields, with infinities restored from JSON strings."""
    own = {name: value for name, value in values.items() if name not in RESERVED}
    return {k: float(v) if v in ("inf", "-inf") else v for k, v in own.items()}


def defaults_of(name: str) -> dict[str, Any]:
    """Return the default hyperparameters of an algorithm by its name in ``config.json``.

    For a custom algorithm, these are the ones that all algorithms share, so no code is imported.
    """
    return dataclasses.asdict(ALGORITHMS.get(name, Hyperparameters)())


def flat_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a ``config.json`` by name, for comparing runs.

    Includes settings of algorithm and network, and defaults for missing ones. Excludes settings
    that identify a single run: the seed and the run directory.
    """
    algo, network = values["algo"], values["network"]
    name, fields = algo["name"], dataclasses.fields(Config)
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    flat = {"env": "", **defaults, **values}
    flat |= {"algo": name} | defaults_of(name) | _of_algo(algo)
    flat |= json.loads(json.dumps(Network().to_json())) | network
    for one_run in ("seed", "run_dir", "resume", "overwrite", "network", "automatic"):
        del flat[one_run]
    return flat


def replaced(config: Config, settings: dict[str, Any]) -> Config:
    """Return a config with some settings replaced, including its algorithm's and network's.

    Args:
        settings: new values by field name. Settings that a new network leaves to the run keep
            their values.

    Raises:
        ConfigError: a setting is unknown or invalid.
    """
    names = {f.name for f in dataclasses.fields(Config)}
    whole = {name: value for name, value in settings.items() if name in names}
    algo, network = whole.get("algo", config.algo), whole.get("network", config.network)
    if isinstance(network, Network) and network is not config.network:
        unset = [name for name in LEFT_TO_THE_RUN if getattr(network, name) is None]
        as_it_was = {name: getattr(config.network, name) for name in unset}
        network = dataclasses.replace(network, **as_it_was)
    parts = {"algo": algo, "network": network}
    theirs: dict[str, dict[str, Any]] = {key: {} for key in parts}
    for name, value in settings.items():
        if name in names:
            continue
        owner = next((key for key, part in parts.items() if name in _fields(part)), None)
        if owner is None:
            raise _unknown(name, config, names)
        theirs[owner][name] = value
    for owner, some in theirs.items():  # together, because they may only be valid together
        if some:
            parts[owner] = dataclasses.replace(parts[owner], **some)
    code = whole.get("env"), *whole.get("wrappers", ()), *code_of(whole.get("eval_envs", {}))
    torso = None if parts["network"] is config.network else parts["network"].torso
    if "env" in whole or scripts.file_of(*code, torso) is not None:
        whole.setdefault("env_file", None)  # new code is not from the old file
    whole.setdefault("automatic", tuple(x for x in config.automatic if x not in settings))
    return dataclasses.replace(config, **(whole | parts))


def _fields(settings: Any) -> set[str]:
    is_one = dataclasses.is_dataclass(settings)
    return {f.name for f in dataclasses.fields(settings)} if is_one else set()


def _unknown(name: str, config: Config, names: set[str]) -> ConfigError:
    own = type(config.algo).__name__
    hint = aliases.hint(name) or nearest(
        name, names | _fields(config.algo) | _fields(config.network)
    )
    theirs = [cls.__name__ for cls in ALGORITHMS.values() if name in _fields(cls)]
    if theirs:
        hint = f" It is a setting of {', '.join(theirs)}, but this run's algorithm is {own}."
    return ConfigError(f"setting {name!r} is unknown.{hint}")


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ between runs by name, old and new, as in JSON.

    New settings left to the run ("auto") don't count as different.

    Raises:
        CheckpointError: the algorithms differ.
    """
    if before.algo_name != after.algo_name:
        raise CheckpointError(
            f"run directory {after.run_dir} was trained with {before.algo_name}, so it can't be "
            f"resumed with {after.algo_name}"
        )
    old, new = (_flat(config.settled) for config in (before, after))
    return {
        name: (old[name], value)
        for name, value in new.items()
        if name not in _OF_THE_COMMAND and old[name] != value and not _is_left(name, value)
    }


def _is_left(name: str, value: Any) -> bool:
    """Return True if the run decides on this value of a setting."""
    return value == "auto" or (value is None and name in LEFT_TO_THE_RUN)


def _flat(config: Config) -> dict[str, Any]:
    values = config.to_json()
    algo, network = values.pop("algo"), values.pop("network")
    return values | _of_algo(algo) | network


def check_resumed(before: Config, after: Config) -> str:
    """Check that changed settings may change on resume; return a line about the resumed run.

    Raises:
        ConfigError: a setting changed that can't.
        CheckpointError: the algorithm changed.
    """
    changed, network = changes(before, after), _fields(Network) - {"torso"}
    replays = all(getattr(config.algo, "replay_fraction", 0.0) > 0 for config in (before, after))
    fixed = _KEPT | (_KEPT_WITH_REPLAY if replays else {})
    for name, (old, new) in changed.items():
        why = "the saved weights belong to that network" if name in network else fixed.get(name)
        if why is not None:
            raise ConfigError(f"{name}={new!r} must be {old!r} to resume {after.run_dir}: {why}")
    changed_settings = ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
    return f"resuming {after.run_dir}" + (f" with {changed_settings}" if changed_settings else "")

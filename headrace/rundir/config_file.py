"""A run's settings: as ``config.json`` has them, also of older versions, and what may change."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from headrace.algos import ALGORITHMS
from headrace.algos.common import Hyperparameters
from headrace.config import Config, unknown_setting
from headrace.config.algorithms import RESERVED, short_name
from headrace.config.eval_envs import code_of
from headrace.envs import scripts
from headrace.errors import CheckpointError, ConfigError, nearest, require_choice
from headrace.nn.network import BEFORE, LEFT_TO_THE_RUN, Network, network_from_json
from headrace.validation import aliases
from headrace.validation.fields import checked

# What settings that older versions didn't write meant then.
_BEFORE: dict[str, Any] = {
    "scale_free": False,
    "precision": "float32",
    "stacked_frames": "whole",
    "inference": "actor",
}
_BEFORE_ALGO: dict[str, Any] = {"fused": False}
_BEFORE_OF: dict[str, dict[str, Any]] = {"impala": {"minibatches": 1}}

_OF_THE_COMMAND = ("resume", "overwrite", "run_dir", "init_from")  # not of the run
# What can't change when a run is resumed, and why; none of the network's fields can.
_KEPT = {
    "tasks": "what was learnt is counted by task",
    "policies": "each has weights and statistics of its own",
    "league": "the run's snapshots and win rates are there",
    "exploit": "the run plays a copy of that policy",
    "seed": "weights and random streams were made with it",
    "scale_free": "it decided when the run began (normalize_advantage may change)",
    "optimizer": "the saved moments are of that optimiser",
    "normalize_returns": "the saved state has its statistics, or none",
}
_KEPT_WITH_REPLAY = {
    "stacked_frames": "the saved replay holds pictures in that way",
    "fragment_length": "the saved replay holds trajectories of that length",
}


@checked
def from_json(values: dict[str, Any], **overrides: Any) -> Config:
    """The config that :meth:`Config.to_json` wrote, with some settings replaced.

    Args:
        values: settings by name; for a custom algorithm, the class replaces its name, see
            :func:`headrace.rundir.resolve_imports.settings`.

    Raises:
        ConfigError: a setting is unknown to this version, or has no valid value.
    """
    values = {**_BEFORE, **values, **overrides}
    known = {f.name for f in dataclasses.fields(Config)}
    for name in values:
        if name not in known:
            raise unknown_setting(name)
    algo, network = values.get("algo"), values.get("network")
    if isinstance(algo, dict):
        values["algo"] = _algorithm(algo)
    if isinstance(network, dict):
        values["network"] = network_from_json(network)
    return Config(**values)


def _algorithm(values: dict[str, Any]) -> Hyperparameters:
    """Create an algorithm from its fields, and its class or built-in name."""
    which: Any = values.get("name")
    if not isinstance(which, type):  # code is imported only after a check for trust
        require_choice("algo", which, ALGORITHMS)
        which = ALGORITHMS[which]
    before = _BEFORE_ALGO | _BEFORE_OF.get(short_name(which), {})
    given = {**(before if which in ALGORITHMS.values() else {}), **_of_algo(values)}
    known = {field.name for field in dataclasses.fields(which)}
    for name in given.keys() - known:
        raise ConfigError(
            f"setting {name!r} of the saved run is unknown to {which.__name__}."
            f"{nearest(name, known)}"
        )
    return which(**given)  # type: ignore[no-any-return]


def _of_algo(values: dict[str, Any]) -> dict[str, Any]:
    """Its fields, with the infinities that JSON has no number for."""
    own = {name: value for name, value in values.items() if name not in RESERVED}
    return {k: float(v) if v in ("inf", "-inf") else v for k, v in own.items()}


def defaults_of(name: str) -> dict[str, Any]:
    """The default hyperparameters of an algorithm by its name in ``config.json``.

    For a custom algorithm, these are the ones that all algorithms share, so no code is imported.
    """
    return dataclasses.asdict(ALGORITHMS.get(name, Hyperparameters)())


def flat_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a ``config.json`` by name, so that two runs' can be compared.

    Those of algorithm and network are among them, and what older versions didn't write. What only
    tells one run from another of the same settings is not: the seed, and where it goes.
    """
    algo, network = values["algo"], values["network"]
    name, fields = algo["name"], dataclasses.fields(Config)
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    of_algo = defaults_of(name) | _BEFORE_ALGO | _BEFORE_OF.get(name, {})
    flat = {"algo": name, "env": "", **defaults, **_BEFORE, **values}
    flat |= {"algo": name} | of_algo | _of_algo(algo)
    flat |= json.loads(json.dumps(Network().to_json())) | BEFORE | network
    for one_run in ("seed", "run_dir", "resume", "overwrite", "network"):
        del flat[one_run]
    return flat


def replaced(config: Config, settings: dict[str, Any]) -> Config:
    """A config with some settings replaced: its own fields, its algorithm's and its network's.

    Args:
        settings: by the fields' names. What a network that is given whole leaves to the run
            stays as it is.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """
    known = {f.name for f in dataclasses.fields(Config)}
    whole = {name: value for name, value in settings.items() if name in known}
    algo, network = whole.get("algo", config.algo), whole.get("network", config.network)
    if isinstance(network, Network) and network is not config.network:
        left = [name for name in LEFT_TO_THE_RUN if getattr(network, name) is None]
        as_it_was = {name: getattr(config.network, name) for name in left}
        network = dataclasses.replace(network, **as_it_was)
    parts = {"algo": algo, "network": network}
    theirs: dict[str, dict[str, Any]] = {key: {} for key in parts}
    for name, value in settings.items():
        if name in known:
            continue
        owner = next((key for key, part in parts.items() if name in _fields(part)), None)
        if owner is None:
            raise _unknown(name, config, known)
        theirs[owner][name] = value
    for owner, some in theirs.items():  # at once, for they may be valid only together
        if some:
            parts[owner] = dataclasses.replace(parts[owner], **some)
    code = whole.get("env"), *whole.get("wrappers", ()), *code_of(whole.get("eval_envs", {}))
    torso = None if parts["network"] is config.network else parts["network"].torso
    if "env" in whole or scripts.file_of(*code, torso) is not None:
        whole.setdefault("env_file", None)  # what is new is not of the old file
    return dataclasses.replace(config, **(whole | parts))


def _fields(settings: Any) -> set[str]:
    is_one = dataclasses.is_dataclass(settings)
    return {f.name for f in dataclasses.fields(settings)} if is_one else set()


def _unknown(name: str, config: Config, known: set[str]) -> ConfigError:
    own = type(config.algo).__name__
    hint = aliases.hint(name) or nearest(
        name, known | _fields(config.algo) | _fields(config.network)
    )
    theirs = [cls.__name__ for cls in ALGORITHMS.values() if name in _fields(cls)]
    if theirs:
        hint = f" It is a setting of {', '.join(theirs)}, and this run's algorithm is {own}."
    return ConfigError(f"setting {name!r} is unknown.{hint}")


def changes(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """The settings of a run that differ, by name, as JSON has them: what it was and what it is.

    What is left to the run (a size that is "auto") doesn't.

    Raises:
        CheckpointError: they are of different algorithms.
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
        if name not in _OF_THE_COMMAND and old[name] != value and value != "auto"
    }


def _flat(config: Config) -> dict[str, Any]:
    values = config.to_json()
    algo, network = values.pop("algo"), values.pop("network")
    return values | _of_algo(algo) | network


def check_resumed(before: Config, after: Config) -> str:
    """The line that says that a run goes on, and with which settings changed.

    Raises:
        ConfigError: one changed that can't.
        CheckpointError: the algorithm did.
    """
    changed, network = changes(before, after), _fields(Network) - {"torso"}
    replays = all(getattr(config.algo, "replay_fraction", 0.0) > 0 for config in (before, after))
    kept = _KEPT | (_KEPT_WITH_REPLAY if replays else {})
    for name, (old, new) in changed.items():
        why = "the saved weights are of that network" if name in network else kept.get(name)
        if why is not None:
            raise ConfigError(
                f"{name}={new!r} must be {old!r}, as in {after.run_dir}, where that is resumed: "
                f"{why}"
            )
    told = ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
    return f"resuming {after.run_dir}" + (f" with {told}" if told else "")

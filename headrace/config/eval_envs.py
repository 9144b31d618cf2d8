"""Validates and resolves ``eval_envs``, the additional environments of a run's evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.envs import scripts
from headrace.envs.names import refuse_instance, resolve
from headrace.errors import ConfigError, nearest, shown

KEYS = ("env", "env_kwargs", "wrappers", "episodes")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # part of metric names
_TAKEN = ("env", "episodic_return")  # used by metrics of the run's own evaluations


@dataclass(frozen=True)
class EvalEnv:
    """One additional evaluation environment."""

    env: Any  # resolved
    env_kwargs: dict[str, Any]
    engine: str
    episodes: int
    own: bool  # has its own env instead of the run's


def prepared(setting: Any) -> Any:
    """Return the setting with each ``file.py:Name`` imported; malformed values are unchanged."""
    if not _is_one(setting):
        return setting
    prepared_envs: dict[str, dict[str, Any]] = {}
    for name, one in setting.items():
        prepared_envs[name] = dict(one)
        if "env" in one:
            prepared_envs[name]["env"] = scripts.from_file("env", one["env"])
        if isinstance(one.get("wrappers"), list | tuple):
            prepared_envs[name]["wrappers"] = [
                scripts.from_file("wrapper", w) for w in one["wrappers"]
            ]
    return prepared_envs


def _is_one(setting: Any) -> bool:
    return isinstance(setting, Mapping) and all(
        isinstance(one, Mapping) for one in setting.values()
    )


def check(setting: dict[str, dict[str, Any]], eval_episodes: int) -> None:
    """Raise ConfigError unless each environment has a valid name and only known keys."""
    if not _is_one(setting):
        raise ConfigError(
            f"eval_envs={shown(setting)} must map each name to a dict, as in "
            """{"hard": {"env_kwargs": {"level": 3}}}"""
        )
    if setting and not eval_episodes:
        raise ConfigError("eval_envs needs eval_episodes of 1 or more (nearest: 20)")
    for name, one in setting.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            raise ConfigError(
                f"eval_envs has the name {shown(name)}, which must be at most 64 letters, digits, "
                f"'_', '-' and '.', and none of {', '.join(_TAKEN)}"
            )
        for key in one:
            if key not in KEYS:
                raise ConfigError(
                    f"eval_envs[{name!r}] has {shown(key)}, which must be one of "
                    f"{', '.join(KEYS)}.{nearest(str(key), KEYS)}"
                )
        _check_values(name, one)


def _check_values(name: str, one: Mapping[str, Any]) -> None:
    where = f"eval_envs[{name!r}]"
    refuse_instance(one.get("env"))
    kwargs, episodes = one.get("env_kwargs", {}), one.get("episodes", 1)
    try:
        check_json(kwargs)
        fits = isinstance(kwargs, dict)
    except (TypeError, ValueError, RecursionError):
        fits = False
    if not fits:
        raise ConfigError(f"{where} has env_kwargs={shown(kwargs)}, which must be a JSON object")
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"{where} has episodes={shown(episodes)}, which must be 1 or more")
    if not isinstance(one.get("wrappers", []), list | tuple):
        raise ConfigError(f"{where} has wrappers={shown(one['wrappers'])}, which must be a list")


def check_json(value: Any) -> None:
    """Raise TypeError or ValueError unless ``config.json`` keeps a value; tuples become lists."""
    json.dumps(value, allow_nan=False)  # NaN and infinity would become null
    _check_keys(value)


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"its key {key!r} would become text")
            _check_keys(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_keys(part)


def code_of(setting: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """List all environments and wrappers in the setting."""
    code: list[Any] = []
    for one in setting.values() if _is_one(setting) else ():
        code += [one["env"]] if "env" in one else []
        code += one.get("wrappers", [])
    return code


def mapped(
    setting: Mapping[str, Mapping[str, Any]], change: Callable[[str, Any], Any]
) -> dict[str, dict[str, Any]]:
    """Apply ``change("env" or "wrapper", x)`` to each piece of code ``x`` in the setting."""
    envs: dict[str, dict[str, Any]] = {}
    for name, one in setting.items():
        envs[name] = dict(one)
        if one.get("env") is not None:  # None is the run's own
            envs[name]["env"] = change("env", one["env"])
        if "wrappers" in one:
            envs[name]["wrappers"] = [change("wrapper", w) for w in one["wrappers"]]
    return envs


def resolved(config: Any, engine: str) -> dict[str, EvalEnv]:
    """Resolve the additional evaluation environments of a run, by name.

    Args:
        engine: the engine of the run's own environment.

    Raises:
        ConfigError: an id or a wrapper is unknown.
    """
    envs = {}
    for name, one in config.eval_envs.items():
        own, wrappers = one.get("env") is not None, tuple(one.get("wrappers", ()))
        env = one["env"] if own else config.environment
        kwargs = one.get("env_kwargs", {})
        if config.tasks and wrappers and not own:
            raise ConfigError(
                f"eval_envs[{name!r}] has wrappers, but a run with tasks defines those: add env, "
                "or leave wrappers out"
            )
        envs[name] = EvalEnv(
            resolve(env, wrappers if own else (*config.wrappers, *wrappers)),
            kwargs if own else config.evaluated_kwargs | kwargs,
            "auto" if own or (wrappers and engine in ("native", "envpool")) else engine,
            one.get("episodes", config.eval_episodes),
            own,
        )
    return envs

"""Allows a run directory to import only code that its user named on this machine.

``config.json`` names code: an environment, wrappers, a torso, an algorithm. Anyone who can write
that file could name any function of any module. So it is signed at the start of a run, with a key
that only this user can read. Unsigned code is imported only if the user trusts it explicitly. Names
that Gymnasium or a known package has registered are data and need no signature. Arguments need one,
unless they are for Gymnasium's own environments, because other environments may import or run code
that an argument names.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from headrace.algos import NAMES
from headrace.envs.names import is_foreign
from headrace.envs.packages import package_of
from headrace.errors import CheckpointError, setting
from headrace.rundir.json_values import plain

CODE = (
    "env",
    "tasks",
    "env_kwargs",
    "eval_env_kwargs",
    "wrappers",
    "eval_envs",
    "torso",
    "algo",
    "league",
)  # settings that may name code, or another folder that the run writes to
_KEY_BYTES = 32
_IMPORT = "import and run the code it names"
_VERBS = {
    "league": "write to the folder it names",
    "env_changes": "make the calls it lists to the environment",
}
_LENIENT = ("GymV21Environment", "GymV26Environment", "Record")  # import or write named files


def sign(config: dict[str, Any], env_changes: Sequence[str] = ()) -> str | None:
    """Sign the code that a config names; None if this user's key can't be stored.

    Args:
        config: result of ``Config.to_json``.
        env_changes: changes to environments, as JSON.
    """
    try:
        key = _key(create=True)
    except (OSError, RuntimeError):  # the home directory is missing or not writable
        return None
    return _signature(config, key, env_changes)


def with_changes(described: dict[str, Any], env_changes: Sequence[str]) -> dict[str, Any]:
    """Add changes to environments to the contents of a ``config.json``, and sign it again."""
    if not env_changes:
        return described
    signature = sign(described["config"], env_changes)
    return described | {"env_changes": list(env_changes), "signature": signature}


def check(folder: Path, values: dict[str, Any], trust: bool, settings: tuple[str, ...]) -> None:
    """Raise CheckpointError if code would be imported that this user hasn't named here.

    Args:
        folder: folder whose ``config.json`` has these ``values``.
        trust: the user trusts it explicitly.
        settings: the members of ``CODE`` that will be used.
    """
    _check_named(folder, values, trust, code_in(values["config"], settings))


def check_changes(folder: Path, values: dict[str, Any], trust: bool) -> None:
    """Raise CheckpointError if ``values`` make calls to a package's environments, as :func:`check`.

    Calls to environments of Gymnasium and headrace are harmless.
    """
    config, changes = values["config"], values.get("env_changes")
    ours = all(map(_is_ours, map(str, config.get("tasks") or [config["env"]])))
    _check_named(folder, values, trust, {} if ours or not changes else {"env_changes": changes})


def _check_named(folder: Path, values: dict[str, Any], trust: bool, named: dict[str, Any]) -> None:
    if trust or not named:
        return
    config, signature = values["config"], values.get("signature")
    why = "has no signature"
    if isinstance(signature, str):
        with contextlib.suppress(OSError, RuntimeError):
            own = _signature(config, _key(create=False), values.get("env_changes", ()))
            if hmac.compare_digest(signature.encode(errors="replace"), own.encode()):
                return
        why = "is not signed by you on this machine"
    verb = _VERBS.get(next(iter(named)), _IMPORT) if len(named) == 1 else _IMPORT
    listed = ", ".join(f"{name}={value!r}" for name, value in named.items())
    raise CheckpointError(
        f"{folder}/config.json {why}, and using it would {verb}: "
        f"{listed}; if you trust its author, set {setting('trust')}"
    )


def code_in(config: dict[str, Any], settings: tuple[str, ...] = CODE) -> dict[str, Any]:
    """Return the code that a config names and that isn't known to be harmless, by setting.

    Args:
        settings: settings to examine; without env, arguments count as code.
    """
    env, file = str(config["env"]), config.get("env_file")
    tasks = list(map(str, config.get("tasks", ())))
    code_by_setting: dict[str, Any] = {}
    if (code := _code_of(env, file)) is not None:
        code_by_setting["env"] = code
    if several := [code for code in (_code_of(task, file) for task in tasks) if code is not None]:
        code_by_setting["tasks"] = several
    ours = all(map(_is_ours, tasks or [env]))
    for name in ("env_kwargs", "eval_env_kwargs"):
        if config.get(name) and not (ours and "env" in settings):
            code_by_setting[name] = config[name]
    own = [w for w in map(str, config.get("wrappers", ())) if _is_own(w)]
    if own:
        code_by_setting["wrappers"] = own
    for name, one in (config.get("eval_envs") or {}).items():
        named = _code_of(str(one.get("env", env)), file) is not None
        harmless = _is_ours(str(one["env"])) if "env" in one else ours
        if (
            named
            or (one.get("env_kwargs") and not harmless)
            or any(_is_own(str(w)) for w in one.get("wrappers", ()))
        ):
            code_by_setting.setdefault("eval_envs", {})[name] = one
    torso = config.get("network", {}).get("torso")
    if torso is not None:
        code_by_setting["torso"] = torso
    if (algo := _custom(config)) is not None:
        code_by_setting["algo"] = [one for one in algo if one is not None]
    if config.get("league") is not None:
        code_by_setting["league"] = config["league"]
    return {name: value for name, value in code_by_setting.items() if name in settings}


def _custom(config: dict[str, Any]) -> list[Any] | None:
    """Return the code that an algorithm names: its class, its file, and schedule functions.

    Returns None for a built-in algorithm without such functions.
    """
    algo = config.get("algo") or {}
    name = algo.get("name")
    own = [] if name is None or name in NAMES else [name, algo.get("file")]
    functions = [[key, value] for key, value in algo.items() if isinstance(value, dict)]
    return [*own, *functions] or None


def _code_of(env: str, file: str | None) -> str | None:
    """Return the code that an environment's name refers to, unless it is known to be harmless."""
    registered = env in gymnasium.registry or package_of(env) is not None
    if ":" in env or env.startswith(_LENIENT) or (file is not None and not registered):
        return env if ":" in env or file is None else f"{env} in {file}"
    return None


def _is_ours(env: str) -> bool:
    """Return True if the environment is Gymnasium's or headrace's own."""
    spec = gymnasium.registry.get(env)
    return env.startswith("headrace/") if spec is None else not is_foreign(spec)


def _is_own(wrapper: str) -> bool:
    """Return True for a custom wrapper, as opposed to one of Gymnasium's with arguments."""
    name = wrapper.partition(":{")[0]
    return ":" in name or name.startswith(_LENIENT)


def _signature(config: dict[str, Any], key: bytes, env_changes: Sequence[str]) -> str:
    names = (
        *("env", "env_file", "env_kwargs", "wrappers"),
        *("eval_env_kwargs", "tasks", "eval_envs", "league"),
    )
    own = config["network"].get("torso"), _custom(config)
    signed = [*(config.get(name) for name in names), *own, *env_changes]
    read = json.loads(json.dumps(plain(signed)))  # as it will be read: keys become text
    return hmac.new(key, json.dumps(read, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key(create: bool) -> bytes:
    """Return this user's key.

    Raises:
        OSError, RuntimeError: it doesn't exist and can't be made, or others can read it.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    file = Path(home) / "headrace" / "key"
    if create and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent) as fresh:  # readable by its owner only
            fresh.write(secrets.token_bytes(_KEY_BYTES))
            fresh.flush()
            with contextlib.suppress(FileExistsError):
                os.link(fresh.name, file)
    status = file.stat()
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.getuid():
        raise PermissionError(f"{file} can be read by others")
    key = file.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(f"{file} is not a key")
    return key

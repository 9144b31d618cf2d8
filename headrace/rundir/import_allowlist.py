"""Which code a run directory may have imported: what its user named on this machine.

``config.json`` names code: an environment, wrappers, a torso, an algorithm. Whoever can write that
file could name any function of any module. So it is signed, with a key that only this user can
read, when a run begins; what isn't signed is imported only if the user says that it is to be
trusted. Names that Gymnasium or a known package has registered are data, and need neither; but
arguments do, unless they are of Gymnasium's own environments: others import, or run, what an
argument names.
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
)  # the settings that may name code
_KEY_BYTES = 32
_LENIENT = ("GymV21Environment", "GymV26Environment", "Record")  # import, or write, what is named


def sign(config: dict[str, Any]) -> str | None:
    """The signature of what a config names; None where this user can keep no key.

    Args:
        config: as ``Config.to_json`` made it.
    """
    try:
        key = _key(create=True)
    except (OSError, RuntimeError):  # there is no home, or it can't be written to
        return None
    return _signature(config, key)


def check(folder: Path, values: dict[str, Any], trust: bool, settings: tuple[str, ...]) -> None:
    """Raise CheckpointError if code would be imported that this user hasn't named here.

    Args:
        folder: whose ``config.json`` has these ``values``.
        trust: the user says that it is to be trusted.
        settings: which of ``CODE`` are to be used.
    """
    config = values["config"]
    named = code_in(config, settings)
    if trust or not named:
        return
    signature = values.get("signature")
    why = "has no signature"
    if isinstance(signature, str):
        with contextlib.suppress(OSError, RuntimeError):
            own = _signature(config, _key(create=False))
            if hmac.compare_digest(signature.encode(errors="replace"), own.encode()):
                return
        why = "isn't signed by you on this machine"
    listed = ", ".join(f"{name}={value!r}" for name, value in named.items())
    raise CheckpointError(
        f"{folder}/config.json {why}, and using it would import and run what it names: {listed}; "
        f"if you trust whoever wrote it, give {setting('trust')}"
    )


def code_in(config: dict[str, Any], settings: tuple[str, ...] = CODE) -> dict[str, Any]:
    """What a config names that isn't known to be harmless, by setting.

    Args:
        settings: which of them to look at; without env, the arguments go to one that isn't known.
    """
    env, file = str(config["env"]), config.get("env_file")
    tasks = list(map(str, config.get("tasks", ())))
    found: dict[str, Any] = {}
    if (code := _code_of(env, file)) is not None:
        found["env"] = code
    if several := [code for code in (_code_of(task, file) for task in tasks) if code is not None]:
        found["tasks"] = several
    ours = all(map(_is_ours, tasks or [env]))
    for name in ("env_kwargs", "eval_env_kwargs"):
        if config.get(name) and not (ours and "env" in settings):
            found[name] = config[name]
    own = [w for w in map(str, config.get("wrappers", ())) if _is_own(w)]
    if own:
        found["wrappers"] = own
    for name, one in (config.get("eval_envs") or {}).items():
        named = _code_of(str(one.get("env", env)), file) is not None
        known = _is_ours(str(one["env"])) if "env" in one else ours
        if (
            named
            or (one.get("env_kwargs") and not known)
            or any(_is_own(str(w)) for w in one.get("wrappers", ()))
        ):
            found.setdefault("eval_envs", {})[name] = one
    torso = config.get("network", {}).get("torso")
    if torso is not None:
        found["torso"] = torso
    if (algo := _custom(config)) is not None:
        found["algo"] = [one for one in algo if one is not None]
    return {name: value for name, value in found.items() if name in settings}


def _custom(config: dict[str, Any]) -> list[Any] | None:
    """The code that an algorithm names: its class, its file, and functions of schedules.

    None for a built-in algorithm without such functions.
    """
    algo = config.get("algo") or {}
    name = algo.get("name")
    own = [] if name is None or name in NAMES else [name, algo.get("file")]
    functions = [[key, value] for key, value in algo.items() if isinstance(value, dict)]
    return [*own, *functions] or None


def _code_of(env: str, file: str | None) -> str | None:
    """What an environment's name stands for, unless it is known to be harmless."""
    known = env in gymnasium.registry or package_of(env) is not None
    if ":" in env or env.startswith(_LENIENT) or (file is not None and not known):
        return env if ":" in env or file is None else f"{env} in {file}"
    return None


def _is_ours(env: str) -> bool:
    """Whether arguments go to an environment of Gymnasium's or headrace's own."""
    spec = gymnasium.registry.get(env)
    return env.startswith("headrace/") if spec is None else not is_foreign(spec)


def _is_own(wrapper: str) -> bool:
    """Whether it is a module's, and not one of Gymnasium's with its arguments."""
    name = wrapper.partition(":{")[0]
    return ":" in name or name.startswith(_LENIENT)


def _signature(config: dict[str, Any], key: bytes) -> str:
    names = ("env", "env_file", "env_kwargs", "wrappers")
    signed = [*(config.get(name) for name in names), config["network"].get("torso")]
    if config.get("eval_env_kwargs"):  # older runs have none
        signed.append(config["eval_env_kwargs"])
    if config.get("tasks"):
        signed.append(config["tasks"])
    if config.get("eval_envs"):
        signed.append(config["eval_envs"])
    if (algo := _custom(config)) is not None:
        signed.append(algo)
    read = json.loads(json.dumps(plain(signed)))  # as it will be: keys are text then
    return hmac.new(key, json.dumps(read, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key(create: bool) -> bytes:
    """This user's key.

    Raises:
        OSError, RuntimeError: there is none, and none can be made, or others can read it.
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
        raise OSError(f"{file} is no key")
    return key

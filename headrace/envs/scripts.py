"""Finds objects defined in a script when the script itself isn't running.

An environment, wrapper, torso or algorithm of a script is ``__main__:Name`` in ``config.json``,
next to the path of the script. The script is imported under another name, so code under
``if __name__ == "__main__"`` doesn't run, and what it defines is sent to other processes by value.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from headrace.envs.names import by_value, is_foreign
from headrace.envs.packages import package_of
from headrace.errors import ConfigError
from headrace.processes.pickling import SCRIPT

_MAIN = "__main__:"
_NOT_FROZEN = "inherit non-frozen dataclass"  # in Python's message about an algorithm
_MOST_NAMES = 5  # in a suggestion
_loading: ContextVar[str] = ContextVar("_loading", default="")  # the script that is imported now


def name_of(path: str) -> str:
    """Return ``module:name`` as written in config.json; imported script objects become
    ``__main__``.
    """
    module, colon, name = path.partition(":")
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)  # as with python -m
        if spec is None or spec.name.endswith("__main__"):
            return path
        return f"{spec.name}:{name}"
    return _MAIN + name if module.startswith(SCRIPT) and colon else path


def file_of(*objects: Any) -> str | None:
    """Return the file that defines or registers ids, EnvSpecs, callables or torsos.

    Returns None if names are enough to find everything: objects of Gymnasium or known packages, or
    names given as text. If several files qualify, the script's is returned.
    """
    local = None
    for one in objects:
        while isinstance(one, functools.partial):
            one = one.func
        if isinstance(one, str):
            spec = gymnasium.registry.get(one)
            if spec is not None and is_foreign(spec) and package_of(one) is None:
                return _main_file()
        elif one is not None:
            code = one if hasattr(one, "__qualname__") else type(one)
            module = sys.modules.get(getattr(code, "__module__", ""))
            if module is sys.modules["__main__"]:
                return _main_file()
            file = getattr(module, "__file__", None)
            if local is None and file is not None and not _is_installed(Path(file)):
                local = os.path.abspath(file)
    return local


def _is_installed(file: Path) -> bool:
    """Return whether a module belongs to an installed package or to Python itself."""
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return bool(installed) or file.is_relative_to(sysconfig.get_paths()["stdlib"])


def _main_file() -> str | None:
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if not file or not file.endswith(".py") or (spec and spec.name.endswith("__main__")):
        return None
    return os.path.abspath(file)


def found(setting: str, name: str, file: str | None) -> Any:
    """Return the object named in ``config.json`` if a script defines it, or else the name itself.

    Args:
        setting: name of the setting, for messages.
        file: the earlier result of :func:`file_of`.

    Raises:
        ConfigError: the object can't be found.
    """
    module, _, path = name.partition(":")
    if module.endswith(".py"):
        return _attribute(setting, name, path, os.path.abspath(module))
    if "<" in path:
        raise ConfigError(
            f"{setting}={name!r} can't be found by its name: define it at the top of a module or "
            f"script and train with it from there, or in Python pass {setting} again"
        )
    if module == "__main__":
        if file is None:
            return _in_notebook(setting, path)
        return _attribute(setting, name, path, file)
    if file is None:
        return name
    if path:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            depth = module.count(".") + (Path(file).name == "__init__.py")
            sys.path.append(str(Path(file).parents[depth]))
    elif name not in gymnasium.registry and package_of(name) is None:
        _imported(file)  # which registers the id
    return name


def _in_notebook(setting: str, path: str) -> Any:
    """Return a class or function that was defined without a file, if it is defined here as well."""
    defined = getattr(sys.modules["__main__"], path, None)
    if callable(defined) and getattr(defined, "__module__", None) == "__main__":
        return defined
    raise ConfigError(
        f"{setting}='__main__:{path}' was defined without a file, as in a notebook: define {path} "
        f"here first, or move it into a module and give {setting}='module:{path}'"
    )


def check_files(values: Any, file: str | None = None) -> None:
    """Raise ConfigError if settings name code of a notebook, which only this process has.

    Args:
        values: result of ``Config.to_json``, or a part of it.
        file: the file of ``values``, if a script defines its code.
    """
    if isinstance(values, str) and values.startswith(_MAIN) and file is None:
        raise ConfigError(
            f"{values!r} was defined without a file, as in a notebook, so other processes can't "
            "import it: move it into a module"
        )
    if isinstance(values, dict):
        file = values.get("file") or values.get("env_file") or file
        values = list(values.values())
    if isinstance(values, list | tuple):
        for one in values:
            check_files(one, file)


def from_file(setting: str, value: Any) -> Any:
    """Import the object named ``path/to/file.py:Name``; returns anything else unchanged.

    Raises:
        ConfigError: the file doesn't exist, or doesn't define the object.
    """
    if isinstance(value, str) and value.partition(":")[0].endswith(".py"):
        if ":" not in value:
            raise without_name(setting, value)
        return found(setting, value, None)
    return value


def without_name(setting: str, file: str) -> ConfigError:
    """Return the error for a file without an object's name; suggests its public classes."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        return ConfigError(f"{setting}={file!r} can't be read ({error}): give {file}:Name")
    kinds = [x.name for x in tree.body if isinstance(x, ast.ClassDef) and x.name[0] != "_"]
    names = kinds or [x.name for x in tree.body if isinstance(x, ast.FunctionDef)] or ["Name"]
    each = " or ".join(f"{file}:{name}" for name in names[:_MOST_NAMES])
    return ConfigError(f"{setting}={file!r} names a file only; give what it defines: {each}")


def _attribute(setting: str, name: str, path: str, file: str) -> Any:
    value: Any = _imported(file)
    for part in path.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise ConfigError(f"{setting}={name!r} is unknown: {file} defines no {path}")
    return value


def _imported(file: str) -> ModuleType:
    """Import the script as a module; return the running one if it is the same file.

    Raises:
        ConfigError: it doesn't exist, fails, or starts training.
    """
    if _main_file() == file:
        return sys.modules["__main__"]
    path = Path(file)
    name = f"{SCRIPT}{path.stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"the script {file} doesn't exist")
    module = importlib.util.module_from_spec(spec)
    before = dict(gymnasium.registry)
    with _as_if_run(name, module, file):
        spec.loader.exec_module(module)
    for env_id, one in gymnasium.registry.items():
        if before.get(env_id) is not one:
            gymnasium.registry[env_id] = by_value(one, module)
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    return module


@contextlib.contextmanager
def _as_if_run(name: str, module: ModuleType, file: str) -> Iterator[None]:
    """Set up ``sys`` as a running script expects it."""
    folder, argv = str(Path(file).parent), sys.argv
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name], sys.argv = module, [file]
    token = _loading.set(file)
    try:
        yield
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (ConfigError, KeyboardInterrupt)):
            raise
        frozen = "; write @dataclass(frozen=True)" if _NOT_FROZEN in str(error) else ""
        raise ConfigError(
            f"importing {file} for the code that it defines failed: {error!r}{frozen}"
        ) from error
    finally:
        sys.argv = argv
        _loading.reset(token)


def refuse_training() -> None:
    """Raise ConfigError while a script is imported only for its definitions."""
    if file := _loading.get():
        raise ConfigError(
            f"{file} starts training when it is imported, which headrace does to find its code: "
            'put training under if __name__ == "__main__", or move the code to a separate module'
        )

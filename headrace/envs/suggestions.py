"""Suggests names of environments: similar ones for an unknown name, newer versions of old ones."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
from collections.abc import Iterable
from types import ModuleType

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from headrace.envs.packages import import_namespaces
from headrace.errors import nearest
from headrace.games.pettingzoo import package_of_entry, registered


def names_in(module: ModuleType) -> set[str]:
    """Return candidate names after a module's colon: ids, games, classes and functions."""
    package = module.__name__.partition(".")[0]
    ids = {id for id, spec in gymnasium.registry.items() if package_of_entry(spec) == package}
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and str(getattr(value, "__module__", "")).partition(".")[0] == package
    }
    return ids | own | {*registered(module.__name__)} | _modules(getattr(module, "__path__", ()))


def nearest_module(name: str) -> str:
    """Suggest a name for ``package.game`` if the package exists, as in :func:`nearest`.

    The package is not imported, because the user didn't name one of its modules.
    """
    *folders, last = name.split(".")
    try:
        spec = importlib.util.find_spec(folders[0]) if folders else None
    except ValueError:  # such as an empty name
        return ""
    places = (spec and spec.submodule_search_locations) or ()
    candidates = _modules([os.path.join(place, *folders[1:]) for place in places])
    return nearest(last, candidates, before=f"{'.'.join(folders)}:")


def same_name(name: str) -> str:
    """Suggest ids with the same bare name, as in :func:`nearest`.

    Versions, case, namespaces and the ending "Env" of a class name are ignored. Only the newest
    version is suggested, first without a namespace. Packages that are known to register ids with a
    namespace are imported.
    """
    import_namespaces()
    same = [i for i in gymnasium.registry if _bare(i) == _bare(name)]
    newest = max(map(_version, same), default=0)
    same = sorted((i for i in same if _version(i) == newest), key=lambda i: "/" in i)
    return f" Did you mean {', '.join(map(repr, same[:3]))}?" if same else ""


def _bare(env_id: str) -> str:
    """Return the name in an id or of a class, for comparison."""
    name = re.sub(r"-v\d+$", "", env_id.rpartition("/")[2])
    return name.removesuffix("Env").lower()


def _version(env_id: str) -> int:
    found = re.search(r"-v(\d+)$", env_id)
    return int(found[1]) if found else -1


def _modules(places: Iterable[str]) -> set[str]:
    return {one.name for one in pkgutil.iter_modules(list(places)) if not one.name.startswith("_")}


def newer_version(env_id: str) -> str | None:
    """Return the id of the newest version if it is newer than this one, else None."""
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:  # not an id with a version
        return None
    newest = find_highest_version(namespace, name)
    if version is None or newest is None or newest <= version:
        return None
    return get_env_id(namespace, name, newest)

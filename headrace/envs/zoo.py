"""Games by name: those that PettingZoo has registered, and modules of the same kind.

    pettingzoo:classic/connect_four_v3    registered there
    mpe2:simple_spread_v3                 the module mpe2.simple_spread_v3

Such a module has a function ``parallel_env``, ``env`` or both. Where agents can move at once, they
do: ``parallel_env`` is taken where there is one (``module.of.it:env`` names the other).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_KINDS = {"parallel": "parallel_env", "aec": "env"}  # the better first


@dataclass(frozen=True)
class Zoo:
    """Makes the game of a name; travels to other processes as that name.

    Args:
        module: which brings it. name: behind the colon.
    """

    module: str
    name: str

    @property
    def __name__(self) -> str:
        return f"{self.module}:{self.name}"

    def __call__(self, **kwargs: Any) -> Any:
        """The game, PettingZoo's ParallelEnv or AECEnv."""
        maker = _maker(importlib.import_module(self.module), self.name)
        assert maker is not None, self
        return maker(**kwargs)


def zoo(module: ModuleType, name: str) -> Zoo | None:
    """What makes the game of this name; None: there is none."""
    return None if _maker(module, name) is None else Zoo(module.__name__, name)


def known(module: str) -> list[str]:
    """The games that PettingZoo has registered, if it is the module."""
    registry, names = sys.modules.get("pettingzoo"), set[str]()
    for kind in _KINDS if module == "pettingzoo" and hasattr(registry, "make") else ():
        names |= set(getattr(registry, f"{kind}_registry"))
    return sorted(re.sub(r"-v(\d+)$", r"_v\1", name) for name in names)


def _maker(module: ModuleType, name: str) -> Callable[..., Any] | None:
    registry = sys.modules.get("pettingzoo")
    for kind in _KINDS if hasattr(registry, "make") else ():
        known = getattr(registry, f"{kind}_registry")
        registered = re.sub(r"_v(\d+)$", r"-v\1", name)
        if registered in known:
            return known[registered].make  # type: ignore[no-any-return]
    found: Any = module
    for part in name.replace("/", ".").split("."):
        found = _part(found, part)
    makers = (getattr(found, word, None) for word in _KINDS.values())
    return next(filter(callable, makers), None) if isinstance(found, ModuleType) else None


def _part(module: Any, name: str) -> Any:
    """A module's module, imported if it has to be; None: there is none."""
    if not isinstance(module, ModuleType):
        return None
    full = f"{module.__name__}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name == full or not hasattr(module, "__path__"):
            return None
        raise

"""Games by name: those that PettingZoo has registered, and modules of the same kind.

    pettingzoo:classic/connect_four_v3    registered there
    mpe2:simple_spread_v3                 the module mpe2.simple_spread_v3

Such a module has a function ``parallel_env``, ``env`` or both. Where agents can move at once, they
do: ``parallel_env`` is taken where there is one (``module.of.it:env`` names the other).
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

_KINDS = "parallel", "aec"  # the better first
MAKERS = "parallel_env", "env"
"""What a module of a game has; the better first."""


@dataclass(frozen=True)
class PettingZooGame:
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


def zoo(module: ModuleType, name: str) -> PettingZooGame | None:
    """What makes the game of this name; None: there is none."""
    return None if _maker(module, name) is None else PettingZooGame(module.__name__, name)


def registered(module: str) -> dict[str, Any]:
    """What PettingZoo has registered, by our names: of all packages under its own, else of this.

    Where a game is there twice, it is the kind in which agents move at once.
    """
    package, games = module.partition(".")[0], dict[str, Any]()
    for kind in _KINDS:
        known = getattr(sys.modules.get("pettingzoo"), f"{kind}_registry", {})
        for name, spec in known.items():
            if package in ("pettingzoo", package_of_entry(spec)):
                games.setdefault(_ours(name), spec)
    return games


def _ours(name: str) -> str:
    return re.sub(r"-v(\d+)$", r"_v\1", name)


def package_of_entry(spec: Any) -> str:
    """The package of what a spec makes environments with, or ""."""
    entry = getattr(spec, "entry_point", None) or getattr(spec, "vector_entry_point", None)
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return str(module).partition(".")[0]


def as_typed(maker: Callable[..., Any], env_id: str) -> Callable[..., Any]:
    """``maker``, under the name that was typed: its own says ``env``, as those of all games do.

    What makes an environment of Gymnasium's is returned as it is.
    """
    if isinstance(maker, type) and issubclass(maker, gymnasium.Env | VectorEnv):
        return maker
    named = functools.partial(maker)
    vars(named)["__name__"] = env_id
    return named


def _maker(module: ModuleType, name: str) -> Callable[..., Any] | None:
    if spec := registered(module.__name__).get(_ours(name)):
        return spec.make  # type: ignore[no-any-return]
    found: Any = module
    for part in name.replace("/", ".").split("."):
        found = _part(found, part)
    makers = (getattr(found, word, None) for word in MAKERS)
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

"""Looks up PettingZoo games by name, and modules with the same interface.

    pettingzoo:classic/connect_four_v3    registered there
    mpe2:simple_spread_v3                 the module mpe2.simple_spread_v3

Such a module has a function ``parallel_env``, ``env`` or both. ``parallel_env`` is preferred;
``module.of.it:env`` selects the other.
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

_KINDS = "parallel", "aec"  # preferred one first
MAKERS = "parallel_env", "env"
"""Factory functions of a game's module, preferred one first."""


@dataclass(frozen=True)
class PettingZooGame:
    """Factory of a named game; pickles as the name.

    Args:
        module: module that registers the game.
        name: the part after the colon.
    """

    module: str
    name: str

    @property
    def __name__(self) -> str:
        return f"{self.module}:{self.name}"

    def __call__(self, **kwargs: Any) -> Any:
        """Make the game, a PettingZoo ParallelEnv or AECEnv."""
        maker = _maker(importlib.import_module(self.module), self.name)
        assert maker is not None, self
        return maker(**kwargs)


def find_game(module: ModuleType, name: str) -> PettingZooGame | None:
    """Return the factory of the game of this name, or None."""
    return None if _maker(module, name) is None else PettingZooGame(module.__name__, name)


def registered(module: str) -> dict[str, Any]:
    """Return the games that PettingZoo has registered, keyed by headrace's names.

    If a game is registered in both forms, the simultaneous one is used.
    """
    package, games = module.partition(".")[0], dict[str, Any]()
    for kind in _KINDS:
        specs = getattr(sys.modules.get("pettingzoo"), f"{kind}_registry", {})
        for name, spec in specs.items():
            if package in ("pettingzoo", package_of_entry(spec)):
                games.setdefault(_versioned(name), spec)
    return games


def _versioned(name: str) -> str:
    return re.sub(r"-v(\d+)$", r"_v\1", name)


def package_of_entry(spec: Any) -> str:
    """Return the package in which a spec's entry point is defined, or ""."""
    entry = getattr(spec, "entry_point", None) or getattr(spec, "vector_entry_point", None)
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return str(module).partition(".")[0]


def as_typed(maker: Callable[..., Any], env_id: str) -> Callable[..., Any]:
    """Return ``maker`` renamed to the name that was typed, as all games' functions are called
    ``env``.

    Factories of Gymnasium environments are returned unchanged.
    """
    if isinstance(maker, type) and issubclass(maker, gymnasium.Env | VectorEnv):
        return maker
    named = functools.partial(maker)
    vars(named)["__name__"] = env_id
    return named


def _maker(module: ModuleType, name: str) -> Callable[..., Any] | None:
    if spec := registered(module.__name__).get(_versioned(name)):
        return spec.make  # type: ignore[no-any-return]
    value: Any = module
    for part in name.replace("/", ".").split("."):
        value = _part(value, part)
    makers = (getattr(value, word, None) for word in MAKERS)
    return next(filter(callable, makers), None) if isinstance(value, ModuleType) else None


def _part(module: Any, name: str) -> Any:
    """Return a module's submodule, imported if necessary; None if it doesn't exist."""
    if not isinstance(module, ModuleType):
        return None
    full = f"{module.__name__}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name == full or not hasattr(module, "__path__"):
            return None
        raise

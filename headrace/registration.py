"""The environments that come with headrace, told to Gymnasium without importing it."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAMES = ("SimpleSatellite", "SSAConjunction")


def register_with_gymnasium() -> None:
    """Register ``headrace/SimpleSatellite-v0`` and ``headrace/SSAConjunction-v0``.

    At once if Gymnasium is there already, else as soon as it is imported: it takes a good part of
    a second, which ``import headrace`` shall not cost.
    """
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _AfterGymnasium())


def _register() -> None:
    from gymnasium.envs.registration import register

    for name in _NAMES:
        register(
            f"headrace/{name}-v0",
            entry_point=f"headrace.envs.ssa:{name}Env",
            vector_entry_point=f"headrace.envs.ssa:{name}VectorEnv",
        )


class _AfterGymnasium:
    """An import finder that registers the environments behind the first import of Gymnasium.

    It stays until then: others may only ask whether Gymnasium is there, or fail to import it.
    """

    def __init__(self) -> None:
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Gymnasium's own spec, whose loader registers when it is done; None for all others."""
        if name != "gymnasium" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            sys.meta_path.remove(self)
            _register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

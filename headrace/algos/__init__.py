"""Algorithms, one file each: a frozen dataclass of hyperparameters with a loss.

The name of the file is the name on the command line and, in capitals, the name of the class:
``ppo.py`` defines ``PPO``, which is also ``headrace.PPO``. There is no other list of them. Files
are imported on first use, so listing the algorithms is cheap. Installed packages register
algorithms as entry points in the group ``headrace.algorithms``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.algos.a2c import A2C as A2C
    from headrace.algos.a3c import A3C as A3C
    from headrace.algos.appo import APPO as APPO
    from headrace.algos.common import Hyperparameters
    from headrace.algos.impact import IMPACT as IMPACT
    from headrace.algos.impala import IMPALA as IMPALA
    from headrace.algos.ppo import PPO as PPO

    ALGORITHMS: dict[str, type[Hyperparameters]]  # by name

# Files that several algorithms use.
_SHARED = ("advantages", "common", "minibatches", "penalty", "replay")
NAMES = [file.name for file in pkgutil.iter_modules(__path__) if file.name not in _SHARED]


def installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the algorithms of installed packages by their names, without importing them."""
    offered = importlib.metadata.entry_points(group="headrace.algorithms")
    return {point.name: point for point in offered if point.name not in NAMES}


def __getattr__(name: str) -> Any:
    if name == "ALGORITHMS":
        value: Any = {one: __getattr__(one.upper()) for one in NAMES}
    elif name.isupper() and name.lower() in NAMES:
        value = getattr(importlib.import_module(f"{__name__}.{name.lower()}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value

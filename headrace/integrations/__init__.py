"""Callbacks for experiment trackers and other tools, which are imported when used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from headrace.extras import needs


def needed(module: str, extra: str) -> Any:
    """Import a module of an optional package.

    Raises:
        ConfigError: it isn't installed; the message has the line that installs it.
    """
    with needs(f"headrace.integrations.{extra}", extra):
        return importlib.import_module(module)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings: ``algo.learning_rate``; lists and None become text."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            plain = isinstance(value, (bool, int, float, str))
            found[f"{prefix}{name}"] = value if plain else str(value)
    return found


def final(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the final metrics of a run from the contents of ``summary.json``."""
    played = summary.get("evaluation") or {}
    values = {
        "eval/episodic_return": played.get("mean"),
        "charts/episodic_return": summary.get("episodic_return"),
        "charts/SPS": summary.get("sps"),
    }
    values |= {f"eval/env/{name}": x for name, x in (played.get("metrics") or {}).items()}
    others = played.get("others") or {}
    values |= {f"eval/{name}/mean": one.get("mean") for name, one in others.items()}
    values |= summary.get("metrics") or {}
    return {name: float(value) for name, value in values.items() if value is not None}

"""Finds the numbers in the infos of vector environments, under nested keys and masks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.games.infos import ABSENT, AGENT_INFOS, MOVED
from headrace.spaces.masks import MASK

_LEFT_OUT = {MASK, "TimeLimit.truncated", "elapsed_step", "env_id", "players/env_id", MOVED, ABSENT}
_FINAL = ("final_info", "final_obs", "final_observation", "terminal_observation")


def column(infos: Any, path: Sequence[str], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of a name in each environment, ``[B]`` float64, and where it is present."""
    values, present = np.zeros(count), np.zeros(count, bool)
    value_at_path, there = _at(infos, path, np.ones(count, bool))
    if (
        isinstance(value_at_path, np.ndarray)
        and value_at_path.dtype.kind in "biuf"
        and value_at_path.shape == (count,)
    ):
        np.copyto(values, value_at_path, casting="unsafe")
        present[:] = there
    else:
        name = "/".join(path)
        for row in range(count):
            for one, value in numbers_of(infos, row, (path[0], *_FINAL, AGENT_INFOS)):
                if one == name:
                    values[row], present[row] = value, True
    final = infos.get("final_info") if isinstance(infos, Mapping) else None
    if isinstance(final, Mapping):  # SAME_STEP: the info of the step that ended an episode
        last, has = column(final, path, count)
        ended = np.asarray(infos.get("_final_info", has), bool)
        values, present = np.where(ended, last, values), np.where(ended, has, present)
    return values, present


def _at(infos: Any, path: Sequence[str], present: np.ndarray) -> tuple[Any, np.ndarray]:
    """Look up a path of keys; returns the value and its rows. Keys may contain slashes."""
    if not path:
        return infos, present
    if isinstance(infos, Mapping):
        for end in range(len(path), 0, -1):
            key = "/".join(path[:end])
            if key in infos:
                return _at(infos[key], path[end:], present & _mask(infos, key, present))
    return None, present


def _mask(infos: Mapping[str, Any], key: str, present: np.ndarray) -> np.ndarray:
    mask = infos.get(f"_{key}")
    fits = isinstance(mask, np.ndarray) and mask.shape == present.shape
    return mask.astype(bool) if fits else np.ones_like(present)  # type: ignore[union-attr]


def numbers_of(
    infos: Any, row: int, only: Sequence[str] | None = None
) -> Iterator[tuple[str, float]]:
    """Return the numbers in the info of one environment; nested keys are joined with slashes.

    Args:
        only: top-level keys to read; None: all.
    """
    if isinstance(infos, list | tuple):  # a dict for each environment
        yield from _flat(infos[row], "")
        return
    final = _row(infos, "final_info", row)
    if final is not None:
        yield from _flat(final, "") if isinstance(final, Mapping) else ()
        infos = {k: infos[k] for k in ("episode", "_episode") if k in infos}
    agents = _row(infos, AGENT_INFOS, row)
    if isinstance(agents, Mapping):
        yield from _flat(agents, "")
    for key in _keys(infos) if only is None else [key for key in only if key in infos]:
        if key not in (AGENT_INFOS, *_FINAL):
            yield from _flat(_row(infos, key, row), str(key))


def _keys(infos: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of values, without the keys of their masks. Keys may be numbers."""
    masks = {f"_{key}" for key in infos}
    return [key for key in infos if key not in masks]


def _row(infos: Mapping[Any, Any], key: Any, row: int) -> Any:
    """Return the value of one environment under a key, or None."""
    value, present = infos.get(key), infos.get(f"_{key}")
    if value is None or (isinstance(present, np.ndarray) and not present[row]):
        return None
    if isinstance(value, Mapping):
        return {key: _row(value, key, row) for key in _keys(value)}
    if isinstance(value, np.ndarray) and not value.ndim:
        return None
    return value[row] if isinstance(value, np.ndarray | list | tuple) and row < len(value) else None


def _flat(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in _FINAL:
                yield from _flat(part, f"{name}/{key}" if name else str(key))
        return
    if name in _LEFT_OUT or value is None or isinstance(value, str | bytes):
        return
    if isinstance(value, bool | int | float | np.number | np.bool_):
        yield name, _float(value)
    elif getattr(value, "shape", None) in ((), (1,)):  # an array or a tensor of one number
        item = value.item()
        if isinstance(item, bool | int | float):
            yield name, _float(item)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf

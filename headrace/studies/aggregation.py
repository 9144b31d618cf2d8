"""Aggregates metrics over runs: groups, and means with standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Row = Mapping[str, Any]
T = TypeVar("T")


def grouped(rows: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Group rows by a key, in order of the keys' first appearance."""
    groups: dict[Any, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def over_present(
    rows: Iterable[Row], name: str, reduce: Callable[[list[float]], float]
) -> float | None:
    """Aggregate the present values of a column; None if all are missing."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return reduce(values) if values else None


def mean_se(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error, which is NaN for a single value.

    Raises:
        statistics.StatisticsError: there is no value.
    """
    values = [float(value) for value in values]
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), se


def means(rows: Sequence[Row], names: Iterable[str]) -> dict[str, Any]:
    """Return ``name`` and ``name_se`` of each column over its present values, or None."""
    results: dict[str, Any] = {}
    for name in names:
        results[name] = over_present(rows, name, statistics.fmean)
        results[f"{name}_se"] = over_present(rows, name, lambda values: mean_se(values)[1])
    return results


def plus_minus(row: Row, name: str, digits: int = 1) -> str:
    """Format a result of :func:`means` as ``12.3 ± 0.4``; a dash without values."""
    mean, se = row.get(name), row.get(f"{name}_se")
    if mean is None:
        return "–"
    text = f"{mean:,.{digits}f}"
    return text if se is None or math.isnan(se) else f"{text} ± {se:,.{digits}f}"

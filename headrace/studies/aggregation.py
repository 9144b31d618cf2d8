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
    found: dict[Any, list[T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def over_known(
    rows: Iterable[Row], name: str, figure: Callable[[list[float]], float]
) -> float | None:
    """Aggregate the non-missing values of a column, by default their mean; None if there are
    none.
    """
    known = [row[name] for row in rows if row.get(name) is not None]
    return figure(known) if known else None


def mean_se(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Mean and standard error of the mean; the error of a single value is NaN.

    Raises:
        statistics.StatisticsError: there is no value.
    """
    values = [float(value) for value in values]
    se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), se


def means(rows: Sequence[Row], names: Iterable[str]) -> dict[str, Any]:
    """Return ``name`` and ``name_se`` of each column over the rows that have it; None if none
    has.
    """
    found: dict[str, Any] = {}
    for name in names:
        found[name] = over_known(rows, name, statistics.fmean)
        found[f"{name}_se"] = over_known(rows, name, lambda known: mean_se(known)[1])
    return found


def plus_minus(row: Row, name: str, digits: int = 1) -> str:
    """Format a result of :func:`means` as ``12.3 ± 0.4``; a dash without values."""
    mean, se = row.get(name), row.get(f"{name}_se")
    if mean is None:
        return "–"
    text = f"{mean:,.{digits}f}"
    return text if se is None or math.isnan(se) else f"{text} ± {se:,.{digits}f}"

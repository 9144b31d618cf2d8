"""Python functions of the commands for several runs: ``hr.sweep``, ``hr.plot``, ``hr.report``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.config import Config
from headrace.errors import ConfigError, shown
from headrace.reporting import page
from headrace.rundir import plot as curves
from headrace.studies import statistics
from headrace.studies.machine import wide_console
from headrace.studies.sweep.command import run
from headrace.studies.sweep.report import ranked
from headrace.studies.sweep.settings import Sweep
from headrace.studies.sweep.store import Store
from headrace.trainer.auto_sizes import choose

Runs = str | Path | Sequence[str | Path]


def sweep(
    env: Any = None,
    algo: Any = None,
    sample: Mapping[str, Any] | Sequence[str] = (),
    *,
    quiet: bool = False,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train with sampled settings and rank them; the same call continues an interrupted sweep.

    Args:
        env, algo: as for :func:`headrace.train`; ``env`` may also be a complete :class:`Config`.
        sample: settings to sample: choices, as in ``{"epochs": [2, 4, 8]}``, or a distribution, as
            in ``{"learning_rate": "loguniform:1e-5,1e-2"}``.
        quiet: print nothing.
        **settings: fields of :class:`~headrace.studies.sweep.settings.Sweep`, such as ``trials``,
            ``jobs`` and ``output``, and fields of :class:`Config`.

    Returns:
        finished trials, the best first, each with ``trial`` (its number), ``score`` (or None) and
        the sampled settings by name.

    Raises:
        ConfigError: a setting is invalid; nothing was started.
    """
    of_sweep = Sweep.__dataclass_fields__
    sweep_settings = {name: settings.pop(name) for name in [*settings] if name in of_sweep}
    arguments = {name: x for name, x in (("env", env), ("algo", algo)) if x is not None}
    config = env if isinstance(env, Config) else Config(**arguments, **settings)
    config = config if config.is_sized else choose(config, None, cores=1)
    if isinstance(sample, str):
        sample = [sample]
    if isinstance(sample, Mapping):
        sample = [f"{name}={_drawn(name, drawn)}" for name, drawn in sample.items()]
    study = Sweep(sample=tuple(sample), config=config, **sweep_settings)
    run(study, Console(file=io.StringIO()) if quiet else wide_console())
    return [
        {"trial": trial.number, "score": trial.value, **trial.params}
        for trial in ranked(Store(study).trials())
    ]


def _drawn(name: str, values: Any) -> str:
    """Return the text form of a sampled setting, as in ``choice:1,2,4``.

    Raises:
        ConfigError: it is neither text nor a collection of JSON values.
    """
    if isinstance(values, str):
        return values
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise ConfigError(
            f"sample={{{name!r}: {shown(values)}}} must be a list of choices, as in [1, 2, 4], or "
            f"a distribution, as in 'loguniform:1e-5,1e-2'; give a single value as {name}=…"
        )
    try:
        choices = [json.dumps(value, default=_plain) for value in values]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"sample={{{name!r}: {shown(values)}}} must contain numbers, text, True, False, None "
            f"or lists of them ({error})"
        ) from error
    return f"choice:{','.join(choices)}"


def _plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays to plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is none of these")


def plot(runs: Runs, output: str | Path | None = None, metrics: str | Sequence[str] = ()) -> Path:
    """Plot learning curves of runs, and return the PNG's path.

    Runs that differ only in their seed form one curve, with an interval if rliable is installed.

    Args:
        runs: a run directory or several.
        output: the PNG; by default ``curve.png`` in a single run, and ``comparison.png`` next to
            several.
        metrics: names in ``metrics.jsonl``, such as ``env/is_success``. Each one gets a panel.

    Raises:
        CheckpointError: a directory has no metrics.
        ConfigError: a metric is in none of the runs.
    """
    paths, names = _paths(runs), [metrics] if isinstance(metrics, str) else metrics
    return curves.plot(paths, None if output is None else Path(output), _interval(paths), names)


def report(runs: Runs, output: str | Path | None = None) -> Path:
    """Write one HTML file about one or several runs, and return its path.

    Args:
        runs: a run directory or several.
        output: the file; by default ``report.html`` in a single run, and ``comparison.html`` next
            to several.

    Raises:
        CheckpointError: a directory has no metrics.
    """
    paths = _paths(runs)
    return page.write(paths, None if output is None else Path(output), _interval(paths), [])


def _paths(runs: Runs) -> list[Path]:
    several = [runs] if isinstance(runs, str | Path) else runs
    return list(dict.fromkeys(map(Path, several)))


def _interval(runs: list[Path]) -> Any:
    return statistics.over_runs if len(runs) > 1 and statistics.are_there() else None

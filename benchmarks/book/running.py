"""Runs the missing cases of experiments in separate processes."""

from __future__ import annotations

import importlib
import queue
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from book.data import Data
from book.experiment import Experiment, Form
from book.training import trained
from headrace.processes import cores, pinned
from headrace.studies.children import Children
from headrace.studies.workers import work

_ERROR_CHARACTERS = 300


def run_missing(page: str, data: Data, form: Form, console: Console, replace: bool = False) -> None:
    """Run cases without a result, and store each result when its run ends.

    Args:
        page: module of ``book`` that defines the experiment.
        replace: drop stored runs of other cases.

    Raises:
        ConfigError: there are stored runs of other cases.
    """
    experiment = data.experiment
    cases = experiment.cases(form)
    data.start(form.name, cases, replace)
    todo = data.missing(cases)
    jobs = 1 if experiment.alone else max(1, min(len(cores()), len(todo)))
    cores_each = None if experiment.alone else 1
    waiting, places = _queue(todo), _queue(range(jobs))
    count, begin = [0], time.monotonic()

    def turn(children: Children) -> bool:
        try:
            case = waiting.get_nowait()
        except queue.Empty:
            return False
        place, start = places.get(), time.monotonic()
        request = {"page": page, "experiment": experiment.name, "case": dict(case)}
        try:
            with pinned(cores_each, place):
                values = children.call(run_case, request, experiment.limit_s)
            result: dict[str, Any] = {"values": values}
        except (RuntimeError, OSError) as error:
            result = {"error": f"{type(error).__name__}: {str(error)[-_ERROR_CHARACTERS:]}"}
        finally:
            places.put(place)
        data.add(case, time.monotonic() - start, **result)
        count[0] += 1
        left_s = (time.monotonic() - begin) / count[0] * (len(todo) - count[0])
        at = f"{experiment.name} {count[0]}/{len(todo)}, {left_s:.0f} s left"
        told = result.get("error") or short(values)
        console.print(f"[{at}] {short(case)}: {told}", soft_wrap=True)
        return True

    if todo:
        work(jobs, turn)


def run_case(request: dict[str, Any]) -> dict[str, Any]:
    """Measure one case in this process."""
    page = importlib.import_module(f"book.{request['page']}").PAGE
    experiment: Experiment = next(e for e in page.experiments if e.name == request["experiment"])
    case = request["case"]
    if experiment.measure is not None:
        return experiment.measure(case)
    return trained(experiment.settings(case))


def short(values: Any) -> str:
    """Return the numbers and short texts of a mapping in one line."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in values.items()}
    return ", ".join(f"{k} {v}" for k, v in texts.items() if len(v) < 40)


def _queue(items: Iterable[Any]) -> queue.SimpleQueue[Any]:
    filled: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in items:
        filled.put(item)
    return filled

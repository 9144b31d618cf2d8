"""Finds where a setting belongs: to the run, its network, an algorithm or a function.

The owners are in higher layers, so they are named as text and imported only for a message.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import pkgutil
from collections.abc import Collection, Iterable
from typing import Any

from headrace.errors import nearest
from headrace.validation import aliases

_CONFIG = "headrace.config:Config"
_NETWORK = "headrace.nn:Network"
_ALGORITHMS = "headrace.algos:ALGORITHMS"
_TRAIN = "headrace.api:train"
_CLOSE = 0.85  # minimal similarity of a misspelt name


def explained(name: str, known: Collection[str], algorithm: Any = None) -> str:
    """Explain an unknown setting in sentences that each follow a space; or "".

    Args:
        known: settings that are valid in that place.
        algorithm: class of the run's algorithm.
    """
    if sentences := aliases.hint(name):
        first = (aliases.meant(name) or "").split()[0]
        return sentences if first in known else sentences + hint(first, algorithm)
    if sentences := hint(name, algorithm):
        return sentences
    owners = _resolved(_CONFIG), _resolved(_NETWORK), *_resolved(_ALGORITHMS).values()
    every = {*known, *(field for owner in owners for field in _fields(owner))}
    for close in difflib.get_close_matches(name, sorted(every), 1, _CLOSE):
        return f" Did you mean {close!r}?{'' if close in known else hint(close, algorithm)}"
    return nearest(name, known)


def algorithm_in(arguments: Iterable[Any]) -> Any:
    """Return the class of the algorithm among a call's arguments; None without one."""
    kinds = tuple(_resolved(_ALGORITHMS).values())
    return next((type(argument) for argument in arguments if isinstance(argument, kinds)), None)


def hint(name: str, algorithm: Any = None) -> str:
    """Return a hint such as `` It belongs to the run: hr.train(…, total_steps=…).``, or "".

    Args:
        algorithm: class of the run's algorithm, which is preferred to the others.
    """
    network, config = _resolved(_NETWORK), _resolved(_CONFIG)
    algorithms = _resolved(_ALGORITHMS)
    if name in ("env", "algo"):
        return " It belongs to the run: hr.train(env, hr.PPO(…))."
    if name in _fields(config):
        return f" It belongs to the run: hr.train(…, {name}=…)."
    for owner in (algorithm or algorithms["appo"], network, *algorithms.values()):
        if name not in _fields(owner):
            continue
        if owner is network:
            return f" It belongs to the network: network=Network({name}=…)."
        return f" It belongs to the algorithm: {owner.__name__}({name}=…)."
    if name in inspect.signature(_resolved(_TRAIN)).parameters:
        return f" It belongs to hr.train: hr.train(…, {name}=…)."
    return ""


def algorithms_with(name: str) -> list[str]:
    """Return the names of the algorithms that have a setting."""
    return [key for key, kind in _resolved(_ALGORITHMS).items() if name in _fields(kind)]


def _resolved(path: str) -> Any:
    return pkgutil.resolve_name(path)


def _fields(owner: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(owner)}

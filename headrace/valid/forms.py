"""Rewrites convenient forms of flags into those that the parser accepts.

Whole numbers may be ``1e6``, ``1_000``, ``10k`` or ``1M``; lists of numbers ``64,64``. Schedules
are extracted. Setting names of other libraries raise an error that gives headrace's name.
"""

from __future__ import annotations

import dataclasses
import decimal
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from headrace.errors import ConfigError
from headrace.valid import aliases
from headrace.valid.values import read

_SHORT = {"--lr": "--learning-rate", "--env": "--env-id"}  # short forms
_NUMBER = re.compile(r"[+-]?\d[\d_]*(\.\d+)?([eE]\+?\d+)?([kKmMgGbB]?)")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


class Rewritten(NamedTuple):
    """Arguments for the parser, and the schedules that it can't parse, by field."""

    argv: list[str]
    schedules: dict[str, str]


def names_of(field: str, hint: Any) -> set[str]:
    """All flags that stand for a field."""
    configured = [x for x in getattr(hint, "__metadata__", ()) if hasattr(x, "aliases")]
    given = [x.name for x in configured if x.name is not None]
    name = (given or [field])[-1].replace("_", "-")
    return {f"--{name}", f"--no-{name}", *(a for x in configured for a in x.aliases or ())}


def flags_of(*kinds: Any) -> dict[str, tuple[str, Any]]:
    """Map each flag of dataclasses or functions to (field, type hint)."""
    found: dict[str, tuple[str, Any]] = {}
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True)
        if dataclasses.is_dataclass(kind):
            hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
        for field, hint in hints.items():
            found |= dict.fromkeys(names_of(field, hint), (field, hint))
    return found


def rewritten(
    argv: Sequence[str], flags: Mapping[str, tuple[str, Any]], scheduled: Collection[str] = ()
) -> Rewritten:
    """Rewrite arguments into the forms that the parser accepts.

    Args:
        flags: (field, type hint) by flag.
        scheduled: fields whose values may be schedules.

    Raises:
        ConfigError: a flag is another library's name for a setting.
    """
    found = Rewritten([], {})
    for name, equals, values in _parts(argv):
        flag = name.replace("_", "-")
        if flag not in flags:
            flag = _SHORT.get(flag, flag)
            if flag not in flags and (said := aliases.hint(flag[2:].replace("-", "_"), flags=True)):
                raise ConfigError(f"{name} is unknown.{said}")
        field, hint = flags.get(flag, ("", Any))
        if field in scheduled and values and ":" in values[0]:
            found.schedules[field] = values[0]
            found.argv.extend(values[1:])
            continue
        new = [part for value in values for part in _forms(hint, value)]
        name = flag if flag in flags else name
        if equals and len(new) == 1:
            found.argv.append(f"{name}={new[0]}")
        else:
            found.argv.extend([name, *new] if name else new)
    return found


def _parts(argv: Sequence[str]) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield (flag, whether it has =, values) per flag, after the arguments before the first one."""
    name, equals, values = "", False, list[str]()
    for word in argv:
        if not word.startswith("--"):
            values.append(word)
            continue
        yield name, equals, values
        name, sign, value = word.partition("=")
        equals, values = bool(sign), [value] if sign else []
    yield name, equals, values


def _forms(hint: Any, value: str) -> list[str]:
    kind = read(hint)
    extra = getattr(hint, "__metadata__", ())
    if any(isinstance(x, tyro.constructors.PrimitiveConstructorSpec) for x in extra):
        return [value]
    for option in kind.options:
        items = get_args(option) if get_origin(option) is tuple else ()
        item = read(items[0]).options[0] if items else None
        if item in (int, float) and "," in value:
            return [_whole(part) if item is int else part for part in value.split(",") if part]
        if item is int:
            return [_whole(value)]
    if int in kind.options and float not in kind.options:
        return [_whole(value)]
    return [value]


def _whole(text: str) -> str:
    """Write a whole number in digits; returns anything else unchanged."""
    matched = _NUMBER.fullmatch(text)
    if matched is None:
        return text
    unit = matched[3]
    try:
        number = decimal.Decimal(text.removesuffix(unit).replace("_", ""))
        number *= _UNITS[unit.lower()] if unit else 1
    except decimal.DecimalException:
        return text
    short = number.adjusted() < 40  # 1e999999 would be a million digits
    return str(int(number)) if short and number == number.to_integral_value() else text

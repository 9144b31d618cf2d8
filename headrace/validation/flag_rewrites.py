"""Rewrites convenient forms of flags into those that the parser accepts.

Whole numbers may be ``1e6``, ``1_000``, ``10k`` or ``1M``; lists of numbers ``64,64``; dicts
``name=value``. Schedules are extracted. Setting names of other libraries, and values that aren't
numbers, raise an error with the valid form.
"""

from __future__ import annotations

import dataclasses
import decimal
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from headrace.errors import ConfigError, nearest, shown
from headrace.validation import aliases
from headrace.validation.flag_syntax import JSON
from headrace.validation.type_checks import read

_SHORT = {"--lr": "--learning-rate", "--env": "--env-id"}  # short forms
_NUMBER = re.compile(r"[+-]?\d[\d_]*(\.\d+)?([eE]\+?\d+)?([kKmMgGbB]?)")
_INTEGER = re.compile(r"[+-]?\d[\d_]*")
_PAIR = re.compile(r"\s*[A-Za-z_]\w*=.*", re.DOTALL)
_PAIRS = re.compile(r",(?=\s*[A-Za-z_]\w*=)")  # separates pairs
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


class RewrittenFlags(NamedTuple):
    """Arguments for the parser, and the schedules that it can't parse, by field."""

    argv: list[str]
    schedules: dict[str, str]


def names_of(field: str, hint: Any) -> set[str]:
    """Return all flags of a field."""
    configured = [x for x in getattr(hint, "__metadata__", ()) if hasattr(x, "aliases")]
    given = [x.name for x in configured if x.name is not None]
    name = (given or [field])[-1].replace("_", "-")
    return {f"--{name}", f"--no-{name}", *(a for x in configured for a in x.aliases or ())}


def flags_of(*kinds: Any) -> dict[str, tuple[str, Any]]:
    """Map each flag of dataclasses or functions to (field, type hint)."""
    flags: dict[str, tuple[str, Any]] = {}
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True)
        if dataclasses.is_dataclass(kind):
            hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
        for field, hint in hints.items():
            flags |= dict.fromkeys(names_of(field, hint), (field, hint))
    return flags


def rewritten(
    argv: Sequence[str], flags: Mapping[str, tuple[str, Any]], scheduled: Collection[str] = ()
) -> RewrittenFlags:
    """Rewrite arguments into the forms that the parser accepts.

    Args:
        flags: (field, type hint) by flag.
        scheduled: fields whose values may be schedules.

    Raises:
        ConfigError: a flag is another library's name for a setting, or its value is not a number.
    """
    found = RewrittenFlags([], {})
    for name, equals, values in _parts(argv):
        flag = name.replace("_", "-")
        if flag not in flags:
            flag = _SHORT.get(flag, flag)
            if flag not in flags and (
                explanation := aliases.hint(flag[2:].replace("-", "_"), flags=True)
            ):
                raise ConfigError(f"{name} is unknown.{explanation}")
        field, hint = flags.get(flag, ("", Any))
        if field in scheduled and values and ":" in values[0]:
            found.schedules[field] = values[0]
            found.argv.extend(values[1:])
            continue
        if any(x is JSON for x in getattr(hint, "__metadata__", ())):
            new = _as_json(name, values)
            if flag in found.argv and new:  # the flag is repeated
                place = found.argv.index(flag) + 1
                found.argv[place] = json.dumps(json.loads(found.argv[place]) | json.loads(new[0]))
                continue
            equals = False
        else:
            new = [part for value in values for part in _forms(hint, value)]
            if len(new) == 1 and flag in flags:
                _check(name, field, hint, new[0], field in scheduled, flags)
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


def _as_json(flag: str, values: list[str]) -> list[str]:
    """Return the values of a flag that takes a JSON object, with ``name=value`` pairs merged.

    Raises:
        ConfigError: the values have neither form.
    """
    pairs = [pair for value in values for pair in _PAIRS.split(value)]
    if pairs and all(_PAIR.fullmatch(pair) for pair in pairs):
        split = (pair.partition("=") for pair in pairs)
        return [json.dumps({name.strip(): _plain(value) for name, _, value in split})]
    if not values:
        return values
    try:
        valid = isinstance(json.loads(values[0]), dict)
    except (ValueError, RecursionError):
        valid = False
    if not valid:
        raise ConfigError(
            f"{flag} {shown(values[0])} must be name=value pairs, as in {flag} gravity=9.8 "
            f"mode=hard, or a JSON object, as in {flag} '{{\"gravity\": 9.8}}'"
        )
    return values


def _plain(text: str) -> Any:
    """Parse the value of a ``name=value`` pair: JSON, a Python constant, or else text."""
    constants = {"True": True, "False": False, "None": None}
    if text in constants:
        return constants[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check(
    flag: str, field: str, hint: Any, text: str, varies: bool, flags: Mapping[str, tuple[str, Any]]
) -> None:
    """Raise ConfigError unless the text of one value is a number, or another valid form.

    Args:
        varies: the value may be a schedule.
    """
    words, near, options = list[str](), "", read(hint).options
    for option in options:
        if option is int:
            fits, annotation = (
                _INTEGER.fullmatch(text) is not None,
                "a whole number such as 5000 or 1e6",
            )
        elif option is float:
            fits, annotation = _is_number(text), "a number such as 0.01"
            annotation += " or points of a schedule such as 0:0.01,1:0" if varies else ""
        elif option is type(None):
            fits, annotation = text == "None", "None"
        elif get_origin(option) is Literal:
            names = list(map(str, get_args(option)))
            fits, annotation = text in names, ("one of " if names[1:] else "") + ", ".join(names)
            near = near if {int, float} & {*options} else nearest(text.lower(), names, 1)
        else:
            return  # other forms are for the parser to check
        if fits:
            return
        words.append(annotation)
    near = near or _elsewhere(field, text, flags)
    raise ConfigError(f"{flag} {text} must be {', or '.join(words)}.{near}")


def _elsewhere(field: str, text: str, flags: Mapping[str, tuple[str, Any]]) -> str:
    """Name the flags for which a word is a value, preferring those with a name like the field's."""
    matches = {
        other: flag
        for flag, (other, hint) in flags.items()
        for option in read(hint).options
        if get_origin(option) is Literal and text in get_args(option) and other != field
        if not flag.startswith("--no-")
    }
    own = field.partition("_")[0], "".join(word[:1] for word in field.split("_"))
    alike = [flag for other, flag in matches.items() if other.partition("_")[0] in own]
    some = alike or list(matches.values())
    return f" Did you mean {' or '.join(f'{flag} {text}' for flag in some[:3])}?" if some else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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

"""Orbits of a public catalogue: two-line elements, or OMM in CSV, XML or JSON, read by ``sgp4``.

What a game takes from an object is the shape of its orbit: semi-major axis, eccentricity and
inclination. Node, perigee and place on the orbit are drawn such that it meets the satellite, as
the other objects of a game are; in weeks they take all values anyway.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np

from headrace.errors import ConfigError, require, shown
from headrace.extras import needs
from headrace_ssa import orbits
from headrace_ssa.orbits import EARTH_RADIUS

MOST_ECCENTRIC = 0.05
"""Objects on longer orbits are left out: :mod:`headrace_ssa.orbits` is for near-circular ones."""
LOWEST_M, HIGHEST_M = 400e3, 1_000e3
"""Left out is what never comes between: satellites fly between 600 and 800 km."""
FLATTEST = np.radians(10.0)
"""Left out is what is less inclined: two orbits have to cross at an angle."""

_NOT_OF_SHAPE = {  # what else the package wants of OMM, where it is missing or empty
    **dict.fromkeys(("EPHEMERIS_TYPE", "ELEMENT_SET_NO", "REV_AT_EPOCH"), "0"),
    **dict.fromkeys(("BSTAR", "MEAN_MOTION_DOT", "MEAN_MOTION_DDOT"), "0"),
    **dict.fromkeys(("CLASSIFICATION_TYPE", "OBJECT_ID"), "U"),
}


class Catalogue(NamedTuple):
    """Shapes of orbits, ``[M]`` each."""

    a: np.ndarray  # m
    e: np.ndarray
    inc: np.ndarray  # rad


def read(path: str | Path) -> Catalogue:
    """The orbits of a file that games can use, which are read-only.

    Warns where some of its objects are left out: a line's sum of digits is wrong, or SGP4 can't
    compute them.

    Raises:
        ConfigError: ``path`` isn't one; ``sgp4`` isn't installed; the file can't be read, or a line
            of it, which is named; all sums of digits are wrong; or it has no orbit to be used.
    """
    is_path = isinstance(path, str | os.PathLike) and bool(str(path))
    require(is_path, "catalogue", path, "the path of a file, as text")
    try:
        where = Path(path).resolve()
        status = where.stat()
    except (OSError, ValueError) as error:  # a path with a zero byte
        raise _unreadable(path, error) from error
    return _read(str(path), where, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: str, where: Path, mtime_ns: int, size: int) -> Catalogue:
    """Once for all environments of a process, until the file is another."""
    with needs("catalogue", "catalogue"):
        from sgp4 import api

    try:
        text = where.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    satellites, count = _satellites(api, text, path)
    found = _shapes(satellites)
    if lost := len(satellites) - len(found.a):
        _left_out(path, lost, count, "SGP4 can't compute where they are at their epochs")
    usable = _usable(found)
    if not usable.any():
        raise ConfigError(
            f"catalogue={path!r} must hold an object on a near-circular orbit between "
            f"{LOWEST_M / 1e3:.0f} and {HIGHEST_M / 1e3:.0f} km, inclined by 10 degrees or more; "
            f"none of its {count} is"
        )
    kept = Catalogue(*(x[usable] for x in found))
    for each in kept:
        each.flags.writeable = False  # many environments have the same
    return kept


def _satellites(api: Any, text: str, path: str) -> tuple[list[Any], int]:
    """Those whose sums of digits are right, and how many there are with the others."""
    found, broken = list[Any](), list[tuple[int, str]]()
    for line, record in _records(text, path):
        try:
            found.append(_satellite(api, record))
        except _Miscounted as error:
            broken.append((line, _why(error)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise _wrong(path, line, _why(error)) from error
    if not found and not broken:
        raise ConfigError(
            f"catalogue={path!r} must hold elements of orbits, as two-line elements, or as OMM in "
            "CSV, XML or JSON; none were found"
        )
    if not found:
        raise _wrong(path, *broken[0])
    count = len(found) + len(broken)
    if broken:
        line, why = broken[0]
        _left_out(
            path, len(broken), count, f"a sum of digits is wrong; the first: line {line} {why}"
        )
    return found, count


def _usable(found: Catalogue) -> np.ndarray:
    """Which orbits games can use, ``[M]`` bool."""
    reach = (found.a * (1 - found.e), found.a * (1 + found.e))
    usable = (found.e <= MOST_ECCENTRIC) & (np.abs(found.inc - np.pi / 2) <= np.pi / 2 - FLATTEST)
    usable &= reach[0] <= EARTH_RADIUS + HIGHEST_M
    return usable & (reach[1] >= EARTH_RADIUS + LOWEST_M)


def _unreadable(path: Any, error: Exception) -> ConfigError:
    hint = "; it is looked for from where headrace is started, unless it is given in full"
    hint = hint * (isinstance(error, FileNotFoundError) and not os.path.isabs(path))
    return ConfigError(f"catalogue={str(path)!r} can't be read ({error}){hint}")


def _wrong(path: Any, line: int, why: str) -> ConfigError:
    return ConfigError(f"catalogue={str(path)!r}: line {line} {why}")


def _left_out(path: str, count: int, of: int, why: str) -> None:
    words = f"{count} of its {of} objects are left out, since {why}"
    warnings.warn(f"catalogue={path!r}: {words}", stacklevel=4)


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"begins an object without {error.args[0]}"
    text = str(error).partition("\n")[0].rstrip(":.")
    return f"can't be read as an object's elements ({text})"


def _records(text: str, path: str) -> Iterator[tuple[int, Any]]:
    """Each object's line number, and its two lines or its fields of OMM."""
    start = text.lstrip()[:1]
    first = text.lstrip().partition("\n")[0]
    if start == "<":
        return _of_xml(text, path)
    if start in ("[", "{"):
        return _of_json(text, path)
    return (_of_csv if "MEAN_MOTION" in first and "," in first else _of_lines)(text, path)


def _of_lines(text: str, path: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Pairs of lines that begin with 1 and 2; other lines are names or remarks."""
    waiting = ""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines, start=1):
        if waiting and not line.startswith("2 "):
            raise _wrong(path, number, "must be the second line of an object, and begin with 2")
        if waiting:
            yield number - 1, (waiting, line)
            waiting = ""
        elif line.startswith("2 "):
            raise _wrong(path, number, "is the second line of an object whose first is missing")
        elif line.startswith("1 "):
            waiting = line
    if waiting:
        raise _wrong(path, len(lines), "is the first line of an object whose second is missing")


def _of_csv(text: str, path: str) -> Iterator[tuple[int, dict[str, str]]]:
    rows: Any = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        for row in rows:
            if None in row:
                raise _wrong(path, rows.line_num, "has more cells than the first line has names")
            yield rows.line_num, row
    except csv.Error as error:
        raise _wrong(path, rows.reader.line_num, f"isn't CSV ({error})") from error


def _of_xml(text: str, path: str) -> Iterator[tuple[int, Any]]:
    import io

    from sgp4 import omm

    lines, fields = _segments(text, path), []
    try:
        for one in omm.parse_xml(io.StringIO(text)):
            fields.append(one)
    except (TypeError, AttributeError) as error:  # an element of OMM is missing in a segment
        raise _wrong(path, lines[len(fields)], "begins an object that isn't an OMM") from error
    if len(fields) != len(lines):
        why = "begins an object in a namespace of XML; only names without one can be read"
        raise _wrong(path, lines[0], why)
    yield from zip(lines, fields, strict=True)


def _segments(text: str, path: str) -> list[int]:
    """The lines in which a ``segment`` of XML begins, with or without a namespace."""
    lines: list[int] = []
    parser = expat.ParserCreate()

    def begin(name: str, _: dict[str, str]) -> None:
        if name.rpartition(":")[2] == "segment":
            lines.append(parser.CurrentLineNumber)

    parser.StartElementHandler = begin
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise _wrong(path, error.lineno, f"isn't XML ({error})") from error
    return lines


def _of_json(text: str, path: str) -> Iterator[tuple[int, Any]]:
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at] in "[], \t\r\n":
            at += 1
        if at == len(text):
            return
        line = text.count("\n", 0, at) + 1
        try:
            record, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _wrong(path, error.lineno, f"isn't JSON ({error.msg})") from error
        if not isinstance(record, dict):
            raise _wrong(path, line, f"has {shown(record)} where an object of OMM must be")
        yield line, record


class _Miscounted(ValueError):
    """A line's sum of digits is wrong."""


def _satellite(api: Any, record: Any) -> Any:
    from sgp4 import io, omm

    if isinstance(record, tuple):
        for line in record:
            if len(line) < 69:
                raise ValueError(f"it has {len(line)} characters where there must be 69")
        try:
            io.verify_checksum(*record)
        except ValueError as error:
            raise _Miscounted(error) from error
        satellite = api.Satrec.twoline2rv(*record)
        if record[0][2:7] != record[1][2:7]:
            raise ValueError(f"numbers {record[0][2:7]} and {record[1][2:7]} differ")
    else:
        satellite = api.Satrec()
        omm.initialize(satellite, _fields(record))
    motion = satellite.no_kozai * 720.0 / np.pi  # revolutions a day
    inclination = np.degrees(satellite.inclo)
    numbers = {"mean motion": motion, "eccentricity": satellite.ecco, "inclination": inclination}
    for name, value in numbers.items():
        if not np.isfinite(value):
            raise ValueError(f"its {name} of {value} must be a number")
    if motion <= 0.0:
        raise ValueError(f"its mean motion of {motion:g} must be above 0")
    return satellite


def _fields(record: dict[Any, Any]) -> dict[str, str]:
    """Fields of OMM as the package reads them: fewer are valid to it than to those who write."""
    given = {str(k).strip(): "" if v is None else str(v).strip() for k, v in record.items()}
    fields = _NOT_OF_SHAPE | {name: text for name, text in given.items() if text}
    epoch = fields["EPOCH"].removesuffix("Z")  # which a time may end in
    fields["EPOCH"] = epoch if "." in epoch else epoch + ".0"
    return fields | {"NORAD_CAT_ID": "0"}  # it knows none above 339,999


def _shapes(satellites: list[Any]) -> Catalogue:
    """At their epochs; of those that SGP4 can compute."""
    states = [one.sgp4(one.jdsatepoch, one.jdsatepochF) for one in satellites]
    r, v = (
        np.array([state[part] for state in states if state[0] == 0]).reshape(-1, 3) * 1000.0
        for part in (1, 2)
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # of orbits that aren't used
        warnings.simplefilter("ignore")
        kepler = orbits.kepler_elements(r, v)
        mean = orbits.mean_elements(r, v)
    e = np.hypot(kepler.ex, kepler.ey)
    near = e <= 2.0 * MOST_ECCENTRIC  # mean elements are for near-circular orbits
    a, ex, ey, inc = (np.where(near, m, k) for m, k in zip(mean[:4], kepler[:4], strict=True))
    return Catalogue(a, np.hypot(ex, ey), inc)

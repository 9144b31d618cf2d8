"""Reads orbits from public catalogues: two-line elements, or OMM in CSV, XML or JSON.

A game uses only the shape of an object's orbit: semi-major axis, eccentricity and inclination.
Node, perigee and anomaly are drawn so that the object meets the satellite, as for objects without
a catalogue. Over weeks they take all values anyway. The package ``sgp4`` reads the elements.
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
"""Maximum eccentricity: :mod:`headrace_ssa.orbits` is for near-circular orbits."""
LOWEST_M, HIGHEST_M = 400e3, 1_000e3
"""Altitudes that an orbit must reach: protected satellites fly between 600 and 800 km."""
FLATTEST = np.radians(10.0)
"""Minimum inclination: two orbits have to cross at an angle."""

_OMM_DEFAULTS = {  # fields that sgp4 requires but the shape of an orbit doesn't need
    **dict.fromkeys(("EPHEMERIS_TYPE", "ELEMENT_SET_NO", "REV_AT_EPOCH"), "0"),
    **dict.fromkeys(("BSTAR", "MEAN_MOTION_DOT", "MEAN_MOTION_DDOT"), "0"),
    **dict.fromkeys(("CLASSIFICATION_TYPE", "OBJECT_ID"), "U"),
}


class Catalogue(NamedTuple):
    """Shapes of orbits, ``[M]`` float64 each."""

    a: np.ndarray  # m
    e: np.ndarray
    inc: np.ndarray  # rad


def read(path: str | Path) -> Catalogue:
    """Return the usable orbits of a file as read-only arrays.

    Warns about skipped objects: a checksum is wrong, or SGP4 can't compute the position.

    Raises:
        ConfigError: ``path`` isn't a path; ``sgp4`` isn't installed; the file or one of its lines
            can't be read; all checksums are wrong; or no orbit is usable.
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
    """Read a file once per process, and again after it changed."""
    with needs("catalogue", "catalogue"):
        from sgp4 import api

    try:
        text = where.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    satellites, count = _satellites(api, text, path)
    shapes = _shapes(satellites)
    if skipped := len(satellites) - len(shapes.a):
        _warn_skipped(path, skipped, count, "SGP4 can't compute their positions at their epochs")
    usable = _usable(shapes)
    if not usable.any():
        raise ConfigError(
            f"catalogue={path!r} must hold an object on a near-circular orbit between "
            f"{LOWEST_M / 1e3:.0f} and {HIGHEST_M / 1e3:.0f} km, inclined by 10 degrees or more; "
            f"none of its {count} objects are"
        )
    usable_shapes = Catalogue(*(x[usable] for x in shapes))
    for values in usable_shapes:
        values.flags.writeable = False  # environments share the arrays
    return usable_shapes


def _satellites(api: Any, text: str, path: str) -> tuple[list[Any], int]:
    """Return the satellites with correct checksums, and the number of all satellites."""
    satellites, broken = list[Any](), list[tuple[int, str]]()
    for line, record in _records(text, path):
        try:
            satellites.append(_satellite(api, record))
        except _ChecksumError as error:
            broken.append((line, _why(error)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise _wrong(path, line, _why(error)) from error
    if not satellites and not broken:
        raise ConfigError(
            f"catalogue={path!r} must hold elements of orbits, as two-line elements, or as OMM in "
            "CSV, XML or JSON; none were found"
        )
    if not satellites:
        raise _wrong(path, *broken[0])
    count = len(satellites) + len(broken)
    if broken:
        line, why = broken[0]
        _warn_skipped(
            path, len(broken), count, f"a checksum is wrong; the first: line {line} {why}"
        )
    return satellites, count


def _usable(shapes: Catalogue) -> np.ndarray:
    """Return which orbits games can use, ``[M]`` bool."""
    perigee, apogee = shapes.a * (1 - shapes.e), shapes.a * (1 + shapes.e)
    usable = shapes.e <= MOST_ECCENTRIC
    usable &= np.abs(shapes.inc - np.pi / 2) <= np.pi / 2 - FLATTEST
    usable &= perigee <= EARTH_RADIUS + HIGHEST_M
    return usable & (apogee >= EARTH_RADIUS + LOWEST_M)


def _unreadable(path: Any, error: Exception) -> ConfigError:
    hint = "; relative paths start at the working directory: try an absolute path"
    hint = hint * (isinstance(error, FileNotFoundError) and not os.path.isabs(path))
    return ConfigError(f"catalogue={str(path)!r} can't be read ({error}){hint}")


def _wrong(path: Any, line: int, why: str) -> ConfigError:
    return ConfigError(f"catalogue={str(path)!r}: line {line} {why}")


def _warn_skipped(path: str, count: int, of: int, why: str) -> None:
    words = f"{count} of its {of} objects are skipped, because {why}"
    warnings.warn(f"catalogue={path!r}: {words}", stacklevel=4)


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"begins an object without {error.args[0]}"
    text = str(error).partition("\n")[0].rstrip(":.")
    return f"can't be read as an object's elements ({text})"


def _records(text: str, path: str) -> Iterator[tuple[int, Any]]:
    """Yield the line number of each object, and its two lines or its OMM fields."""
    start = text.lstrip()[:1]
    first = text.lstrip().partition("\n")[0]
    if start == "<":
        return _of_xml(text, path)
    if start in ("[", "{"):
        return _of_json(text, path)
    return (_of_csv if "MEAN_MOTION" in first and "," in first else _of_lines)(text, path)


def _of_lines(text: str, path: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield pairs of lines that begin with 1 and 2; other lines are names or comments."""
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
        for segment in omm.parse_xml(io.StringIO(text)):
            fields.append(segment)
    except (TypeError, AttributeError) as error:  # an element of OMM is missing in a segment
        raise _wrong(path, lines[len(fields)], "begins an object that isn't an OMM") from error
    if len(fields) != len(lines):
        why = "begins an object in a namespace of XML; only names without one can be read"
        raise _wrong(path, lines[0], why)
    yield from zip(lines, fields, strict=True)


def _segments(text: str, path: str) -> list[int]:
    """Return the lines on which an XML ``segment`` begins, with or without a namespace."""
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


class _ChecksumError(ValueError):
    """Error of a line whose checksum is wrong."""


def _satellite(api: Any, record: Any) -> Any:
    from sgp4 import io, omm

    if isinstance(record, tuple):
        for line in record:
            if len(line) < 69:
                raise ValueError(f"it has {len(line)} characters where there must be 69")
        try:
            io.verify_checksum(*record)
        except ValueError as error:
            raise _ChecksumError(error) from error
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
    """Return OMM fields in the forms that sgp4 accepts, with defaults for missing ones."""
    texts = {str(k).strip(): "" if v is None else str(v).strip() for k, v in record.items()}
    fields = _OMM_DEFAULTS | {name: text for name, text in texts.items() if text}
    epoch = fields["EPOCH"].removesuffix("Z")  # valid in OMM, but sgp4 rejects it
    fields["EPOCH"] = epoch if "." in epoch else epoch + ".0"
    return fields | {"NORAD_CAT_ID": "0"}  # sgp4 rejects numbers above 339,999


def _shapes(satellites: list[Any]) -> Catalogue:
    """Return orbit shapes at the epochs of all satellites that SGP4 can compute."""
    states = [s.sgp4(s.jdsatepoch, s.jdsatepochF) for s in satellites]
    r, v = (
        np.array([state[part] for state in states if state[0] == 0]).reshape(-1, 3) * 1000.0
        for part in (1, 2)
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # from unusable orbits
        warnings.simplefilter("ignore")
        kepler = orbits.kepler_elements(r, v)
        mean = orbits.mean_elements(r, v)
    e = np.hypot(kepler.ex, kepler.ey)
    near = e <= 2.0 * MOST_ECCENTRIC  # mean elements are for near-circular orbits
    a, ex, ey, inc = (np.where(near, m, k) for m, k in zip(mean[:4], kepler[:4], strict=True))
    return Catalogue(a, np.hypot(ex, ey), inc)

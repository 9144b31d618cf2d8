"""Orbits of a public catalogue: two-line elements, or OMM in CSV, XML or JSON, read by ``sgp4``.

What a game takes from an object is the shape of its orbit: semi-major axis, eccentricity and
inclination. Node, perigee and place on the orbit are drawn such that it meets the satellite, as
the other objects of a game are; in weeks they take all values anyway.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np

from headrace.errors import ConfigError
from headrace_ssa import orbits
from headrace_ssa.orbits import EARTH_RADIUS

MOST_ECCENTRIC = 0.05
"""Objects on longer orbits are left out: :mod:`headrace_ssa.orbits` is for near-circular ones."""
LOWEST_M, HIGHEST_M = 400e3, 1_000e3
"""Left out is what never comes between: satellites fly between 600 and 800 km."""
FLATTEST = np.radians(10.0)
"""Left out is what is less inclined: two orbits have to cross at an angle."""

_COUNTERS = ("EPHEMERIS_TYPE", "ELEMENT_SET_NO", "REV_AT_EPOCH")  # of OMM, which may be null


class Catalogue(NamedTuple):
    """Shapes of orbits, ``[M]`` each."""

    a: np.ndarray  # m
    e: np.ndarray
    inc: np.ndarray  # rad


def read(path: str | Path) -> Catalogue:
    """The orbits of a file that games can use, which are read-only.

    Warns where SGP4 can't compute some of its objects.

    Raises:
        ConfigError: ``sgp4`` isn't installed; the file can't be read, or a line of it, which is
            named; or none of its orbits can be used.
    """
    try:
        where = Path(path).resolve()
        status = where.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _read(str(path), where, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: str, where: Path, mtime_ns: int, size: int) -> Catalogue:
    """Once for all environments of a process, until the file is another."""
    try:
        from sgp4 import api
    except ModuleNotFoundError as error:
        raise ConfigError(
            "catalogue needs the package sgp4: pip install 'headrace[catalogue]'"
        ) from error
    try:
        text = where.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    satellites = []
    for line, record in _records(text, path):
        try:
            satellites.append(_satellite(api, record))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise _wrong(path, line, _why(error)) from error
    found = _shapes(satellites)
    if lost := len(satellites) - len(found.a):
        warnings.warn(
            f"catalogue={path!r}: {lost} of its {len(satellites)} objects are left out, since "
            "SGP4 can't compute where they are at their epochs",
            stacklevel=2,
        )
    usable = _usable(found)
    if not usable.any():
        raise ConfigError(
            f"catalogue={path!r} must hold an object on a near-circular orbit between "
            f"{LOWEST_M / 1e3:.0f} and {HIGHEST_M / 1e3:.0f} km, inclined by 10 degrees or more; "
            f"none of its {len(satellites)} is"
        )
    kept = Catalogue(*(x[usable] for x in found))
    for each in kept:
        each.flags.writeable = False  # many environments have the same
    return kept


def _usable(found: Catalogue) -> np.ndarray:
    """Which orbits games can use, ``[M]`` bool."""
    reach = (found.a * (1 - found.e), found.a * (1 + found.e))
    usable = (found.e <= MOST_ECCENTRIC) & (np.abs(found.inc - np.pi / 2) <= np.pi / 2 - FLATTEST)
    usable &= reach[0] <= EARTH_RADIUS + HIGHEST_M
    return usable & (reach[1] >= EARTH_RADIUS + LOWEST_M)


def _unreadable(path: Any, error: Exception) -> ConfigError:
    return ConfigError(f"catalogue={str(path)!r} can't be read ({error})")


def _wrong(path: Any, line: int, why: str) -> ConfigError:
    return ConfigError(f"catalogue={str(path)!r}: line {line} {why}")


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
    return _of_csv(text) if "MEAN_MOTION" in first and "," in first else _of_lines(text, path)


def _of_lines(text: str, path: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Pairs of lines that begin with 1 and 2; other lines are names or remarks."""
    waiting = ""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if waiting and not line.startswith("2 "):
            raise _wrong(path, number, "must be the second line of an object, and begin with 2")
        if waiting:
            yield number - 1, (waiting, line.rstrip())
            waiting = ""
        elif line.startswith("2 "):
            raise _wrong(path, number, "is the second line of an object whose first is missing")
        elif line.startswith("1 "):
            waiting = line.rstrip()
    if waiting:
        raise _wrong(path, len(lines), "is the first line of an object whose second is missing")


def _of_csv(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    from sgp4 import omm

    rows: Any = omm.parse_csv(text.splitlines())
    for row in rows:
        yield rows.line_num, row


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
        yield line, record


def _satellite(api: Any, record: Any) -> Any:
    from sgp4 import io, omm

    if isinstance(record, tuple):
        for line in record:
            if len(line) < 69:
                raise ValueError(f"it has {len(line)} characters where there must be 69")
        io.verify_checksum(*record)
        satellite = api.Satrec.twoline2rv(*record)
        if record[0][2:7] != record[1][2:7]:
            raise ValueError(f"numbers {record[0][2:7]} and {record[1][2:7]} differ")
    else:
        satellite = api.Satrec()
        omm.initialize(satellite, _fields(record))
    numbers = satellite.no_kozai, satellite.ecco, satellite.inclo
    if not np.isfinite(numbers).all() or satellite.no_kozai <= 0.0:
        raise ValueError("numbers are missing")
    return satellite


def _fields(record: Any) -> dict[str, str]:
    """Fields of OMM as the package reads them: fewer are valid to it than to those who write."""
    fields = {
        key: "0" if key in _COUNTERS and not value else str(value) for key, value in record.items()
    }
    if "." not in fields["EPOCH"]:
        fields["EPOCH"] += ".0"
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

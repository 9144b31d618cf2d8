"""Converts Gymnasium spaces to plain values for ``config.json``, and back."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from headrace.spaces.text import is_text, plain_text

_FIELDS = {Discrete: ("n", "start"), MultiDiscrete: ("nvec", "start"), MultiBinary: ("shape",)}
_MOST_ELEMENTS = 1 << 26  # of a space in a file
_MOST_NESTED = 50
_BOUNDS = ("low", "high", "min_length", "max_length", "charset")


def space_to_json(space: gymnasium.Space) -> dict[str, Any]:
    """Convert a Box, Discrete, MultiDiscrete, MultiBinary, Text, or a Dict or Tuple of these.

    Raises:
        TypeError: the space is of another kind.
    """
    for kind, names in _FIELDS.items():
        if isinstance(space, kind):
            fields = {name: np.asarray(getattr(space, name)).tolist() for name in names}
            if kind is not MultiBinary and space.dtype != np.int64:
                fields["dtype"] = str(space.dtype)
            return {"type": kind.__name__, **fields}
    if isinstance(space, Box):
        fields = {"shape": list(space.shape), "dtype": str(space.dtype)}
        return {"type": "Box", **fields, "low": _bound(space.low), "high": _bound(space.high)}
    if is_text(space):
        text = plain_text(space)
        fields = {name: getattr(text, name) for name in ("min_length", "max_length")}
        return {"type": "Text", **fields, "charset": "".join(text.character_list)}
    if isinstance(space, Dict):
        return {"type": "Dict", "spaces": [[k, space_to_json(v)] for k, v in space.items()]}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(v) for v in space.spaces]}
    raise TypeError(f"space {space} can't be written to config.json")


def _bound(values: np.ndarray) -> list[str]:
    """Convert a bound to text: all values, or one if they are equal."""
    flat = values.ravel()
    return [str(flat[0])] if len(flat) and (flat == flat[0]).all() else [str(x) for x in flat]


def alike(one: gymnasium.Space, other: gymnasium.Space, bounds: bool = True) -> bool:
    """Return whether two spaces have the same values.

    Args:
        bounds: False: whether they would be, whatever the bounds of Boxes and Texts are.
    """
    try:
        ours, theirs = space_to_json(one), space_to_json(other)
    except TypeError:  # a kind that no policy has
        return False
    apart = () if bounds else _BOUNDS
    return _without(ours, apart) == _without(theirs, apart)


def _without(value: Any, names: tuple[str, ...]) -> Any:
    """Drop some fields of a space and integer dtypes, which don't matter to a policy."""
    if isinstance(value, dict):
        drop = names if value["type"] == "Box" else (*names, "dtype")
        return {k: _without(v, names) for k, v in value.items() if k not in drop}
    return [_without(v, names) for v in value] if isinstance(value, list) else value


def space_from_json(values: dict[str, Any]) -> gymnasium.Space:
    """Restore the space that :func:`space_to_json` converted.

    Raises:
        KeyError, TypeError, ValueError: the values don't describe a space, or it is too large.
    """
    _check_size(values, _MOST_NESTED)
    return _restored(values)


def _check_size(values: dict[str, Any], levels: int) -> int:
    """Return a space's number of elements; raise ValueError if it is too large to create."""
    if not levels:
        raise ValueError(f"a space has more than {_MOST_NESTED} levels")
    if values["type"] in ("Dict", "Tuple"):
        pairs = values["type"] == "Dict"
        parts = [part[1] if pairs else part for part in values["spaces"]]
        size = sum(_check_size(part, levels - 1) for part in parts)
    else:
        size = math.prod(int(side) for side in values.get("shape", ()))
    if not 0 <= size <= _MOST_ELEMENTS:
        raise ValueError(f"a space has {size:,} elements, and the limit is {_MOST_ELEMENTS:,}")
    return size


def _restored(values: dict[str, Any]) -> gymnasium.Space:
    kind = values["type"]
    own = {"dtype": np.dtype(values["dtype"]).type} if "dtype" in values else {}
    if kind == "Discrete":
        return Discrete(values["n"], start=values["start"], **own)
    if kind == "MultiDiscrete":
        return MultiDiscrete(np.array(values["nvec"]), start=np.array(values["start"]), **own)
    if kind == "MultiBinary":
        shape = values["shape"]
        return MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Text":
        return Text(**{name: value for name, value in values.items() if name != "type"})
    if kind == "Dict":
        # As pairs: of a mapping, Gymnasium would sort the keys, and with them inputs and outputs.
        return Dict([(key, _restored(part)) for key, part in values["spaces"]])
    if kind == "Tuple":
        return Tuple([_restored(part) for part in values["spaces"]])
    if kind != "Box":
        raise ValueError(f"unknown kind of space {kind!r}")
    dtype, shape = np.dtype(values["dtype"]), tuple(values["shape"])
    if dtype.kind not in "fiub":
        raise ValueError(f"a Box has dtype {dtype}")
    number = {"f": float, "b": lambda text: text == "True"}.get(dtype.kind, int)
    low, high = (
        np.resize(np.array([number(x) for x in values[k]], dtype), shape) for k in ("low", "high")
    )
    return Box(low, high, dtype=dtype.type)

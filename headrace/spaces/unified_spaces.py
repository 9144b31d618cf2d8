"""Unifies different spaces: one space for the values of several, and the mappings into it.

| different spaces | unified space |
|---|---|
| observed vectors (Box of one dimension) | the longest; shorter ones end in zeros |
| observed Box of the same shape | the same with the widest bounds |
| observed Discrete; texts | the most values; the longest, of all characters |
| observed Dict or Tuple with the same parts | part by part |
| Discrete actions | the most choices; ``info["action_mask"]`` allows those that exist |
| vectors of actions | the longest between -1 and 1, scaled to each task's bounds; others unused |

Other spaces can't be unified. Observations of different tasks are kept separate: vectors that
differ in length or bounds have separate columns, with zeros in the others, because statistics are
kept by column and the third number of CartPole is unrelated to LunarLander's. Discretes that differ
have separate values for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from headrace.errors import ConfigError
from headrace.spaces.masks import MASK
from headrace.spaces.text import is_text, plain_text

TASK = "task"  # the part of an observation that holds a task's number
OBSERVATION = "observation"  # the part next to a task's number, if it isn't a Dict
_Key: TypeAlias = tuple[int, tuple[float, ...]]
Spaces: TypeAlias = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]  # of observations and actions


def joined(
    names: Sequence[str], spaces: Sequence[Spaces], what: str, hint: str, apart: bool = False
) -> Spaces:
    """Return the unified observation and action spaces.

    Args:
        names, spaces: names and spaces of the environments.
        what, hint: owner of the spaces, and a remedy, for messages.
        apart: observed vectors that differ have separate columns, and Discretes separate values,
            see :func:`place`.

    Raises:
        ConfigError: they can't be unified; names two of them.
    """
    observed, acted = zip(*spaces, strict=True)
    words = names, what, hint
    observation = _of_all("observation", observed, *words)
    return _apart(observation, observed) if apart else observation, _of_all("action", acted, *words)


def place(own: gymnasium.Space[Any], observed: Sequence[gymnasium.Space[Any]]) -> Any:
    """Return the offset of one space's columns or values in spaces joined with ``apart``.

    For a Dict or Tuple, returns the offsets of its parts. The order of ``observed`` doesn't matter.
    Masks share their entries, as actions do.
    """
    if isinstance(own, Dict):
        return {
            key: 0 if key == MASK else place(part, [space[key] for space in observed])  # type: ignore[index]
            for key, part in own.items()
        }
    if isinstance(own, Tuple):
        return tuple(place(part, [x[i] for x in observed]) for i, part in enumerate(own))  # type: ignore[index]
    if not _stands_apart(own):
        return 0
    apart = _distinct(observed)
    return sum(length for length, _ in list(apart)[: list(apart).index(_key(own))])


def _apart(
    whole: gymnasium.Space[Any], observed: Sequence[gymnasium.Space[Any]]
) -> gymnasium.Space[Any]:
    """Join spaces so that different ones get separate columns or values."""
    if isinstance(whole, Dict):
        parts = whole.items()
        return Dict(
            {
                key: part if key == MASK else _apart(part, [x[key] for x in observed])  # type: ignore[index]
                for key, part in parts
            }
        )
    if isinstance(whole, Tuple):
        return Tuple([_apart(part, [x[i] for x in observed]) for i, part in enumerate(whole)])  # type: ignore[index]
    each = _distinct(observed).values() if _stands_apart(whole) else ()
    if len(each) < 2:
        return whole
    if isinstance(whole, Discrete):
        return Discrete(sum(int(x.n) for x in each), start=int(whole.start))
    low, high = (
        np.concatenate(ends) for ends in zip(*((x.low, x.high) for x in each), strict=True)
    )
    return Box(np.minimum(low, 0), np.maximum(high, 0), dtype=whole.dtype)  # type: ignore[arg-type]


def _stands_apart(space: gymnasium.Space) -> bool:
    return isinstance(space, Discrete) or _is_vector(space)


def _distinct(spaces: Sequence[Any]) -> dict[_Key, Any]:
    """Return the distinct spaces, shortest first."""
    return dict(sorted({_key(space): space for space in spaces}.items()))


def _key(space: Any) -> _Key:
    if isinstance(space, Discrete):
        return int(space.n), ()
    return len(space.low), (*space.low.tolist(), *space.high.tolist())


def _of_all(
    kind: str, spaces: Sequence[gymnasium.Space[Any]], names: Sequence[str], what: str, hint: str
) -> gymnasium.Space[Any]:
    pair = _observed if kind == "observation" else _acted
    whole = spaces[0]
    for i, space in enumerate(spaces):
        joined = pair(whole, space)
        if joined is None:
            other = next((j for j in range(i) if pair(spaces[j], space) is None), 0)
            raise ConfigError(
                f"{what} {names[other]!r} and {names[i]!r} can't be joined: the {kind} space of "
                f"one is {_line(spaces[other])}, of the other {_line(space)} ({hint})"
            )
        whole = joined
    return whole


def _line(space: gymnasium.Space) -> str:
    return " ".join(str(space).split())


def _observed(a: gymnasium.Space, b: gymnasium.Space) -> gymnasium.Space | None:
    """Return a space that holds the observations of both, or None."""
    if a == b:
        return a
    if isinstance(a, Box) and isinstance(b, Box):
        return _boxes(a, b)
    if isinstance(a, Discrete) and isinstance(b, Discrete) and a.start == b.start:
        return Discrete(int(max(a.n, b.n)), start=int(a.start))
    if is_text(a) and is_text(b):
        x, y = plain_text(a), plain_text(b)
        characters = "".join(sorted({*x.characters, *y.characters}))
        most, least = max(x.max_length, y.max_length), min(x.min_length, y.min_length)
        return Text(most, min_length=least, charset=characters)
    if isinstance(a, Dict) and isinstance(b, Dict) and a.keys() == b.keys():
        parts = {key: joined for key in a if (joined := _observed(a[key], b[key])) is not None}
        return Dict(parts) if len(parts) == len(a) else None
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a) == len(b):
        each = [_observed(x, y) for x, y in zip(a, b, strict=True)]
        known = [joined for joined in each if joined is not None]
        return Tuple(known) if len(known) == len(a) else None
    return None


def _boxes(a: Box, b: Box) -> Box | None:
    if a.shape != b.shape and not (_is_vector(a) and _is_vector(b)):
        return None
    if a.dtype != b.dtype and not all(np.issubdtype(x.dtype, np.floating) for x in (a, b)):
        return None
    dtype: Any = np.result_type(a.dtype, b.dtype)
    if a.shape == b.shape:
        return Box(np.minimum(a.low, b.low), np.maximum(a.high, b.high), dtype=dtype)
    size = max(a.shape[0], b.shape[0])
    (low, high), (b_low, b_high) = ([_longer(x, size) for x in (s.low, s.high)] for s in (a, b))
    return Box(np.minimum(low, b_low), np.maximum(high, b_high), dtype=dtype)


def _is_vector(space: gymnasium.Space) -> bool:
    from headrace.spaces.images import is_image  # and with it torch, a second

    return isinstance(space, Box) and len(space.shape) == 1 and not is_image(space)


def _longer(x: np.ndarray, size: int, at: int = 0) -> np.ndarray:
    """Pad with zeros before ``at`` and at the end of the last axis."""
    longer = np.zeros((*x.shape[:-1], size), x.dtype)
    longer[..., at : at + x.shape[-1]] = x
    return longer


def _acted(a: gymnasium.Space, b: gymnasium.Space) -> gymnasium.Space | None:
    """Return a space that holds the actions of both, or None."""
    if a == b:
        return a
    if isinstance(a, Discrete) and isinstance(b, Discrete):
        return Discrete(int(max(a.n, b.n)))
    if _is_scalable(a) and _is_scalable(b):
        return Box(-1.0, 1.0, (max(a.shape[0], b.shape[0]),), np.float32)  # type: ignore[index]
    return None


def _is_scalable(space: gymnasium.Space) -> bool:
    floats = _is_vector(space) and np.issubdtype(np.dtype(space.dtype), np.floating)
    return floats and space.is_bounded("both")  # type: ignore[attr-defined, no-any-return]


def own_action(action: Any, own: gymnasium.Space[Any], whole: gymnasium.Space[Any]) -> Any:
    """Map actions ``[..., *]`` of the unified space to an environment's own actions.

    A choice that isn't one's own, which no mask allows, is one's last.
    """
    if own == whole:
        return action
    if isinstance(own, Discrete):
        return (own.start + np.minimum(action, int(own.n) - 1)).astype(own.dtype)
    assert isinstance(own, Box)
    share = (np.clip(np.asarray(action)[..., : own.shape[0]], -1.0, 1.0) + 1.0) / 2.0
    scaled = own.low * (1.0 - share) + own.high * share  # the bounds' difference may overflow
    return np.clip(scaled, own.low, own.high).astype(own.dtype)


def masked(
    info: dict[str, Any],
    own: gymnasium.Space[Any],
    whole: gymnasium.Space[Any],
    batch: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Extend infos with a mask ``[*batch, choices]`` of an environment's own choices."""
    if not (isinstance(own, Discrete) and isinstance(whole, Discrete) and own.n < whole.n):
        return info
    mask = np.asarray(list(info.get(MASK, np.ones((*batch, int(own.n)), np.int8))))
    if (present := info.get(f"_{MASK}")) is not None:  # Gymnasium's: other rows have no mask
        mask, info = np.where(present[:, None], mask, 1), {**info, f"_{MASK}": np.ones(batch, bool)}
    return {**info, MASK: _longer(mask, int(whole.n))}


def fitted(obs: Any, space: gymnasium.Space[Any], axes: int = 0, at: Any = 0) -> Any:
    """Map an observation into the unified space.

    Args:
        axes: before its own, of a batch. at: its :func:`place`; 0: from the first column on.
    """
    if isinstance(space, Box):
        obs = np.asarray(obs, space.dtype)
        return obs if obs.shape[axes:] == space.shape else _longer(obs, space.shape[0], at)
    if isinstance(space, Dict):
        return {
            key: fitted(obs[key], part, axes, at[key] if at else 0) for key, part in space.items()
        }
    if isinstance(space, Tuple):
        each = at or [0] * len(space)
        return tuple(
            fitted(x, part, axes, one) for x, part, one in zip(obs, space, each, strict=True)
        )
    return obs + at if isinstance(space, Discrete) else obs


def shown(
    obs: Any,
    own: gymnasium.Space[Any],
    whole: gymnasium.Space[Any],
    task: Any,
    at: Any,
    axes: int = 0,
) -> Any:
    """Map observations into the unified space, with the task's number, or those of a batch.

    Args:
        own: the task's own space. task: None: it isn't shown. at, axes: see :func:`fitted`.
    """
    if task is None:
        return fitted(obs, whole, axes, at)
    if not isinstance(own, Dict):
        obs, at = {OBSERVATION: obs}, {OBSERVATION: at}
    assert isinstance(whole, Dict)
    parts = {
        key: fitted(obs[key], part, axes, at[key] if at else 0)
        for key, part in whole.items()
        if key != TASK
    }
    return {**parts, TASK: task}

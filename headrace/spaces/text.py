"""Encodes texts as rows of word numbers for tensors.

Words are runs of letters and digits, and marks of punctuation one by one, both in small letters.
Number 0 is padding.
"""

from __future__ import annotations

import re
import string
import warnings
import zlib
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Text

from headrace.errors import ConfigError
from headrace.spaces.walk import Path, leaves, map_space

_WORD = re.compile(r"\w+|[^\w\s]")
_MOST_KEPT = 4096  # texts whose rows are remembered
_ANY_LENGTH = 2**16


def is_text(space: gymnasium.Space) -> bool:
    """Return whether an observation is a string: of a Text or of a custom space of strings."""
    return isinstance(space, Text) or (space.dtype is not None and space.dtype.kind == "U")


def text_paths(space: gymnasium.Space) -> set[Path]:
    """Return the paths of texts in a space."""
    return {path for path, leaf in leaves(space) if is_text(leaf)}


def plain_text(space: gymnasium.Space) -> Text:
    """Return a Text for any space of strings; for custom spaces, of any printable characters."""
    return space if isinstance(space, Text) else Text(_ANY_LENGTH, charset=string.printable)


def words_of(text: str) -> list[str]:
    """Split a text into words, in order."""
    return _WORD.findall(text.casefold())


def check_vocabulary(vocabulary: Iterable[str]) -> None:
    """Raise ConfigError unless each entry is one word."""
    for entry in vocabulary:
        words = words_of(entry)
        if len(words) != 1:
            example = f" ({', '.join(map(repr, words))})" if words else ""
            raise ConfigError(
                f"vocabulary has {entry!r}, which isn't one word but {len(words)}{example}: give "
                "each word, and each mark of punctuation, by itself"
            )


class Words:
    """Converts texts to rows of word numbers.

    With a vocabulary its words are 1, 2, … in their order, and all others are one number, behind
    them. Without one a word is 1 + its CRC-32 modulo ``buckets``, the same in every process and on
    every machine, so that two words may have one number.

    Args:
        vocabulary: words; () hashes them. buckets: how many numbers there are for hashed words.
        length: numbers in a row; what a text has beyond so many words is left out, with a
            warning.
    """

    def __init__(self, vocabulary: tuple[str, ...], buckets: int, length: int) -> None:
        known = dict.fromkeys(words_of(entry)[0] for entry in vocabulary)
        self._number = {word: i for i, word in enumerate(known, 1)}
        self._buckets, self._length = buckets, length
        self._rows: dict[str, np.ndarray] = {}  # an instruction is read again at every step
        size = len(known) + 1 if known else buckets
        self.space = Box(0, size, (length,), np.int32)

    def rows(self, texts: Iterable[str]) -> np.ndarray:
        """Return the words of N texts, ``[N, length]`` int32, padded with 0."""
        return np.stack([self._row(text) for text in texts])

    def _row(self, text: str) -> np.ndarray:
        text = str(text)
        row = self._rows.get(text)
        if row is None:
            words = words_of(text)
            if len(words) > self._length:
                warnings.warn(
                    f"a text of {len(words)} words is cut: max_words={self._length} are read, "
                    f"not {' '.join(words[self._length :])[:60]!r}",
                    stacklevel=4,
                )
            numbers = [self._number_of(word) for word in words[: self._length]]
            row = np.zeros(self._length, np.int32)
            row[: len(numbers)] = numbers
            if len(self._rows) >= _MOST_KEPT:
                self._rows.clear()
            self._rows[text] = row
        return row

    def _number_of(self, word: str) -> int:
        if self._number:
            return self._number.get(word, len(self._number) + 1)
        return 1 + zlib.crc32(word.encode()) % self._buckets

    def in_place_of_texts(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return ``space`` with rows of numbers in place of texts."""
        if not text_paths(space):
            return space
        return _rebuilt(space, self.space)

    def read(self, space: gymnasium.Space, obs: Any) -> Any:
        """Return observations ``[N, ...]`` of ``space`` with rows of numbers in place of texts."""
        return map_space(lambda leaf, part: self.rows(part) if is_text(leaf) else part, space, obs)


def _rebuilt(space: gymnasium.Space, row: Box) -> gymnasium.Space:
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({key: _rebuilt(part, row) for key, part in space.items()})
    if isinstance(space, gymnasium.spaces.Tuple):
        return gymnasium.spaces.Tuple([_rebuilt(part, row) for part in space.spaces])
    return row if is_text(space) else space

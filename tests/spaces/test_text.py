from __future__ import annotations

import json
import string
import zlib

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from headrace.errors import ConfigError
from headrace.spaces.json import alike, space_from_json, space_to_json
from headrace.spaces.text import Words, check_vocabulary, is_text, text_paths, words_of


class MissionSpace(gymnasium.Space):
    """Strings of another class, as in some packages."""

    def __init__(self, words=("red", "blue")):
        super().__init__(dtype=str)
        self._words = words

    def sample(self, mask=None, probability=None):
        return str(self.np_random.choice(self._words))

    def contains(self, x):
        return x in self._words


def number_by_hand(word, buckets):
    """Return one more than the remainder of the CRC-32 of ISO 3309, bit by bit."""
    remainder = 0xFFFFFFFF
    for byte in word.encode():
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0xEDB88320 if remainder & 1 else 0)
    return 1 + (remainder ^ 0xFFFFFFFF) % buckets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Go to the RED door.", ["go", "to", "the", "red", "door", "."]),
        ("  pick-up  box_2!", ["pick", "-", "up", "box_2", "!"]),
        ("Straße 日本", ["strasse", "日本"]),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_and_marks_in_small_letters(text, words):
    assert words_of(text) == words


def test_hashed_words_have_the_number_that_is_computed_by_hand():
    words = Words((), 1000, 4)
    with pytest.warns(UserWarning, match=r"5 words is cut: max_words=4 are read, not 'left'"):
        rows = words.rows(["Go left", "left go left go left", ""])
    go, left = (number_by_hand(word, 1000) for word in ("go", "left"))
    assert rows.dtype == np.int32
    assert rows.tolist() == [[go, left, 0, 0], [left, go, left, go], [0] * 4]
    assert words.space == Box(0, 1000, (4,), np.int32)
    assert go != left


def test_a_vocabulary_numbers_its_words_in_order_and_all_others_alike():
    words = Words(("go", "Left", "go"), 1000, 4)
    assert words.rows(["go LEFT, right"]).tolist() == [[1, 2, 3, 3]]
    assert words.space == Box(0, 3, (4,), np.int32)


def test_no_number_is_outside_the_space():
    for words in (Words((), 7, 9), Words(("a", "b"), 7, 9)):
        rows = words.rows([" ".join(string.ascii_lowercase[:9]), "a b c . !", ""])
        assert all(words.space.contains(row) for row in rows)
        assert rows[0].min() >= 1


def test_more_texts_than_are_remembered_are_read(monkeypatch):
    monkeypatch.setattr("headrace.spaces.text._MOST_KEPT", 3)
    words = Words((), 50, 2)
    for number in range(10):
        assert words.rows([f"w{number}"])[0, 0] == 1 + zlib.crc32(f"w{number}".encode()) % 50
    assert len(words._rows) <= 3


def test_rows_take_the_place_of_texts_wherever_they_are():
    space = Dict(a=Tuple([Discrete(2), Text(5)]), b=MissionSpace(), c=Box(-1, 1, (2,)))
    words = Words((), 10, 3)
    assert text_paths(space) == {("a", 1), ("b",)}
    read = words.in_place_of_texts(space)
    assert read == Dict(a=Tuple([Discrete(2), words.space]), b=words.space, c=space["c"])
    obs = {"a": (np.array([0, 1]), ("x y", "")), "b": ["red", "blue"], "c": np.zeros((2, 2))}
    got = words.read(space, obs)
    assert got["a"][1].shape == got["b"].shape == (2, 3)
    assert got["c"] is obs["c"]
    plain = Dict(x=Discrete(2))
    assert words.in_place_of_texts(plain) is plain


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("red door", "isn't one word but 2 .*'red', 'door'"),
        ("", "isn't one word but 0"),
        ("a.", "2"),
    ],
)
def test_an_entry_of_a_vocabulary_that_is_no_word_is_named(entry, words):
    with pytest.raises(ConfigError, match=words):
        check_vocabulary(["red", entry])


@pytest.mark.parametrize("space", [Text(5), Text(9, min_length=0, charset="ba "), MissionSpace()])
def test_spaces_of_texts_survive_json(space):
    assert is_text(space)
    values = json.loads(json.dumps(space_to_json(Dict(x=space))))
    again = space_from_json(values)
    assert space_to_json(again) == values
    assert alike(again, Dict(x=space))
    if isinstance(space, Text):
        assert again["x"] == space


def test_other_lengths_and_letters_are_other_bounds():
    assert not alike(Text(5), Text(6))
    assert alike(Text(5), Text(6, charset="abc"), bounds=False)
    assert not alike(Text(5), Discrete(5), bounds=False)

"""Large arrays between two processes through memory that both see."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from headrace.cluster.places.block import LARGE_BYTES, Blocked, Receiver, Sender


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Bytes that differ."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def check_equal(found: object, expected: object) -> None:
    """The same structure, values, dtypes and order in memory."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            check_equal(found[key], value)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.writeable
    else:
        assert found == expected


MESSAGES = {
    "one": noise(LARGE_BYTES),
    "several": {"a": noise(7, LARGE_BYTES), "few": noise(3), "b": noise(LARGE_BYTES + 1, seed=1)},
    "numbers": np.random.default_rng(0).normal(size=(300, 200)),
    "transposed": noise(300, 400).T,
    "every other": noise(300, 800)[:, ::2],
    "objects": np.full(LARGE_BYTES, None, object),
    "none": {"a": 1, "b": "text", "c": noise(LARGE_BYTES - 1)},
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_what_was_sent_arrives(message):
    sender, receiver = Sender(), Receiver()
    for _ in range(2):
        check_equal(receiver.loads(sender.dumps(message)), message)


def test_only_what_is_small_stays_in_the_message():
    message = {"image": noise(LARGE_BYTES), "rest": noise(LARGE_BYTES - 1)}
    sent = Sender().dumps(message)
    assert LARGE_BYTES < len(sent) < LARGE_BYTES + 1000
    assert pickle.loads(sent).sizes == [LARGE_BYTES]
    assert not isinstance(pickle.loads(Sender().dumps(message["rest"])), Blocked)


def test_a_block_grows_and_what_was_received_stays_as_it_was():
    sender, receiver = Sender(), Receiver()
    blocks, received = set(), []
    sizes = [1, 3, 2, 3, 9, 1, 20]
    for i, size in enumerate(sizes):
        sent = sender.dumps(noise(size * LARGE_BYTES, seed=i))
        blocks.add(pickle.loads(sent).block)
        received.append(receiver.loads(sent))
    assert len(blocks) == 4
    for i, size in enumerate(sizes):
        check_equal(received[i], noise(size * LARGE_BYTES, seed=i))


class Album(gymnasium.Env):
    """Shows image after image, which its seed and step tell."""

    observation_space, action_space = Box(0, 255, (90, 90, 3), np.uint8), Discrete(2)

    def _shown(self) -> np.ndarray:
        return noise(90, 90, 3, seed=1000 * self._seed + self._at)

    def reset(self, *, seed=None, options=None):
        self._seed, self._at = self._seed if seed is None else seed, 0
        return self._shown(), {}

    def step(self, action):
        self._at += 1
        return self._shown(), 1.0, self._at == 5, False, {}


class Still:
    """Always does the same."""

    def act(self, obs: Tensor) -> Tensor:
        assert obs.dtype == torch.uint8
        return torch.zeros(len(obs), dtype=torch.long)

    def get_parameters(self) -> dict:
        return {}


@pytest.mark.filterwarnings("ignore:.* has neither log_prob")
def test_images_come_back_as_they_were_shown(make):
    envs = make(Album, envs_per_node=3)
    assert LARGE_BYTES <= 3 * 90 * 90 * 3
    obs, _ = envs.reset(seed=4)
    shown = [obs, *(envs.step(Still())[0] for _ in range(3))]
    rollout = envs.collect(Still(), 4)
    again = envs.collect(Still(), 4)  # over the same memory
    for t in range(4):
        for i in range(6):
            np.testing.assert_array_equal(shown[t][i], noise(90, 90, 3, seed=1000 * (4 + i) + t))
    for t in range(9):
        part, k = (rollout, t) if t < 5 else (again, t - 4)
        at = 3 + t if t < 3 else t - 3
        for i in range(6):
            expected = noise(90, 90, 3, seed=1000 * (4 + i) + at)
            np.testing.assert_array_equal(part.obs[k, i].numpy(), expected)

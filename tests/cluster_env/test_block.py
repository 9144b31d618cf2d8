"""Arrays between two processes through shared memory."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor
from worlds import CountingEnv

from headrace.cluster_env.backends.shared_memory import ArrayLayout, ArrayReceiver, ArraySender
from headrace.cluster_env.messages import Answer
from headrace.ops import tree
from tests.cluster_env.parts import CountingAgent, chosen


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Return different bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def check_equal(found: object, expected: object) -> None:
    """Check that structure, values and dtypes are equal."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            check_equal(found[key], value)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            check_equal(*pair)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype == object:
            found, expected = (dict(enumerate(x.tolist())) for x in (found, expected))
            check_equal(found, expected)
            return
        np.testing.assert_array_equal(found, expected)
        assert found.flags.writeable
    else:
        assert found == expected


VALUES = {
    "one": noise(70_000),
    "several": {"a": noise(7, 70_000), "few": noise(3), "b": (noise(1, seed=1), {"c": noise(5)})},
    "other keys": {
        "a": noise(7, 70_000),
        "few": noise(3),
        "d": (noise(1, seed=1), {"c": noise(5)}),
    },
    "other order": {
        "few": noise(3),
        "a": noise(7, 70_000),
        "b": (noise(1, seed=1), {"c": noise(5)}),
    },
    "a list in place of a tuple": [noise(1), {"c": noise(5)}],
    "other dtypes": {
        "a": noise(7, 70_000),
        "few": noise(3) > 9,
        "b": (np.ones(1), {"c": noise(5)}),
    },
    "numbers": np.random.default_rng(0).normal(size=(300, 200)),
    "transposed": noise(300, 400).T,
    "every other": noise(300, 800)[:, ::2],
    "objects": (np.full(1000, None, object), np.array([{"a": 1}, "b", noise(3)], object)),
    "masked": {"masked": np.ma.masked_array(noise(4), noise(4) > 9), "plain": noise(4)},
    "texts": {"word": np.array(["a", "abc"]), "more": np.array(["abcdef"])},
    "fields": np.zeros(3, [("a", np.int32), ("b", np.float64, 2)]),
    "without a dimension": (np.array(3.0), np.float32(2.0), 2.0, True, None),
    "without rows": {"none": np.zeros((0, 3)), "a": (), "b": {}},
    "nothing": None,
    "few": {"a": 1, "b": "text", "c": noise(3)},
}


@pytest.fixture
def exchange() -> Iterator[Any]:
    """A Sender and a Receiver; a call sends a value and returns the result and the message."""
    ours, theirs = multiprocessing.Pipe()
    sender, receiver = ArraySender(), ArrayReceiver()

    def send(value: Any, *rest: Any) -> tuple[Answer, bytes]:
        theirs.send_bytes(sender.dumps(Answer(value, *(rest or (0, None)))))
        sender.hand_over(theirs)
        data = ours.recv_bytes()
        return receiver.loads(data, ours), data

    yield send
    assert not ours.poll()
    ours.close()
    theirs.close()


def test_what_was_sent_arrives_whatever_was_sent_before(exchange):
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(VALUES)), 20))
    for i, which in enumerate(order):
        value = list(VALUES.values())[which]
        rest = i, None if i % 3 else 0.5, i % 5 == 0, i % 7
        found, _ = exchange(value, *rest)
        check_equal(found.value, value)
        assert found[1:] == rest


def test_arrays_of_one_form_are_written_where_those_before_were_and_no_more_is_sent(exchange):
    sizes, received = [], []
    for i in range(4):
        found, sent = exchange({"image": noise(70_000, seed=i), "rest": noise(3, seed=i)})
        received.append(found.value)
        sizes.append(len(sent))
    assert sizes[0] < 500
    assert sizes[1:] == [sizes[1]] * 3
    assert sizes[1] < 30
    for i in range(4):
        check_equal(received[i], {"image": noise(70_000, seed=i), "rest": noise(3, seed=i)})


def test_a_block_grows_and_what_was_received_stays_as_it_was(exchange):
    told, received = [], []
    sizes = [1, 3, 2, 3, 3, 9, 1, 20]
    for i, size in enumerate(sizes):
        found, sent = exchange(noise(size * 70_000, seed=i))
        received.append(found.value)
        if isinstance(message := pickle.loads(sent), ArrayLayout):
            told.append(message.new_block)
    assert told == [True, True, False, False, True, False, True]  # nothing where 3 follows 3
    for i, size in enumerate(sizes):
        check_equal(received[i], noise(size * 70_000, seed=i))


class Unwilling:
    """Can't be pickled."""

    def __reduce__(self):
        raise TypeError("as asked")


@pytest.mark.parametrize("first", [{"a": noise(3), "b": 1}, None])
def test_an_answer_that_was_not_sent_leaves_none_of_its_form(exchange, first):
    if first is not None:
        exchange(first)
    for size in (70_000, 5):
        with pytest.raises(TypeError, match="as asked"):
            exchange({"a": noise(size), "b": Unwilling()})
    for value in (None, {"a": noise(5), "b": 2}, {"a": noise(3), "b": 1}):
        check_equal(exchange(value)[0].value, value)


def test_what_was_sent_can_be_read_when_the_sender_has_gone():
    ours, theirs = multiprocessing.Pipe()
    sender = ArraySender()
    theirs.send_bytes(sender.dumps(Answer(noise(70_000), 0, None)))
    sender.hand_over(theirs)
    os.close(sender._file)
    theirs.close()
    check_equal(ArrayReceiver().loads(ours.recv_bytes(), ours).value, noise(70_000))
    with pytest.raises(EOFError):
        ours.recv_bytes()
    ours.close()


class Album(gymnasium.Env):
    """Shows images that follow from seed and step."""

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
    """Always takes the same action."""

    def act(self, obs: Tensor) -> Tensor:
        assert obs.dtype == torch.uint8
        return torch.zeros(len(obs), dtype=torch.long)

    def get_parameters(self) -> dict:
        return {}


def test_images_come_back_as_they_were_shown(make):
    envs = make(Album, envs_per_node=3)
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


class Changing(CountingAgent):
    """Returns additional values that differ in each call."""

    calls = 0

    def act(self, obs: Tensor) -> dict[str, Any]:
        self.calls += 1
        return {"action": super().act(obs), "seen": obs, **EXTRAS[self.calls % len(EXTRAS)](obs)}


EXTRAS = [
    lambda obs: {},
    lambda obs: {"extra": obs[:, :2].double()},
    lambda obs: {"extra": obs[:, :3].double(), "more": obs.int()},
    lambda obs: {"more": obs.int(), "extra": obs[:, :3].double()},
    lambda obs: {"extra": {"a": obs.sum(1), "b": (obs[:, :1], obs.to(torch.int8))}},
]


def as_arrays(values: Any) -> Any:
    """Return a tree of tensors as arrays."""
    return tree.map_leaves(np.array, values)


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_an_agent_may_return_something_else_in_each_step(make, runs_ahead):
    envs = make(CountingEnv, envs_per_node=3, runs_ahead=runs_ahead)
    obs, agent, kept = envs.reset(seed=7)[0], Changing(), []
    for t in range(1, 14):
        before = obs
        obs, *_, infos = step = envs.step(agent)
        check_equal(infos["seen"], before)
        for name, expected in EXTRAS[t % len(EXTRAS)](torch.from_numpy(before)).items():
            check_equal(infos[name], as_arrays(expected))
        assert not set(infos) & {"extra", "more"} - set(EXTRAS[t % len(EXTRAS)](torch.zeros(1, 4)))
        kept.append((step, copy.deepcopy(step)))
    for step, then in kept:
        check_equal(step, then)  # no later step has overwritten it


class Deadly:
    """Kills the process that pickles it, once."""

    def __init__(self, once: str) -> None:
        self.once = once

    def __reduce__(self) -> Any:
        if chosen(self.once):
            os.kill(os.getpid(), signal.SIGKILL)
        return str, ("pickled",)


class DeadlyEnv(CountingEnv):
    """Observes objects; pickling that of the third step kills the process."""

    def __init__(self, once: str) -> None:
        super().__init__(episode_length=9)
        self.once = once

    def step(self, action: Any) -> Any:
        *step, infos = super().step(action)
        return *step, infos | {"object": Deadly(self.once) if self._step == 3 else "harmless"}


def test_what_a_worker_wrote_that_was_killed_before_it_sent_is_never_seen(make, tmp_path):
    once = str(tmp_path / "once")
    envs = make(DeadlyEnv, envs_per_node=2, env_kwargs={"once": once})
    envs.reset(seed=0)
    for _ in range(2):
        before = envs.step(CountingAgent())[0]
    with pytest.warns(RuntimeWarning, match=r"died \(exit code -9\)"):
        obs, reward, _, truncated, infos = envs.step(CountingAgent())
    (lost,) = envs.faults
    for i in range(4):
        assert truncated[i] == infos["_fault"][i] == (i // 2 == lost)
        if i // 2 == lost:
            assert (obs[i].tolist(), reward[i]) == (before[i].tolist(), 0.0)
        else:
            assert (obs[i, 2], infos["object"][i]) == (3, "pickled")
    obs = envs.step(CountingAgent())[0]
    assert obs[:, 2].tolist() == [0 if i // 2 == lost else 4 for i in range(4)]

"""Workers' spaces give environments that check their actions the same answers, faster."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete

from headrace.cluster_env.messages import Request, WorkerSetup
from headrace.cluster_env.worker import Worker, _check_actions_quickly
from headrace.envs.names import resolve

SPACES = [Discrete(3), Discrete(4, start=-2), Discrete(2, dtype=np.int32), Discrete(300, start=5)]
VALUES = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 304, 305, 2**62, True, 1.0, None, "1", [1]]
KINDS = [np.int64, np.int32, np.uint8, np.uint64, np.float32, np.bool_]


class Spaced(gymnasium.Env):
    """Has a space."""

    def __init__(self, space: Discrete) -> None:
        self.action_space = space


@pytest.mark.parametrize("space", SPACES, ids=map(str, SPACES))
def test_a_space_that_answers_quickly_says_what_it_said(space):
    quick = copy.deepcopy(space)
    _check_actions_quickly(Spaced(quick))
    asked = list(VALUES)
    for value in VALUES[:12]:
        for kind in KINDS:
            with np.errstate(all="ignore"):
                asked.append(np.array(value).astype(kind)[()] if kind is not np.array else [value])
    for value in [*asked, np.array(1), np.array([1])]:
        assert quick.contains(value) is space.contains(value), value
        assert (value in quick) is (value in space)
    for other in (quick, pickle.loads(pickle.dumps(quick)), copy.deepcopy(quick)):
        assert other == space
        assert repr(other) == repr(space)
        assert other.contains(space.dtype.type(space.start))
        assert not other.contains(space.dtype.type(space.start + space.n))


def test_an_environment_in_a_worker_still_refuses_what_is_no_action():
    worker = Worker(WorkerSetup(resolve("CartPole-v1"), 2, "sync", {}, 0, 0))
    worker.handle(Request("reset", (0, None)))
    space = worker._envs.envs[1].unwrapped.action_space
    assert "contains" in vars(space)
    worker.handle(Request("step", (np.array([0, 1]),)))
    with pytest.raises(AssertionError, match="invalid"):
        worker.handle(Request("step", (np.array([0, 2]),)))
    with pytest.raises(AssertionError, match="invalid"):
        worker.handle(Request("step", (np.array([-1, 1]),)))
    worker.close()


def test_a_space_of_another_class_keeps_its_own_answer():
    class Picky(Discrete):
        def contains(self, x: object) -> bool:
            return x == 1

    space = Picky(3)
    _check_actions_quickly(Spaced(space))
    assert [space.contains(np.int64(i)) for i in range(3)] == [False, True, False]

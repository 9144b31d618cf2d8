"""Calls through shared memory: separate answers, batches, and replaced callers."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from patience import PATIENCE_S, wait_until

from headrace.transport import request_channel
from headrace.transport.request_channel import (
    RequestBatch,
    RequestChannel,
    RequestClient,
    RequestServer,
    layout,
)
from headrace.transport.slab import ArraySpec

ROWS = 3  # of a call, at most
LAYOUT = {
    "request": {"x": ArraySpec((2,), torch.int64), "core": ()},
    "answer": {"y": ArraySpec((2,), torch.float32), "core": ()},
    "num_rows": ROWS,
}


@pytest.fixture
def made() -> Iterator:
    """Creates the channels of several callers."""
    with contextlib.ExitStack() as stack:

        def make(num_callers: int) -> RequestChannel:
            found = RequestChannel(layout(num_callers=num_callers, **LAYOUT))
            stack.callback(found.close)
            return found

        yield make


def rows(*values: int) -> dict:
    x = torch.tensor(values)
    return {"x": torch.stack([x, -x], 1), "core": ()}


def doubled(asked: RequestBatch) -> dict:
    return {"y": 2.0 * asked.rows["x"], "core": ()}


def call(caller: RequestClient, *values: int, timeout_s: float = PATIENCE_S) -> list[list[float]]:
    return caller.call(rows(*values), len(values), timeout_s)["y"].tolist()


def right(*values: int) -> list[list[float]]:
    return [[2.0 * x, -2.0 * x] for x in values]


class Calling(threading.Thread):
    """A caller that waits for its answer in a thread, after an optional delay."""

    def __init__(self, caller: RequestClient, *values: int, after_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.caller, self.values, self.answer, self.after_s = caller, values, None, after_s
        self.start()

    def run(self) -> None:
        time.sleep(self.after_s)
        self.answer = call(self.caller, *self.values)

    def check(self) -> None:
        self.join(PATIENCE_S)
        assert self.answer == right(*self.values)


def taken(server: RequestServer, max_wait_s: float = 0.0) -> RequestBatch:
    """Return the next calls, whenever they arrive."""
    found = []

    def asked() -> bool:
        found.append(server.take(max_wait_s))
        return found[-1] is not None

    wait_until(asked, lambda: "no caller has asked", pause_s=0.0)
    return found[-1]


def test_each_caller_gets_the_answer_to_its_own_rows_whoever_is_batched_with_it(made):
    made = made(5)
    wrong, sizes = [], []

    def work(number: int) -> None:
        caller, random = RequestClient(made.client_end(number)), np.random.default_rng(number)
        for _ in range(60):
            values = random.integers(0, 10**6, random.integers(1, ROWS + 1)).tolist()
            if call(caller, *values) != right(*values):
                wrong.append(values)

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(5)]
    for worker in workers:
        worker.start()
    server = RequestServer(made.server_end())
    while any(worker.is_alive() for worker in workers):
        asked = server.take(0.001)
        if asked is not None:
            sizes.append(len(asked.callers))
            server.answer(asked, doubled(asked))
    assert wrong == []
    assert sum(sizes) == 5 * 60
    assert made.num_answers == len(sizes)


def test_an_active_caller_is_waited_for_and_no_other(made):
    made = made(3)
    callers, server = (
        [RequestClient(made.client_end(n)) for n in range(3)],
        RequestServer(made.server_end()),
    )
    callers[0].expect(True)
    callers[1].expect(True)
    first = Calling(callers[0], 1)
    second = Calling(callers[1], 2, 3, after_s=0.2)
    asked = taken(server, max_wait_s=1e6)  # for ever, if the third one were waited for
    assert asked.callers.tolist() == [0, 1]
    server.answer(asked, doubled(asked))
    first.check()
    second.check()
    third = Calling(callers[2], 4)
    asked = taken(server)  # at 0 there is no waiting
    assert asked.callers.tolist() == [2]
    server.answer(asked, doubled(asked))
    third.check()


def test_a_server_finds_what_the_one_before_took_and_did_not_answer(made):
    made = made(2)
    waits = Calling(RequestClient(made.client_end(1)), 7, 8)
    assert taken(RequestServer(made.server_end())).callers.tolist() == [1]  # which dies here
    made.reset_heartbeat()
    server = RequestServer(made.server_end())
    asked = taken(server)
    assert asked.callers.tolist() == [1]
    server.answer(asked, doubled(asked))
    waits.check()


def test_a_caller_that_replaces_another_is_not_given_its_answer(made):
    made = made(1)
    server, before = RequestServer(made.server_end()), RequestClient(made.client_end(0))
    before.expect(True)
    with pytest.raises(TimeoutError, match=r"the inference process did not answer for 0\.01 s"):
        call(before, 1, timeout_s=0.01)
    old = taken(server)
    after = RequestClient(made.client_end(0))
    assert not server._numbers[:, 3].any()
    waits = Calling(after, 5)
    while not (server._numbers[:, 0] == 2).all():  # until it has asked
        pass
    server.answer(old, doubled(old))
    new = taken(server)
    assert new.rows["x"].tolist() == [[5, -5]]
    server.answer(new, doubled(new))
    waits.check()


def test_an_answer_is_seen_though_nobody_was_woken(made, monkeypatch):
    monkeypatch.setattr(request_channel, "BEAT_S", 0.01)
    made, (_, elsewhere) = made(1), Pipe(duplex=False)
    server = RequestServer(dataclasses.replace(made.server_end(), wakes=(elsewhere,)))
    waits = Calling(RequestClient(made.client_end(0)), 3)
    asked = taken(server)
    server.answer(asked, doubled(asked))  # and is killed before its last byte
    waits.check()


def test_a_server_without_calls_says_that_it_lives_and_can_be_woken(made, monkeypatch):
    made = made(1)
    for beat_s in (0.01, None):  # asked for, or the usual one
        monkeypatch.setattr(request_channel, "BEAT_S", 0.01 if beat_s is None else 1e6)
        server = RequestServer(made.server_end(), beat_s)
        made._life[0] -= 10**12
        assert made.silent_s > 900
        assert server.take(1.0) is None
        assert made.silent_s < 900
    made.wake()
    assert RequestServer(made.server_end(), 1e6).take(1.0) is None

from __future__ import annotations

import multiprocessing

import pytest
import torch
from patience import PATIENCE_S

from headrace.transport.slab import ArraySpec
from headrace.transport.weights import WeightStore

SPEC = {"w": ArraySpec((50_000,), torch.float32), "n": ArraySpec((), torch.int64)}


def weights(value: float) -> dict:
    return {"w": torch.full((50_000,), value), "n": torch.tensor(int(value))}


def test_a_pull_returns_what_was_published_last_and_none_when_nothing_is_newer():
    store = WeightStore(SPEC)
    mine = weights(-1)
    assert store.pull(-1, mine) is None
    store.publish(0, 7, weights(3))
    store.publish(1, 8, weights(4))
    assert store.pull(-1, mine) == (1, 8)
    assert (mine["w"] == 4).all()
    assert mine["n"] == 4
    assert store.pull(1, mine) is None


def test_versions_must_grow():
    store = WeightStore(SPEC)
    store.publish(5, 0, weights(1))
    for version in (5, 4):
        with pytest.raises(ValueError, match="after 5"):
            store.publish(version, 0, weights(2))


def publish_until(buffer, enough) -> None:
    torch.set_num_threads(1)  # the pool of threads did not survive the fork
    store, version = WeightStore(SPEC, buffer), 0
    while not enough.is_set():
        version += 1
        store.publish(version, 0, weights(version))


def test_no_reader_sees_half_written_weights_and_versions_never_go_back():
    context = multiprocessing.get_context("fork")
    store, enough = WeightStore(SPEC, shared=True), context.Event()
    writer = context.Process(target=publish_until, args=(store.buffer, enough), daemon=True)
    writer.start()
    reader, mine, last = WeightStore(SPEC, store.buffer), weights(-1), -1
    for _ in range(300):
        while (news := reader.pull(last, mine)) is None:
            assert writer.is_alive()
        assert news[0] > last
        last = news[0]
        assert (mine["w"] == float(last)).all()
        assert int(mine["n"]) == last
    enough.set()
    writer.join(PATIENCE_S)

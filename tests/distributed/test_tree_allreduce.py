"""All-reduces in few messages: each rank is a thread, and messages are counted."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict

import pytest
import torch
from patience import PATIENCE_S

from headrace.distributed import tree_allreduce

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)


class Wire:
    """Messages between the threads of one sum, with their dependencies."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int], queue.Queue] = defaultdict(queue.Queue)

    def swap(self, me, clock):
        """Swap messages as rank ``me``; ``clock[me]`` counts the messages that it waits for."""

        def swap(to, out, source, into):
            at = clock[me]
            if out.numel():
                self.boxes[me, to].put((out.clone(), at))
            if into.numel():
                values, sent = self.boxes[source, me].get(timeout=PATIENCE_S)
                into.copy_(values)
                clock[me] = max(at, sent) + 1

        return swap


def in_threads(size, work):
    """Return what ``work(rank, swap)`` returns for each rank, and the longest chain of messages."""
    wire, clock, found = Wire(), [0] * size, [None] * size
    for peers in ((a, b) for a in range(size) for b in range(size)):
        wire.boxes[peers]

    def live(rank):
        found[rank] = work(rank, wire.swap(rank, clock))

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(box.empty() for box in wire.boxes.values())
    return found, max(clock)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [1, 3, 100, 1 << 17])
def test_all_have_the_same_bits_of_the_sum_after_as_many_messages_as_the_model_says(size, length):
    generator = torch.Generator().manual_seed(size)
    brought = torch.randn(size, length, generator=generator) * 10.0 ** torch.arange(size)[:, None]
    ranks = [10 * rank + 3 for rank in range(size)]  # their numbers in the run

    def work(me, swap):
        def renumbered(to, out, source, into):
            swap(ranks.index(to), out, ranks.index(source), into)

        return tree_allreduce.add_up(brought[me].clone(), ranks, me, renumbered)

    found, chain = in_threads(size, work)
    assert all(torch.equal(values, found[0]) for values in found)
    exact = brought.double().sum(0)
    bound = 2 * (size + 1) * torch.finfo(torch.float32).eps * brought.double().abs().sum(0)
    assert ((found[0].double() - exact).abs() <= bound).all()
    assert chain == (tree_allreduce.sum_parts(size, 4 * length)[0] if size > 1 else 0)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_has_the_rows_of_all_in_their_order(size):
    found, chain = in_threads(
        size, lambda me, swap: tree_allreduce.rows(torch.arange(3) + 10 * me, size, me, swap)
    )
    rows = torch.arange(3) + 10 * torch.arange(size)[:, None]
    assert all(torch.equal(one, rows) for one in found)
    assert chain == tree_allreduce.rows_parts(size, 1)[0] == (size - 1).bit_length()


def test_large_vectors_of_many_ranks_are_halved():
    few, many = tree_allreduce.sum_parts(2, 1 << 20), tree_allreduce.sum_parts(16, 1 << 20)
    assert few == (1, 1 << 20)
    assert many == (8, 2 * 15 / 16 * (1 << 20))
    assert [tree_allreduce.sum_parts(4, n)[0] for n in (1 << 19, (1 << 19) + 1)] == [2, 4]
    assert tree_allreduce.sum_parts(16, 1000) == (4, 4000)

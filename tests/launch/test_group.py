"""A group of real processes: exact sums in any order, and fast reports of dead ranks."""

from __future__ import annotations

import errno
import functools
import os
import random
import signal
import sys
import tempfile
import time
import types
import zlib

import cloudpickle
import pytest
import torch

from headrace.distributed import ranks as group_module
from headrace.distributed import shared_memory
from headrace.distributed.shared_memory import ROW_BYTES
from headrace.errors import LearnerFailed, OthersLost
from tests.launch.ranks import Crew, arrive, in_group

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # what the ranks do


@pytest.fixture
def ranks(crew, tmp_path):
    """Starts ``size`` ranks (except the absent ones) that run ``work(group, say)``."""

    def start(size, work, absent=(), **settings) -> Crew:
        live = functools.partial(
            in_group, path=str(tmp_path / "store"), size=size, work=work, **settings
        )
        return crew([r for r in range(size) if r not in absent], live)

    return start


SIZES = (1, 7, 1000, (1 << 16) + 1, ROW_BYTES // 8, ROW_BYTES // 8 + 1, ROW_BYTES // 4 + 3)
DTYPES = (torch.float32, torch.float64)
BIG = 600_000  # numbers, float32: more than a row
SILENT_S = 4.0  # longer than a live rank is silent on a busy machine


def part(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a rank."""
    generator = torch.Generator().manual_seed(1000 * rank + size)
    return torch.randn(size, generator=generator, dtype=dtype) * 10**rank


def crc(values: torch.Tensor) -> int:
    """Return a hash of the bits."""
    return zlib.crc32(values.contiguous().numpy().tobytes())


def part_ways(group) -> None:
    """Let each rank be a separate machine."""
    group._board, group._hosts = None, [[rank] for rank in range(group.size)]
    group._first = list(range(group.size))


# -- sums and rows ------------------------------------------------------------------------------


def add_everything_up(group, say):
    """Return for each way, type and size: correct rows, error of the sum, and its bits."""
    assert group.shares_memory
    found = []
    for way in ("board", "gloo"):
        if way == "gloo":
            part_ways(group)
        for dtype in DTYPES:
            for size in SIZES:
                rows = torch.stack([part(r, size, dtype) for r in range(group.size)])
                gathered = group.gather(rows[group.rank].clone())
                total = group.sum(rows[group.rank].clone())
                exact = rows.double().sum(0)
                error = float(((total.double() - exact).abs() / rows.abs().double().sum(0)).max())
                right = torch.equal(gathered, rows) and total.shape == (size,)
                found.append((way, dtype, size, right and total.dtype == dtype, error, crc(total)))
    waits = group.clock.waits
    return found, len(waits), group.clock.take()["comm"] >= sum(waits) * 0.5 > 0


@pytest.mark.parametrize("size", [2, 3])
def test_sums_and_rows_are_the_same_for_all_through_shared_memory_and_through_gloo(ranks, size):
    endings = ranks(size, add_everything_up).endings()
    for ending in endings.values():
        assert ending.error is None
        found, num_waits, timed = ending.value
        assert num_waits == len(found) * 2
        assert timed
    for everyone in zip(*(ending.value[0] for ending in endings.values()), strict=True):
        assert len(set(everyone)) == 1  # the same bits for all
        _, dtype, _, right, error, _ = everyone[0]
        assert right
        assert error < 2 * torch.finfo(dtype).eps
    if size == 2:  # a + b = b + a, whichever way
        bits = [one[-1] for one in endings[0].value[0]]
        assert bits[: len(bits) // 2] == bits[len(bits) // 2 :]


def hurry_and_dawdle(group, say):
    """Run a thousand exchanges, and check that results belong to their round, also later."""
    own, same = random.Random(group.rank), random.Random("sizes")
    fence = shared_memory.memory_fence

    def slow_fence() -> None:  # between a row and its count, and between the wait and the reading
        if own.random() < 0.1:
            time.sleep(own.random() * 5e-4)
        fence()

    shared_memory.memory_fence = slow_fence
    kept = []
    for count in range(1000):
        size = same.choice((1, 3, 50, 2000))
        base = torch.arange(size, dtype=torch.float64) + count
        if same.random() < 0.5:
            rows = group.gather(base * (group.rank + 1))
            kept.append((rows, base))
        else:
            total = group.sum(base * (group.rank + 1))
            assert torch.equal(total, base * sum(range(group.size + 1))), count
        if len(kept) > 5:
            rows, base = kept.pop(0)
            for rank, row in enumerate(rows):
                assert torch.equal(row, base * (rank + 1)), (count, rank)
    return "done"


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_no_row_is_read_too_early_or_overwritten_too_soon(ranks, size):
    for ending in ranks(size, hurry_and_dawdle).endings().values():
        assert ending.error is None
        assert ending.value == "done"


@pytest.mark.parametrize("call", ["sum", "gather"])
def test_vectors_of_different_sizes_are_an_error_for_all(ranks, call):
    def work(group, say):
        getattr(group, call)(torch.zeros(3 + group.rank))

    for ending in ranks(2, work).endings().values():
        assert type(ending.error) is OthersLost
        assert "vectors of [12, 16] bytes" in str(ending.error)


def talk(group, say):
    """Exchange objects for rank 0, an object from rank 0, and numbers."""
    before = group.notes()
    collected = group.gather_objects({"rank": group.rank, "text": "x" * 10**group.rank * 1000})
    told = group.broadcast(("from", group.rank, torch.arange(3)))
    group.note(group.rank + 10)
    group.gather(torch.zeros(1))  # all have left theirs
    notes = group.notes()
    group.gather(torch.zeros(1))  # all have read them
    if group.rank == 1:
        group.note(99)
    group.gather(torch.zeros(1))
    return before, collected, told[:2], told[2].tolist(), notes, group.notes()


def test_objects_and_notes_reach_those_whom_they_are_for(ranks):
    endings = ranks(3, talk).endings()
    for rank, ending in endings.items():
        assert ending.error is None
        before, collected, told, numbers, notes, later = ending.value
        assert before == [-1, -1, -1]
        assert [one["rank"] for one in collected] == ([0, 1, 2] if rank == 0 else [])
        assert [len(one["text"]) for one in collected] == ([10**3, 10**4, 10**5] * (rank == 0))
        assert (told, numbers) == (("from", 0), [0, 1, 2])
        assert notes == [10, 11, 12]
        assert later == [10, 99, 12]


# -- without shared memory ----------------------------------------------------------------------


def join_with_a_broken_file(rank, broken_rank, what):
    """Let one rank fail at one step of sharing the file."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    if rank == broken_rank:
        setattr(*{"make": (os, "ftruncate"), "map": (torch, "from_file")}[what], fail)


def add_ranks(group, say):
    """Return whether memory is shared, a sum, and rows."""
    rank = torch.full((5,), float(group.rank + 1))
    return group.shares_memory, group.gather(rank).tolist(), group.sum(rank).tolist()


OTHERS = [pytest.param(rank, "map", marks=pytest.mark.slow) for rank in (0, 2)]
ROWS = [[1.0] * 5, [2.0] * 5, [3.0] * 5]


@pytest.mark.parametrize(("rank", "what"), [(1, "map"), (0, "make"), *OTHERS])
def test_all_use_gloo_if_one_cannot_use_the_shared_file(ranks, leftovers, rank, what):
    before = functools.partial(join_with_a_broken_file, broken_rank=rank, what=what)
    for ending in ranks(3, add_ranks, before=before).endings().values():
        assert ending.error is None
        assert ending.value == (False, ROWS, [6.0] * 5)
    assert leftovers() == set()


def test_all_use_gloo_if_one_cannot_see_the_process_of_another(ranks):
    def before(rank: int) -> None:
        if rank == 1:  # as in a container that shares memory, but not the numbers of processes
            shared_memory.os = types.SimpleNamespace(getpid=lambda: 2**30, kill=os.kill)

    for ending in ranks(3, add_ranks, before=before).endings().values():
        assert ending.error is None
        assert ending.value == (False, ROWS, [6.0] * 5)


def test_the_shared_file_is_in_the_temporary_folder_where_there_is_no_other(ranks, tmp_path):
    def before(rank: int) -> None:
        os.access = lambda path, mode: False
        tempfile.tempdir = str(tmp_path / "elsewhere")
        os.makedirs(tempfile.tempdir, exist_ok=True)

    for ending in ranks(3, add_ranks, before=before).endings().values():
        assert ending.error is None
        assert ending.value == (True, ROWS, [6.0] * 5)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# -- ranks that are missing ---------------------------------------------------------------------


def test_a_rank_that_never_comes_is_named_at_the_timeout(ranks, tmp_path):
    start = time.monotonic()
    how = {"before": functools.partial(arrive, folder=tmp_path, count=2), "absent": [1]}
    for rank, ending in ranks(3, add_ranks, timeout_s=3.0, **how).endings().items():
        assert type(ending.error) is LearnerFailed
        text = f"learner 1 of 3 never arrived: learner {rank} waited 3 s (learner_timeout_s)"
        assert str(ending.error) == text
        assert ending.at - start > 3.0


def test_a_rank_that_dies_while_it_joins_is_named(ranks, tmp_path):
    def before(rank: int) -> None:
        arrive(rank, tmp_path, 3)
        if rank == 1:
            group_module.dist.init_process_group = lambda *_, **__: os._exit(1)

    for rank, ending in ranks(3, add_ranks, before=before, timeout_s=3.0).endings([0, 2]).items():
        assert type(ending.error) is OthersLost
        assert f"learner {rank} lost learner 1: " in str(ending.error)


# -- ranks of several machines ------------------------------------------------------------------


def on_two_machines(rank: int) -> None:
    """Ranks 0 and 2 are on one machine, rank 1 on another."""
    shared_memory._place = lambda: rank % 2


def add_up_between_machines(group, say):
    """Return whether rows are correct, the error of the sum, and its bits."""
    assert group._hosts == [[0, 2], [1]]
    assert (group._board is None) == (group.rank == 1)
    found = []
    for size in SIZES:
        rows = torch.stack([part(r, size, torch.float32) for r in range(group.size)])
        gathered = group.gather(rows[group.rank].clone())
        total = group.sum(rows[group.rank].clone())
        error = (total.double() - rows.double().sum(0)).abs() / rows.abs().double().sum(0)
        found.append((torch.equal(gathered, rows), float(error.max()), crc(total)))
    return group.shares_memory, found


def test_ranks_of_a_machine_share_memory_and_the_first_of_each_talks_to_the_others(
    ranks, leftovers
):
    endings = ranks(3, add_up_between_machines, before=on_two_machines).endings()
    assert [ending.error for ending in endings.values()] == [None] * 3
    assert leftovers() == set()
    for everyone in zip(*(ending.value[1] for ending in endings.values()), strict=True):
        assert len(set(everyone)) == 1
        right, error, _ = everyone[0]
        assert right
        assert error < 2 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dead", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_name_the_dead_rank_of_another_machine_whomever_they_waited_for(ranks, dead):
    def work(group, say):
        group.sum(torch.zeros(3))
        say("waits")
        if group.rank == dead:
            time.sleep(1000)
        group.sum(torch.zeros(3))

    three = ranks(3, work, before=on_two_machines)
    for rank in three.ranks:
        assert three.hear(rank) == "waits"
    three.signal(dead, signal.SIGKILL)
    others = [rank for rank in three.ranks if rank != dead]
    for rank, ending in three.endings(others).items():
        assert type(ending.error) is OthersLost
        assert f"learner {rank} " in str(ending.error)
        assert f" learner {dead}: " in str(ending.error)


CALLS = {
    "sum": lambda group: group.sum(torch.zeros(3)),
    "big_sum": lambda group: group.sum(torch.zeros(BIG)),
    "gather_objects": lambda group: group.gather_objects("something"),
    "broadcast": lambda group: group.broadcast("something"),
}
ENDLESS = [("sum", True), ("sum", False), ("big_sum", False)]  # gather is what sums are made of
FEW = [*ENDLESS[:2], pytest.param(*ENDLESS[2], marks=pytest.mark.slow)]


def wait_for_ever(group, say, call, shared, quiet_rank):
    """Exchange a few times, then let one rank stop."""
    if not shared:
        part_ways(group)
    for _ in range(3):
        CALLS[call](group)
    say("waits")
    if group.rank == quiet_rank:
        time.sleep(1000)
    while True:
        CALLS[call](group)


@pytest.mark.parametrize(("call", "shared"), [*FEW, ("gather_objects", True), ("broadcast", True)])
def test_a_killed_rank_is_named_by_all_who_wait_for_it_at_once(ranks, leftovers, call, shared):
    quiet = 0 if call == "broadcast" else 1
    work = functools.partial(wait_for_ever, call=call, shared=shared, quiet_rank=quiet)
    three = ranks(3, work)
    others = [r for r in three.ranks if r != quiet]
    for rank in three.ranks:
        assert three.hear(rank) == "waits"
    time.sleep(0.2)  # by now the others wait
    three.signal(quiet, signal.SIGKILL)
    for rank, ending in three.endings(others).items():  # and not because it was silent for LONG_S
        assert type(ending.error) is OthersLost
        if shared and call == "sum":
            assert str(ending.error) == f"learner {rank} waited for learner 1: has died"
        else:
            assert f"learner {rank} lost learner {quiet}: " in str(ending.error)
    assert leftovers() == set()


@pytest.mark.parametrize(("call", "shared"), FEW)
def test_a_stopped_rank_is_named_at_the_timeout(ranks, tmp_path, call, shared):
    work = functools.partial(wait_for_ever, call=call, shared=shared, quiet_rank=2)
    before = functools.partial(arrive, folder=tmp_path, count=3)
    three = ranks(3, work, before=before, timeout_s=SILENT_S)
    for rank in three.ranks:
        assert three.hear(rank) == "waits"
    stopped = three.signal(2, signal.SIGSTOP)
    for rank, ending in three.endings([0, 1]).items():
        assert type(ending.error) is OthersLost
        assert ending.at - stopped > 0.8 * SILENT_S
        if shared:
            text = f"learner {rank} waited for learner 2: was silent for {SILENT_S:g} s"
            assert str(ending.error) == text
        else:
            assert f"learner {rank} lost learner 2: " in str(ending.error)

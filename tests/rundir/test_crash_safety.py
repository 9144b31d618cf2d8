"""After an interrupted save a complete checkpoint is found: the old or the new one."""

from __future__ import annotations

import os
import signal
import sys
import traceback

import pytest
import torch

from headrace.errors import CheckpointError
from headrace.rundir import checkpoint
from tests.rundir.crashes import SITUATIONS, Parts, check, each_death, parts

# What a save asks of the file system, as Python's audit hooks and these functions of os see it.
AUDITED = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.symlink"}
PATCHED = ("fsync", "replace", "rmdir", "unlink", "mkdir")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture(scope="module")
def saved() -> Parts:
    return parts()


def dies_at(count: int, work) -> bool:
    """Fork a child that runs ``work`` and kills itself at its ``count``-th event, if any."""
    pid = os.fork()
    if pid == 0:
        try:
            _kill_at(count)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"at {count}: {status}"
    return status == signal.SIGKILL


def _kill_at(count: int) -> None:
    """SIGKILL this process at its ``count``-th event; half of the events precede a call."""
    seen = 0

    def step() -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple) -> None:
        only_reads = event == "open" and not (args[2] or 0) & WRITES
        if event in AUDITED and not only_reads:
            step()

    sys.addaudithook(audit)
    for name in PATCHED:
        setattr(os, name, _and_then(getattr(os, name), step))


def _and_then(call, step):
    def stepping(*args, **kwargs):
        result = call(*args, **kwargs)
        step()
        return result

    return stepping


USUAL = ("the same step again",)
EACH = [pytest.param(s, marks=[] if s in USUAL else pytest.mark.full) for s in SITUATIONS]


@pytest.mark.parametrize("situation", EACH)
def test_killed_at_any_call_a_save_leaves_a_whole_checkpoint(saved, tmp_path, situation):
    before, run_dir = tmp_path / "before", tmp_path / "run"
    before.mkdir()
    SITUATIONS[situation](saved, before)
    count = 0
    deaths = each_death(
        before, run_dir, lambda call: dies_at(call, lambda: saved.save_and_rotate(run_dir, 128))
    )
    for count in deaths:
        check(saved, run_dir, new=128)
        if count % 10 == 0:
            saved.save(run_dir, 192)  # which clears what was left
            assert not list((run_dir / "checkpoints").glob("*.tmp"))
            assert checkpoint.find(run_dir).name == "step_192"
    assert count > 20
    assert checkpoint.find(run_dir).name.startswith("step_128")


def test_killed_at_any_call_a_best_policy_is_whole(saved, tmp_path):
    before, run_dir = tmp_path / "before", tmp_path / "run"
    before.mkdir()
    saved.save_best(before, 64)
    deaths = each_death(
        before, run_dir, lambda call: dies_at(call, lambda: saved.save_best(run_dir, 128))
    )
    count = 0
    for _ in deaths:
        count += 1
        found = checkpoint.find(run_dir, "best")
        assert found.name in ("best_64", "best_128")
        saved.same(found)
    assert count > 20
    assert [p.name for p in (run_dir / "checkpoints").glob("best_*")] == ["best_128"]


# -- flipped bits --------------------------------------------------------------------------------


def flip(file, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["policy.safetensors", "trainer.pt", "config.json", "SHA256SUMS"])
def test_no_flipped_bit_is_loaded(saved, tmp_path, name):
    saved.save(tmp_path, 64)
    folder = saved.save(tmp_path, 128)
    file = folder / name
    whole = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for bit in torch.randint(8 * len(whole), (50,), generator=generator).tolist():
        flip(file, bit)
        with pytest.raises(CheckpointError) as error:
            checkpoint.load_policy(folder)
            checkpoint.load_trainer(folder)
        text = str(error.value)
        assert "\n" not in text
        assert str(file) in text or (name == "SHA256SUMS" and str(folder) in text)
        assert "step_64 is whole" in text
        file.write_bytes(whole)
    checkpoint.load_policy(folder)


def test_a_checkpoint_without_checksums_loads_as_ever(saved, tmp_path):
    folder = saved.save(tmp_path, 64)
    (folder / "SHA256SUMS").unlink()
    saved.same(folder)
    (tmp_path / "checkpoints" / "latest").unlink()
    with pytest.warns(UserWarning, match="using the newest whole one, step_64"):
        assert checkpoint.find(tmp_path) == folder


# -- pointers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["save_linked", "save_copied"])
def test_links_and_folders_are_understood_and_replaced(saved, tmp_path, how):
    getattr(saved, how)(tmp_path, 64)
    saved.same(checkpoint.find(tmp_path))
    saved.same(checkpoint.find(tmp_path, "best"))
    saved.save_and_rotate(tmp_path, 128)
    assert checkpoint.find(tmp_path).name == "step_128"
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step_128\n"
    assert checkpoint.find(tmp_path / "checkpoints" / "latest").name == "step_128"


@pytest.mark.parametrize("content", [None, "", "step_9", "../../elsewhere", "step_64/.."])
def test_the_newest_whole_checkpoint_stands_in_for_a_lost_pointer(saved, tmp_path, content):
    saved.save(tmp_path, 64)
    (saved.save(tmp_path, 128) / "trainer.pt").unlink()
    pointer = tmp_path / "checkpoints" / "latest"
    pointer.unlink() if content is None else pointer.write_text(content)
    with pytest.warns(UserWarning, match="using the newest whole one, step_64"):
        assert checkpoint.find(tmp_path).name == "step_64"
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        checkpoint.find(tmp_path, "best")

"""Disks that fail: an error at the start, continued training, a message at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess

import pytest

import headrace as hr
from headrace.api import resume_config
from headrace.errors import CheckpointError
from headrace.rundir import atomic_files, checkpoint, checkpoint_writer
from headrace.rundir.files import append, read_jsonl
from tests.rundir.crashes import parts

SETTINGS = {"transport": "serial", "total_steps": 640, "checkpoint_interval": 64}


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def one_sentence(error: BaseException, *words: object) -> None:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 500
    for word in words:
        assert str(word) in text, text


# -- at the start ---------------------------------------------------------------------------------


@pytest.fixture
def nothing_starts(monkeypatch):
    def start(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr("headrace.trainer.start.start_fork_server", start)
    monkeypatch.setattr("headrace.trainer.start.first_look", start)


def test_a_path_that_is_a_file_is_said_before_anything_starts(tiny, tmp_path, nothing_starts):
    (tmp_path / "file").write_text("mine")
    for name in ("file", "file/run"):
        for settings in ({}, {"num_learners": 2}, {"overwrite": True}):
            with pytest.raises(CheckpointError) as error:
                hr.train(tiny(run_dir=str(tmp_path / name), **settings))
            one_sentence(error.value, tmp_path / name, "is a file", "choose another run_dir")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("words", ["Permission denied", "Read-only file system"])
def test_a_folder_that_takes_no_files_is_said_before_anything_starts(
    tiny, tmp_path, monkeypatch, nothing_starts, words
):
    flags = os.ST_RDONLY if "Read" in words else 0
    stat = os.statvfs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_, **__: False)
        patch.setattr(os, "statvfs", lambda _: os.statvfs_result((*stat[:8], flags, *stat[9:])))
        with pytest.raises(CheckpointError) as error:
            hr.train(tiny())
    one_sentence(error.value, tmp_path / "run", words, "choose a run_dir")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def small(tmp_path):
    """Mounts a file system of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, timeout=20
    )
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True, timeout=20)


def fill(folder) -> None:
    """Fill a file system completely."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass


def test_a_full_disk_is_said_before_anything_starts(tiny, small, nothing_starts):
    fill(small)
    with pytest.raises(CheckpointError) as error:
        hr.train(tiny(run_dir=str(small / "run")))
    one_sentence(error.value, small / "run", "No space left on device", "free some space")


# -- while it trains ------------------------------------------------------------------------------


def train(config, at) -> tuple[hr.Trainer, list[str]]:
    """Train to the end, with ``at[updates]()`` after those updates; also return messages."""
    told: list[str] = []
    with contextlib.closing(hr.Trainer(config, notify=told.append)) as trainer:
        for result in trainer:
            at.get(result.updates, lambda: None)()
    return trainer, told


def test_training_goes_on_over_a_full_disk_and_saves_again_when_it_can(tiny, small):
    run_dir = small / "run"
    at = {2: lambda: fill(small), 6: (small / "filler").unlink}
    trainer, told = train(tiny(**SETTINGS, run_dir=str(run_dir), log_iterations=True), at)
    assert trainer.env_steps >= 640
    failed = [line.partition(" failed")[0] for line in told if " failed" in line]
    assert {"saving a checkpoint", "writing metrics.jsonl"} <= set(failed)
    assert len(failed) == len(set(failed))
    again = [line.partition(" works again")[0] for line in told if "works again" in line]
    assert sorted(again) == sorted(failed)
    assert all("No space left on device" in line for line in told if "failed" in line)
    assert all("\n" not in line for line in told)
    lines = read_jsonl(run_dir / "metrics.jsonl")
    assert [line["charts/updates"] for line in lines] == list(range(1, trainer.updates + 1))
    assert len(read_jsonl(run_dir / "iterations" / "rank_0.jsonl")) == trainer.updates
    assert checkpoint.find(run_dir).name == f"step_{trainer.env_steps}"
    hr.load(run_dir)


def test_a_last_checkpoint_that_is_not_saved_ends_the_run_with_a_sentence(tiny, small):
    run_dir = small / "run"
    with pytest.raises(CheckpointError) as error:
        train(tiny(**SETTINGS, run_dir=str(run_dir)), {4: lambda: fill(small)})
    one_sentence(
        error.value,
        "last checkpoint could not be saved",
        "No space left",
        "latest saved checkpoint is",
    )
    (small / "filler").unlink()
    saved = int(checkpoint.find(run_dir).name[5:])
    assert f"step_{saved}" in str(error.value)
    assert 0 < saved < 640
    trainer, _ = train(resume_config(run_dir), {})
    assert trainer.env_steps >= 640


def test_a_removed_directory_is_told_and_the_last_checkpoint_makes_it_anew(tiny, tmp_path):
    at = {3: lambda: shutil.rmtree(tmp_path / "run")}
    trainer, told = train(tiny(**SETTINGS), at)
    assert sum("saving a checkpoint failed" in line for line in told) == 1
    assert "the folder was removed or renamed" in " ".join(told)
    assert checkpoint.find(tmp_path / "run").name == f"step_{trainer.env_steps}"
    resumed, _ = train(resume_config(tmp_path / "run", total_steps=1280), {})
    assert resumed.env_steps >= 1280


def test_learners_that_start_again_over_a_full_disk_go_on(tiny, small):
    run_dir, told = small / "run", []
    shape = {"num_learners": 2, "num_actors": 2, "max_restarts": 3, "log_iterations": True}
    config = tiny(**SETTINGS | {"total_steps": 10**9, "run_dir": str(run_dir)} | shape)
    with contextlib.closing(hr.LearnerGroup(config, notify=told.append)) as group:
        for result in group:
            if result.updates >= 2 and not group.num_restarts and checkpoint.exists(run_dir):
                fill(small)
                os.kill(group.pids()[1], signal.SIGKILL)
            if group.num_restarts and result.updates >= 6:
                (small / "filler").unlink(missing_ok=True)
                group.stop()
    assert group.num_restarts == 1
    assert any("No space left on device" in line for line in told), told
    assert checkpoint.find(run_dir).name == f"step_{result.env_steps}"


# -- the parts ------------------------------------------------------------------------------------


def test_every_write_of_a_save_may_fail_and_leaves_no_litter(tmp_path, monkeypatch):
    saved = parts()
    before = saved.save(tmp_path, 64)
    for name in ("fsync", "replace", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(CheckpointError) as error:
                saved.save(tmp_path, 128)
        one_sentence(error.value, tmp_path / "checkpoints", "No space left on device")
        assert {p.name for p in before.parent.iterdir()} == {"step_64", "latest"}
        saved.same(checkpoint.find(tmp_path))


@pytest.mark.parametrize("bytes_left", [0, 1, 100, 500, 1000])
def test_torchs_own_errors_hide_no_full_disk(tmp_path, monkeypatch, bytes_left):
    class Small:
        def __init__(self, file) -> None:
            self._file = file
            self._left = bytes_left if file.name.endswith("trainer.pt") else 10**9

        def __getattr__(self, name):
            return getattr(self._file, name)

        def write(self, data) -> int:
            self._left -= len(data)
            return self._file.write(data) if self._left >= 0 else full()

    hashing = atomic_files._Hashing
    monkeypatch.setattr(atomic_files, "_Hashing", lambda file: hashing(Small(file)))
    with pytest.raises(CheckpointError, match="No space left on device"):
        parts().save(tmp_path, 64)


def test_only_files_that_are_refused_should_be_removed(tmp_path):
    """The system's own EFBIG means a limit, such as ulimit -f, and the file is the run's."""
    for reason, remedy in (("it has 9 bytes", "remove it"), (os.strerror(errno.EFBIG), "disk")):
        named = atomic_files.checkpoint_errors(tmp_path / "metrics.jsonl")
        with pytest.raises(CheckpointError, match=f"{reason}.*{remedy}"), named:
            raise OSError(errno.EFBIG, reason)


def test_lines_are_added_whole_or_not_at_all(tmp_path, small):
    file = small / "lines"
    append(file, b"first\n")
    fill(small)
    with pytest.raises(CheckpointError, match="No space left on device"):
        append(file, bytes(10_000))
    assert file.read_bytes() == b"first\n"
    with pytest.raises(CheckpointError, match="/dev/full can't be written"):
        append(atomic_files.Path("/dev/full"), b"line\n")


def test_a_pointer_that_cannot_be_written_keeps_what_it_said(tmp_path, monkeypatch):
    saved = parts()
    first, second = saved.save(tmp_path, 64), saved.save(tmp_path, 128)
    checkpoint_writer.point("latest", first)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="latest can't be written"):
        checkpoint_writer.point("latest", second)
    assert checkpoint.find(tmp_path) == first


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), MemoryError()], ids=repr)
def test_errors_of_the_system_are_not_blamed_on_values(error, tmp_path):
    with pytest.raises(CheckpointError) as told, atomic_files.foreign_values(tmp_path):
        raise error
    assert "didn't write" not in str(told.value)

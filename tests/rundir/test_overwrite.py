"""``overwrite`` deletes what headrace wrote, and nothing if other files are there."""

from __future__ import annotations

import json
import shutil

import pytest

import headrace as hr
from headrace.errors import CheckpointError
from headrace.rundir import checkpoint, checkpoint_writer, directories


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run directory with all files of headrace."""
    run_dir = tmp_path_factory.mktemp("written") / "run"
    settings = {"transport": "serial", "envs_per_actor": 8, "fragment_length": 8, "num_actors": 1}
    settings |= {"total_steps": 128, "eval_interval": 64, "eval_episodes": 1, "learner_threads": 1}
    settings |= {"log_iterations": True, "checkpoint_interval": 64}
    hr.train("CartPole-v1", hr.PPO(epochs=1, minibatches=1), run_dir=str(run_dir), **settings)
    found = checkpoint.find(run_dir)
    described = checkpoint.read_config(found)
    checkpoint_writer.save_policy(run_dir, described, checkpoint.load_policy(found), 128)
    shutil.copytree(found, run_dir / "checkpoints" / "copy_64")  # of a member of a population
    left = run_dir / "checkpoints" / "step_256.tmp"  # as a kill leaves it
    left.mkdir()
    (left / "trainer.pt").write_bytes(b"")
    return run_dir


@pytest.fixture
def run(written, tmp_path):
    """Returns a copy of it."""
    return shutil.copytree(written, tmp_path / "run", symlinks=True)


def everything(folder) -> dict:
    return {p.relative_to(folder): p.stat(follow_symlinks=False).st_mtime_ns
            for p in folder.rglob("*")}  # fmt: skip


def test_all_that_headrace_writes_is_overwritten(run):
    directories.prepare(run, resume=False, overwrite=True).release()
    assert [path.name for path in run.iterdir()] == ["lock"]


@pytest.mark.parametrize("follow", [False, True], ids=["links", "folders"])
def test_runs_of_older_versions_and_copies_are_overwritten(run, follow):
    pointer = run / "checkpoints" / "latest"
    target = checkpoint.find(run)
    pointer.unlink()
    if follow:
        shutil.copytree(target, pointer)
    else:
        pointer.symlink_to(target.name)
    directories.prepare(run, resume=False, overwrite=True).release()
    assert [path.name for path in run.iterdir()] == ["lock"]


STRANGE = [
    "thesis.tex",
    "data/points.csv",
    "checkpoints/mine.pt",
    "checkpoints/step_64/notes.txt",
    "iterations/rank_0.csv",
    "empty/",
]


@pytest.mark.parametrize("name", STRANGE)
def test_what_headrace_did_not_write_keeps_everything_there(run, name):
    path = run / name
    (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
    if not name.endswith("/"):
        path.write_text("years of work")
    before = everything(run)
    with pytest.raises(CheckpointError) as error:
        directories.prepare(run, resume=False, overwrite=True)
    assert "\n" not in str(error.value)
    assert f"headrace did not write {name.rstrip('/')}" in str(error.value)
    assert "overwrite=True won't delete anything" in str(error.value)
    assert everything(run) == before


@pytest.mark.parametrize(
    "place", ["checkpoints", "iterations", "checkpoints/step_64", "metrics.jsonl"]
)
def test_links_out_of_the_directory_are_not_followed(run, tmp_path, place):
    path, elsewhere = run / place, tmp_path / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    before = everything(tmp_path)
    with pytest.raises(CheckpointError, match=f"did not write {place}"):
        directories.prepare(run, resume=False, overwrite=True)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "not json",
        '{"format": 3}',
        '{"model_type": "gpt2"}',
        '{"format": 1, "config": "x"}',
    ],
)
def test_a_folder_with_another_programs_config_is_no_run(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "checkpoints").mkdir()
    before = everything(tmp_path)
    with pytest.raises(CheckpointError, match="it is not a run directory"):
        directories.prepare(tmp_path, resume=False, overwrite=True)
    assert everything(tmp_path) == before


def test_the_directory_that_is_overwritten_trains_anew(run, tiny, finish):
    before = json.loads((run / "config.json").read_text())
    trainer, _ = finish(tiny(transport="serial", total_steps=64, overwrite=True))
    assert trainer.run_dir == run
    assert json.loads((run / "config.json").read_text()) != before
    assert not (run / "summary.json").exists()
    assert len(list(run.glob("checkpoints/step_*"))) == 1

"""Commands of jobs, and settings that are rejected before submission."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import main
from headrace.cli.launch import command_of
from headrace.errors import ConfigError

ROOT = Path(__file__).parents[2]
CARTPOLE = ["train", "appo", "--recipe", "cartpole"]


def headrace(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *words]


def test_a_run_is_begun_with_its_flags_and_goes_on_by_its_run_directory():
    begun = command_of(CARTPOLE, sys.executable, on_cluster=True, has_seeds=False)
    cluster = ["--cluster", "ray:{address}"]
    assert begun.words == headrace(*CARTPOLE, "--run-dir", "{run}", *cluster)
    assert begun.from_scratch == [*begun.words, "--overwrite"]
    assert begun.again == headrace("resume", "{run}", *cluster)
    replaces = command_of([*CARTPOLE, "--overwrite"], sys.executable, True, False)
    assert replaces.from_scratch == replaces.words
    alone = command_of([*CARTPOLE, "--run-dir=x"], sys.executable, on_cluster=False, has_seeds=True)
    assert alone.words == headrace(*CARTPOLE, "--seed", "{seed}", "--run-dir", "{run}")
    assert alone.run_dir == "x"
    resumed = command_of(["resume", "x", "--total_steps=9"], sys.executable, False, False)
    gone = ["--cluster", "None", "--min-actors", "None"]  # the cluster that it was begun on
    assert resumed.words == headrace("resume", "{run}", "--total-steps=9", *gone)
    assert resumed.from_scratch == resumed.again == resumed.words
    assert resumed.run_dir == "x"
    program = command_of(["python", "x.py"], "python", on_cluster=True, has_seeds=False)
    assert program.words == program.from_scratch == program.again == ["python", "x.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "needs a command behind --"),
        (["train", "apo"], "headrace train needs an algorithm first: a2c"),
        (["resume"], "headrace resume needs a run directory first: resume RUN"),
        (["resume", "runs/x"], "--array is for headrace train"),
        ([*CARTPOLE, "--fragment-length", "0"], "fragment_length=0 must be 1 or more"),
        ([*CARTPOLE, "--cluster", "ray"], "--cluster is set by headrace launch"),
        ([*CARTPOLE, "--seed", "3"], "--seed is set by --array"),
        (["train", "a3c", "--env-id", "CartPole-v1"], "cluster='ray:auto' must be None with a3c"),
        ([*CARTPOLE, "--transport", "serial"], "must be None with transport='serial' and one"),
        ([*CARTPOLE, "--inference", "shared"], "inference='shared' must be .* with cluster"),
    ],
)
def test_a_command_that_could_not_run_is_refused_before_it_is_submitted(words, says):
    with pytest.raises(ConfigError, match=says):
        command_of(words, sys.executable, on_cluster=True, has_seeds=True)


def test_a_run_directory_that_is_in_use_is_refused_before_it_is_submitted(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/config.json").touch()
    words = ["launch", "slurm", "--dry-run", "--", *CARTPOLE, "--run_dir", "runs/x"]
    assert main(words) == 2
    assert "run_dir='runs/x' exists already" in capsys.readouterr().err
    assert main([*words[:-1], "runs/y"]) == 0


def test_the_page_s_commands_are_understood(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for page in ("slurm", "kubernetes"):
        text = (ROOT / f"docs/{page}.md").read_text()
        [line] = [x for x in text.splitlines() if x.startswith("headrace launch")]
        flags, words = line.split(" -- ")
        assert main([*flags.split()[1:], "--dry-run", "--", *words.split()]) == 0
        assert "train" in capsys.readouterr().out


def test_a_device_that_only_the_nodes_have_is_no_reason_to_refuse():
    command = command_of(
        [*CARTPOLE, "--device", "cuda"], sys.executable, on_cluster=True, has_seeds=False
    )
    assert command.words[-6:-4] == ["--device", "cuda"]


def test_a_quiet_run_stays_quiet_when_it_goes_on():
    command = command_of([*CARTPOLE, "--quiet"], sys.executable, on_cluster=False, has_seeds=False)
    assert "--quiet" in command.words
    assert command.again == headrace("resume", "{run}", "--quiet")


def test_an_algorithm_of_a_module_can_be_launched():
    words = ["train", "headrace.algos:PPO", "--env-id", "CartPole-v1"]
    command = command_of(words, sys.executable, on_cluster=False, has_seeds=False)
    assert command.words[:7] == headrace(*words)


def test_settings_are_checked_for_the_place_where_they_are_to_hold():
    words = [*CARTPOLE, "--num-actors", "8", "--min-actors", "4"]
    assert command_of(words, sys.executable, on_cluster=True, has_seeds=False).trains
    with pytest.raises(ConfigError, match="min_actors=4 must be None without cluster"):
        command_of(words, sys.executable, on_cluster=False, has_seeds=False)
    words = ["train", "a3c", "--env-id", "CartPole-v1"]
    assert command_of(words, sys.executable, on_cluster=False, has_seeds=False).trains


@pytest.fixture
def on_lost_cluster(tiny):
    """Return the directory of a run that started on a cluster, which no longer exists."""
    config = tiny(algo=hr.APPO(), transport="serial")
    with hr.Trainer(config) as trainer:
        list(trainer)
    was = {"cluster": "ray:127.0.0.1:9", "min_actors": 1, "transport": "shm"}
    run_dir = Path(config.run_dir)
    for file in run_dir.rglob("SHA256SUMS"):
        file.unlink()
    for file in run_dir.rglob("config.json"):
        values = json.loads(file.read_text())
        values["config"] |= was
        file.write_text(json.dumps(values))
    return run_dir


def test_a_run_of_several_nodes_goes_on_with_one(on_lost_cluster, start):
    run_dir = str(on_lost_cluster)
    more = "--total-steps", "1280"
    done = start("-m", "headrace", "resume", run_dir, *more, shared=True)  # imports Ray: not here
    assert done.wait() == 2
    assert "nothing answers at '127.0.0.1:9'" in done.output
    assert "set --cluster None and --min-actors None; to continue on another one" in done.output
    words = ["train", "appo", "--resume", "--run-dir", run_dir, *more]
    for argv in (["resume", run_dir, *more], words):
        command = command_of(argv, sys.executable, on_cluster=False, has_seeds=False)
        given = [word.replace("{run}", run_dir) for word in command.words[3:]]
        assert main(given) == 0
    assert json.loads((on_lost_cluster / "summary.json").read_text())["env_steps"] >= 1280


def test_ray_that_is_not_installed_is_told_before_anything_is_submitted(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    flags = ["launch", "slurm", "--nodes"]
    assert main([*flags, "2", "--", *CARTPOLE]) == 2
    assert "headrace launch slurm needs ray, which isn't installed" in capsys.readouterr().err
    assert main([*flags, "1", "--", *CARTPOLE]) == 2  # which needs none
    assert "sbatch, srun" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["50%", "a\\b"])
def test_a_run_directory_that_slurm_would_read_otherwise_is_refused(capsys, name):
    words = ["launch", "slurm", "--dry-run", "--", *CARTPOLE, "--run-dir", f"runs/{name}"]
    assert main(words) == 2
    assert "must be without % and \\, which SLURM takes" in capsys.readouterr().err

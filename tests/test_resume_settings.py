"""A resumed run keeps its settings; explicit changes are applied and printed, or rejected."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.api import resume_config
from headrace.cli import main
from headrace.errors import CheckpointError, ConfigError
from headrace.rundir import checkpoint
from headrace.rundir.atomic_files import json_text
from headrace.rundir.config_file import check_resumed, from_json

STEPS = 64


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose settings are not the defaults."""
    run_dir = tmp_path_factory.mktemp("runs") / "a"
    config = hr.Config(
        "CartPole-v1",
        hr.PPO(learning_rate=3e-4, epochs=1, minibatches=2, gamma=0.97),
        network=hr.Network((16,)),
        engine="sync",
        transport="serial",
        num_actors=1,
        envs_per_actor=4,
        fragment_length=8,
        learner_threads=1,
        seed=3,
        total_steps=STEPS,
        eval_episodes=0,
        run_dir=str(run_dir),
    )
    with hr.Trainer(config) as trainer:
        list(trainer)
    return run_dir


@pytest.fixture
def run_dir(trained, tmp_path, monkeypatch):
    """Return a copy of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.actors.fleet.start_fork_server", lambda: None)
    monkeypatch.setattr("headrace.rundir.plot.plot", lambda runs: None)
    shutil.copytree(trained, "a", symlinks=True)
    return "a"


def settings_of(run_dir: str) -> dict:
    config = checkpoint.read_config(checkpoint.find(run_dir))["config"]
    parts = config.pop("network") | config.pop("algo")
    return config | parts


def test_resume_changes_what_is_named_and_nothing_else(run_dir, capsys):
    before = settings_of(run_dir)
    arguments = ["--learning-rate", "1e-5", "--gamma", "0.97", "--total-steps", str(2 * STEPS)]
    assert main(["resume", run_dir, *arguments]) == 0
    shown = capsys.readouterr().out
    assert f"resuming a with total_steps {STEPS} → {2 * STEPS}, learning_rate 0.0003 → 1e-05" in (
        shown.splitlines()
    )
    changed = {"total_steps": 2 * STEPS, "learning_rate": 1e-5, "resume": True}
    changed["run_dir"] = str(Path(run_dir).absolute())
    assert settings_of(run_dir) == before | changed

    line = ["train", "ppo", "--resume", "--run-dir", run_dir, "--total-steps", str(3 * STEPS)]
    assert main(line) == 0
    assert f"resuming a with total_steps {2 * STEPS} → {3 * STEPS}" in capsys.readouterr().out
    assert settings_of(run_dir) == before | changed | {"total_steps": 3 * STEPS}

    hr.resume(run_dir, learning_rate=2e-5, num_actors=2)
    shown = capsys.readouterr().out
    assert "resuming a with num_actors 1 → 2, learning_rate 1e-05 → 2e-05" in shown

    hr.train("CartPole-v1", resume=True, run_dir=run_dir, total_steps=4 * STEPS)
    after = settings_of(run_dir)
    assert (after["name"], after["epochs"], after["hidden"], after["num_actors"]) == (
        "ppo", 1, [16], 2,
    )  # fmt: skip
    assert after["total_steps"] == 4 * STEPS


def test_a_value_that_is_the_default_is_named_too(run_dir):
    assert resume_config(run_dir).algo.gamma == 0.97
    with pytest.MonkeyPatch.context() as patch:
        resumed = []
        patch.setattr(
            "headrace.cli.training.run", lambda config, started, quiet: resumed.append(config)
        )
        default = str(hr.PPO().gamma)
        assert main(["train", "ppo", "--resume", "--run-dir", run_dir, "--gamma", default]) == 0
        assert main(["resume", run_dir, "--gamma", default]) == 0
    assert [config.algo.gamma for config in resumed] == [hr.PPO().gamma] * 2
    assert [config.algo.epochs for config in resumed] == [1, 1]


def test_an_infinite_checkpoint_interval_survives_a_resume(run_dir):
    config = resume_config(run_dir, checkpoint_interval_s=math.inf)
    written = json.loads(json_text(config.to_json()))
    assert from_json(written) == config


REFUSED = {
    "another algorithm": (["train", "appo", "--resume", "--run-dir", "a"], ["trained with ppo"]),
    "no run": (["train", "ppo", "--resume"], ["needs run_dir"]),
    "a recipe": (
        ["train", "ppo", "--resume", "--run-dir", "a", "--recipe", "cartpole"],
        ["--recipe", "keeps the settings"],
    ),
    "a seed": (["resume", "a", "--seed", "5"], ["seed=5", "must be 3"]),
    "another layer": (["resume", "a", "--hidden", "16", "16"], ["hidden=(16, 16)", "(16,)"]),
    "a core": (["resume", "a", "--core", "lstm"], ["core='lstm'", "None"]),
    "another scale": (["resume", "a", "--no-scale-free"], ["scale_free=False", "True"]),
    "another optimiser": (["resume", "a", "--optimizer", "rmsprop"], ["optimizer='rmsprop'"]),
    "other statistics": (["resume", "a", "--normalize-returns"], ["normalize_returns=True"]),
    "other spaces": (
        ["resume", "a", "--env-id", "MountainCar-v0", "--total-steps", "200"],
        ["observation_space Box(", "can't be resumed on MountainCar-v0"],
    ),
    "a wrong value": (["resume", "a", "--learning-rate", "-1"], ["learning_rate=-1.0"]),
    "a typo": (["resume", "a", "--learning-rat", "1"], ["--learning-rate"]),
    "another's setting": (["resume", "a", "--max-lag", "1"], ["--max-lag"]),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_change_is_refused(run_dir, capsys, arguments, words):
    before = settings_of(run_dir)
    try:
        status = main(arguments)
    except SystemExit as end:  # what tyro tells itself
        status = end.code
    assert status == 2
    told = " ".join(capsys.readouterr().err.split())
    assert all(word in told for word in words), told
    assert "Traceback" not in told
    assert settings_of(run_dir) == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rat": 1.0}, ["'learning_rat'", "Did you mean 'learning_rate'"]),
        ({"hiden": (8,)}, ["Did you mean 'hidden'"]),
        ({"max_lag": 1}, ["APPO", "algorithm is PPO"]),
        ({"overwrite": True}, ["resume=True"]),
        ({"network": hr.Network((8,))}, ["hidden=(8,)"]),
        ({"seed": 4}, ["seed=4"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_keywords_of_resume_are_refused(run_dir, settings, words):
    with pytest.raises(ConfigError) as error:
        hr.resume(run_dir, **settings)
    assert all(word in str(error.value) for word in words), error.value


def test_settings_may_be_given_whole(run_dir):
    network = hr.Network((16,))  # which leaves what scale_free decided to the run
    config = resume_config(run_dir, algo=hr.PPO(epochs=2), network=network, clip=0.3)
    assert (config.algo.epochs, config.algo.clip, config.algo.gamma) == (2, 0.3, 0.99)
    assert config.network.normalize_observations is True
    with pytest.raises(CheckpointError, match="trained with ppo"):
        resume_config(run_dir, algo=hr.APPO())


@pytest.mark.parametrize("setting", ["stacked_frames", "fragment_length"])
def test_what_a_replay_holds_cannot_change(setting):
    values = {"stacked_frames": ("once", "whole"), "fragment_length": (8, 16)}[setting]
    for algo in (hr.IMPALA(replay_fraction=0.5), hr.IMPALA(), hr.IMPACT()):
        before, after = (hr.Config("Env", algo, run_dir="a", **{setting: x}) for x in values)
        if isinstance(algo, hr.IMPALA) and algo.replay_fraction:
            words = f"{setting}={values[1]!r} must be {values[0]!r} to resume a.*: the saved replay"
            with pytest.raises(ConfigError, match=words):
                check_resumed(before, after)
        else:
            assert f"{setting} {values[0]} → {values[1]}" in check_resumed(before, after)
        left = replace(after, **{setting: "auto"})
        assert check_resumed(before, left) == "resuming a"


def test_a_config_that_resumes_is_held_to_the_run_too(run_dir, capsys):
    whole = resume_config(run_dir)
    with pytest.raises(ConfigError, match="seed=4 must be 3"):
        hr.train(whole, seed=4)
    hr.train(whole)
    assert capsys.readouterr().out.splitlines()[0] == "resuming a"


def test_torchruns_number_of_learners_holds_unless_one_is_named(run_dir, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "x", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert resume_config(run_dir, batch_size=64, num_actors=2).num_learners == 2
    assert resume_config(run_dir, num_learners=1).num_learners == 1

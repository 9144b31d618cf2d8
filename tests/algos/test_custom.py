"""Custom algorithms from scripts, modules and packages train, resume and are validated."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from warm import headrace, run

import headrace as hr
from headrace.algos.common import policy_outputs, total_loss
from headrace.api import resume_config
from headrace.config.algorithms import find
from headrace.errors import CheckpointError
from headrace.learner.learner import Learner
from headrace.ops.losses import policy_gradient_loss
from headrace.ops.returns import gae
from headrace.rundir import resolve_imports
from headrace.rundir.config_file import flat_settings, from_json
from tests.learner.test_learner import make_policy

TINY = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "total_steps": 64}
TINY |= {"eval_episodes": 0, "transport": "serial"}
SCRIPT = '''
from dataclasses import dataclass

import headrace as hr
from headrace.algos.common import policy_outputs, total_loss
from headrace.ops.losses import policy_gradient_loss
from headrace.ops.returns import gae


@dataclass(frozen=True)
class Mine(hr.Hyperparameters):
    """Actor-critic."""

    bonus: float = 0.5
    """An additional setting."""

    def loss(self, policy, batch, state):
        outputs = policy_outputs(policy, batch)
        stream = batch.stream(outputs.value.detach())
        advantage, target = gae(*stream, gamma=self.gamma, lam=self.lam)
        policy_loss = policy_gradient_loss(outputs.log_prob, advantage, batch.valid)
        return total_loss(self, batch, outputs, policy_loss, target)


if __name__ == "__main__":
    sizes = dict(num_actors=2, envs_per_actor=2, fragment_length=8, eval_episodes=0)
    for run, algo in (("a", Mine(bonus=0.25)), ("b", "script.py:Mine")):
        hr.train("CartPole-v1", algo, total_steps=64, run_dir=f"runs/{run}", **sizes)
    hr.train("CartPole-v1", Mine(), num_learners=2, total_steps=64, run_dir="runs/c", **sizes)
    hr.resume("runs/a", total_steps=128, bonus=0.75)
'''
FLAGS = [
    *("--env-id", "CartPole-v1", "--num-actors", "1", "--envs-per-actor", "2"),
    *("--fragment-length", "8", "--total-steps", "64", "--eval-episodes", "0"),
    *("--transport", "serial"),
]


@dataclass(frozen=True)
class LossOnly(hr.Hyperparameters):
    """Has a loss and no terms."""

    bonus: float = 0.5

    def loss(self, policy, batch, state):
        outputs = policy_outputs(policy, batch)
        advantage, target = gae(*batch.stream(outputs.value.detach()), gamma=self.gamma, lam=1.0)
        policy_loss = policy_gradient_loss(outputs.log_prob, advantage, batch.valid)
        return total_loss(self, batch, outputs, policy_loss, target)


@dataclass(frozen=True)
class MyPPO(hr.PPO):
    """A built-in algorithm with another field."""

    extra: float = 2.0


class SameFields(hr.IMPALA):
    """Needs no decorator, since it has no fields."""


class Undecorated(hr.A2C):
    """A field that Python ignores, because the decorator is missing."""

    bonus: float = 0.5


@dataclass(frozen=True)
class Untyped(hr.A2C):
    """A default that Python ignores, because the type is missing."""

    learning_rate = 0.5


@dataclass(frozen=True)
class Reserved(hr.A2C):
    """Its field would overwrite the algorithm's name in config.json."""

    name: str = "x"


@dataclass(frozen=True)
class NoLoss(hr.Hyperparameters):
    """Can't train."""


def saved(run_dir: Path | str) -> dict:
    return json.loads((Path(run_dir) / "config.json").read_text())["config"]


@dataclass(frozen=True)
class Reporting(LossOnly):
    """Adds a number to the metrics of its loss."""

    def loss(self, policy, batch, state):
        loss, metrics = super().loss(policy, batch, state)
        return loss, metrics | {"entropy_twice": 2 * metrics["entropy"]}


@dataclass(frozen=True)
class Silent(LossOnly):
    """Reports none of the metrics that the learner reads."""

    def loss(self, policy, batch, state):
        return super().loss(policy, batch, state)[0], {"mine": 1.0}


@dataclass(frozen=True)
class Waiting(LossOnly):
    """Takes no optimiser step in its first updates, as before a replay buffer is full."""

    def init(self, policy):
        return super().init(policy) | {"updates": 0}

    def batches(self, policy, fresh, state, group):
        state["updates"] += 1
        batch = fresh()
        return [batch] if state["updates"] > 2 else []


def test_a_custom_algorithm_may_take_no_step_in_an_update(tmp_path):
    trainer = hr.Trainer(hr.Config("CartPole-v1", Waiting(), run_dir=tmp_path / "run", **TINY))
    assert len(list(trainer)) > 0
    assert trainer.learner.num_steps == trainer.updates - 2 > 0


@dataclass(frozen=True)
class Remembering(LossOnly):
    """Has a state that is unknown at first, and a tensor on the policy's device."""

    device: str = "cpu"

    def init(self, policy):
        return {"latest": None, "scale": torch.ones((), device=self.device)}


def test_a_resumed_custom_algorithm_has_its_state_on_its_device():
    saved, resumed = (Learner(make_policy(), Remembering(device=x)) for x in ("cpu", "meta"))
    saved.state |= {"latest": 0.25, "scale": torch.tensor(3.0)}
    resumed.load_state_dict(saved.state_dict())
    assert resumed.state["latest"] == 0.25
    assert resumed.state["scale"].device.type == "meta"
    saved.state["latest"], resumed.state["latest"] = torch.nn.Linear(1, 1), None
    resumed.load_state_dict(saved.state_dict())
    assert resumed.state["latest"] is None  # a dict in place of the object would be wrong


def test_what_a_custom_loss_reports_is_in_results_and_files(tmp_path):
    results = []
    hr.train("CartPole-v1", Reporting(), [results.append], run_dir=tmp_path / "run", **TINY)
    expected = pytest.approx(2 * results[-1].entropy)
    assert results[-1].metrics["losses/entropy_twice"] == expected
    written = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert written["losses/entropy_twice"] == expected


def test_a_loss_that_reports_too_little_is_told_what_to_return(tmp_path):
    with pytest.raises(hr.ConfigError, match=r"Silent reports no policy_loss, .*total_loss"):
        hr.train("CartPole-v1", Silent(), run_dir=tmp_path / "run", **TINY)


@pytest.mark.parametrize("algo", [LossOnly(bonus=0.25), MyPPO(extra=3.0), SameFields()])
def test_a_custom_algorithm_trains_resumes_and_loads(algo, tmp_path):
    run_dir = tmp_path / "run"
    hr.train("CartPole-v1", algo, run_dir=run_dir, **TINY)
    assert saved(run_dir)["algo"]["name"] == f"{__name__}:{type(algo).__name__}"
    again = resume_config(run_dir, total_steps=128)
    settled = again.algo.normalize_advantage  # which is left to the run
    assert again.algo == replace(algo, normalize_advantage=settled)
    hr.train(again)
    hr.resume(run_dir, total_steps=192, algo=algo)
    assert hr.load(run_dir).predict([0.0] * 4)[0] in (0, 1)


def test_a_script_defines_an_algorithm_that_other_processes_find(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    run(tmp_path, "script.py")
    algo = saved(tmp_path / "runs/a")["algo"]
    assert (algo["name"], algo["bonus"]) == ("__main__:Mine", 0.75)
    assert algo["file"] == str(tmp_path / "script.py")
    headrace(
        tmp_path,
        ["train", "script.py:Mine", "--bonus", "0.125", "--run-dir", "runs/d", *FLAGS],
        ["train", "script:Mine", "--run-dir", "runs/e", *FLAGS],
        ["resume", "runs/a", "--total-steps", "256", "--bonus", "0.375"],
        ["resume", "runs/d", "--total-steps", "128"],
        ["resume", "runs/e", "--total-steps", "128"],
        ["evaluate", "runs/b", "--episodes", "1"],
        ["plot", "runs/a", "runs/d"],
        ["report", "runs/a"],
        ["doctor", "runs/c"],
    )
    bonuses = [saved(tmp_path / "runs" / name)["algo"]["bonus"] for name in "abcde"]
    assert bonuses == [0.375, 0.5, 0.5, 0.125, 0.5]
    assert saved(tmp_path / "runs/d")["total_steps"] == 128


def test_help_lists_the_fields_of_a_custom_algorithm(tmp_path, monkeypatch, capsys):
    from headrace.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text(SCRIPT)
    with pytest.raises(SystemExit):
        main(["train", "other.py:Mine", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--bonus FLOAT" in said
    assert "An additional setting." in said


def test_an_installed_package_offers_algorithms(tmp_path, monkeypatch):
    info = tmp_path / "offers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.algorithms]\nmine = offers_mine:Mine\n")
    (tmp_path / "offers_mine.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    kind = find("mine")
    assert kind.__name__ == "Mine"
    config = hr.Config("CartPole-v1", "mine", **TINY)  # type: ignore[arg-type]
    assert config.algo == kind()
    assert config.to_json()["algo"]["name"] == "offers_mine:Mine"
    sys.modules.pop("offers_mine")


def test_a_name_is_enough():
    assert hr.Config(algo="ppo").algo == hr.PPO()  # type: ignore[arg-type]
    assert hr.Config(algo=f"{__name__}:MyPPO").algo == MyPPO()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        (NoLoss(), "NoLoss must define loss"),
        (hr.Hyperparameters(), "has no loss"),
        (Undecorated(), r"defines bonus, so it needs @dataclass\(frozen=True\)"),
        (Untyped(), r"'learning_rate: float = …'"),
        (Reserved(), "can't have the name 'name'"),
        (MyPPO, r"an instance: write MyPPO\(\)"),
        (object(), "custom subclass of hr.Hyperparameters|an instance of A2C"),
        ("pop", "Did you mean 'ppo'"),
        ("no_such_module:A", "No module named 'no_such_module'"),
        ("no_such.py:A", "no_such.py doesn't exist"),
        (f"{__name__}:SCRIPT", "must be a subclass of hr.Hyperparameters"),
    ],
)
def test_a_class_that_is_no_algorithm_is_refused_in_one_sentence(algo, words):
    with pytest.raises(hr.ConfigError, match=words) as caught:
        hr.train("CartPole-v1", algo)
    assert "\n" not in str(caught.value)
    assert "NoLoss or" not in str(caught.value)  # other custom classes are no advice


def test_an_algorithm_that_nobody_signed_is_not_imported(tmp_path):
    mark = tmp_path / "executed"
    run_dir = tmp_path / "run"
    hr.train("CartPole-v1", hr.A2C(), run_dir=run_dir, **TINY)
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w')\n{SCRIPT}")
    for sums in run_dir.rglob("SHA256SUMS"):
        sums.unlink()
    for file in {file.resolve() for file in run_dir.rglob("config.json")}:
        values = json.loads(file.read_text())
        values["config"]["algo"] |= {"name": "__main__:Mine", "file": str(evil)}
        file.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"algo=\['__main__:Mine'"):
        hr.resume(run_dir)
    config = saved(run_dir)
    with pytest.raises(hr.ConfigError):
        from_json(config)
    flat_settings(config)
    hr.load(run_dir)  # which needs no algorithm
    assert not mark.exists()


def test_a_run_of_another_algorithm_is_not_resumed(tmp_path):
    hr.train("CartPole-v1", MyPPO(), run_dir=tmp_path / "run", **TINY)
    with pytest.raises(CheckpointError, match=r"was trained with .*MyPPO"):
        hr.resume(tmp_path / "run", algo=LossOnly())
    with pytest.raises(CheckpointError, match=r"was trained with .*MyPPO"):
        hr.resume(tmp_path / "run", algo="ppo")


def test_settings_that_were_written_are_read_in_another_process():
    config = hr.Config(algo=MyPPO(extra=4.0))
    assert resolve_imports.config(json.loads(json.dumps(config.to_json()))) == config

"""Hyperparameters that change during training: schedules, and changes by callbacks."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from tries import few_of

import headrace as hr
from headrace import schedules
from headrace.errors import CheckpointError
from headrace.trainer.hyperparameters import CurrentHyperparameters

TINY = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 8, "eval_episodes": 0}
TINY |= {"transport": "serial", "log_interval_s": 0.0}
PPO = {"epochs": 1, "minibatches": 2}


def decay(left: float) -> float:
    """Falls to a tenth."""
    return 1e-3 * (0.1 + 0.9 * left)


def metrics(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def weights(policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (lambda left: 2e-3 * left, [2e-3, 1e-3, 0.0]),
        ("0:1e-3,0.5:3e-4,1:0", [1e-3, 3e-4, 0.0]),
        ([[0, 1e-3], [1_000, 1e-5]], [1e-3, 5.05e-4, 1e-5]),
        (((0, 1e-3), (500, 5e-4)), [1e-3, 5e-4, 5e-4]),
        (((500, 5e-4), (1_000, 1e-3)), [5e-4, 5e-4, 1e-3]),
    ],
)
def test_points_and_functions_give_the_value_of_each_step(given, values):
    current = CurrentHyperparameters(hr.PPO(learning_rate=given))
    found = [current.rates(steps, 1_000)[0] for steps in (0, 500, 1_000)]
    assert found == pytest.approx(values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.9, 0.5, 0.0]),
        ("cosine", [1.0, 0.5 + 0.5 * math.cos(0.1 * math.pi), 0.5, 0.0]),
        ("warmup", [0.1, 0.55, 1.0, 1.0]),
        ("warmup_linear", [0.1, 0.55, 0.625, 0.0]),
        ("warmup_cosine", [0.1, 0.55, 0.5 + 0.5 * math.cos(0.375 * math.pi), 0.0]),
    ],
)
def test_named_shapes_have_their_values(kind, values):
    algo = hr.PPO(learning_rate=1.0, lr_schedule=kind, lr_warmup=0.2)
    current = CurrentHyperparameters(algo)
    found = [current.rates(steps, 100)[0] for steps in (0, 10, 50, 100)]
    assert found == pytest.approx(values)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hr.PPO(learning_rate=lambda left: left - 0.5), "above 0 in all of its values"),
        (lambda: hr.PPO(gamma="0:0.9,1:1.1"), "gamma=0:0.9,1:1.1 must be at most 1"),
        (lambda: hr.PPO(clip=[[0, 0.2], [0, 0.1]]), "increasing x"),
        (lambda: hr.PPO(clip="0:0.2,x:0.1"), "points of x and value"),
        (lambda: hr.PPO(clip=[0.2, 0.1]), "points of x and value"),
        (lambda: hr.PPO(clip="0:0.2,1:nan"), "clip=0:0.2,1:nan must be a number"),
        (lambda: hr.PPO(clip=[[0, float("inf")], [1, 0.1]]), "clip=0:inf,1:0.1 must be at most"),
        (lambda: hr.PPO(learning_rate="cosine"), "set lr_schedule='cosine', or give points"),
        (lambda: hr.PPO(entropy_coef="linear"), "set entropy_schedule='linear'"),
        (lambda: hr.PPO(clip="linear"), "give points, as in"),
        (lambda: hr.PPO(learning_rate=lambda: 1e-3), "not a valid schedule: called with 1"),
        (lambda: hr.PPO(learning_rate=lambda left: "a"), "not a number"),
        (lambda: hr.PPO(epochs=lambda left: 3), "whole number"),
        (lambda: hr.PPO(learning_rate="0:1e-3,1:0", lr_schedule="cosine"), "left out"),
        (lambda: hr.PPO(kl_coef="0:1,1:0", kl_target=0.1), "None if kl_coef is a schedule"),
        (lambda: hr.IMPALA(replay_fraction="0:0.1,1:0.5"), "can't be a schedule"),
        (lambda: hr.PPO(gamma="0:0.9,1:0.99", normalize_returns=True), "normalize_returns"),
        (lambda: hr.IMPALA(rho_bar="0:1,1:0.5"), "at least c_bar=1.0"),
        (lambda: hr.PPO(lr_schedule="cosin"), "cosine"),
    ],
)
def test_a_schedule_is_refused_where_any_of_its_values_is_wrong(make, words):
    with pytest.raises(hr.ConfigError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_value_that_is_wrong_only_during_training_ends_the_run_with_its_name(tmp_path):
    spike = lambda left: -1.0 if 0.5 < left < 0.505 else 1e-3  # noqa: E731  # between the samples
    with pytest.raises(hr.ConfigError, match=r"learning_rate=-1.0 must be above 0"):
        CurrentHyperparameters(hr.PPO(learning_rate=spike)).rates(497, 1_000)


def test_current_values_are_logged_and_used(tmp_path):
    algo = hr.PPO(**PPO, learning_rate=decay, clip="0:0.2,1:0.1", entropy_coef=[[0, 0.1], [400, 0]])
    hr.train("CartPole-v1", algo, run_dir=tmp_path / "run", total_steps=320, **TINY)
    lines = metrics(tmp_path / "run")
    assert len(lines) > 5
    for line in lines:
        left = max(0.0, 1 - line["env_steps"] / 320)
        assert line["charts/learning_rate"] == pytest.approx(decay(left))
        assert line["charts/clip"] == pytest.approx(0.1 + 0.1 * left)
        assert line["charts/entropy_coef"] == pytest.approx(0.1 - 0.1 * line["env_steps"] / 400)


NAMES = ("clip", "max_grad_norm", "value_coef", "optimizer_eps", "gamma", "kl_coef")


@pytest.mark.parametrize(
    ("name", "fused"),
    few_of([(name, False) for name in NAMES], [*((name, True) for name in NAMES), ("clip", False)]),
)
def test_each_update_computes_with_the_present_values(name, fused, tmp_path):
    def trained(value: object) -> torch.Tensor:
        algo = hr.PPO(**PPO, fused=fused, **{name: value})
        where = {"run_dir": tmp_path / "run", "overwrite": True}
        return weights(hr.train("CartPole-v1", algo, total_steps=128, **where, **TINY))

    flat = {"clip": 1e-3, "max_grad_norm": 0.1, "gamma": 0.5, "optimizer_eps": 0.1}
    value = flat.get(name, 2.0)
    constant = trained(value)
    assert torch.equal(constant, trained([[0, value], [1, value]]))
    other = trained([[0, value], [1, value / 4]])
    assert not torch.equal(constant, other)


def test_the_penalty_of_impact_follows_its_schedule(tmp_path):
    def trained(name: str, value: object) -> torch.Tensor:
        algo = hr.IMPACT(buffer_size=1, passes=5, kl_coef=value)
        return weights(
            hr.train("CartPole-v1", algo, run_dir=tmp_path / name, total_steps=128, **TINY)
        )

    constant = trained("constant", 2.0)
    assert torch.equal(constant, trained("points", "0:2,1:2"))
    assert not torch.equal(constant, trained("rises", "0:2,1:20"))


RESUMED = [
    hr.PPO(**PPO, learning_rate=decay, clip="0:0.2,1:0.1"),
    hr.PPO(**PPO, lr_schedule="warmup_cosine", entropy_coef=0.1, entropy_schedule="cosine"),
    hr.PPO(**PPO, learning_rate=[[0, 1e-3], [1_000, 1e-4]], kl_coef="0:0.1,1:0.5"),
    hr.APPO(**PPO, learning_rate="0:1e-3,1:0", rho_bar="0:2,1:1"),
    hr.IMPACT(buffer_size=1, passes=3, learning_rate=decay, kl_coef="0:0.1,1:0.5"),
]


@pytest.mark.parametrize("algo", few_of(RESUMED, [RESUMED[i] for i in (0, 1, 4)]))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(algo, tmp_path):
    stop = lambda result, trainer: result.env_steps < 128  # noqa: E731
    settings = {**TINY, "deterministic": True, "total_steps": 256, "checkpoint_interval": 128}
    whole = hr.train("CartPole-v1", algo, run_dir=tmp_path / "whole", **settings)
    hr.train("CartPole-v1", algo, [stop], run_dir=tmp_path / "parts", **settings)
    resumed = hr.resume(tmp_path / "parts")
    assert torch.equal(weights(whole), weights(resumed))


def test_a_callback_reads_and_sets_hyperparameters_and_a_resumed_run_keeps_them(tmp_path):
    seen = []

    def change(result, trainer):
        seen.append(trainer.hyperparameters["learning_rate"])
        if len(seen) == 2:
            trainer.set_hyperparameter("learning_rate", 5e-5)
            trainer.set_hyperparameter("clip", "0:0.3,1:0.1")

    run_dir, algo = tmp_path / "run", hr.PPO(**PPO, learning_rate=1e-3)
    hr.train("CartPole-v1", algo, [change], run_dir=run_dir, total_steps=256, **TINY)
    assert seen[0] > 5e-4
    assert set(seen[2:]) == {5e-5}
    assert metrics(run_dir)[-1]["charts/learning_rate"] == 5e-5
    assert "charts/clip" in metrics(run_dir)[-1]
    hr.resume(run_dir, total_steps=384)
    assert metrics(run_dir)[-1]["charts/learning_rate"] == 5e-5
    saved = json.loads((run_dir / "config.json").read_text())["config"]["algo"]
    assert (saved["learning_rate"], saved["lr_schedule"]) == (5e-5, "constant")
    assert saved["clip"] == "0:0.3,1:0.1"


def test_a_callback_that_repeats_a_change_makes_it_once(tmp_path, capsys):
    def change(result, trainer):
        trainer.set_hyperparameter("learning_rate", 5e-5)

    sizes = TINY | {"run_dir": tmp_path / "run", "total_steps": 256}
    hr.train("CartPole-v1", hr.PPO(**PPO, learning_rate=1e-3), [change], **sizes)
    assert len(metrics(tmp_path / "run")) > 3
    assert capsys.readouterr().out.count("→ 5e-05 after") == 1


@pytest.mark.parametrize(
    ("algo", "name", "value", "words"),
    [
        ({}, "learning_rat", 1.0, "learning_rate"),
        ({}, "epochs", 3, "not a float hyperparameter"),
        ({}, "learning_rate", -1.0, "above 0"),
        ({}, "lr_warmup", 0.5, "used at the start"),
        ({"normalize_returns": True}, "gamma", 0.9, "statistics of normalize_returns"),
        ({"kl_coef": 0.1, "kl_target": 0.01}, "kl_coef", 0.2, "kl_target adapts it"),
    ],
)
def test_a_callback_that_sets_what_can_not_be_is_refused(algo, name, value, words):
    with pytest.raises(hr.ConfigError, match=words):
        CurrentHyperparameters(hr.PPO(**algo)).set(name, value)


@dataclasses.dataclass(frozen=True)
class MyA3C(hr.A3C):
    """A built-in algorithm with another field."""

    bonus: float = 0.5


def test_a_field_that_actors_do_not_get_during_training_is_refused():
    current = CurrentHyperparameters(MyA3C())
    current.set("entropy_coef", 0.1)
    with pytest.raises(hr.ConfigError, match="actors get no hyperparameters of custom classes"):
        current.set("bonus", 1.0)


def test_several_learners_follow_schedules_and_changes_together(tmp_path):
    def change(result, trainer):
        trainer.set_hyperparameter("learning_rate", 5e-5)
        assert trainer.hyperparameters["learning_rate"] == 5e-5

    sizes = {"num_actors": 2, "envs_per_actor": 2, "fragment_length": 4, "eval_episodes": 0}
    sizes |= {"log_interval_s": 0.0, "num_learners": 2, "transport": "serial"}
    sizes |= {"total_steps": 1_664}  # 104 updates, of which the 100th compares the weights
    algo = hr.PPO(**PPO, learning_rate=decay, clip=lambda left: 0.1 + 0.1 * left)
    hr.train("CartPole-v1", algo, [change], run_dir=tmp_path / "run", **sizes)
    lines = metrics(tmp_path / "run")
    assert lines[0]["charts/learning_rate"] > 5e-5
    assert lines[-1]["charts/learning_rate"] == 5e-5
    assert lines[-1]["charts/clip"] < 0.2


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_the_actors_of_a3c_follow_schedules(transport, tmp_path):
    """Weights are constant while the rate is 0, and change after it rises at a third of the run."""

    def trained(name: str, points: object, entropy: object = "0:0.1,1:0.2") -> torch.Tensor:
        algo = hr.A3C(learning_rate=points, entropy_coef=entropy)
        settings = {**TINY, "transport": transport, "scale_free": False, "total_steps": 320}
        policy = hr.train("CartPole-v1", algo, run_dir=tmp_path / name, **settings)
        return weights(policy)

    if transport == "serial":  # where a run can be repeated
        entropies = {"falls": "0:0.1,1:0", "constant": "0:0.1,1:0.1", "number": 0.1}
        falls, constant, number = (trained(name, 1e-3, x) for name, x in entropies.items())
        assert torch.equal(constant, number)
        assert not torch.equal(constant, falls)
    still = trained("still", "0:0,1:0")
    assert torch.equal(still, trained("also", [[0, 0], [10_000, 0]]))
    assert not torch.equal(still, trained("rises", [[100, 0], [320, 1e-2]]))


def test_a_function_that_can_not_be_found_again_trains_and_is_asked_for_on_resume(tmp_path):
    run_dir = tmp_path / "run"
    algo = hr.PPO(**PPO, learning_rate=lambda left: 1e-3 * left)
    hr.train("CartPole-v1", algo, run_dir=run_dir, total_steps=64, **TINY)
    with pytest.raises(hr.ConfigError, match="in Python pass learning_rate again"):
        hr.resume(run_dir, total_steps=128)
    hr.resume(run_dir, total_steps=128, learning_rate=lambda left: 1e-3 * left)
    hr.resume(run_dir, total_steps=192, algo=algo)


def test_a_function_of_a_run_that_nobody_signed_is_not_imported(tmp_path):
    run_dir = tmp_path / "run"
    hr.train("CartPole-v1", hr.PPO(**PPO), run_dir=run_dir, total_steps=64, **TINY)
    for sums in run_dir.rglob("SHA256SUMS"):
        sums.unlink()
    for file in {file.resolve() for file in run_dir.rglob("config.json")}:
        values = json.loads(file.read_text())
        values["config"]["algo"]["clip"] = {"function": "os:getpid"}
        file.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="os:getpid"):
        hr.resume(run_dir)


def test_schedules_survive_json_and_constants_cost_nothing():
    algo = hr.APPO(learning_rate=[[0, 1.0123456789e-3], [12_345, 1.1e-5]], clip="0.25:0.2,1:0.1")
    values = json.loads(json.dumps(hr.Config(algo=algo).to_json()))["algo"]
    assert values["learning_rate"] == "0:0.0010123456789,12345:1.1e-05"
    assert hr.APPO(**{name: x for name, x in values.items() if name != "name"}) == algo
    assert CurrentHyperparameters(hr.PPO()).rates(50, 100)[1] == {}
    plain = hr.PPO()
    assert schedules.at_start(plain) is plain
    assert dataclasses.replace(algo, learning_rate=1e-3).learning_rate == 1e-3

"""Real runs with a planted problem: the doctor finds it during the run or at its end.

Each takes a second; ``benchmarks/doctor.py`` has all problems and the healthy recipes.
"""

from __future__ import annotations

import json

import gymnasium
import pytest
from worlds import SlowEnv

import headrace as hr
from headrace.api import resume_config
from headrace.rundir.curves import read_run
from headrace.rundir.health import conclude, findings

SMALL = {"num_actors": 1, "envs_per_actor": 8, "fragment_length": 16, "learner_threads": 1}
CARTPOLE = {"env": "CartPole-v1", "transport": "serial", "total_steps": 3_000}


class Worthless(gymnasium.RewardWrapper):
    """Every reward is 0."""

    def reward(self, reward):
        return 0.0


def worthless():
    return Worthless(gymnasium.make("CartPole-v1"))


class Noisy(gymnasium.RewardWrapper):
    """A reward that no observation predicts."""

    def reward(self, reward):
        return float(self.np_random.normal())


def noisy():
    return Noisy(gymnasium.make("CartPole-v1"))


class Fragile(gymnasium.Wrapper):
    """Fails at one step of 1,000, each time with another message."""

    def step(self, action):
        if self.np_random.random() < 1e-3:
            raise RuntimeError(f"it broke, {self.np_random.integers(10**9)}")
        return self.env.step(action)


def fragile():
    return Fragile(gymnasium.make("CartPole-v1"))


def endless():
    return gymnasium.make("Pendulum-v1", max_episode_steps=-1)


def slow():
    return SlowEnv(0.3)  # however busy the machine is that computes actions


FEW = {"epochs": 4, "minibatches": 4}
RUNS = {
    "timid": CARTPOLE | {
        "algo": hr.PPO(learning_rate=1e-8, max_grad_norm=1e-3, epochs=3, minibatches=1),
    },
    "worthless": CARTPOLE | {
        "env": worthless, "engine": "sync", "algo": hr.PPO(entropy_coef=10.0, **FEW)},
    "rash": CARTPOLE | {
        "algo": hr.PPO(learning_rate=0.03, lr_schedule="constant", **FEW), "total_steps": 4_000},
    "collapsed": CARTPOLE | {
        "algo": hr.A2C(learning_rate=0.1, lr_schedule="constant"), "total_steps": 4_000},
    "narrow": CARTPOLE | {"algo": hr.PPO(clip=5e-4, **FEW), "total_steps": 1_500},
    "blind": CARTPOLE | {
        "env": noisy, "engine": "sync", "algo": hr.PPO(epochs=4, minibatches=8)},
    "endless": CARTPOLE | {
        "env": endless, "algo": hr.PPO(epochs=1, minibatches=1), "fragment_length": 512,
        "envs_per_actor": 1, "total_steps": 4_000, "scale_free": False},
    "literal": CARTPOLE | {
        "env": "Pendulum-v1", "algo": hr.PPO(epochs=1, minibatches=1), "scale_free": False,
        "fragment_length": 64, "total_steps": 6_000},
    "slow": CARTPOLE | {
        "env": slow, "engine": "sync", "algo": hr.PPO(epochs=1, minibatches=1),
        "envs_per_actor": 1, "fragment_length": 2, "total_steps": 12},
    "fragile": {
        "env": fragile, "engine": "sync", "algo": hr.APPO(epochs=1, minibatches=1),
        "max_restarts": 50, "total_steps": 6_000},
}  # fmt: skip
ILLNESSES = {
    "timid": {"standstill", "gradient-clipped"},
    "worthless": {"flat-returns"},
    "rash": {"kl-high"},
    "collapsed": {"entropy-collapsed"},
    "narrow": {"clip-fraction"},
    "blind": {"value-blind"},
    "endless": {"endless-episodes"},
    "literal": {"returns-unnormalised"},
    "slow": {"environment-slow"},
}


@pytest.fixture(scope="module")
def ill(tmp_path_factory):
    """Trains a case by name, once, and returns its directory and the messages during the run."""
    done = {}

    def run(name):
        if name not in done:
            folder, told = tmp_path_factory.mktemp("ill") / name, []
            settings = SMALL | {"eval_episodes": 0, "log_interval_s": 0.0} | RUNS[name]
            config = hr.Config(run_dir=str(folder), **settings)
            with pytest.MonkeyPatch.context() as patched:  # what is drawn takes longer
                patched.setattr("headrace.evaluating.run_end.plot", lambda runs: None)
                patched.setattr("headrace.evaluating.run_end._report", lambda run_dir: None)
                with hr.Trainer(config, notify=told.append) as trainer:
                    list(trainer)
            done[name] = folder, told
        return done[name]

    return run


LONGER = ("slow", "worthless", "endless", "literal")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONGER)) for n in ILLNESSES]
)
def test_the_doctor_names_what_is_wrong(ill, name):
    folder, _ = ill(name)
    assert {one.finding.name for one in findings(read_run(folder))} >= ILLNESSES[name]


def test_each_finding_is_told_once_written_and_in_the_summary(ill):
    folder, told = ill("timid")
    spoken = [text for text in told if text.startswith("doctor: ")]
    lines = [json.loads(line) for line in (folder / "warnings.jsonl").read_text().splitlines()]
    assert len({line["name"] for line in lines}) == len(lines) == len(spoken)
    for line, text in zip(lines, spoken, strict=True):
        assert text == f"doctor: {line['text']}; usually fixed by: {line['remedy']}"
    summary = json.loads((folder / "summary.json").read_text())
    assert [one["name"] for one in summary["warnings"]] == [line["name"] for line in lines]
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["env_steps"]
    assert any(one["env_steps"] < last for one in lines)  # it was reported during training
    before = (folder / "warnings.jsonl").read_bytes()
    assert len(conclude(folder, told.append)) == len(lines)
    assert (folder / "warnings.jsonl").read_bytes() == before


def test_a_resumed_run_is_not_told_again_what_it_was_told(ill):
    folder, _ = ill("rash")
    before = (folder / "warnings.jsonl").read_text()
    told: list[str] = []
    config = resume_config(folder, total_steps=7_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.evaluating.run_end.plot", lambda runs: None)
        patched.setattr("headrace.evaluating.run_end._report", lambda run_dir: None)
        with hr.Trainer(config, notify=told.append) as trainer:
            list(trainer)
    assert "kl-high" in before
    assert not any("moves too far" in text for text in told)
    assert (folder / "warnings.jsonl").read_text().count("kl-high") == 1


@pytest.mark.slow  # its actors are processes
def test_the_doctor_counts_what_died(ill):
    folder, _ = ill("fragile")
    assert "actors-die" in {one.finding.name for one in findings(read_run(folder))}

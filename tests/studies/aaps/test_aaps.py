"""headrace bench aaps: its runs, its table, and a whole small study."""

from __future__ import annotations

import csv
import dataclasses
import json

import gymnasium
import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator

import headrace as hr
from headrace.cluster_env.settings import EnvConfig
from headrace.errors import ConfigError
from headrace.studies.aaps import command as aaps
from headrace.studies.aaps.command import COLUMNS, equal_intervals
from headrace.studies.aaps.run import PRESETS, THRESHOLDS, Aaps, PolicyAgent, cases_of, train


def row(threshold: float, syncs: float, sync: str = "adaptive") -> dict:
    return {"weight_sync": sync, "kl_threshold": threshold, "syncs_per_worker": syncs}


def test_the_papers_settings():
    paper = PRESETS["paper"]
    assert (paper.nodes, paper.envs_per_node, paper.total_steps) == (4, 64, 5_000_000)
    assert (paper.num_steps, paper.minibatches, paper.epochs) == (1024, 8, 30)
    assert (paper.learning_rate, paper.gamma, paper.lam) == (5e-4, 0.99, 0.95)
    assert paper.kl_thresholds == (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)
    assert sorted({*paper.kl_thresholds, EnvConfig.kl_threshold}) == [*THRESHOLDS]
    assert PRESETS["machine"].iterations >= 200


def test_runs_are_whole_rollouts():
    study = Aaps(nodes=2, envs_per_node=4, num_steps=8, total_steps=65)
    assert study.iterations == 2
    case = cases_of(study, [("adaptive", 0.5)])[1]
    assert (case["weight_sync"], case["kl_threshold"], case["seed"]) == ("adaptive", 0.5, 1)


@pytest.mark.parametrize(
    ("iterations", "evaluations", "expected"),
    [(20, 20, [*range(1, 21)]), (10, 3, [4, 7, 10]), (3, 50, [1, 2, 3]), (7, 1, [7])],
)
def test_evaluations_are_even_and_the_last_is_at_the_end(iterations, evaluations, expected):
    study = Aaps(nodes=1, envs_per_node=1, num_steps=1, total_steps=iterations)
    study = dataclasses.replace(study, evaluations=evaluations)
    found = [i for i in range(1, iterations + 1) if study.evaluated(i)]
    assert found == expected


def test_the_fixed_interval_spends_as_much_as_the_threshold():
    study = Aaps(kl_thresholds=(0.01, 0.1, 0.5), total_steps=100 * 4096)
    rows = [row(0.01, 25), row(0.01, 20), row(0.01, 15), row(0.1, 90), row(0.0, 3, "every-33")]
    assert equal_intervals(study, rows) == {0.01: 5, 0.1: 1}


def test_what_changes_a_run_changes_the_study():
    study = Aaps()
    for change in ({"epochs": 5}, {"env_id": "CartPole-v1"}, {"max_policy_lag": 3}):
        assert dataclasses.replace(study, **change).fingerprint != study.fingerprint
    for change in ({"repeats": 5}, {"seed": 7}, {"kl_thresholds": (0.3,)}, {"output": "x"}):
        assert dataclasses.replace(study, **change).fingerprint == study.fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kl_thresholds": ()}, "kl_thresholds"),
        ({"kl_thresholds": (0.1, 0.1)}, "different"),
        ({"kl_thresholds": (-0.1,)}, "kl_thresholds="),
        ({"nodes": 0}, "nodes=0"),
        ({"envs_per_node": 0}, "envs_per_node=0"),
        ({"env_id": "LunarLandr-v3"}, "LunarLander-v3"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(ConfigError, match=words):
        Aaps(**change)


def test_an_unknown_preset_is_named():
    with pytest.raises(ConfigError, match=r"preset='papr' is unknown.*paper"):
        aaps.main(["--preset", "papr"])


def test_the_agent_says_what_the_policy_does():
    torch.manual_seed(0)
    space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    policy = hr.Policy(space, gymnasium.spaces.Discrete(3))
    with torch.no_grad():
        policy.policy_head.weight.mul_(100.0)  # far from uniform
    agent, obs = PolicyAgent(policy), torch.rand(500, 4)
    action, log_prob = agent.act(obs)
    params, _, _ = policy(obs[None], torch.zeros(1, 500, dtype=torch.bool), ())
    expected = params[0].log_softmax(-1).gather(-1, action[:, None]).squeeze(-1)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(agent.distribution(obs).log_prob(action), expected)
    seen = torch.bincount(action, minlength=3) / 500
    torch.testing.assert_close(seen, params[0].softmax(-1).mean(0), atol=0.08, rtol=0.0)


def test_continuous_actions_are_refused():
    space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    with pytest.raises(ConfigError, match="one discrete action"):
        PolicyAgent(hr.Policy(space, space))


def events_of(folder) -> dict[str, dict[int, float]]:
    """Return the scalars of a run for TensorBoard: by name, numbers by step."""
    found = event_accumulator.EventAccumulator(str(folder)).Reload()
    names = found.Tags()["scalars"]
    return {name: {x.step: x.value for x in found.Scalars(name)} for name in names}


@pytest.mark.full
def test_ppo_learns_from_collected_rollouts(tmp_path):
    study = Aaps(
        env_id="worlds:IdentityEnv",
        engine="sync",
        nodes=1,
        envs_per_node=16,
        num_steps=16,
        total_steps=40 * 16 * 16,
        epochs=4,
        minibatches=4,
        learning_rate=1e-2,
        gamma=0.9,
        lam=0.9,
        entropy_coef=0.0,
        reward_scale=1.0,
        evaluations=4,
        eval_episodes=10,
    )
    adaptive = {"weight_sync": "adaptive", "kl_threshold": 0.005, "seed": 0}
    result = train(study, adaptive, tmp_path)
    told = events_of(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(1, 41))
    first = next(line["return"] for line in lines if line["return"] is not None)
    (every := tmp_path / "every").mkdir()
    best = train(study, adaptive | {"weight_sync": "every"}, every)
    assert result["eval_return"] > first
    assert first < result["final_return"] <= 8.0  # of whole episodes, whose best return is 8
    assert result["eval_return"] == pytest.approx(best["eval_return"], rel=0.05)
    assert best["syncs_per_worker"] == 40
    assert 1 < result["syncs_per_worker"] < 40
    assert lines[-1]["syncs"] == result["syncs_per_worker"]
    evaluated = {line["env_steps"]: line["evaluated"] for line in lines if line["evaluated"]}
    assert list(evaluated) == [lines[i]["env_steps"] for i in (9, 19, 29, 39)]
    assert lines[-1]["evaluated"] == result["eval_return"]
    assert told["eval/episodic_return"] == pytest.approx(evaluated)
    syncs = {line["env_steps"]: line["syncs"] for line in lines}
    assert told["sync/weights_per_worker"] == syncs
    assert sorted(syncs.values()) == list(syncs.values())
    measured = [line["divergence"] for line in lines]
    assert measured[0] is None
    assert result["max_divergence"] == max(measured[1:]) > 0.0
    assert best["max_divergence"] is None
    assert sum(line["env_steps"] > 0 for line in lines) == 40


@pytest.mark.usefixtures("forked_children")
def test_a_whole_study_and_its_second_start(tmp_path, capsys, monkeypatch):
    drawn, draw = {}, aaps.draw_curves

    def record(panels, title, ylabel, path):
        drawn[path.name] = ylabel, panels
        draw(panels, title, ylabel, path)

    monkeypatch.setattr(aaps, "draw_curves", record)
    flags = ["--env-id", "CartPole-v1", "--total-steps", "512", "--num-steps", "16"]
    flags += ["--nodes", "1", "--envs-per-node", "8", "--epochs", "1", "--minibatches", "2"]
    flags += ["--kl-thresholds", "0.0", "1.0", "--repeats", "1", "--eval-episodes", "2"]
    flags += ["--output", str(tmp_path)]
    assert aaps.main(flags) == 0
    printed = capsys.readouterr().out
    assert "KL > 1" in printed
    assert "every-4" in printed  # one fetch in 4 iterations
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == 4  # every, two thresholds and the interval of one of them
    syncs = {r["weight_sync"] + r["kl_threshold"]: float(r["syncs_per_worker"]) for r in rows}
    assert (syncs["every0.0"], syncs["adaptive1.0"], syncs["every-40.0"]) == (4, 1, 1)
    for name in ("curves.png", "syncs.png", "summary.csv"):
        assert (tmp_path / name).stat().st_size > 0
    label, panels = drawn["curves.png"]
    assert "2 episodes" in label
    ((steps, returns),) = next(iter(panels.values()))["KL > 0"]
    (folder,) = (tmp_path / "runs").glob("*/adaptive-0-seed0")
    lines = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    assert steps == [line["env_steps"] for line in lines]  # 4 iterations, each with an evaluation
    assert returns == [line["evaluated"] for line in lines]
    assert aaps.main(flags) == 0
    assert "[  1/" not in capsys.readouterr().out  # nothing is measured again

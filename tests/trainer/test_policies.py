"""Runs of several policies: training, messages, files, evaluations and rejected settings."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from worlds import Apart, CountingGame, CountingTurns, Matching

import headrace as hr
from headrace import api
from headrace.cli import main
from headrace.envs.probe import probe
from headrace.errors import CheckpointError, ConfigError
from headrace.native.library import functions
from headrace.nn.multi_policy import MultiPolicy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.rundir import checkpoint
from headrace.rundir.files import read_jsonl

QUICK = hr.PPO(gamma=0.3, learning_rate=3e-2, epochs=2, minibatches=1)
SIZES = {"num_actors": 1, "envs_per_actor": 16, "fragment_length": 16}
SERIAL = {"transport": "serial", "log_interval_s": 0.0, **SIZES}


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize(("policies", "best"), [("shared", 0.0), ("per-agent", 8.0)])
def test_agents_that_see_the_same_learn_to_differ_only_with_policies_of_their_own(
    tmp_path, policies, best
):
    run = str(tmp_path / "run")
    how = {**SERIAL, "seed": 1, "eval_episodes": 4, "run_dir": run, "total_steps": 4_000}
    policy = api.run(hr.Config(Apart, QUICK, policies=policies, **how), draw=False)
    assert hr.evaluate(policy, Apart, 4).mean == best
    assert hr.evaluate(hr.load(run), Apart, 4).mean == best


def test_a_run_tells_of_each_policy_and_each_is_loaded(tmp_path, capsys):
    run, results = tmp_path / "run", []
    played_by = {"agent_0": "x", "agent_1": "y", "agent_2": "x"}
    how = {**SERIAL, "envs_per_actor": 12, "eval_episodes": 2, "total_steps": 800}
    team = hr.train(
        CountingGame,
        hr.PPO(epochs=1, minibatches=1),
        [results.append],
        policies=played_by,
        run_dir=str(run),
        **how,
    )
    last, line = results[-1], read_jsonl(run / "metrics.jsonl")[-1]
    assert min(r.time_wait for r in results) > 0.0  # not counted as learning
    x, y = (last.policies[name] for name in ("x", "y"))
    assert x.agents == ("agent_0", "agent_2")
    assert x.env_steps == sum(last.agents[name].env_steps for name in x.agents)
    assert x.env_steps + y.env_steps == last.env_steps
    assert x.episodes + y.episodes == last.episodes
    assert y.episode_return == last.agents["agent_1"].episode_return
    assert last.entropy == pytest.approx((x.entropy + y.entropy) / 2)
    assert x.entropy != y.entropy
    assert line["policies/y/entropy"] == y.entropy
    assert line["policies/y/episodic_return"] == y.episode_return
    summary = json.loads((run / "summary.json").read_text())
    assert summary["policies"]["x"]["episodes"] == x.episodes
    of, agents = (summary["evaluation"][kind] for kind in ("policies", "agents"))
    both = sorted(agents["agent_0"]["returns"] + agents["agent_2"]["returns"])
    assert sorted(of["x"]["returns"]) == both
    assert of["y"]["returns"] == agents["agent_1"]["returns"]
    assert same(hr.load(run), team)
    assert same(hr.load(run, policy="y"), team.policies["y"])
    with pytest.raises(ConfigError, match="policy='z' is unknown; choose x, y"):
        hr.load(run, policy="z")
    assert "policy x " in capsys.readouterr().out
    assert main(["evaluate", str(run), "--episodes", "2", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["policies"]) == {"x", "y"}
    with pytest.raises(ConfigError, match="they play agent_0, agent_1, agent_2, but it has"):
        hr.evaluate(team, CountingGame, 2, env_kwargs={"num_agents": 2})
    for other in ({"init_from": str(run)}, {"exploit": str(run)}):
        with pytest.raises(CheckpointError, match=r"has several policies \(x, y\), but a"):
            hr.Trainer(hr.Config(CountingGame, **other, run_dir=str(tmp_path / "other"), **how))
    with pytest.raises(CheckpointError, match="has several"):
        checkpoint.load_one(checkpoint.find(run))


def test_an_evaluation_plays_each_policy_in_its_seats(tmp_path):
    """Each policy answers with a constant: labels of a game show whose action was taken."""
    team = _constant(CountingGame, ("x", "y", "x"), {"x": 0, "y": 2})
    played = hr.evaluate(team, CountingGame, 3).agents
    for agent, action in {"agent_0": 0, "agent_1": 2, "agent_2": 0}.items():
        for mean, length in zip(played[agent].returns, played[agent].lengths, strict=True):
            assert mean % 1.0 == (0.25 * action * length) % 1.0
    turns = hr.evaluate(
        _constant(CountingTurns, ("x", "y", "x"), {"x": 0, "y": 2}), CountingTurns, 3
    )
    for agent, action in {"0": 0, "1": 2, "2": 0}.items():
        one = turns.agents[agent]
        for total, length in zip(one.returns, one.lengths, strict=True):
            assert total % 1.0 == (0.25 * action * length) % 1.0


def _constant(env, played_by, actions) -> MultiPolicy:
    """Return a multi-policy whose members always act the same."""
    found = probe(env, "sync", {}, 0)
    mapping = PolicyMapping(found.agents, played_by)
    team = MultiPolicy.of(mapping, found.observation_space, found.action_space, hr.Network((8,)))
    for name, member in team.policies.items():
        with torch.no_grad():
            member.policy_head.weight.zero_()
            member.policy_head.bias.copy_(10.0 * (torch.arange(3) == actions[name]))
    return team


class Renamed(Matching):
    possible_agents = ("first", "second")


def test_a_run_isnt_resumed_with_other_agents(tmp_path):
    how = {**SERIAL, "eval_episodes": 0, "run_dir": str(tmp_path / "run"), "total_steps": 256}
    api.run(hr.Config(Matching, QUICK, policies="per-agent", **how), draw=False)
    with pytest.raises(CheckpointError, match=r"left:left,right:right, so .* with first:first,sec"):
        hr.resume(tmp_path / "run", env=Renamed, total_steps=512)


@pytest.mark.parametrize("env", [Matching, CountingTurns])
def test_a_resumed_run_ends_with_the_weights_of_one_that_wasnt_interrupted(tmp_path, env):
    how = {**SERIAL, "deterministic": True, "seed": 2, "eval_episodes": 0, "policies": "per-agent"}
    how |= {"envs_per_actor": 12, "fragment_length": 8, "checkpoint_interval": 200}
    how |= {"network": hr.Network((8,), core="gru", core_size=4)}
    algo = hr.PPO(epochs=2, minibatches=2, normalize_returns=True, lr_schedule="constant")
    whole = hr.Config(env, algo, run_dir=str(tmp_path / "whole"), total_steps=500, **how)
    part = replace(whole, run_dir=str(tmp_path / "part"), total_steps=200)
    whole, _ = api.run(whole, draw=False), api.run(part, draw=False)
    part = api.run(api.resume_config(tmp_path / "part", total_steps=500), draw=False)
    assert same(whole, part)
    states = [checkpoint.load_trainer(checkpoint.find(tmp_path / run)) for run in ("whole", "part")]
    for name, one in states[0]["learner"]["policies"].items():
        other = states[1]["learner"]["policies"][name]
        assert one["num_steps"] == other["num_steps"] > 0
        assert str(one["optimizer"]) == str(other["optimizer"])
        assert str(one["returns"]) == str(other["returns"])
    with pytest.raises(ConfigError, match="policies='shared' must be 'per-agent' to resume"):
        hr.resume(tmp_path / "part", policies="shared", total_steps=900)


def test_policies_learn_the_same_over_either_transport(tiny, tmp_path):
    ends = []
    for transport in ("serial", "shm"):
        config = tiny(
            env=Matching, algo=hr.PPO(epochs=2, minibatches=1), policies="left:a,right:b",
            transport=transport, num_actors=2, envs_per_actor=4, fragment_length=8, total_steps=200,
            seed=4, eval_episodes=0, learner_threads=1, run_dir=str(tmp_path / transport),
        )  # fmt: skip
        with hr.Trainer(config) as trainer:
            list(trainer)
        ends.append(trainer.policy)
    assert same(*ends)


def test_actors_that_fetch_on_drift_are_told_of_all_policies(tiny):
    config = tiny(
        env=Matching, algo=hr.APPO(), policies="per-agent", transport="serial", total_steps=200,
        weight_sync="adaptive", kl_threshold=1e-9, eval_episodes=0, log_interval_s=0.0,
    )  # fmt: skip
    with hr.Trainer(config) as trainer:
        results = list(trainer)
    assert max(r.sync_divergence or 0.0 for r in results) > 0.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponents": "latest"}, "opponents='latest' must be None with policies='per-agent'"),
        ({"exploit": "runs/a"}, "exploit='runs/a' must be None with policies"),
        ({"init_from": "runs/a"}, "init_from='runs/a' must be None with policies"),
        ({"num_learners": 2}, "num_learners=2 must be 1 with policies"),
        ({"cluster": "ray"}, "cluster='ray' must be None with policies"),
        ({"inference": "shared"}, "inference='shared' must be 'auto' or 'actor' with several"),
        ({"tasks": (Matching, Apart)}, r"must be \(\) with policies"),
        (
            {"algo": hr.A3C()},
            "policies='per-agent' must be 'shared' with a3c, whose actors train one",
        ),
        ({"algo": hr.IMPACT()}, "policies='per-agent' must be 'shared' with impact, whose updates"),
        ({"policies": {"left": "a"}}, "policies='left:a' leaves out right of Matching"),
        ({"policies": "left:a,righd:b"}, "names 'righd', which isn't an agent of Matching"),
        ({"env": "CartPole-v1"}, "needs a game of several agents, and CartPole-v1 has one"),
        (
            {"network": hr.Network(core="gru"), "algo": hr.PPO(minibatches=8)},
            "minibatches=8 is more than the 4 environments that left plays in a batch",
        ),
    ],
)
def test_what_several_policies_cant_do_is_refused_in_a_sentence(tiny, settings, words):
    given = {"env": Matching, "policies": "per-agent", "num_actors": 1, "envs_per_actor": 8}
    with pytest.raises(ConfigError, match=words) as raised:
        hr.Trainer(tiny(**given | settings))
    assert "\n" not in str(raised.value)


def test_a_mapping_without_policies_is_refused_with_the_settings():
    with pytest.raises(ConfigError, match="names no policy for 'left'"):
        hr.Config(Matching, policies={"left": "", "right": "a"})


def test_acting_goes_the_quicker_way_inside_a_rollout():
    team = _constant(Matching, ("x", "y"), {"x": 0, "y": 2})
    with team.frozen_weights():
        compiled = functions(torch.float32) is not None
        assert all((x._native is not None) == compiled for x in team.policies.values())

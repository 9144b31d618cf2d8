"""Games whose agents' spaces differ: columns, actions and opponents."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from worlds import Unlike, UnlikeTurns

import headrace as hr
from headrace import api
from headrace.envs.make import make_vec
from headrace.envs.probe import probe
from headrace.errors import ConfigError
from headrace.nn.multi_policy import MultiPolicy
from headrace.rundir.video import record_video

SERIAL = {"transport": "serial", "num_actors": 1, "envs_per_actor": 24, "fragment_length": 16}
QUICK = hr.PPO(gamma=0.3, learning_rate=3e-2, epochs=2, minibatches=1)


@pytest.mark.parametrize("engine", ["sync", "async", "threads"])
def test_shorter_observations_end_in_zeros_and_masks_allow_an_agents_own_choices(engine):
    allowed = {"scout": [1, 1, 0, 0], "wolf": [1, 1, 1, 1], "pup": [1, 1, 1, 0]}
    with contextlib.closing(make_vec(Unlike, 2, engine)) as envs:
        assert envs.single_observation_space == Box(0.0, 1.0, (4,), np.float32)
        assert envs.single_action_space == Discrete(4)
        obs, infos = envs.reset(seed=0)
        for _ in range(6):
            masks = infos["action_mask"].reshape(2, 3, 4)
            seen = obs.reshape(2, 3, 4)
            for i, agent in enumerate(envs.agents):
                assert masks[:, i].tolist() == [allowed[agent]] * 2
            assert not seen[:, 0, 2:].any()
            assert not seen[:, 1, 3].any()
            assert (seen[:, 2, 3] == 1.0).all()
            assert (seen[:, :, :3].sum(-1) == 1.0).all()
            obs, *_, infos = envs.step(np.zeros(6, np.int64))


def test_masks_are_there_in_turns_before_those_who_need_them():
    found = probe(UnlikeTurns, "sync", {}, 0)
    assert found.info_mask
    with contextlib.closing(make_vec(UnlikeTurns, 1, "sync")) as envs:
        _, infos = envs.reset(seed=0)
        assert infos["action_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]]


@pytest.mark.parametrize("env", [Unlike, UnlikeTurns])
def test_a_mask_that_is_observed_is_filled_up(env):
    found = probe(env, "sync", {"mask": "obs"}, 0)
    found.check_step()
    assert found.observation_space["action_mask"].shape == (4,)
    with contextlib.closing(make_vec(env, 1, "sync", {"mask": "obs"})) as envs:
        obs, _ = envs.reset(seed=0)
        masks = dict(zip(envs.agents, obs["action_mask"].tolist(), strict=True))
        assert masks["pup"] == [1, 1, 1, 0]
        if env is Unlike:
            assert (masks["scout"], masks["wolf"]) == ([1, 1, 0, 0], [1, 1, 1, 0])


def test_actions_arrive_in_an_agents_own_space():
    made = []

    def create(**how: Any) -> Any:
        made.append(Unlike(**how))
        return made[-1]

    with contextlib.closing(make_vec(create, 1, "sync")) as envs:
        envs.reset(seed=0)
        envs.step(np.array([3, 3, 1]))
        assert made[-1].given == {"scout": 1, "wolf": 7, "pup": 1}
    with contextlib.closing(make_vec(create, 1, "sync", {"actions": "boxes"})) as envs:
        assert envs.single_action_space == Box(-1.0, 1.0, (3,), np.float32)
        envs.reset(seed=0)
        envs.step(np.array([[-1.0, 1.0, 9.0], [0.0, 1.0, 2.0], [-1.0, -1.0, -3.0]], np.float32))
        given = {agent: action.tolist() for agent, action in made[-1].given.items()}
    assert given == {"scout": [0.0, 2.0], "wolf": [1.5, 3.0, 3.0], "pup": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        pytest.param(Unlike, {}, marks=pytest.mark.full),
        pytest.param(Unlike, {"actions": "boxes"}, marks=pytest.mark.slow),
        (UnlikeTurns, {}),
    ],
)
def test_policies_of_their_own_learn_and_play_by_their_agents_spaces(tmp_path, env, kwargs):
    run = str(tmp_path / "run")
    how = {**SERIAL, "env_kwargs": kwargs, "eval_episodes": 0, "run_dir": run, "seed": 1}
    boxes = "actions" in kwargs
    how["total_steps"] = 8_000 if boxes else 4_000
    team = api.run(hr.Config(env, QUICK, policies="per-agent", **how), draw=False)
    played = hr.evaluate(hr.load(run), env, 4, env_kwargs=kwargs)
    least = 3.0 if boxes else 4.0
    assert min(one.mean for one in played.agents.values()) >= least, played
    assert played == hr.evaluate(team, env, 4, env_kwargs=kwargs)
    assert record_video(team, env, tmp_path / "film", 0, kwargs).stat().st_size > 0
    game = Unlike(**kwargs)
    for name in game.possible_agents:
        own = hr.load(run, policy=name)
        assert own.observation_space == game.observation_space(name)
        assert own.action_space == game.action_space(name)
        assert _score(own, game, name) >= least
    with pytest.raises(ConfigError, match=r"the policy can't play .*: its observation space is"):
        hr.evaluate(hr.load(run, policy="scout"), env, 1, env_kwargs=kwargs)


def _score(policy: hr.Policy, game: Unlike, agent: str) -> float:
    """Return a policy's return of a game from its observation; also for several observations."""
    obs, state, total = game.reset(seed=3)[0][agent], None, 0.0
    for _ in range(4):
        action, state = policy.predict(obs, state)
        assert np.array_equal(policy.predict(np.stack([obs, obs]))[0], [action, action])
        total += game._reward(agent, action)
        obs = game._seen(agent)
    return total


def test_who_plays_different_agents_takes_the_games_spaces(tmp_path):
    run = tmp_path / "run"
    how = {**SERIAL, "eval_episodes": 0, "run_dir": str(run), "total_steps": 400}
    config = hr.Config(Unlike, QUICK, policies="scout:a,wolf:b,pup:b", **how)
    api.run(config, draw=False)
    scout, both = (hr.load(run, policy=name) for name in ("a", "b"))
    assert scout.observation_space == Box(0.0, 1.0, (2,), np.float32)
    assert both.observation_space == Box(0.0, 1.0, (4,), np.float32)
    assert both.action_space == Discrete(4)
    first = dict(hr.load(run).named_parameters())
    more = api.run(api.resume_config(run, total_steps=800), draw=False)
    assert more.policies["a"].observation_space == scout.observation_space
    assert not all(torch.equal(x, first[name]) for name, x in more.named_parameters())


def test_a_predicted_action_is_one_that_the_mask_and_the_space_allow():
    found = probe(Unlike, "sync", {}, 0)
    mapping = hr.Config(Unlike, policies="per-agent").policy_mapping(found.agents, "Unlike")
    made = found.observation_space, found.action_space, hr.Network((8,)), True
    policy = MultiPolicy.of(mapping, *made, found.own_spaces).policies["wolf"]
    for mask, action in (([0, 1, 0, 0], 5), ([0, 0, 0, 1], 7)):
        assert policy.predict(np.zeros(3, np.float32), action_mask=np.array(mask))[0] == action
    scout = MultiPolicy.of(mapping, *made, found.own_spaces).policies["scout"]
    with torch.no_grad():
        scout.policy_head.bias.copy_(torch.tensor([1.0, 0.0, 2.0, 3.0]))
    assert scout.predict(np.zeros((3, 2), np.float32))[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("given", [{}, {"opponents": "latest:0.5,uniform:0.5"}])
def test_agents_whose_spaces_differ_cant_share_a_policy(tmp_path, given):
    config = hr.Config(Unlike, run_dir=str(tmp_path / "run"), **SERIAL, **given)
    words = (
        r"policies='shared' needs agents with the same spaces; for wolf of Unlike its "
        r"observation space is Box\(0.0, 1.0, \(3,\), float32\) "
        r"where scout's is Box\(0.0, 1.0, \(2,\), "
        "float32\\): give policies='per-agent'"
    )
    with pytest.raises(ConfigError, match=words) as raised:
        hr.Trainer(config)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()

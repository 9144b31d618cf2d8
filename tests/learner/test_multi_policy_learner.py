"""Several policies in one run: each trains as it would alone on its agents' columns."""

from __future__ import annotations

import copy
import dataclasses
import types

import pytest
import torch
from worlds import CountingGame, CountingTurns

import headrace as hr
from headrace.actors.actor import open_collector
from headrace.actors.collector import rollout_spec
from headrace.envs.probe import probe
from headrace.errors import ConfigError, NonFinite
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.learner.multi_policy_learner import MultiPolicyLearner
from headrace.nn import Network, Policy
from headrace.nn.multi_policy import AGENT, OWN, MultiPolicy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.ops import tree
from headrace.transport.slab import Slab
from headrace.types import Rollout

ALGOS = [
    hr.PPO(epochs=2, minibatches=2),
    hr.A2C(normalize_returns=True),
    hr.IMPALA(epochs=1, minibatches=1, replay_fraction=0.5, replay_capacity=8),
    hr.APPO(epochs=2, minibatches=2),
]


def team_of(env, played_by=("x", "y", "x"), **network) -> tuple[MultiPolicy, types.SimpleNamespace]:
    """Return random policies for three agents, and a function that fills rollouts."""
    found = probe(env, "sync", {}, 0)
    torch.manual_seed(0)
    mapping = PolicyMapping(tuple(map(str, found.agents)), played_by)
    shape = Network((16,), core_size=8, **network)
    spaces = found.observation_space, found.action_space
    team = MultiPolicy.of(mapping, *spaces, shape, found.info_mask)
    with torch.no_grad():
        for parameter in team.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    sizes = {"num_actors": 1, "envs_per_actor": 12, "fragment_length": 10}
    config = hr.Config(algo=hr.PPO(), engine="sync", seed=3, **sizes)
    spec = config.actor_spec(found.env, team, agents=found.agents)
    envs, collector = open_collector(spec, team)
    collector.reset(3)
    slab = Slab(rollout_spec(team, 10, 12, gamma=None), 1, 1)

    def fill() -> Rollout:
        slab.poison(0)
        collector.fill(Rollout(**slab.trees[0]), 0)
        return Rollout(**tree.map_leaves(torch.clone, slab.trees[0]))

    return team, types.SimpleNamespace(fill=fill, envs=envs)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def alone(batch, columns):
    """Return these columns of a multi-policy batch, by slices."""
    part = batch.columns(torch.tensor(columns))
    return dataclasses.replace(part, core=part.core[OWN])


@pytest.mark.parametrize(
    ("algo", "core"),
    [*((algo, None) for algo in ALGOS), (ALGOS[0], "lstm")],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_each_policy_learns_bit_for_bit_what_it_learns_alone(algo, core):
    team, acting = team_of(CountingGame, core=core, normalize_observations=True)
    apart = [copy.deepcopy(one) for one in team.policies.values()]
    torch.manual_seed(5)
    together = MultiPolicyLearner(team, algo)
    each = []
    for one in apart:
        torch.manual_seed(5)
        each.append(Learner(one, algo))
    columns = [[i for i in range(12) if i % 3 != 1], [1, 4, 7, 10]]
    for _ in range(3):
        rollout = acting.fill()
        rollout.discounted_return = rollout.reward.cumsum(0)
        batch = gather([rollout])
        metrics = together.update(lambda b=batch: b, 1e-2)
        own = [
            learner.update(lambda b=batch, at=at: alone(b, at), 1e-2)
            for learner, at in zip(each, columns, strict=True)
        ]
        assert metrics["policies/y/entropy"] == own[1]["entropy"]
        assert metrics["entropy"] == pytest.approx((own[0]["entropy"] + own[1]["entropy"]) / 2)
    for one, other in zip(team.policies.values(), apart, strict=True):
        assert same(one, other)
    assert not same(*apart)


class Twice(hr.A2C):
    """Trains on two batches in an update."""

    def batches(self, policy, fresh, state, group):
        yield fresh()
        yield fresh()


def test_an_algorithm_that_asks_for_a_second_batch_does_not_get_the_first_one_again():
    team, acting = team_of(CountingGame)
    batch = gather([acting.fill()])
    with pytest.raises(ConfigError, match=r"calls fresh\(\) once"):
        MultiPolicyLearner(team, Twice()).update(lambda: batch, 1e-2)


def test_no_gradient_of_a_policy_is_touched_by_anothers_columns():
    ends = []
    for noise in (0.0, 100.0):
        team, acting = team_of(CountingGame)
        learner = MultiPolicyLearner(team, hr.PPO(epochs=2, minibatches=2))
        batch = gather([acting.fill()])
        batch.reward[:, 1::3] += noise * torch.randn(10, 4)
        learner.update(lambda b=batch: b, 1e-2)
        ends.append(team.policies)
    (x, y), (other_x, other_y) = (end.values() for end in ends)
    assert same(x, other_x)
    assert not same(y, other_y)


@pytest.mark.parametrize("env", [CountingGame, CountingTurns])
@pytest.mark.parametrize("core", [None, "gru"])
def test_each_column_is_acted_in_by_its_agents_policy(env, core):
    """Learners compute the same probabilities in parallel and turn-based games."""
    team, acting = team_of(env, core=core, previous_action_reward=True)
    learner = MultiPolicyLearner(team, hr.A2C())
    for _ in range(3):
        batch = gather([acting.fill()])
        assert batch.core[AGENT].tolist() == [0, 1, 2] * 4
        numbers = batch.obs["observation"][:, :, 1]
        assert (numbers == torch.arange(12) % 3)[:-1][batch.valid].all()
        assert learner.log_ratio(batch)[batch.valid].abs().max() <= 1e-5


def test_a_policy_whose_agents_arent_there_learns_nothing():
    team, acting = team_of(CountingGame)
    learner = MultiPolicyLearner(team, hr.PPO(epochs=2, minibatches=2))
    before = copy.deepcopy(team)
    batch = gather([acting.fill()])
    batch.valid[:, 1::3], batch.first[1:, 1::3] = False, True
    metrics = learner.update(lambda: batch, 1e-2)
    assert same(team.policies["y"], before.policies["y"])
    assert not same(team.policies["x"], before.policies["x"])
    assert "policies/y/entropy" not in metrics
    assert metrics["entropy"] == metrics["policies/x/entropy"]


def test_what_isnt_finite_is_told_with_the_policys_name():
    team, acting = team_of(CountingGame)
    batch = gather([acting.fill()])
    batch.reward[:, 1::3] = float("nan")
    with pytest.raises(NonFinite, match=r"^policy y: "):
        MultiPolicyLearner(team, hr.PPO()).update(lambda: batch, 1e-2)


def test_lags_are_of_every_policys_optimiser_steps():
    team, acting = team_of(CountingGame)
    learner = MultiPolicyLearner(team, hr.PPO(epochs=2, minibatches=2))
    for version in range(2):
        learner.published(version)
        batch = gather([acting.fill()])
        batch.version[:] = version
        learner.update(lambda b=batch: b, 1e-2)
        lags = learner.take_lags()
        # Columns at each of 4 steps, which are 0 to 3 steps old.
        assert lags == {
            "num_lags": 48, "lag_sum": 0, "lag_steps_sum": 12 * 6, "lag_max": 0, "lag_steps_max": 3,
        }  # fmt: skip


def test_a_team_predicts_for_whole_games_and_a_policy_for_itself():
    team, _ = team_of(CountingGame)
    obs = torch.rand(6, 5).numpy()
    actions, state = team.predict(obs)
    for i, name in enumerate(("x", "y", "x")):
        own, _ = team.policies[name].predict(obs[i::3])
        assert (actions[i::3] == own).all()
    assert state[AGENT].tolist() == [0, 1, 2, 0, 1, 2]
    some = tree.map_leaves(lambda x: x[1:3], state)
    assert (team.predict(obs[1:3], some)[0] == actions[1:3]).all()
    for wrong in (obs[0], obs[:4]):
        with pytest.raises(ConfigError, match=r"give one of each agent .*game by game"):
            team.predict(wrong)
    with pytest.raises(ConfigError, match="several policies: export one"):
        team.export_onnx("a.onnx")
    assert isinstance(team.policies["x"], Policy)

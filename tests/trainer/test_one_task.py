"""A policy of several tasks plays one of them alone as it plays it among the others."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

import headrace as hr
from headrace.actors.task_adapter import one_task
from headrace.envs.names import Tasks, resolve
from headrace.envs.probe import probe
from headrace.envs.unified_tasks import UnifiedTask, join
from headrace.errors import ConfigError
from headrace.nn.policy import Policy
from headrace.spaces.masks import MASK

TASKS = ("CartPole-v1", "MountainCar-v0")
TOLD = {"task_id": True}
VECTORS = [
    (Box(-1.0, 1.0, (3,)), Discrete(2, start=5)),
    (Box(-1.0, 1.0, (2,)), Discrete(4)),
    (Box(-2.0, 1.0, (2,)), Discrete(3)),
]
FIELDS = [(Discrete(n), Discrete(n - 4)) for n in (9, 7)]
TORQUES = [(Box(-9.0, 9.0, (2,)), Box(-3.0, 5.0, (n,))) for n in (3, 1)]
PARTS = [
    (Dict(seen=Box(-1.0, 1.0, (n,)), said=Text(9, charset=letters)), Discrete(n))
    for n, letters in ((3, "ab"), (2, "cd"))
]


def policy_of(spaces, **network) -> tuple[Policy, Tasks]:
    """Return a policy whose actions depend on observations, and its unified tasks."""

    def named(name):
        def create():
            raise AssertionError

        create.__name__ = name
        return create

    creators = tuple(named(f"task{i}") for i in range(len(spaces)))
    tasks = join(Tasks(creators, bool(network)), spaces)
    whole = joined_env(tasks, spaces, 0)
    torch.manual_seed(0)
    shape = hr.Network((16,), normalize_observations=False, **network)
    policy = Policy(
        whole.observation_space, whole.action_space, shape, isinstance(whole.action_space, Discrete)
    )
    torch.nn.init.normal_(policy.policy_head.weight)
    policy.tasks, policy.task_spaces = tasks.names, tasks.own
    return policy, tasks


class Showing(gymnasium.Env):
    """Returns given observations, and records actions."""

    def __init__(self, spaces):
        self.observation_space, self.action_space = spaces
        self.shown = self.given = None

    def reset(self, *, seed=None, options=None):
        return self.shown, {}

    def step(self, action):
        self.given = action
        return self.shown, 0.0, False, False, {}


def joined_env(tasks, spaces, number) -> gymnasium.Env:
    """Return a task as training steps it."""
    env = Showing(spaces[number])
    for wrap in getattr(tasks.envs[number], "wrappers", ()):
        env = wrap(env)
    return env


@pytest.mark.parametrize("network", [{}, TOLD, {"per_task_values": True}])
@pytest.mark.parametrize("spaces", [VECTORS, FIELDS, TORQUES, PARTS])
def test_one_task_is_played_as_among_the_others(spaces, network):
    if network.get("per_task_values"):
        network = network | {"normalize_values": True}
    policy, tasks = policy_of(spaces, **network)
    chosen = set()
    for number, name in enumerate(policy.tasks):
        alone, env = one_task(policy, name), joined_env(tasks, spaces, number)
        assert (alone.observation_space, alone.action_space) == spaces[number]
        alone.observation_space.seed(1)
        for _ in range(20):
            env.unwrapped.shown = obs = alone.observation_space.sample()
            seen, info = env.reset()
            env.step(policy.predict(seen, action_mask=info.get(MASK))[0])
            action, _ = alone.predict(obs)
            np.testing.assert_array_equal(action, env.unwrapped.given)
            assert alone.action_space.contains(action)
            chosen.add((number, str(action)))
    assert len(chosen) >= 2 * len(spaces)  # they depend on what is seen
    assert policy.observation_space == env.observation_space  # and the whole policy is as it was


def test_one_task_shares_the_weights_of_the_whole():
    policy, _ = policy_of(VECTORS)
    alone, obs = one_task(policy, "task1"), np.zeros((5, 2), np.float32)
    with torch.no_grad():
        policy.policy_head.bias[:] = torch.tensor([0.0, 0.0, 0.0, 1e6])
    assert alone.predict(obs)[0].tolist() == [3] * 5  # a batch of them
    assert one_task(policy, "task0").predict(np.zeros(3, np.float32))[0] in (5, 6)


@pytest.fixture(scope="module", params=[{}, TOLD], ids=["blind", "told"])
def run(request, tmp_path_factory):
    """The folder of a short run of two tasks."""
    folder = tmp_path_factory.mktemp("tasks") / "run"
    how = {"envs_per_actor": 4, "fragment_length": 8, "total_steps": 640, "num_actors": 2}
    how |= {"transport": "serial", "eval_episodes": 0, "network": hr.Network(**request.param)}
    policy = hr.train(tasks=TASKS, algo=hr.A2C(learning_rate=1e-2), run_dir=str(folder), **how)
    assert policy.task_spaces == hr.load(folder).task_spaces
    assert len(policy.task_spaces) == 2
    return folder


def test_a_run_is_evaluated_on_one_of_its_tasks(run):
    policy = hr.load(run)
    together = probe(resolve(Tasks(TASKS, bool(policy.network.task_id))), "sync", {}, 0).env
    how = {"episodes": 1, "engine": "sync"}
    for name, env in zip(TASKS, together.envs, strict=True):
        assert isinstance(env.wrappers[0](gymnasium.make(name)), UnifiedTask)
        expected = hr.evaluate(policy, env, **how).returns
        alone = hr.load(run, task=name)
        assert hr.evaluate(alone, name, **how).returns == expected
        assert hr.evaluate(policy, name, **how).returns == expected
        assert hr.evaluate(policy, [name], **how).tasks[name].returns == expected
    turned = hr.evaluate(policy, list(TASKS[::-1]), **how)
    assert turned.tasks == hr.evaluate(policy, list(TASKS), **how).tasks
    assert alone.predict(np.zeros(2, np.float32))[0] in range(3)


@pytest.mark.parametrize("network", [{}, TOLD])
def test_what_training_returns_plays_its_tasks_too(network, tmp_path):
    """Includes tasks with equal actions, and the one whose spaces are the first."""
    tasks, how = ("MountainCar-v0", "Acrobot-v1"), {"episodes": 1, "engine": "sync"}
    sizes = {"num_actors": 2, "envs_per_actor": 4, "fragment_length": 8, "total_steps": 64}
    sizes |= {"transport": "serial", "eval_episodes": 0, "run_dir": str(tmp_path / "run")}
    policy = hr.train(tasks=tasks, algo=hr.A2C(), network=hr.Network(**network), **sizes)
    found, loaded = (
        hr.evaluate(one, list(tasks), **how) for one in (policy, hr.load(tmp_path / "run"))
    )
    assert found.tasks == loaded.tasks
    assert one_task(policy, tasks[0]).predict(np.zeros((3, 2), np.float32))[0].shape == (3,)


def test_the_session_of_the_page_plays_one_task(run, capsys):
    page = Path(__file__).parents[2].joinpath("docs/tasks.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n([^`]*hr\.load[^`]*)```", page)
    code = code.replace("runs/three", str(run)).replace("Acrobot-v1", TASKS[1])
    exec(code, {})
    assert -200.0 <= float(capsys.readouterr().out) < 0.0  # as in MountainCar


def test_who_isnt_a_task_of_it_is_refused(run):
    with pytest.raises(
        ConfigError, match=r"task='MountainCar-v2' is unknown; .* Did you mean 'Moun"
    ):
        hr.load(run, task="MountainCar-v2")
    with pytest.raises(ConfigError, match="the policy can't play Acrobot-v1: its observation"):
        hr.evaluate(hr.load(run), "Acrobot-v1", 1)


def test_a_checkpoint_without_the_tasks_spaces_plays_all_of_them_in_their_order(run):
    policy = hr.load(run)
    expected = hr.evaluate(policy, list(TASKS), 1, engine="sync").tasks
    policy.task_spaces = ()  # as of a policy made by hand
    assert hr.evaluate(policy, list(TASKS), 1, engine="sync").tasks == expected
    with pytest.raises(ConfigError, match="didn't save the tasks' spaces"):
        one_task(policy, TASKS[0])
    if policy.network.task_id:
        with pytest.raises(
            ConfigError, match="tasks=MountainCar-v0,CartPole-v1 must be in the order"
        ):
            hr.evaluate(policy, list(TASKS[::-1]), 1)


def test_a_run_of_one_environment_has_no_task(tiny, finish, tmp_path):
    finish(tiny(total_steps=64, transport="serial"))
    with pytest.raises(ConfigError, match=r"task='CartPole-v1' must be None: .*several tasks"):
        hr.load(tmp_path / "run", task="CartPole-v1")

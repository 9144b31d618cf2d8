"""ONNX files of one task's or agent's policy take and return what ``predict`` does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple

from headrace.actors.task_adapter import one_task
from headrace.envs.unified_tasks import _with_task
from headrace.nn.multi_policy import MultiPolicy
from headrace.nn.network import Network
from headrace.nn.onnx import named
from headrace.nn.policy import Policy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.spaces import unified_spaces
from tests.nn.test_onnx import sample, session_of
from tests.tries import few_of

PENDULUM = Box(-8.0, 8.0, (3,)), Box(-2.0, np.array([2.0], np.float32))
CAR = Box(-1.0, 1.0, (2,)), Box(-1.0, 5.0, (2,), np.float64)
LEFT = Box(-1.0, 1.0, (4,)), Discrete(5, start=3)
RIGHT = Box(-1.0, 1.0, (2,), np.float64), Discrete(3, start=-1)
SENSES = {
    "kind": Discrete(4, start=2),
    "mission": Text(5, charset="ab "),
    "both": Tuple([Box(-1.0, 1.0, (2,)), Box(0, 9, (2, 2), np.int64)]),
}
MAZE = Dict(SENSES), Discrete(2)
ROOM = Dict(SENSES | {"kind": Discrete(6, start=2)}), Discrete(4)
RECURRENT = {"core": "lstm", "core_size": 8, "previous_action_reward": True}


def strong(policy):
    with torch.no_grad():
        policy.policy_head.weight.mul_(100.0)
    return policy


def task_policy(spaces, number, info_mask=False, **network):
    torch.manual_seed(0)
    names, hint = tuple("ab"), "docs"
    observation, action = unified_spaces.joined(names, spaces, "tasks", hint, apart=True)
    if network.get("task_id") or network.get("per_task_values"):
        observation = _with_task(observation, 2)
    policy = strong(Policy(observation, action, Network(**network), info_mask))
    policy.tasks, policy.task_spaces = names, tuple(spaces)
    return one_task(policy, names[number])


def agent_policy(spaces, number):
    torch.manual_seed(0)
    agents = "first", "second"
    unified = unified_spaces.joined(agents, spaces, "agents", "docs")
    mapping = PolicyMapping(agents, agents)
    both = MultiPolicy.of(mapping, *unified, None, True, spaces)
    return strong(both.policies[agents[number]])


CASES = {
    "scaled": lambda i: task_policy([PENDULUM, CAR], i),
    "with its number": lambda i: task_policy([PENDULUM, CAR], i, task_id=True, **RECURRENT),
    "values apart": lambda i: task_policy(
        [PENDULUM, CAR], i, per_task_values=True, normalize_values=True
    ),
    "masked": lambda i: task_policy([LEFT, RIGHT], i, True, **RECURRENT),
    "nested": lambda i: task_policy([MAZE, ROOM], i, True, task_id=True),
    "agent": lambda i: agent_policy([LEFT, RIGHT], i),
}


FEW = [("with its number", 0), ("agent", 1)]


@pytest.mark.parametrize(("case", "number"), few_of([*itertools.product(CASES, (0, 1))], FEW))
def test_a_file_of_one_task_or_agent_has_its_own_spaces(tmp_path, case, number):
    policy = CASES[case](number)
    session = session_of(policy.export_onnx(tmp_path / "policy.onnx"))
    names = [one.name for one in session.get_outputs()]
    inputs = {one.name: one for one in session.get_inputs()}
    carried = {k: np.zeros((4, *x.shape[1:]), np.float32) for k, x in inputs.items()
               if k.startswith(("state", "previous"))}  # fmt: skip
    if "previous_action" in carried and isinstance(policy.action_space, Discrete):
        carried["previous_action"] = carried["previous_action"].astype(np.int64)
    state, given, rng = None, {}, np.random.default_rng(0)
    for t in range(4):
        obs = sample(policy.observation_space, 4, t)
        feed = named({"obs": policy.inputs.words.read(policy.observation_space, obs)
                      if policy.inputs.words else obs}) | carried  # fmt: skip
        if "action_mask" in inputs:
            mask = rng.random((4, policy.action_space.n)) < 0.5
            mask[:, t % 2] = True
            feed["action_mask"] = given["action_mask"] = mask
        if "first" in inputs:
            feed["first"] = np.full(4, t == 0)
        outputs = dict(zip(names, session.run(None, feed), strict=True))
        action, state = policy.predict(obs, state, **given)
        assert outputs["action"].dtype == action.dtype
        np.testing.assert_allclose(outputs["action"], action, rtol=1e-5, atol=1e-5)
        carried = {k.removeprefix("next."): x for k, x in outputs.items() if k[:5] == "next."}
        if policy.inputs.previous:
            given["reward"] = carried["previous_reward"] = rng.normal(size=4).astype(np.float32)

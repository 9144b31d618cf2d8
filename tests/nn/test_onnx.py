from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import batch_space
from torch import nn

from headrace.errors import ConfigError
from headrace.nn.activations import ACTIVATIONS, Activation
from headrace.nn.network import Network
from headrace.nn.onnx import _PaddedText, _Step, named
from headrace.nn.policy import Policy
from headrace.nn.predict import inputs_of
from headrace.nn.text import TextEncoder
from tests.nn import test_large_offsets as large_offsets
from tests.nn import test_unknown_parts as unknown_parts
from tests.nn.test_recurrent import CORES, make, pattern
from tests.tries import few_of

VECTOR = Box(-2.0, 2.0, (4,))
ACTIONS = {
    "box": Box(-0.3, np.array([0.2, 0.4], np.float32)),
    "arm": Tuple([Discrete(3, start=-1), MultiDiscrete([[2, 3], [3, 2]])]),
    "bits": MultiBinary(3),
}
SENSES = {
    "action_mask": Box(0, 1, (5,), np.int8),
    "camera": Box(0, 255, (20, 24, 3), np.uint8),
    "command": MultiDiscrete([6] * 2),
    "map": Box(0, 3, (20, 22, 2), np.uint8),
    "mission": Text(4, charset="abc "),
    "place": Tuple([Box(-1.0, 1.0, (2, 2), np.float64), Discrete(3, start=5)]),
    "switches": MultiBinary(2),
}


def policy_for(observation_space, action_space, **network) -> Policy:
    """Return a policy whose outputs differ clearly between observations."""
    torch.manual_seed(0)
    policy = Policy(observation_space, action_space, Network(**network))
    with torch.no_grad():
        policy.policy_head.weight.mul_(100.0)
        if policy.log_std is not None:
            policy.log_std.normal_()
    return policy


def sample(space, count, seed):
    batch = batch_space(space, count)
    batch.seed(seed)
    return batch.sample()


def nonsense(x, count):
    """Return an arbitrary initial state, which ``first`` must clear."""
    x = np.repeat(x[:1].numpy(), count, 0)
    return np.full(x.shape, np.nan if x.dtype.kind == "f" else 99, x.dtype)


def feed_of(policy, obs) -> dict[str, np.ndarray]:
    obs = dict(obs) if isinstance(obs, dict) else obs
    mask = obs.pop("action_mask") if policy.inputs.mask == "observation" else None
    if policy.inputs.words is not None:
        obs = policy.inputs.words.read(policy.inputs.observation_space, obs | {"action_mask": mask})
        obs = {key: value for key, value in obs.items() if key != "action_mask"}
    feed = named({"obs": obs})
    return feed if mask is None else feed | {"action_mask": mask.astype(bool)}


def run_both(policy, session, count, steps=10):
    """Yield the answers of onnxruntime and of the policy step by step, as flat dicts."""
    rng = np.random.default_rng(count)
    outputs = [o.name for o in session.get_outputs()]
    example = _Step(policy).example
    carried = named({k: v for k, v in example.items() if k in ("previous_action", "state")})
    carried = {k: nonsense(v, count) for k, v in carried.items()}
    state, reward = None, np.full(count, np.nan, np.float32)
    for t in range(steps):
        first = np.full(count, True) if t == 0 else rng.random(count) < 0.3
        obs = sample(policy.observation_space, count, 100 * count + t)
        feed = feed_of(policy, obs) | carried
        if carried:
            feed["first"] = first
        if policy.inputs.previous:
            feed["previous_reward"] = reward
        onnx = dict(zip(outputs, session.run(None, feed), strict=True))
        kwargs = {"episode_start": first} if carried else {}
        given = reward if t else None
        inputs, core = inputs_of(policy, obs, state, first, None, given)
        with torch.inference_mode():
            params, _ = policy.act(inputs, torch.as_tensor(first), core)
        action, state = policy.predict(obs, state, reward=given, **kwargs)
        ours = {"action": action, "params": params.numpy()}
        if policy.inputs.previous:
            ours["next"] = {"previous_action": state["action"], "state": state["core"]}
        elif policy.core is not None:
            ours["next"] = {"state": state}
        yield onnx, named(ours)
        carried = {k.removeprefix("next."): v for k, v in onnx.items() if k.startswith("next.")}
        reward = rng.normal(size=count).astype(np.float32) * 2


def assert_same(onnx, ours):
    assert list(onnx) == list(ours)
    for name, value in ours.items():
        value = np.asarray(value)
        assert onnx[name].shape == value.shape, name
        assert onnx[name].dtype == value.dtype, name
        np.testing.assert_allclose(onnx[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def session_of(path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


CASES = {
    "normalised, discrete": (VECTOR, Discrete(3), {"normalize_observations": True}),
    "scaled": (VECTOR, Box(-3.0, 1.0, (2, 2)), {"scale_actions": True}),
    "squashed": (VECTOR, Box(-3.0, 1.0, (2, 2), np.float64), {"squash_actions": True}),
    "clipped and nested actions, GRU, previous action and reward": (
        VECTOR,
        Dict(ACTIONS),
        {"core": "gru", "core_size": 16, "previous_action_reward": True},
    ),
    "clipped symbols": (
        Box(0, 255, (7, 7, 3), np.uint8),
        Discrete(3),
        {"one_hot": ("obs",), "num_symbols": 128, "clip_symbols": True},
    ),
    "nested observations, image, text, mask, LSTM": (
        Dict(SENSES),
        MultiDiscrete([2, 3]),
        {
            "core": "lstm",
            "core_size": 16,
            "conv": "impala_shallow",
            "text": ("command",),
            "max_words": 3,  # an export unrolls the LSTM
            "one_hot": ("map",),
            "normalize_images": True,
        },
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith("nested obs") else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_onnxruntime_gives_what_predict_gives_for_any_batch(name, tmp_path, capfd):
    observation_space, action_space, network = CASES[name]
    policy = policy_for(observation_space, action_space, **network)
    if network.get("normalize_observations"):
        policy.take(policy.moments(torch.randn(50, 4, 4) * 3 + 1))
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    path = policy.export_onnx(tmp_path / "new" / "policy.onnx")
    assert path == tmp_path / "new" / "policy.onnx"
    assert [p.name for p in path.parent.iterdir()] == ["policy.onnx"]
    assert capfd.readouterr() == ("", "")
    assert policy.training
    assert all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())
    session = session_of(path)
    assert all(x.shape[0] == "batch" for x in (*session.get_inputs(), *session.get_outputs()))
    seen = set()
    for count in (1, 7):
        for onnx, ours in run_both(policy, session, count):
            assert_same(onnx, ours)
            seen |= {value.tobytes() for k, v in onnx.items() if "action" in k for value in v}
    assert len(seen) > 2, "these inputs all have the same action: they prove nothing"


def test_names_say_what_is_meant():
    def names(policy):
        step = _Step(policy)
        return list(named(step.example)), step.output_names

    network = {"core": "lstm", "previous_action_reward": True}
    inputs, outputs = names(policy_for(Tuple([VECTOR, Discrete(2)]), Dict(ACTIONS), **network))
    actions = ["arm.0", "arm.1", "bits", "box"]
    assert inputs == [
        "obs.0",
        "obs.1",
        *(f"previous_action.{a}" for a in actions),
        "previous_reward",
        "first",
        "state.h",
        "state.c",
    ]
    assert outputs == [
        *(f"action.{a}" for a in actions),
        "params",
        *(f"next.previous_action.{a}" for a in actions),
        "next.state.h",
        "next.state.c",
    ]
    assert names(policy_for(VECTOR, Discrete(2))) == (["obs"], ["action", "params"])
    masked, _ = names(policy_for(Dict({"action_mask": MultiBinary(2), "x": VECTOR}), Discrete(2)))
    assert masked == ["obs.x", "action_mask"]


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(ConfigError, match=r"two parts of a space have the name 'obs\.a\.b'"):
        named({"obs": {"a": {"b": 1}, "a.b": 2}})


@pytest.mark.parametrize(
    "network", [{}, {"squash_actions": True}, {"scale_actions": True}], ids=str
)
@pytest.mark.parametrize(
    "space",
    [
        Box(-1.0, 0.1, (), np.float32),
        Box(-0.5, np.array([[0.1], [0.7]]), dtype=np.float64),
        Box(-0.5, 0.5, (2,), np.float16),
        Box(np.array([-np.inf, -0.1, -np.inf]), np.array([np.inf, np.inf, 0.1])),
        Discrete(4, start=-2),
        MultiDiscrete([3, 2], start=[1, -5]),
        MultiBinary([2, 2]),
        Dict({"b": Tuple([Discrete(2), Box(-0.2, 0.2, (1,))]), "a": Discrete(3)}),
    ],
    ids=str,
)
def test_an_exported_action_is_what_the_environment_receives(space, network):
    if "squash_actions" in network and isinstance(space, Box) and not space.is_bounded():
        return
    policy = policy_for(VECTOR, space, **network)
    obs = sample(VECTOR, 50, 0)
    step = _Step(policy)
    with torch.no_grad():
        outputs = dict(zip(step.output_names, step([torch.as_tensor(obs)]), strict=True))
    action, _ = policy.predict(obs)
    ours = named({"action": action})
    for name, value in ours.items():
        assert outputs[name].numpy().dtype == value.dtype
        np.testing.assert_allclose(outputs[name].numpy(), value, rtol=0, atol=1e-6)


def test_a_text_is_read_the_same_with_its_padding():
    encoder = TextEncoder(5)
    nn.init.normal_(encoder.lstm.bias_ih_l0)  # without biases an empty text is zeros by itself
    tokens = torch.tensor([[0, 0, 0], [4, 0, 0], [1, 2, 3], [2, 0, 3], [0, 1, 0]])
    with torch.no_grad():
        torch.testing.assert_close(_PaddedText(encoder)(tokens), encoder(tokens))


class Branching(nn.Module):
    def forward(self, x):
        return x * 2.0 if x.sum() > 0 else x


class Counting(nn.Module):
    def forward(self, x):
        return x.reshape(len(x), -1)


@pytest.mark.parametrize("torso", [Branching(), Counting()], ids=["branching", "counting"])
def test_a_torso_that_cannot_be_exported_says_so_and_leaves_the_old_file(torso, tmp_path):
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"old")
    policy = policy_for(VECTOR, Discrete(2), torso=torso)
    with pytest.raises(ConfigError, match=r"can't be written as ONNX: .*x\.shape\[0\] instead of"):
        policy.export_onnx(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    words = r"needs onnxscript, which isn't installed: pip install 'headrace\[onnx\]'"
    with pytest.raises(ConfigError, match=words):
        policy_for(VECTOR, Discrete(2)).export_onnx(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_space_that_gymnasium_sorts_keeps_its_names():
    space = Dict({"z": Discrete(2), "a": VECTOR})
    assert list(named(_Step(policy_for(space, Discrete(2))).example)) == ["obs.a", "obs.z"]


@pytest.mark.parametrize("kind", few_of(CORES, ["gru"]))  # the first test has an LSTM
@torch.no_grad()
def test_a_step_of_a_core_runs_the_same_as_an_onnx_graph(kind, tmp_path):
    first = pattern("row 0 and within")
    core, x, state = make(kind, first, torch.float32)
    state = {name: part.detach() for name, part in state.items()}

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.core = core

        def forward(self, x, first, *parts):
            y, last = self.core.step(x, first, dict(zip(state, parts, strict=True)))
            return (y, *last.values())

    path = str(tmp_path / "step.onnx")
    inputs = (x[0].detach(), first[0], *state.values())
    names = ["x", "first", *state]
    torch.onnx.export(Step().eval(), inputs, path, input_names=names, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    for t in range(len(x)):
        feed = dict(zip(names, (x[t].detach(), first[t], *state.values()), strict=True))
        got = session.run(None, {name: part.numpy() for name, part in feed.items()})
        y, state = core.step(x[t].detach(), first[t], state)
        for g, w in zip(got, (y, *state.values()), strict=True):
            torch.testing.assert_close(torch.as_tensor(g), w, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", few_of(["float64", "Unix time"], ["Unix time"]))
def test_an_exported_policy_tells_large_neighbouring_numbers_apart(case, tmp_path):
    space, offset, unit = large_offsets.CASES[case]
    obs, _ = large_offsets.observations(space, offset, unit)
    policy = large_offsets.policy_for(space, obs)
    session = session_of(policy.export_onnx(tmp_path / "policy.onnx"))
    params = session.run(["params"], {"obs": obs.numpy()})[0]
    with torch.inference_mode():
        want, _ = policy.act(obs, torch.ones(64, dtype=torch.bool), ())
    np.testing.assert_allclose(params, want.numpy(), rtol=1e-4, atol=1e-6)
    assert len(np.unique(params, axis=0)) == 4


def test_onnx_has_an_unknown_activation(monkeypatch, tmp_path):
    monkeypatch.setitem(ACTIVATIONS, "gelu", Activation(nn.GELU))
    policy = unknown_parts.make(unknown_parts.shaped("gelu"))
    inputs = torch.randn(4, 5)
    with policy.frozen_weights():
        session = session_of(policy.export_onnx(tmp_path / "policy.onnx"))
    (params,) = session.run(["params"], {"obs": inputs.numpy()})
    expected = unknown_parts.reference(policy, inputs)
    torch.testing.assert_close(torch.as_tensor(params), expected)

"""IMPALA's agents are those of Espeholt et al. (2018), Figure 3, weight by weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

import headrace as hr

ACTIONS, WORDS = 9, 1000
SPACE = Dict(image=Box(0, 255, (72, 96, 3), np.uint8), instruction=Text(40))


def figure_3(deep: bool) -> dict[str, int]:
    """Return the number of weights and biases of each box of the figure, from image to heads.

    LSTMs here have two biases per gate, as in PyTorch, where one would suffice.
    """
    boxes, height, width, depth = {}, 72, 96, 3
    if deep:
        for section, channels in enumerate((16, 32, 32)):
            boxes[f"conv 3x3 of section {section}"] = 9 * depth * channels + channels
            boxes[f"2 residual blocks of section {section}"] = 2 * 2 * (9 * channels**2 + channels)
            height, width, depth = -(-height // 2), -(-width // 2), channels  # max 3x3, stride 2
    else:
        for kernel, stride, channels in ((8, 4, 16), (4, 2, 32)):
            boxes[f"conv {kernel}x{kernel}"] = kernel * kernel * depth * channels + channels
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            depth = channels
    boxes["fc 256"] = height * width * depth * 256 + 256
    boxes["embedding 20"] = (WORDS + 1) * 20  # and the padding
    boxes["lstm 64"] = 4 * 64 * (20 + 64) + 2 * 4 * 64
    boxes["lstm 256"] = 4 * 256 * ((256 + 64 + ACTIONS + 1) + 256) + 2 * 4 * 256
    boxes["policy"], boxes["value"] = 256 * ACTIONS + ACTIONS, 256 + 1
    return boxes


def agent(conv: str) -> hr.Policy:
    network = hr.Network(conv=conv, core="lstm", core_size=256, previous_action_reward=True)
    return hr.Policy(SPACE, Discrete(ACTIONS), network)


@pytest.mark.parametrize(
    ("conv", "words_apart", "all_of_it"),
    [("impala_shallow", 1_211_706, 1_231_726), ("impala_deep", 1_609_290, 1_629_310)],
)
def test_the_agent_has_the_weights_of_the_figure(conv, words_apart, all_of_it):
    boxes, policy = figure_3(conv == "impala_deep"), agent(conv)
    assert sum(boxes.values()) == all_of_it
    assert all_of_it - boxes["embedding 20"] == words_apart  # 1.21 and 1.61 million
    assert sum(p.numel() for p in policy.parameters()) == all_of_it
    count = {name: sum(p.numel() for p in m.parameters()) for name, m in policy.named_children()}
    assert count["core"] == boxes["lstm 256"]
    assert count["policy_head"] == boxes["policy"]
    assert count["value_head"] == boxes["value"]


def test_the_lstm_is_given_the_features_the_last_action_and_the_clipped_reward_as_they_are():
    policy = agent("impala_shallow")
    torch.manual_seed(0)
    inputs = policy.inputs.example(2)
    inputs["observation"]["image"].random_(256)
    inputs["observation"]["instruction"][0, :2] = torch.tensor([3, 5])
    inputs["previous_action"] = torch.tensor([2, 8])
    inputs["previous_reward"] = torch.tensor([0.5, -7.0])
    with torch.no_grad():
        given = policy.torso(inputs)
        image, text = policy.torso.parts
        pixels = inputs["observation"]["image"].permute(0, 3, 1, 2).float()
        by_hand = [image.convolutions(pixels), text(inputs["observation"]["instruction"])]
    action = torch.zeros(2, ACTIONS)
    action[0, 2] = action[1, 8] = 1.0
    reward = torch.tensor([[0.5], [-1.0]])
    torch.testing.assert_close(given, torch.cat([*by_hand, action, reward], 1))


def test_without_a_core_one_layer_joins():
    policy = hr.Policy(SPACE, Discrete(ACTIONS), hr.Network((32,), conv="impala_shallow"))
    assert policy.torso.join[0].in_features == 256 + 64
    assert policy.torso.num_outputs == 32
    with_core = hr.Policy(SPACE, Discrete(ACTIONS), hr.Network((32,), core="gru"))
    assert with_core.torso.join is None
    assert with_core.torso.mlp is None


def test_numbers_pass_the_perceptron_and_the_last_action_goes_by():
    space = Dict(image=SPACE["image"], speed=Box(-1, 1, (5,)))
    network = hr.Network((16, 12), core="lstm", previous_action_reward=True)
    policy = hr.Policy(space, Discrete(3), network)
    assert policy.torso.mlp[0].in_features == 5
    assert policy.torso.num_outputs == 12 + 512 + 3 + 1
    assert policy.core.rnn.input_size == 12 + 512 + 3 + 1

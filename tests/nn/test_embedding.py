"""Large discrete observations use embedding lookups instead of one-hot encodings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import headrace as hr
from headrace.errors import EnvironmentFault
from headrace.nn.embedding import CodeEmbedding, is_embedded
from headrace.spaces.observations import encode

LARGE = {
    "Discrete": Discrete(2000, start=-5),
    "MultiDiscrete": MultiDiscrete([1500, 3, 40], start=[7, 0, -2]),
    "matrix": MultiDiscrete([[900, 2], [3, 700]]),
}


def batch(space, count: int) -> torch.Tensor:
    space.seed(0)
    return torch.as_tensor(np.stack([space.sample() for _ in range(count)]))


@pytest.mark.parametrize("name", LARGE)
def test_it_is_a_linear_layer_on_the_one_hots(name):
    space = LARGE[name]
    part, x = CodeEmbedding((), space), batch(space, 20)
    want = encode(space, x).float() @ part.embedding.weight
    torch.testing.assert_close(part(x), want)


@pytest.mark.parametrize("name", LARGE)
def test_a_value_outside_the_space_is_named(name):
    space = LARGE[name]
    x = batch(space, 4)
    x.view(4, -1)[2, -1] = 5000
    with pytest.raises(EnvironmentFault, match="'obs' holds 5000, which is outside its space"):
        CodeEmbedding((), space)(x)


def test_only_spaces_of_many_values_per_part_are_embedded():
    assert all(is_embedded(space) for space in LARGE.values())
    small = Discrete(500), MultiDiscrete([3] * 2000), Box(0, 9, (2000,))
    assert not any(is_embedded(space) for space in small)


def test_a_policy_acts_and_learns_on_them_alone_and_beside_numbers():
    for space in (LARGE["Discrete"], Dict(place=LARGE["MultiDiscrete"], speed=Box(-1, 1, (2,)))):
        policy = hr.Policy(space, Discrete(3), hr.Network())
        table = next(p for n, p in policy.named_parameters() if n.endswith("embedding.weight"))
        obs = policy.inputs.example(5)
        if isinstance(space, Dict):
            obs["place"] += torch.as_tensor(space["place"].start)
        else:
            obs += int(space.start)
        rows = {k: v[None] for k, v in obs.items()} if isinstance(obs, dict) else obs[None]
        params, value, _ = policy(rows, torch.ones(1, 5, dtype=torch.bool), ())
        (params.square().sum() + value.square().sum()).backward()
        seen = table.grad.abs().sum(1) > 0
        assert 0 < seen.sum() < 5  # rows that were looked up, and no others
        assert policy.predict(space.sample())[0] in range(3)

"""A weightless copy has everything except its parameters' values."""

from __future__ import annotations

import pickle

import torch
from torch import nn

from headrace.nn.weightless import allocate_weights, weightless_copy


class Tied(nn.Module):
    """Two layers with shared weights, a buffer, a layer outside of the state, and a normaliser."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(300, 300), nn.Linear(300, 300)
        self.other.weight = self.one.weight
        self.norm = nn.BatchNorm1d(300)
        self.register_buffer("mark", torch.arange(3.0), persistent=False)
        self.kept = nn.Linear(20, 2)
        self.register_state_dict_post_hook(self._forget)

    @staticmethod
    def _forget(_, state, *__) -> None:
        del state["kept.weight"]


def test_it_is_small_on_its_way_and_takes_any_state_once_it_is_filled():
    made = Tied()
    made.one.bias.requires_grad_(False)
    weight = made.one.weight.detach().clone()
    sent = pickle.dumps(weightless_copy(made))
    assert len(sent) < 20_000 < len(pickle.dumps(made))
    assert torch.equal(made.one.weight, weight)  # nor has the original changed
    there = pickle.loads(sent)
    assert there.one.weight.shape == (300, 300)
    allocate_weights(there)
    for name, p in there.named_parameters():
        assert p.is_contiguous()
        assert p.any() == (name == "kept.weight")
    assert there.other.weight is there.one.weight
    assert torch.equal(there.mark, made.mark)
    assert not there.one.bias.requires_grad
    assert there.one.weight.requires_grad
    there.load_state_dict(made.state_dict(), strict=False)
    assert all(map(torch.equal, there.parameters(), made.parameters()))

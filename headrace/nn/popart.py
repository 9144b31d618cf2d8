"""Values in the units of the rewards from a head that learns in units of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PopArt(nn.Module):
    """``V = scale * n + mean`` of a linear head's output n (van Hasselt et al. 2016).

    The head is trained towards ``(target - mean) / scale``, whatever the size of the rewards. When
    mean and scale move, the head is changed so that V stays what it is ("preserve outputs
    precisely"). Before the first :meth:`move` every V is 0, which is right for all units alike.

    The state is module buffers: it travels with the weights and is saved with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.zeros(()))
        self.register_buffer("inverse", torch.zeros(()))  # of the scale; 0 before there is one
        self.mean: Tensor
        self.scale: Tensor
        self.inverse: Tensor

    def forward(self, output: Tensor, inputs: object = None) -> Tensor:
        """V of the head's outputs, of any shape, whatever the inputs were."""
        return output * self.scale + self.mean

    def normalized(self, value: Tensor) -> Tensor:
        """What the head would have to say for these V; 0 before the first :meth:`move`."""
        return (value - self.mean) * self.inverse

    def of(self, inputs: object, rows: int) -> PopArt:
        """The units of a batch's values: the same for all of it."""
        return self

    def advantage(self, advantage: Tensor) -> Tensor:
        """As it is: one task's are all in the same units."""
        return advantage

    def sums(self, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Nothing: what is learnt of targets is their sums over the whole batch."""
        return {}

    @torch.no_grad()
    def move(self, head: nn.Linear, mean: float, scale: float) -> None:
        """Take new statistics of the targets; every V stays as it is, but for the first time.

        Args:
            head: ``[..., F] -> [..., 1]``, changed in place.
            mean, scale: of the targets; a scale of 0 changes nothing.
        """
        if scale <= 0.0:
            return
        old_mean, old_scale = float(self.mean), float(self.scale)
        self.mean.fill_(mean)
        self.scale.fill_(scale)
        self.inverse.fill_(1.0 / scale)
        if old_scale > 0.0:
            mean, scale = float(self.mean), float(self.scale)  # as they are used: in float32
            head.weight.mul_(old_scale / scale)
            head.bias.mul_(old_scale / scale).add_((old_mean - mean) / scale)

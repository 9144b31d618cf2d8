"""PopArt: converts between the units of the rewards and the normalised units of the value head."""

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
        """Compute V from the head's outputs of any shape; inputs are ignored."""
        return output * self.scale + self.mean

    def normalized(self, value: Tensor) -> Tensor:
        """Convert V to outputs of the head; 0 before the first :meth:`move`."""
        return (value - self.mean) * self.inverse

    def of(self, inputs: object, rows: int) -> PopArt:
        """Return the units of a batch's values, which are the same for all steps."""
        return self

    def advantage(self, advantage: Tensor) -> Tensor:
        """Return advantages unchanged: with one task all have the same units."""
        return advantage

    def sums(self, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return no further sums: statistics of targets come from the whole batch."""
        return {}

    @torch.no_grad()
    def move(self, head: nn.Linear, mean: float, scale: float) -> None:
        """Adopt new statistics of the targets; V is preserved, except at the first call.

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

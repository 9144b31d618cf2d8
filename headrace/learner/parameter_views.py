"""Views of a flat vector of a dense policy's parameters, or of their gradient."""

from __future__ import annotations

from torch import Tensor

from headrace.nn.encoder import DenseLayers
from headrace.nn.policy import Policy


class ParameterViews:
    """Views of a flat vector by layer.

    Args:
        policy: policy whose parameters, or their gradient, are in the vector.
        dense: dense layers of each of its K torsos, of equal shapes.
        flat: ``[P]``.
    """

    def __init__(self, policy: Policy, dense: list[DenseLayers], flat: Tensor) -> None:
        self.flat = flat
        starts: dict[Tensor, int] = {}
        start = 0
        for p in policy.parameters():
            starts[p], start = start, start + p.numel()

        def view(*like: Tensor) -> Tensor:
            """Return ``[K, *shape]``: K parameters of one shape, stored at equal distances."""
            first, last = starts[like[0]], starts[like[-1]]
            return flat.as_strided(
                (len(like), *like[0].shape), (last - first, *like[0].stride()), first
            )

        layers = zip(*(each.linear for each in dense), strict=True)
        self.layers = [
            (view(*(m.weight for m in each)), view(*(m.bias for m in each)).unsqueeze(1))
            for each in layers
        ]  # [K, outputs, inputs] and [K, 1, outputs]
        self.transposed = [weight.transpose(1, 2) for weight, _ in self.layers]
        heads = policy.policy_head, policy.value_head
        self.policy_head, self.value_head = (
            (view(head.weight)[0], view(head.bias)[0]) for head in heads
        )
        self.log_std = None if policy.log_std is None else view(policy.log_std)[0]
        self.core = [] if policy.core is None else [view(p)[0] for p in policy.core.parameters()]

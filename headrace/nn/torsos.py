"""Torsos: observation features for the policy and value heads."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import gymnasium
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError, nearest
from headrace.nn.dense import DenseTanh

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": DenseTanh, "relu": nn.ReLU, "elu": nn.ELU}


@dataclass(frozen=True)
class Network:
    """The shape of a policy network."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of the multi-layer perceptron."""
    activation: str = "tanh"
    """Non-linearity after each hidden layer: tanh, relu or elu."""
    shared: bool = False
    """Whether policy and value share one torso; separate torsos by default."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation={self.activation!r} is unknown; choose one of "
                f"{', '.join(ACTIVATIONS)}.{nearest(self.activation, ACTIVATIONS)}"
            )
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden={self.hidden} needs at least one layer of at least 1 unit")


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Orthogonal weights of this gain and zero biases, in place."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(num_inputs: int, network: Network) -> nn.Sequential:
    """``[..., num_inputs] -> [..., hidden[-1]]``, orthogonal with gain sqrt(2)."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise((num_inputs, *network.hidden)):
        dense = DenseTanh if network.activation == "tanh" else nn.Linear
        layers.append(orthogonal(dense(num_in, num_out), math.sqrt(2)))
        if network.activation != "tanh":
            layers.append(ACTIVATIONS[network.activation]())
    return nn.Sequential(*layers)


def num_features(space: gymnasium.Space) -> int:
    """The length of the vector that :func:`features` makes of an observation.

    Raises:
        ConfigError: the space is not a rank-1 Box or Discrete.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return space.shape[0]
    raise ConfigError(
        f"observation space {space} isn't supported: use a Box with one dimension or a Discrete "
        "(gymnasium.wrappers.FlattenObservation turns any other space into such a Box)"
    )


def features(space: gymnasium.Space, obs: Tensor, dtype: torch.dtype) -> Tensor:
    """Features ``[..., num_features(space)]`` of a batch of observations of ``space``."""
    if isinstance(space, gymnasium.spaces.Discrete):
        obs = nn.functional.one_hot(obs.long() - int(space.start), int(space.n))
    return obs.to(dtype)

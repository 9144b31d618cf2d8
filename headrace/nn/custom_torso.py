"""Wraps a user\'s module as the torso of a policy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.nn.image_precision import BFloat16Module
from headrace.nn.inputs import Inputs
from headrace.nn.network import Network
from headrace.ops import tree
from headrace.types import Tree
from headrace.validation.names import imported


class CustomTorso(nn.Module):
    """Wraps ``Network.torso``: maps inputs ``[N, ...]`` to features ``[N, num_outputs]``.

    The user's module gets observations in the space's dtype (images are uint8). The previous action
    and reward, if used, are appended to its output.

    Raises:
        ConfigError: the module doesn't exist, or doesn't map N observations to ``[N, F]``.
    """

    is_vector = False

    def __init__(self, inputs: Inputs, network: Network) -> None:
        super().__init__()
        self._inputs = inputs
        self.module = _create(network.torso, inputs.features_space)
        _check_dtypes(self.module)
        space = copy.deepcopy(inputs.features_space)
        space.seed(0)
        samples = (space.sample(), space.sample())  # zeros may lie outside the space
        obs = tree.map_leaves(lambda *x: torch.as_tensor(np.stack(x)), *samples)
        with torch.no_grad():
            try:
                features = self.module(obs)
            except Exception as error:
                raise ConfigError(
                    f"the custom torso fails on two observations: {error!r}{_dtype_hint(obs)}"
                ) from error
        if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(
                f"the custom torso must map 2 observations to features of shape (2, F), got {got}"
            )
        self.bfloat16_call = BFloat16Module(self.module, plain=False)
        self.num_outputs = features.shape[1]
        if inputs.previous:
            self.num_outputs += inputs.distribution.num_features + 1

    def forward(self, inputs: Tree) -> Tensor:
        plain = self._inputs.plain
        features = self.bfloat16_call(inputs if plain else inputs["observation"]).to(torch.float32)
        if not self._inputs.previous:
            return features
        action = self._inputs.distribution.features(inputs["previous_action"]).to(features.dtype)
        reward = inputs["previous_reward"].clamp(-1.0, 1.0).unsqueeze(1).to(features.dtype)
        return torch.cat([features, action, reward], 1)


def _check_dtypes(module: nn.Module) -> None:
    """Raise ConfigError unless all parameters are float32."""
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"the custom torso's parameter {name!r} is {parameter.dtype}; headrace trains in "
                "float32: call .float() on the module, and on the observations in its forward()"
            )


def _dtype_hint(obs: Tree) -> str:
    """Return a hint if observations have another dtype than the torso's parameters."""
    others = {str(x.dtype) for x in tree.leaves(obs)} - {"torch.float32"}
    if not others:
        return ""
    return (
        f" (observations have the dtype of their space, here {', '.join(sorted(others))}; convert "
        "them in the torso's forward(), for example with .float())"
    )


def _create(torso: Any, space: Any) -> nn.Module:
    """Create the module of ``Network.torso``; a given module is copied.

    Raises:
        ConfigError: its name can't be imported, or the callable returns no module.
    """
    name = ""
    if isinstance(torso, str):
        name = f"={torso!r}"
        instead = ", or give load() the network that it was trained with"
        torso = imported(f"torso{name}", torso, instead)
    if isinstance(torso, nn.Module):
        return copy.deepcopy(torso)
    if not callable(torso):
        raise ConfigError(
            f"torso{name} is a {type(torso).__name__}; it must be a torch.nn.Module, a callable "
            "that returns one for an observation space, or the callable's 'module:function'"
        )
    try:
        module = torso(space)
    except Exception as error:
        hint = "; if this is load(), give it the network that it was trained with" if name else ""
        raise ConfigError(
            f"torso{name} returns no module for {space}: it raised {error!r}{hint}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"torso{name} returned a {type(module).__name__}; it must return a torch.nn.Module"
        )
    return module

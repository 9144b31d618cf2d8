"""The own torso: a module that the user brings, in place of the built-in one."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.nn.inputs import Inputs
from headrace.nn.network import Network, own_torso
from headrace.ops import tree
from headrace.types import Gather, Tree


class OwnTorso(nn.Module):
    """Wraps ``Network.torso``: inputs ``[N, ...]`` to features ``[N, num_outputs]``.

    The user's module is given the observations as they come, ``[N, ...]`` per leaf in the space's
    dtype (images are still uint8). The previous action and reward, if used, are appended to what it
    returns.

    Raises:
        ConfigError: there is no such module, or it doesn't map N observations to ``[N, F]``.
    """

    is_vector = False

    def __init__(self, inputs: Inputs, network: Network) -> None:
        super().__init__()
        self._inputs = inputs
        self.module = own_torso(network.torso, inputs.features_space)
        space = copy.deepcopy(inputs.features_space)
        space.seed(0)
        samples = (space.sample(), space.sample())  # zeros may lie outside the space
        obs = tree.map_leaves(lambda *x: torch.as_tensor(np.stack(x)), *samples)
        with torch.no_grad():
            try:
                features = self.module(obs)
            except Exception as error:
                raise ConfigError(f"the own torso fails on two observations: {error!r}") from error
        if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(
                f"the own torso must map 2 observations to features of shape (2, F), got {got}"
            )
        self.num_outputs = features.shape[1]
        if inputs.previous:
            self.num_outputs += inputs.distribution.num_features + 1

    def forward(self, inputs: Tree) -> Tensor:
        """Features ``[N, num_outputs]``."""
        if self._inputs.plain:
            return self.module(inputs)
        features = self.module(inputs["observation"])
        if not self._inputs.previous:
            return features
        action = self._inputs.distribution.features(inputs["previous_action"]).to(features.dtype)
        reward = inputs["previous_reward"].clamp(-1.0, 1.0).unsqueeze(1).to(features.dtype)
        return torch.cat([features, action, reward], 1)

    def observe(self, inputs: Tree, gather: Gather | None = None) -> None:
        """Nothing: an own torso keeps its own statistics."""

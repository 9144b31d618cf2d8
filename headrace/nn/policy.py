"""The actor-critic that actors, learner, checkpoints and users share."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from headrace.nn.torsos import Network, features, mlp, num_features, orthogonal
from headrace.ops.distributions import DiagGaussian, distribution_for
from headrace.types import Tree


class Policy(nn.Module):
    """A policy and a value function for one observation and one action space.

    Args:
        observation_space: of a single environment.
        action_space: of a single environment.
        network: the shape of the torsos.

    Raises:
        ConfigError: a space is not supported.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        network: Network | None = None,
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.network = network or Network()
        self.distribution = distribution_for(action_space)
        gaussian = self.distribution if isinstance(self.distribution, DiagGaussian) else None
        num_outputs = gaussian.dim if gaussian else self.distribution.num_params
        width = self.network.hidden[-1]
        self.torso = mlp(num_features(observation_space), self.network)
        self.value_torso = (
            None if self.network.shared else mlp(num_features(observation_space), self.network)
        )
        self.policy_head = orthogonal(nn.Linear(width, num_outputs), 0.01)
        self.value_head = orthogonal(nn.Linear(width, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_outputs)) if gaussian else None

    def initial_core(self, num_envs: int) -> Tree:
        """Recurrent state at the start of an episode, ``[num_envs, ...]``; () here."""
        return ()

    def act(self, obs: Tensor, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """One step of the policy head alone, which is all that an actor needs.

        Args:
            obs: ``[B, ...]``; first: ``[B]`` bool, obs came from a reset; core: ``[B, ...]``.

        Returns:
            distribution parameters ``[B, num_params]`` and the core after this step.
        """
        return self._params(self.torso(self._features(obs))), core

    def forward(self, obs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tensor, Tree]:
        """Time-major pass of both heads.

        Args:
            obs: ``[T, B, ...]``; first: ``[T, B]`` bool; core: ``[B, ...]``.

        Returns:
            parameters ``[T, B, num_params]``, values ``[T, B]``, the core after the last row.
        """
        x = self._features(obs).flatten(0, 1)
        hidden = self.torso(x)
        value_hidden = hidden if self.value_torso is None else self.value_torso(x)
        params, value = self._params(hidden), self.value_head(value_hidden)
        return params.unflatten(0, first.shape), value.view(first.shape), core

    def _features(self, obs: Tree) -> Tensor:
        return features(self.observation_space, obs, self.policy_head.weight.dtype)

    def _params(self, hidden: Tensor) -> Tensor:
        outputs = self.policy_head(hidden)
        if self.log_std is None:
            return outputs
        return torch.cat([outputs, self.log_std.expand_as(outputs)], dim=-1)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment receives: Discrete offset by ``start``, Box clipped to bounds.

        The unclipped action and its log-probability are what training uses.
        """
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return action + space.start if space.start else action
        return np.clip(action, space.low, space.high)  # type: ignore[attr-defined]

    @torch.inference_mode()
    def predict(
        self,
        obs: Any,
        state: Tree | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, Tree]:
        """The action for one observation or a batch of them.

        Args:
            obs: one observation of ``observation_space`` or a stack of them.
            state: what the previous call returned; None at the beginning.
            episode_start: bool or ``[B]`` bools, whether obs came from a reset.
            deterministic: the mode of the distribution instead of a sample.

        Returns:
            the environment's action(s), shaped like the input, and the state for the next call.
        """
        device = self.policy_head.weight.device
        array = np.asarray(obs)
        single = array.ndim == len(self.observation_space.shape or ())
        batch = torch.as_tensor(array[None] if single else array, device=device)
        start = state is None if episode_start is None else episode_start
        first = np.broadcast_to(start, len(batch))
        core = self.initial_core(len(batch)) if state is None else state
        params, core = self.act(batch, torch.as_tensor(first.copy(), device=device), core)
        if deterministic:
            action = self.distribution.mode(params)
        else:
            action = self.distribution.sample(params, self.distribution.noise((len(batch),), None))
        result = self.env_action(action.cpu().numpy())
        return (result[0] if single else result), core

"""Steps environments synchronously: act on all, step all, store. The hot loop of the library.

``asynchronous.py`` is the alternative for environments that step independently. Either is passed to
a :class:`~headrace.actors.collector.Collector`, which does all other work once per fragment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from headrace.actors.action_noise import ActionNoise
from headrace.envs.info_metrics import InfoMetrics
from headrace.envs.single_frames import closed_columns
from headrace.nn.inputs import Inputs, info_mask
from headrace.nn.state_noise import Explorer
from headrace.ops import tree
from headrace.ops.distributions import Distribution
from headrace.spaces.masks import MASK
from headrace.types import Rollout, Tree

Cut: TypeAlias = Callable[[], bool] | None  # returns True to cut a rollout short; None: never


@dataclass
class StepRecord:
    """Results of a fragment's steps that are not in the rollout."""

    num_steps: np.ndarray  # [B] int64, steps of each environment
    params: Tensor | None  # [N, B, P], N = num_steps.max(); None: the rollout has log-probabilities
    done: np.ndarray  # [T, B] bool, an episode ended; False where no step was done
    ended: np.ndarray  # [B] bool, the next step is a filler: episode ended or agent absent
    core: Tree  # [B, ...] after the last step
    masked: bool  # info had an action mask
    stepping_ns: int  # time of stepping or waiting for environments
    carried: np.ndarray | None = None  # [B] bool, first step carried over; None: no column


class ActingPolicy(Protocol):
    """Interface for acting: a :class:`Policy`, or a client of shared inference."""

    inputs: Inputs
    distribution: Distribution

    def initial_core(self, num_envs: int) -> Tree:
        """See :meth:`Policy.initial_core`."""

    def frozen_weights(self) -> AbstractContextManager[None]:
        """Freeze the weights while a rollout is filled."""

    def act(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """See :meth:`Policy.act`."""

    def explorer(self) -> Explorer | None:
        """See :meth:`Policy.explorer`."""

    def chooser(
        self, inputs: Tree, noise: Tensor, action: Tree, log_prob: Tensor
    ) -> Callable[[int], None] | None:
        """See :meth:`Policy.chooser`."""

    def env_action(self, action: Tree) -> Any:
        """See :meth:`Policy.env_action`."""


class Stepper(Protocol):
    """Interface for stepping the environments of one collector."""

    def reset(self) -> None:
        """Discard pending steps after the environments were reset."""

    def run(
        self,
        rollout: Rollout,
        noise: Tensor,
        ended: np.ndarray,
        cut: Cut,
        source: ActionNoise | None = None,
    ) -> StepRecord:
        """Fill observations, ``first``, actions, rewards and ``terminated`` of a rollout.

        Args:
            rollout: its core and row 0 of its observations and ``first`` are set.
            noise: ``[T, B, ...]`` noise of the distribution.
            ended: ``[B]`` bool, row 0 is the last of its episode, or the agent is absent.
            cut: see ``Collector.fill``.
            source: draws the noise, if it is correlated in time.
        """


class SynchronousStepper:
    """Steps all environments, then acts on all of them."""

    def __init__(
        self, envs: VectorEnv, policy: ActingPolicy, name: str, metrics: InfoMetrics | None = None
    ) -> None:
        self._envs, self._policy, self._name = envs, policy, name
        self._metrics = None if metrics is None or metrics.unused else metrics

    def reset(self) -> None:
        """See :class:`Stepper`."""

    def run(
        self,
        rollout: Rollout,
        noise: Tensor,
        ended: np.ndarray,
        cut: Cut,
        source: ActionNoise | None = None,
    ) -> StepRecord:
        """See :class:`Stepper`; ``cut`` is called after every step, a closed column also cuts."""
        policy, inputs = self._policy, self._policy.inputs
        num_steps, num_envs = rollout.reward.shape
        first, reward = rollout.first.numpy(), rollout.reward.numpy()
        terminated = rollout.terminated.numpy()
        obs = tree.map_leaves(lambda x: x.numpy(), rollout.obs)
        action = tree.map_leaves(lambda x: x.numpy(), rollout.action)
        done = np.zeros((num_steps, num_envs), bool)
        params: list[Tensor] = []
        core, masked, closed = rollout.core, False, closed_columns(rollout.obs)
        clock, stepping_ns, metrics = time.monotonic_ns, 0, self._metrics
        explorer = None if source is None else source.explorer
        choose = policy.chooser(rollout.obs, noise, rollout.action, rollout.log_prob)
        for t in range(num_steps):
            if choose is None:
                row = row_of(rollout.obs, t), rollout.first[t], core
                if source is None or explorer is None:
                    params_t, core = policy.act(*row)
                else:
                    params_t, core = explorer.act(*row, source.directions(t), noise[t])
                store(rollout.action, t, policy.distribution.sample(params_t, noise[t]))
                params.append(params_t)
            else:
                choose(t)
            action_t = row_of(action, t)
            env_action, before = policy.env_action(action_t), clock()
            next_obs, reward[t], terminated[t], truncated, infos = self._envs.step(env_action)
            stepping_ns += clock() - before
            first[t + 1] = ended
            masked = masked or MASK in infos
            ended = np.logical_or(terminated[t], truncated, out=done[t])
            if source is not None and len(columns := np.flatnonzero(ended)):
                source.begin_episodes(columns, np.full(len(columns), t + 1))
            if metrics is not None and (metrics.every_step or (infos and np.count_nonzero(ended))):
                metrics.note(infos, first[t + 1], ended)
            if not inputs.is_observation:
                mask = info_mask(infos)
                next_obs = inputs.compose(next_obs, mask, action_t, reward[t], first[t + 1])
                inputs.check_mask(next_obs, ended, self._name, t + 1)
            store(obs, t + 1, next_obs)
            if (cut is not None and cut()) or (closed is not None and closed.any()):
                break
        count = np.full(num_envs, t + 1)
        began = done & ~first[1:]  # an end in a filler belongs to an absent agent
        all_params = torch.stack(params) if choose is None else None
        return StepRecord(count, all_params, began, ended, core, masked, stepping_ns)


def row_of(rows: Tree, at: Any) -> Tree:
    """Return part ``at`` of each leaf."""
    if isinstance(rows, np.ndarray):  # the usual case, twice as fast
        return rows[at]
    return tree.map_leaves(lambda x: x[at], rows)


def store(rows: Tree, at: Any, row: Tree) -> None:
    """Assign ``row`` to part ``at`` of each leaf."""
    if isinstance(rows, np.ndarray):
        rows[at] = row
        return
    tree.map_leaves(lambda to, src: to.__setitem__(at, src), rows, row)

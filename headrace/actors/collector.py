"""Fills rollouts from a vector environment, one fragment at a time.

Each step (``synchronous.py``, ``asynchronous.py``) only calls the environment and the policy and
stores their results. Everything else is done once per fragment on whole arrays: noise is drawn
before, log-probabilities and episode statistics are computed after.

A rollout that is cut short keeps its shapes. Missing steps are padded with fillers, which count in
no frame, mean or loss, and the last real observation bootstraps the last real step.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from headrace.actors.action_noise import ActionNoise
from headrace.actors.synchronous import (
    ActingPolicy,
    Cut,
    Stepper,
    StepRecord,
    SynchronousStepper,
    store,
)
from headrace.envs.info_metrics import InfoMetrics
from headrace.envs.single_frames import SingleFrames, held, with_stacks
from headrace.errors import EnvironmentFault, NonFinite
from headrace.games.vector import absent_in
from headrace.nn.inputs import info_mask
from headrace.nn.multi_policy import AnyPolicy
from headrace.ops import tree
from headrace.ops.returns import reverse_linear_recurrence
from headrace.transport.slab import ArraySpec, spec_of
from headrace.types import METRICS_BYTES, Rollout, Tree


def rollout_spec(
    policy: AnyPolicy,
    num_steps: int,
    num_envs: int,
    gamma: float | None = None,
    learns: bool = False,
    stacks: bool = False,
) -> dict[str, Any]:
    """Return the tree of :class:`ArraySpec` of a rollout of ``num_steps`` by ``num_envs``.

    Args:
        gamma: discount of the returns recorded for reward normalisation; None: not recorded.
        learns: include room for the metrics of an actor that computes gradients.
        stacks: store each image of a frame stack once.
    """
    steps, rows = (num_steps, num_envs), (num_steps + 1, num_envs)

    def repeated(lead: tuple[int, ...], x: Tensor) -> ArraySpec:
        return ArraySpec((*lead, *x.shape[1:]), x.dtype)

    inputs, action = policy.inputs.example(1), policy.inputs.zero_action(1)
    obs = tree.map_leaves(functools.partial(repeated, rows), inputs)
    if stacks and policy.inputs.plain:
        obs = held(*rows, inputs)
    elif stacks:
        obs["observation"] = held(*rows, inputs["observation"])
    return dict(  # noqa: C408  the fields of Rollout
        obs=obs,
        first=ArraySpec(rows, torch.bool),
        action=tree.map_leaves(functools.partial(repeated, steps), action),
        log_prob=ArraySpec(steps, torch.float32),
        reward=ArraySpec(steps, torch.float32),
        terminated=ArraySpec(steps, torch.bool),
        core=spec_of(policy.initial_core(num_envs)),
        version=ArraySpec((num_envs,), torch.int64),
        episode_return=ArraySpec(steps, torch.float32),
        episode_length=ArraySpec(steps, torch.float32),
        discounted_return=() if gamma is None else ArraySpec(steps, torch.float32),
        metrics=ArraySpec((METRICS_BYTES,), torch.uint8) if learns else (),
    )


class EpisodeTotals:
    """Computes sums over episodes that span fragments, without a loop over T."""

    def __init__(self, num_envs: int) -> None:
        self._carry = np.zeros(num_envs)

    def update(self, amounts: np.ndarray, done: np.ndarray) -> np.ndarray:
        """Return the total of each episode at its last step, NaN elsewhere.

        Args:
            amounts: ``[T, B]`` float64, 0 on fillers.
            done: ``[T, B]`` bool.

        Returns:
            ``[T, B]`` float32.
        """
        running = np.cumsum(amounts, axis=0) + self._carry
        totals = np.full(done.shape, np.nan, np.float32)
        column, row = np.nonzero(done.T)
        ends = running[row, column]
        before = np.zeros_like(ends)
        same = column[1:] == column[:-1]
        before[1:][same] = ends[:-1][same]
        totals[row, column] = ends - before
        self._carry = running[-1].copy()
        self._carry[column] -= ends  # the last end of each column is assigned last
        return totals


class Collector:
    """Fills rollouts from one vector environment.

    Args:
        envs: vector environment with NEXT_STEP autoreset (``headrace.envs.make_vec``).
        policy: policy that acts; its weights only change between rollouts.
        name: name of the environment, for messages.
        gamma: see :func:`rollout_spec`.
        stepping: environment stepper; None: synchronous.
        metrics: collects metrics from ``info``, fed by ``stepping``.
        noise_color: exponent of the noise spectrum, ``beta`` of :class:`ActionNoise`.
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: ActingPolicy,
        name: str,
        gamma: float | None = None,
        stepping: Stepper | None = None,
        metrics: InfoMetrics | None = None,
        noise_color: float = 0.0,
    ) -> None:
        self._envs, self._policy, self._name, self._gamma = envs, policy, name, gamma
        self.metrics = metrics or InfoMetrics(envs.num_envs)
        self._stepping = stepping or SynchronousStepper(envs, policy, name, self.metrics)
        how = noise_color, policy.explorer()
        self._noise = ActionNoise(policy.distribution, envs.num_envs, *how)
        self._row: Tree = None  # the last rollout's last row of inputs, [B, ...]

    def reset(self, seed: int) -> None:
        """Reset every environment and all random streams from ``seed``."""
        num_envs = self._envs.num_envs
        self._noise.reset(seed)
        obs, infos = self._envs.reset(seed=seed)
        self._stepping.reset()
        self.metrics.reset()
        self._first, self._done = np.ones(num_envs, bool), absent_in(infos, num_envs)
        inputs = self._policy.inputs
        self._row = inputs.compose(obs, info_mask(infos), None, None, self._first)
        inputs.check_mask(self._row, self._done, self._name, 0)
        self._core = self._policy.initial_core(num_envs)
        self._returns, self._lengths = EpisodeTotals(num_envs), EpisodeTotals(num_envs)
        self._discounted = torch.zeros(num_envs)
        self._begun_with = np.zeros(num_envs, np.int64)  # versions that chose pending actions

    @torch.inference_mode()
    def fill(self, rollout: Rollout, version: int, cut: Cut = None) -> int:
        """Fill ``rollout`` with one fragment; return the number of valid steps.

        Args:
            version: version of the policy's weights.
            cut: called after every step of all environments (every ``num_envs`` steps if they
                step asynchronously). Once it returns True, stepping stops, the rest of the rollout
                is padding (:func:`_pad`), and the next rollout continues here. None: never cut.

        Raises:
            EnvironmentFault: an observation or reward is not finite, or a mask allows no action.
            NonFinite: the policy's log-probabilities are not finite.
        """
        rows = with_stacks(rollout, self._name)
        self._begin(rows)
        noise = self._noise.draw(len(rollout.reward))
        try:
            with self._policy.frozen_weights():
                source = self._noise if self._noise.is_coloured else None
                steps = self._stepping.run(rows, noise, self._done, cut, source)
        except Exception:
            self._check_policy(version)  # non-finite actions may be the environment's cause
            raise
        self.stepping_ns = steps.stepping_ns
        self._noise.advance(steps.num_steps)
        self._keep_end(rows, steps)
        is_short = steps.num_steps.min() < len(rollout.reward)
        missing = _pad(rows, steps.num_steps) if is_short else None
        rollout.version.copy_(torch.from_numpy(self._versions(steps, version)))
        if steps.params is not None:
            longest = len(steps.params)
            taken = tree.map_leaves(lambda x: x[:longest], rollout.action)
            log_prob = self._policy.distribution.log_prob(steps.params, taken)
            rollout.log_prob[:longest].copy_(log_prob)
        if missing is not None:
            rollout.log_prob[missing] = 0
        if not math.isfinite(float(rollout.log_prob.sum())):
            self._check("observation", tree.map_leaves(lambda x: x.numpy(), rollout.obs), True)
            raise _non_finite(version)
        valid = ~rollout.first[1:].numpy()
        self._check("reward", rollout.reward.numpy(), valid)
        self._check("observation", tree.map_leaves(lambda x: x.numpy(), rollout.obs), True)
        inputs = self._policy.inputs
        if steps.masked and inputs.mask == "none" and self._policy.distribution.num_mask:
            raise EnvironmentFault(
                f"{self._name} returns an action_mask in the info of a later step but not of its "
                "first reset and step: return it from the first reset on, all ones where every "
                "action is allowed; otherwise it is never applied"
            )
        self._add_statistics(rollout, steps, valid)
        return int(valid.sum())

    def _versions(self, steps: StepRecord, version: int) -> np.ndarray:
        """Return, for each column, the oldest policy version that chose a step: ``[B]`` int64."""
        now = np.full_like(self._begun_with, version)
        oldest = now if steps.carried is None else np.where(steps.carried, self._begun_with, now)
        self._begun_with = np.where(steps.num_steps == 0, oldest, now)
        return oldest

    def _check_policy(self, version: int) -> None:
        """Raise NonFinite if the policy outputs NaN for the first observation."""
        obs = tree.map_leaves(torch.as_tensor, self._row)
        params, _ = self._policy.act(obs, torch.as_tensor(self._first), self._core)
        if bool(params.isnan().any()):
            raise _non_finite(version)

    def _begin(self, rollout: Rollout) -> None:
        """Set row 0 to the end of the last rollout."""
        store(tree.map_leaves(lambda x: x.numpy(), rollout.obs), 0, self._row)
        rollout.first.numpy()[0] = self._first
        tree.map_leaves(lambda to, src: to.copy_(src), rollout.core, self._core)

    def _keep_end(self, rollout: Rollout, steps: StepRecord) -> None:
        """Keep the row after each column's last step, which begins the next rollout."""
        end = (steps.num_steps, np.arange(len(steps.num_steps)))
        self._row = tree.map_leaves(lambda x: x.numpy()[end], rollout.obs)
        self._first = rollout.first.numpy()[end]
        self._done = steps.ended
        self._core = steps.core

    def _add_statistics(self, rollout: Rollout, steps: StepRecord, valid: np.ndarray) -> None:
        """Add returns and lengths of completed episodes, and discounted returns if recorded."""
        done = steps.done
        real = np.where(valid, rollout.reward.numpy(), 0.0)
        rollout.episode_return.numpy()[:] = self._returns.update(real, done)
        rollout.episode_length.numpy()[:] = self._lengths.update(valid.astype(np.float64), done)
        if self._gamma is None:
            return
        reward, decay = torch.from_numpy(real).float(), self._gamma * torch.from_numpy(valid)
        reward[0] += decay[0] * self._discounted  # continued in row 0
        total = reverse_linear_recurrence(reward.flip(0), decay.flip(0)).flip(0)
        some = np.flatnonzero(steps.num_steps)
        self._discounted[some] = total[steps.num_steps[some] - 1, some]
        rollout.discounted_return.copy_(total)

    def _check(self, name: str, values: Tree, valid: np.ndarray | bool) -> None:
        for leaf in tree.leaves(values):
            if leaf.dtype.kind != "f" or np.isfinite(leaf.sum()):
                continue
            bad = ~np.isfinite(leaf) & valid
            if bad.any():
                row, column, *rest = map(int, np.argwhere(bad)[0])
                raise EnvironmentFault(
                    f"{self._name} returned {leaf[(row, column, *rest)]} in its {name}"
                    f"{rest if rest else ''} (environment {column} of this actor, "
                    f"row {row} of the fragment)"
                )


def _non_finite(version: int) -> NonFinite:
    return NonFinite(
        f"after update {version} the policy's log-probabilities are not finite, so its weights "
        "have grown too large; try a smaller learning_rate or max_grad_norm, and resume"
    )


def _pad(rollout: Rollout, num_steps: np.ndarray) -> tuple[Tensor, Tensor]:
    """Turn steps that were not done into fillers, in place.

    Row ``num_steps[b]`` of column b's observations is real and repeated in the padding, as is the
    last action (or the pending one in row 0), so that all inputs are valid. Other values are 0.
    Log-probabilities and episode statistics don't change.

    Returns:
        times and columns of the fillers, ``[M]`` int64 each.
    """
    behind = np.arange(len(rollout.reward))[:, None] >= num_steps
    t, column = map(torch.from_numpy, np.nonzero(behind))
    last = torch.from_numpy(num_steps)[column]
    rollout.first[t + 1, column] = True
    for x in tree.leaves(rollout.obs):
        if isinstance(x, SingleFrames):
            x.pad(t + 1, column)
        else:
            x[t + 1, column] = x[last, column]
    last_done = (last - 1).clamp(min=0)
    tree.map_leaves(lambda x: x.__setitem__((t, column), x[last_done, column]), rollout.action)
    for rows in (rollout.reward, rollout.terminated):
        rows[t, column] = 0
    return t, column

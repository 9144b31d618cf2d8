"""The actor: acquire a slot, pull the newest weights, fill the slot, commit it.

    acquire ──► pull weights ──► collect ──► commit
       ▲                                        │
       └────────────────────────────────────────┘

``Collector.fill`` is the hot loop of the whole library. It calls the environment and the policy's
head and stores what they return; all else is done once per fragment, on whole arrays: noise is
drawn before, log-probabilities and episode statistics are computed after.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from headrace.envs.make import env_name, env_seed, make_vec
from headrace.errors import EnvironmentFault
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.transport.queue import ActorPort, Header
from headrace.transport.slab import ArraySpec, Slab, spec_of
from headrace.transport.weights import WeightStore
from headrace.types import Rollout, Tree


def rollout_spec(policy: Policy, num_steps: int, num_envs: int) -> dict[str, Any]:
    """The tree of :class:`ArraySpec` of one rollout of ``num_steps`` by ``num_envs``."""
    space = policy.observation_space
    obs = torch.as_tensor(np.zeros(space.shape or (), space.dtype))
    action = policy.distribution.sample(
        torch.zeros(policy.distribution.num_params), policy.distribution.noise((), None)
    )
    steps = (num_steps, num_envs)
    rows = (num_steps + 1, num_envs)
    return dict(  # noqa: C408  the fields of Rollout
        obs=ArraySpec((*rows, *obs.shape), obs.dtype),
        first=ArraySpec(rows, torch.bool),
        action=ArraySpec((*steps, *action.shape), action.dtype),
        log_prob=ArraySpec(steps, torch.float32),
        reward=ArraySpec(steps, torch.float32),
        terminated=ArraySpec(steps, torch.bool),
        core=spec_of(policy.initial_core(num_envs)),
        version=ArraySpec((num_envs,), torch.int64),
        episode_return=ArraySpec(steps, torch.float32),
        episode_length=ArraySpec(steps, torch.float32),
    )


class EpisodeTotals:
    """Sums over episodes that span fragments, computed once per fragment without a loop over T."""

    def __init__(self, num_envs: int) -> None:
        self._carry = np.zeros(num_envs)

    def update(self, amounts: np.ndarray, done: np.ndarray) -> np.ndarray:
        """The total of each episode at the step that ends it, NaN elsewhere.

        Args:
            amounts: ``[T, B]`` float64, 0 on fillers; done: ``[T, B]`` bool.

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
        envs: in NEXT_STEP autoreset (``headrace.envs.make_vec``).
        policy: acts; its weights may change between rollouts only.
        name: of the environment, for messages.
    """

    def __init__(self, envs: gymnasium.vector.VectorEnv, policy: Policy, name: str) -> None:
        self._envs, self._policy, self._name = envs, policy, name
        self._generator = torch.Generator()
        self._obs: np.ndarray | None = None

    def reset(self, seed: int) -> None:
        """Reset every environment and all random streams from ``seed``."""
        num_envs = self._envs.num_envs
        self._generator.manual_seed(seed)
        self._obs, _ = self._envs.reset(seed=seed)
        self._first = np.ones(num_envs, bool)
        self._done = np.zeros(num_envs, bool)
        self._core = self._policy.initial_core(num_envs)
        self._returns, self._lengths = EpisodeTotals(num_envs), EpisodeTotals(num_envs)

    @torch.inference_mode()
    def fill(self, rollout: Rollout, version: int) -> int:
        """Run one fragment into ``rollout``'s memory; returns the number of valid steps.

        Raises:
            EnvironmentFault: an observation or reward is not finite.
        """
        policy, distribution = self._policy, self._policy.distribution
        num_steps, num_envs = rollout.reward.shape
        obs, first = rollout.obs.numpy(), rollout.first.numpy()
        action, reward = rollout.action.numpy(), rollout.reward.numpy()
        terminated = rollout.terminated.numpy()
        done = np.empty((num_steps, num_envs), bool)
        noise = distribution.noise((num_steps, num_envs), self._generator)
        params: list[Tensor] = []
        obs[0], first[0] = self._obs, self._first
        tree.map_leaves(lambda to, src: to.copy_(src), rollout.core, self._core)
        core, ended = self._core, self._done
        for t in range(num_steps):
            params_t, core = policy.act(rollout.obs[t], rollout.first[t], core)
            rollout.action[t] = distribution.sample(params_t, noise[t])
            params.append(params_t)
            obs[t + 1], reward[t], terminated[t], truncated, _ = self._envs.step(
                policy.env_action(action[t])
            )
            first[t + 1] = ended
            ended = np.logical_or(terminated[t], truncated, out=done[t])
        self._obs, self._first = obs[-1].copy(), first[-1].copy()
        self._core, self._done = core, ended.copy()
        rollout.version.fill_(version)
        rollout.log_prob.copy_(distribution.log_prob(torch.stack(params), rollout.action))
        valid = ~first[1:]
        self._check(obs, reward, valid)
        rollout.episode_return.numpy()[:] = self._returns.update(np.where(valid, reward, 0.0), done)
        rollout.episode_length.numpy()[:] = self._lengths.update(valid.astype(np.float64), done)
        return int(valid.sum())

    def _check(self, obs: np.ndarray, reward: np.ndarray, valid: np.ndarray) -> None:
        for name, values, mask in (("observation", obs, None), ("reward", reward, valid)):
            if values.dtype.kind != "f" or np.isfinite(values.sum()):
                continue
            bad = ~np.isfinite(values)
            if mask is not None:
                bad &= mask
            if bad.any():
                row, column, *rest = map(int, np.argwhere(bad)[0])
                raise EnvironmentFault(
                    f"{self._name} returned {values[(row, column, *rest)]} in its {name}"
                    f"{rest if rest else ''} (environment {column} of this actor, "
                    f"row {row} of the fragment)"
                )


@dataclass(frozen=True)
class ActorSpec:
    """All that an actor is built from, in this process or another."""

    env: Any  # an EnvSpec, an Env class or a callable (``headrace.envs.make.resolve``)
    engine: str
    env_kwargs: dict[str, Any]
    num_envs: int
    num_steps: int  # fragment length
    seed: int
    policy: Policy

    def spec(self) -> dict[str, Any]:
        """The layout of one slot."""
        return rollout_spec(self.policy, self.num_steps, self.num_envs)


class Actor:
    """One actor: an environment, a copy of the policy, and its ends of queue and weight store.

    Args:
        spec: what to build.
        index: of this actor; generation: how often it was restarted.
        port, weights: its ends; slab: where the port's slot numbers point.
    """

    def __init__(
        self,
        spec: ActorSpec,
        index: int,
        generation: int,
        port: ActorPort,
        weights: WeightStore,
        slab: Slab,
    ) -> None:
        self._spec, self._index, self._generation = spec, index, generation
        self._port, self._weights, self._slab = port, weights, slab
        policy = copy.deepcopy(spec.policy).cpu()
        self._envs = make_vec(spec.env, spec.num_envs, spec.engine, spec.env_kwargs)
        self._collector = Collector(self._envs, policy, env_name(spec.env))
        self._state = policy_weights(policy)
        self._version, self._epoch, self._sequence = -1, -1, 0

    def run_once(self, timeout_s: float = 3600.0) -> bool:
        """Deliver one rollout; False when the queue is closed.

        Raises:
            TimeoutError: the learner gave no slot in time.
            EnvironmentFault: see :meth:`Collector.fill`.
        """
        started = time.monotonic_ns()
        slot = self._port.acquire(timeout_s)
        if slot is None:
            return False
        acquired = time.monotonic_ns()
        self._pull()
        valid_steps = self._collector.fill(Rollout(**self._slab.trees[slot]), self._version)
        now = time.monotonic_ns()
        self._slab.headers[slot][:] = Header(
            actor=self._index,
            sequence=self._sequence,
            version=self._version,
            valid_steps=valid_steps,
            committed_ns=now,
            acting_ns=now - acquired,
            waiting_ns=acquired - started,
        )
        self._sequence += 1
        self._port.commit(slot)
        return True

    def _pull(self) -> None:
        news = self._weights.pull(self._version, self._state)
        if news is None:
            return
        self._version, epoch = news
        if epoch != self._epoch:
            self._epoch = epoch
            seed = env_seed(
                self._spec.seed,
                self._index,
                self._spec.num_envs,
                generation=self._generation + 16 * epoch,
            )
            self._collector.reset(seed)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


def policy_weights(policy: Policy) -> Tree:
    """The tensors that a learner publishes and an actor overwrites: parameters and buffers."""
    return {name: value.detach() for name, value in policy.state_dict().items()}


def weight_spec(policy: Policy) -> Tree:
    """The tree of :class:`ArraySpec` of :func:`policy_weights`."""
    return spec_of(policy_weights(policy))

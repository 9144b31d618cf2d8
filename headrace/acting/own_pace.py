"""Stepping environments at their own pace: the policy acts on whichever are ready.

    thread of environment b:   step ─► wait ─► step ─► wait ─► ...
                                 │      ▲
                           ready │      │ action
                                 ▼      │
    this thread:          store rows, act on all that are ready ─► linger ─► ...

Column b is at a step ``t_b`` of its own. Noise is drawn for the whole fragment and belongs to a
place ``(t, b)``, so that who was ready when changes nothing, except that a row's float32 results
depend, in their last bits, on how many rows are computed together. A fragment ends when every
column is full: an environment that is slower than the rest holds up nobody before that.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.acting.lockstep import Acting, Cut, Steps, row_of, store
from headrace.envs.stack_rows import closed_columns
from headrace.envs.threads import Threads
from headrace.nn.inputs import info_mask
from headrace.ops import tree
from headrace.spaces.actions import MASK
from headrace.types import Rollout, Tree

_LINGER_SHARE = 0.1  # of the time that a step takes, spent waiting for more environments
_MAX_LINGER_S = 0.001
_ENOUGH_SHARE = 0.125  # of all environments, for which nobody waits any longer


class OwnPace:
    """Each environment takes its next step as soon as the policy has acted on its last one.

    Whoever is ready first waits a little for others, because the policy acts on many rows at
    nearly the cost of one: for an eighth of all, but no longer than a tenth of what a step took in
    the last fragment, nor than 1 ms.
    """

    def __init__(self, envs: Threads, policy: Acting, name: str) -> None:
        self.envs, self.policy, self.name = envs, policy, name
        self._linger_s = 0.0

    def run(self, rollout: Rollout, noise: Tensor, ended: np.ndarray, cut: Cut) -> Steps:
        """See :class:`~headrace.acting.lockstep.Stepping`.

        ``cut`` is asked whenever the environments have done as many steps as there are of them,
        and, once a column is full, whenever any is ready. Steps that have begun are waited for.
        """
        columns = _Columns(self, rollout, noise, ended)
        num_steps, num_envs = rollout.reward.shape
        started, asked, is_cut = time.monotonic(), 0, False
        enough = math.ceil(_ENOUGH_SHARE * num_envs)
        columns.act(np.arange(num_envs))
        while self.envs.num_busy:
            ready = self.envs.receive(enough, self._linger_s)
            columns.keep(ready)
            if cut is not None and not is_cut:
                rounds = int(columns.count.sum()) // num_envs
                if rounds > asked or columns.count.max() == num_steps:
                    asked, is_cut = rounds, cut()
            ready = ready[(columns.count[ready] < num_steps) & ~columns.closed[ready]]
            if len(ready) and not is_cut:
                columns.act(ready)
        step_s = (time.monotonic() - started) / columns.count.max()
        self._linger_s = min(_LINGER_SHARE * step_s, _MAX_LINGER_S)
        return columns.steps()


class _Columns:
    """The columns of one fragment, each at a step of its own.

    Rollouts are time-major: the place of step t of column b is row ``t * B + b`` of what is
    flattened over both.
    """

    def __init__(self, pace: OwnPace, rollout: Rollout, noise: Tensor, ended: np.ndarray) -> None:
        self._envs, self._policy, self._name = pace.envs, pace.policy, pace.name
        self._shape = num_steps, num_envs = rollout.reward.shape
        self.count = np.zeros(num_envs, np.int64)  # [B] steps done

        def flat(x: Tensor) -> np.ndarray:
            return x.flatten(0, 1).numpy()

        self._obs = tree.map_leaves(flat, rollout.obs)
        self._action = tree.map_leaves(flat, rollout.action)
        closed = closed_columns(rollout.obs)
        self.closed = np.zeros(num_envs, bool) if closed is None else closed  # [B]
        self._first, self._noise = flat(rollout.first), flat(noise)
        self._reward, self._terminated = flat(rollout.reward), flat(rollout.terminated)
        size = num_steps * num_envs
        self._params = np.zeros((size, self._policy.distribution.num_params), np.float32)
        self._done = np.zeros(size, bool)
        self._core = tree.map_leaves(lambda x: x.clone().numpy(), rollout.core)
        self._ended, self._masked = ended.copy(), False

    def act(self, rows: np.ndarray) -> None:
        """Choose the next action of some columns ``[n]`` and begin their steps."""
        policy, place = self._policy, self._place(rows)
        params, core = policy.act(
            _part(self._obs, place), _part(self._first, place), _part(self._core, rows)
        )
        action = policy.distribution.sample(params, _part(self._noise, place))
        self._params[place] = params.numpy()
        store(self._core, rows, tree.map_leaves(lambda x: x.numpy(), core))
        action = tree.map_leaves(lambda x: x.numpy(), action)
        store(self._action, place, action)
        self._envs.send(rows, policy.env_action(action))

    def keep(self, rows: np.ndarray) -> None:
        """Store what the steps of some columns ``[n]`` returned."""
        place, inputs = self._place(rows), self._policy.inputs
        after = place + self._shape[1]
        obs, reward, terminated, truncated = self._envs.results(rows)
        self._reward[place], self._terminated[place] = reward, terminated
        self._first[after] = first = self._ended[rows]
        self._ended[rows] = self._done[place] = ended = terminated | truncated
        infos = self._envs.infos(rows, only=MASK)
        self._masked = self._masked or bool(infos)
        self.count[rows] += 1
        if not inputs.as_it_comes:
            mask = tree.map_leaves(lambda x: None if x is None else x[rows], info_mask(infos))
            before = row_of(self._action, place)
            obs = inputs.compose(obs, mask, before, self._reward[place], first)
            self._check_mask(rows, obs, ended)
        store(self._obs, after, obs)

    def _check_mask(self, rows: np.ndarray, inputs: Tree, ended: np.ndarray) -> None:
        if self._policy.inputs.mask == "none":
            return
        masks = np.ones((self._shape[1], inputs[MASK].shape[1]), bool)
        masks[rows] = inputs[MASK] | ended[:, None]
        for t in np.unique(self.count[rows]).tolist():
            others = self.count != t
            self._policy.inputs.check_mask({MASK: masks}, others, self._name, t)

    def steps(self) -> Steps:
        """What was done, once nobody is busy."""
        params = torch.from_numpy(self._params).unflatten(0, self._shape)
        core = tree.map_leaves(torch.from_numpy, self._core)
        done = self._done.reshape(self._shape)
        return Steps(self.count, params[: self.count.max()], done, core, self._masked)

    def _place(self, rows: np.ndarray) -> Any:
        return self.count[rows] * self._shape[1] + rows


def _part(rows: Tree, at: np.ndarray) -> Tree:
    return tree.map_leaves(lambda x: torch.from_numpy(x[at]), rows)

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

Columns of a game in turns (``envs/turn_based_vector.py``) need each other: a step is done when
others have moved. There a fragment ends when no column can go on without one that is full. Steps
that are begun then are carried over: the rest of their columns is padding, and the next fragment
begins with them, with the action that was chosen, under the weights of that time. Where a fragment
ends before such a step is done, it is carried once more.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.actors.synchronous import ActingPolicy, Cut, StepRecord, row_of, store
from headrace.envs.info_metrics import InfoMetrics
from headrace.envs.single_frames import closed_columns
from headrace.envs.threads import Threads
from headrace.envs.turn_based_vector import TurnBasedVector
from headrace.league.turn_based_opponent_env import TurnBasedOpponentEnv
from headrace.nn.inputs import info_mask
from headrace.ops import tree
from headrace.spaces.masks import MASK
from headrace.types import Rollout, Tree

_LINGER_SHARE = 0.1  # of the time that a step takes, spent waiting for more environments
_MAX_LINGER_S = 0.001
_ENOUGH_SHARE = 0.125  # of all environments, for which nobody waits any longer


class AsynchronousStepper:
    """Each environment takes its next step as soon as the policy has acted on its last one.

    Whoever is ready first waits a little for others, because the policy acts on many rows at
    nearly the cost of one: for an eighth of all, but no longer than a tenth of what a step took in
    the last fragment, nor than 1 ms.
    """

    def __init__(
        self,
        envs: Threads | TurnBasedVector | TurnBasedOpponentEnv,
        policy: ActingPolicy,
        name: str,
        metrics: InfoMetrics | None = None,
    ) -> None:
        self.envs, self.policy, self.name = envs, policy, name
        self.metrics = None if metrics is None or metrics.unused else metrics
        self._linger_s = 0.0
        self._begun: _Begun | None = None

    def reset(self) -> None:
        """See :class:`~headrace.actors.synchronous.Stepper`."""
        self._begun = None

    def run(self, rollout: Rollout, noise: Tensor, ended: np.ndarray, cut: Cut) -> StepRecord:
        """See :class:`~headrace.actors.synchronous.Stepper`.

        ``cut`` is asked whenever the environments have done as many steps as there are of them,
        and, once a column is full, whenever any is ready. Steps that have begun are waited for.
        """
        columns = _Columns(self, rollout, noise, ended)
        num_steps, num_envs = rollout.reward.shape
        started, asked, is_cut = time.monotonic(), 0, False
        enough = math.ceil(_ENOUGH_SHARE * num_envs)
        if self._begun is not None:
            columns.go_on(self._begun)
        columns.act(np.flatnonzero(~columns.busy))
        while self.envs.num_busy:
            before = time.monotonic_ns()
            ready = self.envs.receive(enough, self._linger_s)
            columns.stepping_ns += time.monotonic_ns() - before
            columns.keep(ready)
            if cut is not None and not is_cut:
                rounds = int(columns.count.sum()) // num_envs
                if rounds > asked or columns.count.max() == num_steps:
                    asked, is_cut = rounds, cut()
            ready = ready[(columns.count[ready] < num_steps) & ~columns.closed[ready]]
            if len(ready) and not is_cut:
                columns.act(ready)
        step_s = (time.monotonic() - started) / max(1, columns.count.max())
        self._linger_s = min(_LINGER_SHARE * step_s, _MAX_LINGER_S)
        self._begun = columns.begun()
        return columns.steps()


@dataclass
class _Begun:
    """Steps that can't be done before another column acts, which has no row left for it.

    The next rollout begins with them: their observation is its row 0 there, as any column's.
    """

    rows: np.ndarray  # [n] columns
    action: Tree  # [n, ...] what was chosen
    params: np.ndarray  # [n, P] of the distribution that it was drawn from
    core: Tree  # [n, ...] the state behind it


class _Columns:
    """The columns of one fragment, each at a step of its own.

    Rollouts are time-major: the place of step t of column b is row ``t * B + b`` of what is
    flattened over both.
    """

    def __init__(
        self, pace: AsynchronousStepper, rollout: Rollout, noise: Tensor, ended: np.ndarray
    ) -> None:
        self._envs, self._policy, self._name = pace.envs, pace.policy, pace.name
        self._metrics = pace.metrics
        self._shape = num_steps, num_envs = rollout.reward.shape
        self.count = np.zeros(num_envs, np.int64)  # [B] steps done
        self.busy = np.zeros(num_envs, bool)  # [B] a step is begun and not done

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
        self._before = tree.map_leaves(np.copy, self._core)  # each column's latest action
        self._ended, self._masked, self.stepping_ns = ended.copy(), False, 0
        self._carried: np.ndarray | None = None  # [B]

    def act(self, rows: np.ndarray) -> None:
        """Choose the next action of some columns ``[n]`` and begin their steps."""
        policy, place = self._policy, self._place(rows)
        self.busy[rows] = True
        store(self._before, rows, row_of(self._core, rows))
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
        if self._metrics is not None and (self._metrics.every_step or ended.any()):
            self._note_metrics(self._metrics, rows, first, ended)
        self.count[rows] += 1
        self.busy[rows] = False
        if not inputs.as_it_comes:
            mask = tree.map_leaves(lambda x: None if x is None else x[rows], info_mask(infos))
            before = row_of(self._action, place)
            obs = inputs.compose(obs, mask, before, self._reward[place], first)
            self._check_mask(rows, obs, ended)
        store(self._obs, after, obs)

    def _note_metrics(
        self, metrics: InfoMetrics, rows: np.ndarray, first: np.ndarray, ended: np.ndarray
    ) -> None:
        begins, ends = np.ones(self._shape[1], bool), np.zeros(self._shape[1], bool)
        begins[rows], ends[rows] = first, ended
        infos = self._envs.infos(rows if metrics.every_step else rows[ended & ~first])
        if infos or metrics.every_step:
            metrics.note(infos, begins, ends)

    def _check_mask(self, rows: np.ndarray, inputs: Tree, ended: np.ndarray) -> None:
        if self._policy.inputs.mask == "none":
            return
        masks = np.ones((self._shape[1], inputs[MASK].shape[1]), bool)
        masks[rows] = inputs[MASK] | ended[:, None]
        for t in np.unique(self.count[rows]).tolist():
            others = self.count != t
            self._policy.inputs.check_mask({MASK: masks}, others, self._name, t)

    def go_on(self, begun: _Begun) -> None:
        """Take over the steps that were begun in the last fragment, which are these rows 0."""
        place = self._place(begun.rows)
        store(self._action, place, begun.action)
        self._params[place] = begun.params
        store(self._core, begun.rows, begun.core)
        self.busy[begun.rows] = True
        self._carried = self.busy.copy()

    def begun(self) -> _Begun | None:
        """What is to be taken over by the next fragment; their columns are as before them."""
        rows = np.flatnonzero(self.busy)
        if not len(rows):
            return None
        place, core = self._place(rows), row_of(self._core, rows)
        store(self._core, rows, row_of(self._before, rows))
        return _Begun(rows, row_of(self._action, place), self._params[place], core)

    def steps(self) -> StepRecord:
        """What was done, once nobody answers any more."""
        params = torch.from_numpy(self._params).unflatten(0, self._shape)
        core = tree.map_leaves(torch.from_numpy, self._core)
        done = self._done.reshape(self._shape)
        params, told = params[: self.count.max()], (self._masked, self.stepping_ns)
        return StepRecord(self.count, params, done, self._ended, core, *told, self._carried)

    def _place(self, rows: np.ndarray) -> Any:
        return self.count[rows] * self._shape[1] + rows


def _part(rows: Tree, at: np.ndarray) -> Tree:
    return tree.map_leaves(lambda x: torch.from_numpy(x[at]), rows)

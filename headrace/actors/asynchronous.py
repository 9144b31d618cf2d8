"""Steps environments asynchronously: the policy acts on those that are ready.

    thread of environment b:   step ─► wait ─► step ─► wait ─► ...
                                 │      ▲
                           ready │      │ action
                                 ▼      │
    this thread:          store rows, act on all that are ready ─► linger ─► ...

Each column b is at its own step ``t_b``. Noise is drawn for the whole fragment and indexed by
``(t, b)``, so that results don't depend on the order in which environments are ready, except that
the last bits of float32 results depend on the number of rows computed together. A fragment ends
when every column is full; until then, slow environments don't hold up the others.

Columns of a turn-based game (``games/vector.py``) depend on each other: a step completes
when the other agents have moved. There a fragment ends when no column can continue without a full
one. Pending steps are carried over: the rest of their columns is padding, and the next fragment
begins with them, with the action that was chosen and the weights that chose it. A step that is
still pending at the end of that fragment is carried over again.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.actors.action_noise import ActionNoise
from headrace.actors.synchronous import (
    ActingPolicy,
    Cut,
    StepRecord,
    row_of,
    store,
)
from headrace.envs.info_metrics import InfoMetrics
from headrace.envs.single_frames import closed_columns
from headrace.envs.threads import Threads
from headrace.games.opponent_env import OpponentEnv
from headrace.games.vector import GameVector
from headrace.nn.inputs import info_mask
from headrace.ops import tree
from headrace.spaces.masks import MASK
from headrace.types import Rollout, Tree

_LINGER_SHARE = 0.1  # share of a step's duration spent waiting for more environments
_MAX_LINGER_S = 0.001
_ENOUGH_SHARE = 0.125  # share of environments at which waiting stops


class AsynchronousStepper:
    """Steps each environment as soon as the policy has acted on its last observation.

    The policy acts on many rows at nearly the cost of one, so ready environments wait briefly for
    others: until an eighth of all are ready, for at most a tenth of a step's duration in the last
    fragment and at most 1 ms.
    """

    def __init__(
        self,
        envs: Threads | GameVector | OpponentEnv,
        policy: ActingPolicy,
        name: str,
        metrics: InfoMetrics | None = None,
    ) -> None:
        self.envs, self.policy, self.name = envs, policy, name
        self.metrics = None if metrics is None or metrics.unused else metrics
        self._linger_s = 0.0
        self._pending: _PendingSteps | None = None

    def reset(self) -> None:
        """See :class:`~headrace.actors.synchronous.Stepper`."""
        self._pending = None

    def run(
        self,
        rollout: Rollout,
        noise: Tensor,
        ended: np.ndarray,
        cut: Cut,
        source: ActionNoise | None = None,
    ) -> StepRecord:
        """See :class:`~headrace.actors.synchronous.Stepper`.

        ``cut`` is called after every ``num_envs`` steps and, once a column is full, whenever an
        environment is ready. Pending steps are waited for.
        """
        columns = _Columns(self, rollout, noise, ended, source)
        num_steps, num_envs = rollout.reward.shape
        started, checked_rounds, is_cut = time.monotonic(), 0, False
        enough = math.ceil(_ENOUGH_SHARE * num_envs)
        if self._pending is not None:
            columns.resume(self._pending)
        columns.act(np.flatnonzero(~columns.busy))
        while self.envs.num_busy:
            before = time.monotonic_ns()
            ready = self.envs.receive(enough, self._linger_s)
            columns.stepping_ns += time.monotonic_ns() - before
            ended_columns = columns.keep(ready)
            if source is not None and len(ended_columns):
                source.begin_episodes(ended_columns, columns.count[ended_columns])
            if cut is not None and not is_cut:
                rounds = int(columns.count.sum()) // num_envs
                if rounds > checked_rounds or columns.count.max() == num_steps:
                    checked_rounds, is_cut = rounds, cut()
            ready = ready[(columns.count[ready] < num_steps) & ~columns.closed[ready]]
            if len(ready) and not is_cut:
                columns.act(ready)
        step_s = (time.monotonic() - started) / max(1, columns.count.max())
        self._linger_s = min(_LINGER_SHARE * step_s, _MAX_LINGER_S)
        self._pending = columns.pending()
        return columns.steps()


@dataclass
class _PendingSteps:
    """Steps that can't complete before another column acts, which is full.

    The next rollout begins with them: their observation is in its row 0, as in any column.
    """

    rows: np.ndarray  # [n] columns
    action: Tree  # [n, ...] chosen actions
    params: np.ndarray  # [n, P] parameters of the distribution
    core: Tree  # [n, ...] state after the action


class _Columns:
    """Columns of one fragment, each at its own step.

    Rollouts are time-major: step t of column b is row ``t * B + b`` of the arrays flattened over
    both axes.
    """

    def __init__(
        self,
        pace: AsynchronousStepper,
        rollout: Rollout,
        noise: Tensor,
        ended: np.ndarray,
        source: ActionNoise | None,
    ) -> None:
        self._source = source
        self._envs, self._policy, self._name = pace.envs, pace.policy, pace.name
        self._metrics = pace.metrics
        self._shape = num_steps, num_envs = rollout.reward.shape
        self.count = np.zeros(num_envs, np.int64)  # [B] completed steps
        self.busy = np.zeros(num_envs, bool)  # [B] a step is pending

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
        self._before = tree.map_leaves(
            np.copy, self._core
        )  # state before each column's latest action
        self._ended, self._masked, self.stepping_ns = ended.copy(), False, 0
        self._carried: np.ndarray | None = None  # [B]

    def act(self, rows: np.ndarray) -> None:
        """Choose the next actions of columns ``[n]`` and send them."""
        policy, place = self._policy, self._place(rows)
        self.busy[rows] = True
        store(self._before, rows, row_of(self._core, rows))
        row = _part(self._obs, place), _part(self._first, place), _part(self._core, rows)
        noise, source = _part(self._noise, place), self._source
        if source is None or source.explorer is None:
            params, core = policy.act(*row)
        else:
            directions = source.directions(self.count[rows], rows)
            params, core = source.explorer.act(*row, directions, noise)
        action = policy.distribution.sample(params, noise)
        self._params[place] = params.numpy()
        store(self._core, rows, tree.map_leaves(lambda x: x.numpy(), core))
        action = tree.map_leaves(lambda x: x.numpy(), action)
        store(self._action, place, action)
        self._envs.send(rows, policy.env_action(action))

    def keep(self, rows: np.ndarray) -> np.ndarray:
        """Store the results of steps, and return the columns whose episode ended."""
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
        if not inputs.is_observation:
            mask = tree.map_leaves(lambda x: None if x is None else x[rows], info_mask(infos))
            before = row_of(self._action, place)
            obs = inputs.compose(obs, mask, before, self._reward[place], first)
            self._check_mask(rows, obs, ended)
        store(self._obs, after, obs)
        return rows[ended]

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

    def resume(self, pending: _PendingSteps) -> None:
        """Continue the pending steps of the last fragment in row 0 of these columns."""
        place = self._place(pending.rows)
        store(self._action, place, pending.action)
        self._params[place] = pending.params
        store(self._core, pending.rows, pending.core)
        self.busy[pending.rows] = True
        self._carried = self.busy.copy()

    def pending(self) -> _PendingSteps | None:
        """Return the pending steps for the next fragment and restore the state before them."""
        rows = np.flatnonzero(self.busy)
        if not len(rows):
            return None
        place, core = self._place(rows), row_of(self._core, rows)
        store(self._core, rows, row_of(self._before, rows))
        return _PendingSteps(rows, row_of(self._action, place), self._params[place], core)

    def steps(self) -> StepRecord:
        """Return the record of completed steps, once no environment is busy."""
        params = torch.from_numpy(self._params).unflatten(0, self._shape)
        core = tree.map_leaves(torch.from_numpy, self._core)
        done = self._done.reshape(self._shape)
        params = params[: self.count.max()]
        return StepRecord(
            self.count,
            params,
            done,
            self._ended,
            core,
            self._masked,
            self.stepping_ns,
            self._carried,
        )

    def _place(self, rows: np.ndarray) -> Any:
        return self.count[rows] * self._shape[1] + rows


def _part(rows: Tree, at: np.ndarray) -> Tree:
    return tree.map_leaves(lambda x: torch.from_numpy(x[at]), rows)

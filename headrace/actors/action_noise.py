"""Draws the noise from which an actor samples actions: white, or correlated in time.

The noise of a fragment is drawn before its steps. White noise is independent at every step.
Coloured noise has a sequence for each environment and continuous action, which continues in the
next fragment and restarts with each episode. Discrete actions always have white noise.

State-dependent noise (:mod:`headrace.nn.state_noise`) is computed at each step, from matrices that
are also drawn here. These matrices don't depend on the order in which environments are ready.

Every element of coloured noise is standard normal, so each action has the policy's distribution,
and losses use its log-probability. The dependence between steps is ignored, as in PPO with coloured
noise (Hollenstein et al. 2024, https://arxiv.org/abs/2312.11091). Evaluations, opponents and
``predict`` sample with white noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.nn.state_noise import Explorer
from headrace.ops.colored_noise import colored_noise
from headrace.ops.distributions.composite import gaussian_places

_SEQUENCE = 1024  # minimum steps of a sequence
_SPARE = 64  # sequences drawn at once, in a tenth of the time per sequence


class ActionNoise:
    """Draws noise for the fragments of one vector environment.

    Args:
        distribution: action distribution, which defines the shape of its noise.
        num_envs: number of environments, B.
        beta: exponent of the spectrum, see :func:`~headrace.ops.colored_noise.colored_noise`.
            Unused with an explorer.
        explorer: explorer of a policy with state-dependent noise, or None.

    Attributes:
        explorer: as given.
    """

    def __init__(
        self,
        distribution: Any,
        num_envs: int,
        beta: float = 0.0,
        explorer: Explorer | None = None,
    ) -> None:
        self._distribution, self._num_envs, self._beta = distribution, num_envs, beta
        self._generator, self._coloured = torch.Generator(), torch.Generator()
        coloured = beta and explorer is None
        self._places = list(gaussian_places(distribution)) if coloured else []
        self._sequences = torch.empty(0, num_envs, len(self._places))  # [L, B, n]
        self._spare = torch.empty(0, 0)  # [L, ...] sequences for the next episodes
        self._at = np.zeros(num_envs, np.int64)  # [B] element of the sequence for row 0
        self._rows = torch.empty(0)
        self.explorer = explorer
        self._directions = torch.empty(0)  # [draws, B, F, k] of a fragment

    @property
    def is_coloured(self) -> bool:
        """True if any action has correlated noise."""
        return bool(self._places) or self.explorer is not None

    def reset(self, seed: int) -> None:
        """Restart with the noise of ``seed``."""
        self._generator.manual_seed(seed)
        if self.is_coloured:
            self._coloured.manual_seed(int(torch.randint(2**62, (), generator=self._generator)))
            self._spare = self._spare[:, :0]
        self._at[:] = len(self._sequences)

    def draw(self, num_steps: int) -> Tensor:
        """Return noise ``[num_steps, B, num_noise]`` float32, continuing each sequence.

        A sequence with fewer than ``num_steps`` elements left is replaced by a new one.
        """
        shape = num_steps, self._num_envs
        self._rows = self._distribution.noise(shape, self._generator)
        if self.explorer is not None:
            draws = -(-num_steps // (self.explorer.sample_freq or num_steps))
            size = draws, self._num_envs, *self.explorer.shape
            self._directions = torch.randn(size, generator=self._coloured)
        if not self._places:
            return self._rows
        if len(self._sequences) < num_steps:
            length = max(_SEQUENCE, 2 * num_steps)
            self._sequences = torch.empty(length, self._num_envs, len(self._places))
            self._spare = torch.empty(length, 0)
            self._at[:] = length
        ended = np.flatnonzero(self._at + num_steps > len(self._sequences))
        self._begin(ended, np.zeros(len(ended), np.int64))
        self._continue(np.setdiff1d(np.arange(self._num_envs), ended))
        return self._rows

    def directions(self, rows: Any, columns: Any = slice(None)) -> Tensor:
        """Return the matrices ``[n, F, k]`` for steps of the latest :meth:`draw`.

        Args:
            rows: one step, or ``[n]`` steps; columns: ``[n]`` environments, or all.
        """
        assert self.explorer is not None
        return self._directions[rows // (self.explorer.sample_freq or len(self._rows)), columns]

    def begin_episodes(self, columns: np.ndarray, rows: np.ndarray) -> None:
        """Begin new sequences in the noise of the latest :meth:`draw`, in place.

        Args:
            columns: ``[n]`` environments whose episode ended.
            rows: ``[n]`` first row of the next episode; may be beyond the fragment.
        """
        if self._places:
            self._begin(columns, rows)

    def advance(self, num_steps: np.ndarray) -> None:
        """Move each sequence forward by the ``[B]`` steps taken in the fragment."""
        self._at += num_steps

    def _begin(self, columns: np.ndarray, rows: np.ndarray) -> None:
        if len(columns):
            length, _, size = self._sequences.shape
            new = self._next(length, len(columns) * size)
            self._sequences[:, columns] = new.reshape(length, len(columns), size)
            self._at[columns] = -rows
            self._fill(columns, rows)

    def _next(self, length: int, count: int) -> Tensor:
        """Return the next sequences, ``[length, count]``."""
        if self._spare.shape[1] < count:
            size = max(_SPARE, count)
            self._spare = colored_noise(length, size, self._beta, self._coloured)
        new, self._spare = self._spare[:, :count], self._spare[:, count:]
        return new

    def _continue(self, columns: np.ndarray) -> None:
        """Copy the next elements of each column's sequence into all of its noise."""
        steps = np.arange(len(self._rows))[:, None]
        part = self._sequences.numpy()[self._at[columns] + steps, columns]  # [T, n, k]
        self._rows.numpy()[:, columns[:, None], self._places] = part

    def _fill(self, columns: np.ndarray, rows: np.ndarray) -> None:
        """Copy sequences into the noise of columns ``[n]``, starting at rows ``[n]``."""
        noise, places = self._rows.numpy(), self._places
        for column, row in zip(columns.tolist(), rows.tolist(), strict=True):
            at = self._at[column] + row
            part = self._sequences[at : at + len(noise) - row, column].numpy()
            noise[row:, column, places] = part

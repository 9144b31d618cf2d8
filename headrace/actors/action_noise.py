"""Draws the noise from which an actor samples actions: white, or correlated in time.

The noise of a fragment is drawn before its steps. White noise is independent at every step.
Coloured noise has a sequence for each environment and continuous action, which continues in the
next fragment. Each episode skips part of it. Discrete actions always have white noise.

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
# Steps that the next episode skips, so that its noise is less correlated with that of the last one.
# A new sequence for each episode would cost more than a short episode itself.
_GAP = 64
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
        self._sequences = np.empty((num_envs, 0, len(self._places)), np.float32)  # [B, L, n]
        self._spare = np.empty((0, 0), np.float32)  # [..., L] sequences for later
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
            self._spare = self._spare[:0]
        self._at[:] = self._sequences.shape[1]

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
        if self._sequences.shape[1] < num_steps:
            length = max(_SEQUENCE, 2 * num_steps)
            self._sequences = np.empty((self._num_envs, length, len(self._places)), np.float32)
            self._spare = np.empty((0, length), np.float32)
            self._at[:] = length
        ended = np.flatnonzero(self._at + num_steps > self._sequences.shape[1])
        self._begin(ended, np.zeros(len(ended), np.int64))
        others = np.setdiff1d(np.arange(self._num_envs), ended)
        self._fill(others, np.zeros(len(others), np.int64))
        return self._rows

    def directions(self, rows: Any, columns: Any = slice(None)) -> Tensor:
        """Return the matrices ``[n, F, k]`` for steps of the latest :meth:`draw`.

        Args:
            rows: one step, or ``[n]`` steps; columns: ``[n]`` environments, or all.
        """
        assert self.explorer is not None
        return self._directions[rows // (self.explorer.sample_freq or len(self._rows)), columns]

    def begin_episodes(self, columns: np.ndarray, rows: np.ndarray) -> None:
        """Skip part of the sequences in the noise of the latest :meth:`draw`, in place.

        A sequence with too few elements left is replaced by a new one.

        Args:
            columns: ``[n]`` environments whose episode ended.
            rows: ``[n]`` first row of the next episode; may be beyond the fragment.
        """
        if not self._places:
            return
        length = self._sequences.shape[1]
        later = self._at[columns] + _GAP  # of the fragment's first row
        fits = later + len(self._rows) <= length
        self._at[columns[fits]] = later[fits]
        self._fill(columns[fits], rows[fits])
        self._begin(columns[~fits], rows[~fits])

    def advance(self, num_steps: np.ndarray) -> None:
        """Move each sequence forward by the ``[B]`` steps taken in the fragment."""
        self._at += num_steps

    def _begin(self, columns: np.ndarray, rows: np.ndarray) -> None:
        if len(columns):
            _, length, size = self._sequences.shape
            new = self._next(len(columns) * size, length).reshape(-1, size, length)
            self._sequences[columns] = new.swapaxes(1, 2)
            self._at[columns] = -rows
            self._fill(columns, rows)

    def _next(self, count: int, length: int) -> np.ndarray:
        """Return the next sequences, ``[count, length]``."""
        new = np.empty((count, length), np.float32)
        for start in range(0, count, _SPARE):
            size = min(_SPARE, count - start)
            if len(self._spare) < size:
                self._spare = colored_noise(length, _SPARE, self._beta, self._coloured).numpy().T
            new[start : start + size] = self._spare[:size]
            self._spare = self._spare[size:]
        return new

    def _fill(self, columns: np.ndarray, rows: np.ndarray) -> None:
        """Copy sequences into the noise of columns ``[n]``, starting at rows ``[n]``."""
        noise = self._rows.numpy()
        for row in np.unique(rows[rows < len(noise)]):
            same = columns[rows == row]
            at = self._at[same] + np.arange(row, len(noise))[:, None]
            noise[row:, same[:, None], self._places] = self._sequences[same, at]

"""Per-task values: a value head and target statistics for each task (Hessel et al. 2018).

"Multi-task deep reinforcement learning with PopArt", arXiv:1809.04474, section 3: values and
advantages are in units of the standard deviation of each task's targets. When the statistics
change, values are preserved.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headrace.spaces.unified_spaces import TASK
from headrace.types import Tree

_SHARE = 0.1  # weight of the newest update in averages, as for a single task
_LEAST = 1e-12  # smallest variance, for targets that are always zero
SUMS = "task_targets/"  # prefix of the names of sums


class TaskUnits(NamedTuple):
    """Units of the values of a batch's steps, by the task of each step."""

    task: Tensor  # [T, B] int64
    mean: Tensor  # [T, B]
    scale: Tensor  # [T, B]  0 before there is one
    num_tasks: int

    def normalized(self, value: Tensor) -> Tensor:
        """Convert values ``[T, B]`` to outputs of the head; 0 without a scale."""
        return torch.where(self.scale > 0, (value - self.mean) / self._some, 0.0)

    def advantage(self, advantage: Tensor) -> Tensor:
        """Divide advantages ``[T, B]`` by the deviation of their task's targets, if it is known."""
        return advantage / self._some

    @property
    def _some(self) -> Tensor:
        return torch.where(self.scale > 0, self.scale, 1.0)

    def sums(self, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Return count, sum and squares of each task's targets, in its units to fit float32.

        Args:
            target, valid: ``[T, B]``.
        """
        own = torch.where(valid, (target - self.mean) / self._some, 0.0).double().flatten()
        each = torch.stack([valid.double().flatten(), own, own.square()])
        totals = each.new_zeros(3, self.num_tasks).index_add_(1, self.task.flatten(), each)
        return {f"{SUMS}{i}": total for i, total in enumerate(totals.flatten())}


class TaskPopArt(nn.Module):
    """PopArt for each task: ``V = scale_k * n_k + mean_k`` with the head's output n_k of task k.

    The state is module buffers, as that of :class:`~headrace.nn.popart.PopArt`: also the averages
    that mean and scale come from.
    """

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.num_tasks = num_tasks
        for name in ("mean", "scale"):
            self.register_buffer(name, torch.zeros(num_tasks))
        # Of each task: the sum of the weights, and the averages of targets and of their squares.
        self.register_buffer("averages", torch.zeros(3, num_tasks, dtype=torch.float64))
        self.mean: Tensor
        self.scale: Tensor
        self.averages: Tensor
        self._noted = torch.zeros(3, num_tasks, dtype=torch.float64)  # of an update's steps

    def forward(self, output: Tensor, inputs: Tree) -> Tensor:
        """Compute V ``[N, 1]`` from the head's outputs ``[N, K]`` for inputs ``[N, ...]``."""
        task = inputs[TASK].long()
        own = output.gather(-1, task.unsqueeze(-1)).squeeze(-1)
        return (own * self.scale[task] + self.mean[task]).unsqueeze(-1)

    def of(self, inputs: Tree, rows: int) -> TaskUnits:
        """Return the units of a batch's first ``rows`` rows."""
        task = inputs[TASK][:rows].long()
        return TaskUnits(task, self.mean[task], self.scale[task], self.num_tasks)

    def note(self, sums: dict[str, float]) -> None:
        """Take what :meth:`TaskUnits.sums` gave, over all learners, out of an optimiser step's
        sums."""
        values = [sums.pop(f"{SUMS}{i}") for i in range(3 * self.num_tasks)]
        self._noted += torch.tensor(values, dtype=torch.float64).view(3, -1)

    @torch.no_grad()
    def shift(self, head: nn.Linear) -> None:
        """Adopt the statistics of the recorded targets; V is preserved.

        Args:
            head: ``[..., F] -> [..., K]``, changed in place.
        """
        noted, self._noted = self._noted, torch.zeros_like(self._noted)
        for k, (count, total, square) in enumerate(noted.unbind(1)):
            if count:
                self._move(head, k, float(total / count), float(square / count))

    def _move(self, head: nn.Linear, k: int, mean: float, square: float) -> None:
        """Update task k's statistics with mean and mean square of its targets, in its units."""
        old_mean, old_scale = float(self.mean[k]), float(self.scale[k])
        unit = old_scale if old_scale > 0 else 1.0
        square = unit**2 * square + 2 * unit * mean * old_mean + old_mean**2
        mean = unit * mean + old_mean
        square = max(square, mean**2)  # which rounding may have made less
        weight, first, second = self.averages[:, k]
        if not square > 0 and not second > 0:  # nothing but zeros so far
            return
        weight += _SHARE * (1.0 - weight)
        first += _SHARE * (mean - first)
        second += _SHARE * (square - second)
        center, size = float(first / weight), float(second / weight)
        self.mean[k] = center
        self.scale[k] = max(size - center**2, 1e-6 * size, _LEAST) ** 0.5
        if old_scale > 0:
            new_mean, new_scale = float(self.mean[k]), float(self.scale[k])  # in float32
            head.weight[k] *= old_scale / new_scale
            head.bias[k] = (head.bias[k] * old_scale + old_mean - new_mean) / new_scale

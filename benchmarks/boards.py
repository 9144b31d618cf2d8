"""A network for Connect Four: small convolutions over the board, as the one who looks sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ROWS, COLUMNS = 6, 7
CELLS = 3 * ROWS * COLUMNS  # the first player's, the second's, empty ones


class Board(nn.Module):
    """Observations ``[N, CELLS + 2]`` of Connect Four to features ``[N, features]``.

    Planes come as first player's, second player's, empty; here the looking player's own are first,
    so that both seats learn from the same games. A window of four by four holds any line of four.
    """

    def __init__(self, channels: int = 32, features: int = 128) -> None:
        super().__init__()
        self.windows = nn.Conv2d(3, channels, 4, padding=2)
        self.all = nn.Linear(channels * (ROWS + 1) * (COLUMNS + 1) + 2, features)

    def forward(self, obs: Tensor) -> Tensor:
        """ReLU after each layer; the seat joins before the last."""
        planes, seat = obs[:, :CELLS].view(-1, 3, ROWS, COLUMNS), obs[:, CELLS:]
        second = seat[:, 1].view(-1, 1, 1, 1) > 0
        planes = torch.where(second, planes[:, [1, 0, 2]], planes)
        windows = torch.relu(self.windows(planes)).flatten(1)
        return torch.relu(self.all(torch.cat([windows, seat], 1)))


def board(observation_space: Any) -> Board:
    """For the observations of ``OpenSpiel/connect_four-v0``."""
    return Board()

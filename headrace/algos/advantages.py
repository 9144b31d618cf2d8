"""Normalises advantages by running moments, for batches that are used whole."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.moments import MovingMoments
from headrace.types import State

_SHARE = 0.1  # weight of the newest batch in running moments


def running_advantage(normalize: bool | None) -> State:
    """Create the state for running moments of advantages, if advantages are normalised."""
    return {"advantage": MovingMoments(_SHARE)} if normalize else {}


def by_running_scale(
    state: State, advantage: Tensor, valid: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Normalise advantages ``[T, B]`` by the moments of earlier batches, if the setting is on.

    Returns:
        the advantages, 0 before the first batch, and sums for :func:`note_advantage`, which belong
        in the metrics.
    """
    if "advantage" not in state:
        return advantage, {}
    masked = torch.where(valid, advantage, 0.0).double()
    sums = {"advantage_mean": masked.sum(), "advantage_square": masked.square().sum()}
    moments: MovingMoments = state["advantage"]
    scale = 1.0 / moments.deviation if moments.deviation > 0 else 0.0
    return (advantage - moments.mean) * scale, sums


def note_advantage(state: State, metrics: dict[str, float]) -> None:
    """Update the running moments with the sums of :func:`by_running_scale` for one step."""
    if "advantage_mean" in metrics:
        state["advantage"].note(metrics.pop("advantage_mean"), metrics.pop("advantage_square"))

"""Saves and restores the state of a :class:`~headrace.learner.learner.Learner` for checkpoints."""

from __future__ import annotations

import io
from typing import Any

import torch

from headrace.errors import ConfigError


def check_state(state: dict[str, Any], algorithm: Any) -> None:
    """Raise ConfigError if a checkpoint of an algorithm's initial state couldn't be read again."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor | torch.Generator) or hasattr(value, "state_dict"):
            continue  # buffers may be large
        try:
            torch.save(_saved(value), file := io.BytesIO())
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:  # pickle and PyTorch raise many kinds
            raise ConfigError(
                f"{type(algorithm).__name__}.init returns {name!r}, a {type(value).__name__} that "
                "checkpoints can't save: use tensors, plain values or objects with state_dict()"
            ) from error


def state_of(learner: Any) -> dict[str, Any]:
    """Return optimiser, algorithm state and counters, as tensors and plain values.

    Data of one learner only is left out, see :func:`own_state_of`.
    """
    state = {k: _saved(v) for k, v in learner.state.items() if not hasattr(v, "reshard")}
    returns = {} if learner.returns is None else _saved(learner.returns)
    optimizer = learner.optimizer.state_dict()
    parts = {"optimizer": optimizer, "state": state, "returns": returns}
    parts |= {"targets": learner.targets.state_dict(), "ages": learner.ages.state_dict()}
    return parts | {"num_steps": learner.num_steps, "center": learner.allreduce.center}


def own_state_of(learner: Any) -> dict[str, Any]:
    """Return data that only this learner holds: replay and circular buffers."""
    return {k: _saved(v) for k, v in learner.state.items() if hasattr(v, "reshard")}


def load_own_state(learner: Any, of_ranks: list[dict[str, Any]]) -> None:
    """Take this learner's share of what :func:`own_state_of` returned on each learner.

    Raises:
        ValueError: it can't be shared out, or belongs to other settings.
    """
    for name in own_state_of(learner):
        buffer, states = learner.state[name], [state[name] for state in of_ranks]
        buffer.load_state_dict(buffer.reshard(states, learner.group.rank, learner.group.size))


def load_state(learner: Any, saved: dict[str, Any]) -> None:
    """Restore what :func:`state_of` returned."""
    learner.optimizer.load_state_dict(saved["optimizer"])
    for name, value in saved["state"].items():
        if name not in learner.state:  # unused with these settings: moments with minibatches
            continue
        ours = learner.state[name]
        if ours is None and isinstance(value, dict):  # perhaps of an object, made during training
            continue
        if isinstance(ours, torch.Generator):
            ours.set_state(value)
        elif hasattr(ours, "load_state_dict"):
            ours.load_state_dict(value)
        else:
            device = ours.device if isinstance(ours, torch.Tensor) else learner.device
            is_tensor = isinstance(value, torch.Tensor)
            learner.state[name] = value.to(device) if is_tensor else value
    if learner.returns is not None:
        learner.returns.load_state_dict(saved["returns"])
    learner.targets.load_state_dict(saved["targets"])
    learner.allreduce.center = saved["center"] if learner.group.size > 1 else 0.0
    learner.num_steps = saved["num_steps"]
    learner.ages.load_state_dict(saved["ages"])


def _saved(value: Any) -> Any:
    """Convert a part of an algorithm's state to tensors and plain values."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    return dict(value.state_dict()) if hasattr(value, "state_dict") else value

"""What an agent must offer, and how it travels.

act(obs)                  an action, (action, log_prob), or a dict with "action", "log_prob" and
                          whatever else you want back; obs is a tensor [B, ...] on the CPU, or a
                          dict or tuple of them
get_parameters()          what changes when it learns; a torch.nn.Module needs none, its
                          state_dict is taken
set_parameters(values)    takes that over in a worker; a Module needs none; without it the whole
                          agent travels instead
log_prob(obs, action)     [B], or distribution(obs) -> torch.distributions.Distribution: lets
                          the head measure how far a worker's copy is from the agent
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.ops import tree


def is_agent(value: Any) -> bool:
    """Whether ``step`` was given an agent rather than actions."""
    return callable(getattr(value, "act", None))


def check_agent(agent: Any) -> None:
    """Raise ConfigError unless the agent has what the contract asks for."""
    if not is_agent(agent):
        raise ConfigError(
            f"agent={type(agent).__name__} has no method act(obs), which returns an action, "
            "(action, log_prob), or a dict with both"
        )
    alone = isinstance(agent, nn.Module) and not hasattr(agent, "set_parameters")
    if not alone and not callable(getattr(agent, "get_parameters", None)):
        raise ConfigError(
            f"agent={type(agent).__name__} has no method get_parameters(), which all but a "
            "torch.nn.Module without set_parameters() need to show when they have learnt"
        )


def has_log_prob(agent: Any) -> bool:
    """Whether it can be measured how far a copy is from this agent."""
    return any(callable(getattr(agent, name, None)) for name in ("log_prob", "distribution"))


def parameters(agent: Any) -> Any:
    """A tree of what changes when the agent learns; leaves are tensors, arrays or plain values."""
    if isinstance(agent, nn.Module) and not hasattr(agent, "set_parameters"):
        return dict(agent.state_dict())
    return as_tree(agent.get_parameters())


def as_tree(values: Any) -> Any:
    """``values`` with lists and iterators as tuples."""
    if isinstance(values, dict):
        return {key: as_tree(value) for key, value in values.items()}
    if isinstance(values, Tensor | np.ndarray | str | bytes) or not isinstance(values, Iterable):
        return values
    return tuple(as_tree(value) for value in values)


def pack_agent(agent: Any) -> bytes:
    """The agent by value, its tensors on the CPU.

    Raises:
        ConfigError: it can't be serialised; names the attribute.
    """
    try:
        return _dumps(agent)
    except Exception as error:  # whatever an attribute's own pickling raises
        path, value = _culprit(agent, "agent")
        raise ConfigError(
            f"{path}, a {type(value).__name__}, can't be sent to workers ({error}); leave it out "
            "of the agent, or of its __getstate__"
        ) from error


class _Pickler(cloudpickle.Pickler):
    """Writes a tensor's own elements: torch's way takes all those whose memory it shares."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided or value.is_quantized:
            return super().reducer_override(value)
        try:
            return torch.from_numpy, (value.detach().cpu().contiguous().numpy(),)
        except TypeError:  # of a dtype that NumPy has not
            return super().reducer_override(value)


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _culprit(value: Any, path: str, depth: int = 0) -> tuple[str, Any]:
    """The innermost part that can't be serialised."""
    inside: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inside = [(f"{path}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        inside = [(f"{path}[{i}]", part) for i, part in enumerate(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        inside = [(f"{path}.{name}", part) for name, part in vars(value).items()]
    for name, part in inside if depth < 8 else []:
        try:
            cloudpickle.dumps(part)
        except Exception:  # as above
            return _culprit(part, name, depth + 1)
    return path, value


def pack_weights(agent: Any) -> bytes:
    """What a worker that has the agent needs to be like it."""
    if not isinstance(agent, nn.Module) and not hasattr(agent, "set_parameters"):
        return pack_agent(agent)
    return _dumps(parameters(agent))


def with_weights(agent: Any, packed: bytes) -> Any:
    """The agent with what :func:`pack_weights` made of another copy."""
    values = pickle.loads(packed)
    if hasattr(agent, "set_parameters"):
        agent.set_parameters(values)
    elif isinstance(agent, nn.Module):
        agent.load_state_dict(values)
    else:
        agent = values
    return agent


def to_tensors(values: Any, device: torch.device | str = "cpu") -> Any:
    """A tree of arrays as tensors of the same dtypes."""
    return tree.map_leaves(lambda x: torch.as_tensor(x).to(device), values)


@torch.no_grad()
def act(agent: Any, obs: Any) -> dict[str, Any]:
    """Let the agent act: a dict of arrays ``[B, ...]`` with ``action``, and ``log_prob`` if known.

    Args:
        obs: tree of arrays ``[B, ...]``, which may be overwritten later.

    Raises:
        TypeError: it returned something else.
    """
    inputs = to_tensors(obs)
    returned = agent.act(inputs)
    if isinstance(returned, tuple):
        if len(returned) != 2:
            raise TypeError(
                f"act returned {len(returned)} values; return (action, log_prob), or a dict with "
                "'action', 'log_prob' and a name for each of the others"
            )
        returned = {"action": returned[0], "log_prob": returned[1]}
    elif not isinstance(returned, dict) or "action" not in returned:
        returned = {"action": returned}
    if returned.get("log_prob") is None and has_log_prob(agent):
        action = tree.map_leaves(torch.as_tensor, returned["action"])
        returned = returned | {"log_prob": log_prob(agent, inputs, action)}
    acted = {k: tree.map_leaves(_as_array, v) for k, v in returned.items() if v is not None}
    size = len(tree.leaves(inputs)[0])
    for leaf in tree.leaves(acted["action"]):
        if np.ndim(leaf) == 0 or len(leaf) != size:
            raise TypeError(f"act returned an action of shape {leaf.shape} for {size} observations")
    if "log_prob" in acted:
        acted["log_prob"] = acted["log_prob"].reshape(size, -1).sum(1)  # as in log_prob below
    return acted


def _as_array(value: Any) -> np.ndarray:
    # A copy: what an agent returns may be its observations, or memory that it uses again.
    return np.array(value.detach().cpu() if isinstance(value, Tensor) else value)


@torch.no_grad()
def log_prob(agent: Any, obs: Any, action: Any) -> Tensor:
    """Of ``action`` in ``obs`` (trees of tensors ``[B, ...]``): ``[B]``."""
    if callable(getattr(agent, "log_prob", None)):
        values = agent.log_prob(obs, action)
    else:
        values = agent.distribution(obs).log_prob(action)
    values = torch.as_tensor(values)
    return values.reshape(len(values), -1).sum(1)  # a distribution may keep an action's dimensions


def device_of(agent: Any) -> torch.device:
    """Where the agent computes."""
    first = next(agent.parameters(), None) if isinstance(agent, nn.Module) else None
    return torch.device("cpu") if first is None else first.device

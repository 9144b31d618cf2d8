"""Agent interface of ClusterEnv, and serialisation of agents for workers.

act(obs)                  an action, (action, log_prob), or a dict with "action", "log_prob" and
                          any further outputs; obs is a tensor [B, ...] on the CPU, or a
                          dict or tuple of them
get_parameters()          the parameters that training changes; optional for a torch.nn.Module,
whose
                          state_dict is used
set_parameters(values)    loads them in a worker; optional for a Module; without it the whole
                          agent is sent instead
distribution(obs)         torch.distributions.Distribution: lets the head measure how far a
                          worker's copy is from the agent, exactly
log_prob(obs, action)     [B]: lets the head estimate it closely; without both methods, it is
                          estimated from the outputs of act
initial_state(num_envs)   a tree of tensors [num_envs, ...]: the agent is recurrent, is called as
                          act(obs, state), and returns (what act returns, the next state). Workers
                          keep the state, and reset the rows whose episode begins
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.ops import tree
from headrace.processes.pickling import unpicklable_part


def is_agent(value: Any) -> bool:
    """Return whether ``step`` was called with an agent rather than actions."""
    return callable(getattr(value, "act", None))


def check_agent(agent: Any) -> None:
    """Raise ConfigError unless the agent has the required methods."""
    if not is_agent(agent):
        raise ConfigError(
            f"agent={type(agent).__name__} has no method act(obs), which returns an action, "
            "(action, log_prob), or a dict with both"
        )
    if not is_module_alone(agent) and not callable(getattr(agent, "get_parameters", None)):
        raise ConfigError(
            f"agent={type(agent).__name__} has no method get_parameters(), which is required "
            "unless "
            "it is a torch.nn.Module without set_parameters(), to detect changed weights"
        )


def is_recurrent(agent: Any) -> bool:
    """Return whether the agent is recurrent."""
    return callable(getattr(agent, "initial_state", None))


def has_distribution(agent: Any) -> bool:
    """Return whether the agent exposes its action distribution."""
    return callable(getattr(agent, "distribution", None))


def has_log_prob(agent: Any) -> bool:
    """Return whether the agent can compute log-probabilities of actions."""
    return callable(getattr(agent, "log_prob", None)) or has_distribution(agent)


def is_module_alone(agent: Any) -> bool:
    """Return whether the agent is synchronised by its ``state_dict``."""
    return isinstance(agent, nn.Module) and not hasattr(agent, "set_parameters")


def parameters(agent: Any) -> Any:
    """Return the agent's parameters as a tree of tensors, arrays or plain values."""
    if is_module_alone(agent):
        return dict(
            agent.state_dict(keep_vars=True)
        )  # called at each step; detaching doubles its time
    return as_tree(agent.get_parameters())


def as_tree(values: Any) -> Any:
    """Return ``values`` with lists and iterators as tuples."""
    if isinstance(values, dict):
        return {key: as_tree(value) for key, value in values.items()}
    if isinstance(values, Tensor | np.ndarray | str | bytes) or not isinstance(values, Iterable):
        return values
    return tuple(as_tree(value) for value in values)


def pack_agent(agent: Any) -> bytes:
    """Pickle the agent by value, with its tensors on the CPU.

    Raises:
        ConfigError: it can't be pickled; the message names the attribute.
    """
    try:
        return _dumps(agent)
    except Exception as error:  # an attribute's pickling may raise anything
        path, value = unpicklable_part(agent, "agent")
        raise ConfigError(
            f"{path}, a {type(value).__name__}, can't be sent to workers ({error}); leave it out "
            "of the agent, or of its __getstate__"
        ) from error


class _Pickler(cloudpickle.Pickler):
    """Pickler that writes only a tensor's own elements, where torch writes its whole storage."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided or value.is_quantized:
            return super().reducer_override(value)
        try:
            return torch.from_numpy, (value.detach().cpu().contiguous().numpy(),)
        except TypeError:  # a dtype that NumPy lacks
            return super().reducer_override(value)


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def pack_weights(agent: Any) -> bytes:
    """Pack the weights for a worker that already has the agent."""
    if not isinstance(agent, nn.Module) and not hasattr(agent, "set_parameters"):
        return pack_agent(agent)
    return _dumps(dict(agent.state_dict()) if is_module_alone(agent) else parameters(agent))


def with_weights(agent: Any, packed: bytes) -> Any:
    """Load the result of :func:`pack_weights` into another copy of the agent."""
    values = pickle.loads(packed)
    if hasattr(agent, "set_parameters"):
        agent.set_parameters(values)
    elif isinstance(agent, nn.Module):
        agent.load_state_dict(values)
    else:
        agent = values
    return agent


def to_tensors(values: Any, device: torch.device | str = "cpu") -> Any:
    """Convert a tree of arrays to tensors of the same dtypes."""
    return tree.map_leaves(lambda x: torch.as_tensor(x, device=device), values)


@torch.no_grad()
def initial_state(agent: Any, num_envs: int) -> Any:
    """Return a recurrent agent's initial state ``[num_envs, ...]``; () for other agents.

    Raises:
        TypeError: it has another number of rows.
    """
    if not is_recurrent(agent):
        return ()
    return _checked(agent.initial_state(num_envs), num_envs, f"initial_state({num_envs})")


def begun(agent: Any, state: Any, first: np.ndarray) -> Any:
    """Reset the rows of the state ``[B, ...]`` where ``first`` ``[B]`` is True."""
    if (isinstance(state, tuple) and not state) or not first.any():
        return state
    return _put_back(agent, state, first)


@torch.no_grad()
def _put_back(agent: Any, state: Any, first: np.ndarray) -> Any:

    def put_back(new: Any, old: Any) -> Any:
        if isinstance(old, Tensor):
            begins = torch.from_numpy(first).to(old.device).view(-1, *[1] * (old.ndim - 1))
            return torch.where(begins, torch.as_tensor(new).to(old.device), old)
        return np.where(first.reshape(-1, *[1] * (np.ndim(old) - 1)), as_array(new), old)

    return tree.map_leaves(put_back, initial_state(agent, len(first)), state)


def _checked(state: Any, size: int, method: str) -> Any:
    state = as_tree(state)
    for leaf in tree.leaves(state):
        if np.ndim(leaf) == 0 or len(leaf) != size:
            raise TypeError(
                f"{method} returned a state of shape {list(np.shape(leaf))} for {size} "
                "environments, "
                "which must be its first dimension"
            )
    return state


@torch.no_grad()
def act(agent: Any, obs: Any, state: Any = ()) -> tuple[dict[str, Any], Any]:
    """Call the agent; returns a dict of arrays ``[B, ...]`` with ``action`` and maybe ``log_prob``.

    Args:
        obs: tree of arrays ``[B, ...]``, which may be overwritten later.
        state: state of a recurrent agent, ``[B, ...]``.

    Returns:
        the dict, and the agent's next state, () unless it is recurrent.

    Raises:
        TypeError: its return value has another form.
    """
    inputs, recurrent = to_tensors(obs), is_recurrent(agent)
    returned = agent.act(inputs, state) if recurrent else agent.act(inputs)
    size = next(_shapes(inputs))[0]
    if recurrent:
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                "act of an agent with initial_state must return (acted, state), where acted is an "
                "action, (action, log_prob), or a dict with both"
            )
        returned, state = returned[0], _checked(returned[1], size, "act")
    if isinstance(returned, tuple):
        if len(returned) != 2:
            raise TypeError(
                f"act returned {len(returned)} values; return (action, log_prob), or a dict with "
                "'action', 'log_prob' and a name for each of the others"
            )
        returned = {"action": returned[0], "log_prob": returned[1]}
    elif not isinstance(returned, dict) or "action" not in returned:
        returned = {"action": returned}
    if returned.get("log_prob") is None and not recurrent and has_log_prob(agent):
        action = tree.map_leaves(torch.as_tensor, returned["action"])
        returned = returned | {"log_prob": log_prob(agent, inputs, action)}
    acted = {k: tree.map_leaves(as_array, v) for k, v in returned.items() if v is not None}
    for shape in _shapes(acted["action"]):
        if not shape or shape[0] != size:
            raise TypeError(f"act returned an action of shape {shape} for {size} observations")
    if "log_prob" in acted and acted["log_prob"].shape != (size,):
        acted["log_prob"] = acted["log_prob"].reshape(size, -1).sum(1)  # as in log_prob below
    return acted, state


def _shapes(values: Any) -> Iterator[tuple[int, ...]]:
    """Return the shapes of a tree's tensors or arrays; a direct walk, since every step calls it."""
    if isinstance(values, dict | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _shapes(value)
    else:
        yield tuple(values.shape)


def as_array(value: Any) -> np.ndarray:
    """Return a host copy of an array, or of a tensor on any device.

    An agent may return its observations, or memory that it reuses.
    """
    return np.array(value.numpy(force=True) if isinstance(value, Tensor) else value)


@torch.no_grad()
def log_prob(agent: Any, obs: Any, action: Any) -> Tensor:
    """Return the log-probability of ``action`` in ``obs`` (trees of tensors ``[B, ...]``):
    ``[B]``.
    """
    if callable(getattr(agent, "log_prob", None)):
        values = agent.log_prob(obs, action)
    else:
        values = agent.distribution(obs).log_prob(action)
    values = torch.as_tensor(values)
    return values.reshape(len(values), -1).sum(1)  # a distribution may keep an action's dimensions


def device_of(agent: Any) -> torch.device:
    """Return the device of the agent's parameters."""
    first = next(agent.parameters(), None) if isinstance(agent, nn.Module) else None
    return torch.device("cpu") if first is None else first.device

"""Exports the deterministic policy to ONNX, for programs without PyTorch.

A policy of one task or agent takes its own observations and returns its own actions, as ``predict``
does. Every input and output has a batch dimension of any size first. The leaves of nested spaces
have dotted names, for example ``obs.position`` and ``action.0``.

    in    obs              the observation in its space's dtype, without an action mask in it
          action_mask      [B, num_mask] bool, flat (``headrace.spaces.masks.flatten_mask``)
          previous_action  what next.previous_action was; previous_reward  [B] float32
          first            [B] bool  obs came from a reset: the two above and the state are cleared
          state            [B, H] each  what next.state was; anything where first is true
    out   action           what the environment receives
          params           [B, num_params]  of the action's distribution, masked
          next.X           the X of the next step

Only the inputs that a policy uses are there; ``first`` is where something is carried from step to
step. As in training, ``previous_action`` is the action before clipping, squashing and scaling, not
the environment's.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.extras import require
from headrace.nn.onnx_spaces import mask_size, own_action, own_inputs, unified
from headrace.nn.text import TextEncoder
from headrace.ops import tree
from headrace.spaces.masks import MASK
from headrace.types import Tree

_OWN_TORSO = (
    " (a custom torso must take any number of observations and not branch on their values; "
    "use x.shape[0] instead of len(x))"
)


def export(policy: nn.Module, path: Path) -> Path:
    """Write a policy, including its normalisers, to one file; replaces ``path`` atomically.

    The :class:`headrace.Policy` is left as it is. Inputs and outputs: the module's docstring.

    Raises:
        ConfigError: a package is missing, or the network holds what ONNX can't express.
    """
    require("export_onnx()", "onnx", "onnx", "onnxscript")
    model = _convert(_Step(policy))
    temporary = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("wb") as file:
        file.write(model)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path


class _Step(nn.Module):
    """A module that computes one deterministic step from a list of tensors."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        copied: Any = copy.deepcopy(policy).cpu()
        copied.compute_in("float32")
        self.policy = copied
        for module in list(self.policy.modules()):
            for name, child in module.named_children():
                if isinstance(child, TextEncoder):
                    setattr(module, name, _PaddedText(child))
        self.eval()
        self.example = _example(self.policy, 3)

    @property
    def output_names(self) -> list[str]:
        """Return the names of the outputs of :meth:`forward`."""
        action, carried = self.policy.inputs.zero_action(1), {}
        if self.policy.inputs.previous:
            carried["previous_action"] = action
        if self.policy.core is not None:
            carried["state"] = self.policy.initial_core(1)
        return list(named({"action": action, "params": None, "next": carried}))

    def forward(self, leaves: list[Tensor]) -> list[Tensor]:
        """Compute the outputs; ``leaves`` are those of ``example``."""
        policy, rest = self.policy, iter(leaves)
        parts = unified(policy, tree.map_leaves(lambda _: next(rest), self.example))
        inputs, first, core = parts.pop("obs"), parts.pop("first", None), parts.pop("state", ())
        if not policy.inputs.plain:
            inputs = {"observation": inputs, **parts}
        if policy.inputs.previous:
            for name in ("previous_action", "previous_reward"):
                inputs[name] = tree.map_leaves(
                    lambda x: x.masked_fill(first.view(-1, *[1] * (x.dim() - 1)), 0), inputs[name]
                )
        params, core = policy.act(inputs, first, core)
        mode = policy.distribution.mode(params)
        carried = mode if policy.inputs.previous else ()
        action = own_action(policy, policy.env_action(mode))
        return tree.leaves((action, params, carried, core))


def _example(policy: Any, num_envs: int) -> dict[str, Tree]:
    """Return example inputs for this many environments, by the first part of their names."""
    inputs = own_inputs(policy)
    example = inputs.example(num_envs)
    parts = {"obs": example} if inputs.plain else {"obs": example.pop("observation"), **example}
    if MASK in parts:
        parts[MASK] = parts[MASK][:, : mask_size(policy)]
    if policy.inputs.previous or policy.core is not None:
        parts["first"] = torch.zeros(num_envs, dtype=torch.bool)
    if policy.core is not None:
        parts["state"] = policy.initial_core(num_envs)
    return parts


class _PaddedText(nn.Module):
    """A :class:`TextEncoder` that processes padding, because ONNX has no packed sequences."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.embedding, self.lstm = encoder.embedding, encoder.lstm

    def forward(self, tokens: Tensor) -> Tensor:
        rows, _ = self.lstm(self.embedding(tokens.long()))
        length = (torch.arange(1, tokens.shape[1] + 1) * (tokens != 0)).amax(1)
        index = (length - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, rows.shape[2])
        last = rows.gather(1, index).squeeze(1)
        return torch.where(length.unsqueeze(1) > 0, last, 0.0)


def named(values: Tree, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their dotted names, in order.

    Raises:
        ConfigError: two leaves have the same name.
    """
    if not isinstance(values, dict | tuple):
        return {prefix: values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    leaves: dict[str, Any] = {}
    for key, part in pairs:
        for name, leaf in named(part, f"{prefix}.{key}" if prefix else str(key)).items():
            if name in leaves:
                raise ConfigError(f"two parts of a space have the name {name!r}: rename one")
            leaves[name] = leaf
    return leaves


@torch.no_grad()
def _convert(step: _Step) -> bytes:
    """Convert a step to a serialised ONNX model."""
    example = named(step.example)
    leaves = list(example.values())
    shapes = ([{0: torch.export.Dim("batch")}] * len(leaves),)
    with _quiet():
        try:
            program = torch.export.export(step, (leaves,), dynamic_shapes=shapes, strict=False)
            converted = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=list(example),
                output_names=step.output_names,
            )
        except Exception as error:
            line = next(filter(str.strip, str(error).splitlines()), repr(error))
            raise ConfigError(
                f"this policy can't be written as ONNX: {line}"
                + ("" if step.policy.network.torso is None else _OWN_TORSO)
            ) from error
    assert converted is not None
    model = converted.model_proto
    del model.graph.value_info[:]  # shapes in between, under the exporter's names of the batch
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model.SerializeToString()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's messages about missing packages and about its own code."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

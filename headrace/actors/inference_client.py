"""Requests actions from the shared inference server, in place of a policy in the actor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headrace.actors.weight_sync import Follower
from headrace.errors import EnvironmentFault
from headrace.nn.encoder import Encoder
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.transport.request_channel import ChannelEnd, RequestClient, layout
from headrace.transport.slab import ArraySpec, spec_of
from headrace.types import Tree


def calls_of(policy: Policy, num_actors: int, envs_per_actor: int) -> dict[str, Any]:
    """Return the layout of the request channel between actors and the server of a policy."""

    def row(x: Tensor) -> ArraySpec:
        return ArraySpec(tuple(x.shape[1:]), x.dtype)

    core = tree.map_leaves(row, policy.initial_core(1))
    request = {"inputs": tree.map_leaves(row, policy.inputs.example(1)), "core": core}
    request |= {"first": ArraySpec((), torch.bool), "version": ArraySpec((), torch.int64)}
    params = ArraySpec((policy.distribution.num_params,), torch.float32)
    return layout(request, {"params": params, "core": core}, num_actors, envs_per_actor)


class InferenceClient:
    """Acts like a policy whose weights are in the inference server (``ActingPolicy``).

    Args:
        policy: defines spaces and shapes; its weights may be on the device "meta".
        line: channel to the inference server.
        follower: holds the current rollout's version; the server uses that version or a newer one.
        timeout_s: longest wait for an answer in seconds.
        name: name of the environment, for messages.
    """

    def __init__(
        self, policy: Policy, line: ChannelEnd, follower: Follower, timeout_s: float, name: str
    ) -> None:
        self._torso, self._name = policy.torso, name
        self.inputs, self.distribution = policy.inputs, policy.distribution
        self.env_action = policy.env_action
        self._core = spec_of(policy.initial_core(1))
        self._caller, self._follower, self._timeout_s = RequestClient(line), follower, timeout_s

    def initial_core(self, num_envs: int) -> Tree:
        """See :meth:`Policy.initial_core`."""
        return tree.map_leaves(lambda x: torch.zeros(num_envs, *x.shape[1:]), self._core)

    @contextlib.contextmanager
    def frozen_weights(self) -> Iterator[None]:
        """Mark a rollout in progress, so that batches wait briefly for this actor's rows."""
        self._caller.expect(True)
        try:
            yield
        finally:
            self._caller.expect(False)

    def explorer(self) -> None:
        """Return None, because only the server has the features."""

    def chooser(self, inputs: Tree, noise: Tensor, action: Tree, log_prob: Tensor) -> None:
        """Return None: the server has the weights."""

    def act(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """See :meth:`Policy.act`.

        Raises:
            EnvironmentFault: the inputs don't fit the network; checked here, because an error in
                the server would affect all actors.
            TimeoutError: the server didn't answer in time.
        """
        if isinstance(self._torso, Encoder):
            try:
                self._torso.check(inputs)
            except (IndexError, RuntimeError) as error:
                raise EnvironmentFault(f"{self._name}: {error}") from error
        num = len(first)
        version = torch.full((num,), self._follower.version)
        rows = {"inputs": inputs, "first": first, "core": core, "version": version}
        answer = tree.map_leaves(Tensor.clone, self._caller.call(rows, num, self._timeout_s))
        return answer["params"], answer["core"]

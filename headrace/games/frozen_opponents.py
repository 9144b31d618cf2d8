"""Plays columns of a vector environment with frozen policies.

Policies with the same network act as a batch: inputs are composed and actions sampled once for all
of them. Only the forward pass is separate for each policy, for dense networks only its matrix
products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from headrace.errors import ConfigError
from headrace.games.league_folder import Snapshot
from headrace.nn.fast_torso import FastTorso, quick, split
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.spaces.json import alike
from headrace.types import Tree

_LOADED = 64  # policies kept in memory besides those in use
Load = Callable[[Path], Policy]


class FrozenOpponents:
    """Frozen policies that play some of ``num_columns`` columns, with a recurrent state per column.

    Actions are sampled, because taking the likeliest actions would change a mixed strategy.

    Args:
        load: reads the policy of a snapshot's folder.
        spaces: observation and action space of a column.
    """

    def __init__(self, load: Load, spaces: tuple[Any, Any], num_columns: int) -> None:
        self._load, self._spaces, self._num_columns = load, spaces, num_columns
        self._policies: dict[str, Policy] = {}
        self._kinds: dict[str, int] = {}  # equal for equal networks and inputs
        self._quick: dict[str, FastTorso] = {}  # policies with separate matrix products
        self._cores: dict[str, Tree] = {}  # [num_columns, ...] each
        self._still: dict[str, contextlib.ExitStack] = {}
        self._generator = torch.Generator()
        self._previous: Tree = (
            None  # [num_columns, ...] last actions, if a policy has them as input
        )
        self.actions: Any = create_empty_array(spaces[1], num_columns, np.zeros)

    def seed(self, seed: int) -> None:
        """Seed the sampling of actions."""
        self._generator.manual_seed(seed)

    @torch.inference_mode()
    def act(
        self,
        players: Sequence[Snapshot],
        columns: np.ndarray,
        inputs: tuple[Tree, Tree, np.ndarray, np.ndarray],
    ) -> None:
        """Write the players' actions in their columns into ``actions``.

        Args:
            players: player of each of ``columns`` ``[n]``.
            shown: of all columns ``[B, ...]``: observations, masks or None, the last rewards, and
                whether an episode begins.
        """
        for player in players:
            self.policy(player)
        names = np.array([player.name for player in players])
        kinds = np.array([self._kinds[name] for name in names.tolist()])
        for kind in np.unique(kinds).tolist():
            own = np.flatnonzero(kinds == kind)
            own = own[names[own].argsort(kind="stable")]
            rows = columns[own]
            self._act(names[own], rows, [tree.map_leaves(_rows(rows), x) for x in inputs])

    def _act(self, names: np.ndarray, rows: np.ndarray, all_inputs: list[Any]) -> None:
        """Act in ``rows`` ``[n]`` with policies of one kind, whose ``names`` ``[n]`` are sorted."""
        policy, (obs, mask, reward, first) = self._policies[names[0]], all_inputs
        previous = None if self._previous is None else tree.map_leaves(_rows(rows), self._previous)
        inputs = policy.inputs.compose(obs, mask, previous, reward, first)
        inputs = tree.map_leaves(lambda x: torch.as_tensor(np.ascontiguousarray(x)), inputs)
        there, counts = np.unique(names, return_counts=True)
        by, sizes = there.tolist(), counts.tolist()
        if all(name in self._quick for name in by):
            params = self._evaluate_dense(by, sizes, inputs)
        else:
            params = self._evaluate_each(by, sizes, rows, (inputs, torch.as_tensor(first)))
        noise = policy.distribution.noise((len(rows),), self._generator)
        action = tree.map_leaves(lambda x: x.numpy(), policy.distribution.sample(params, noise))
        if policy.inputs.previous:
            if self._previous is None:
                zero = policy.inputs.zero_action(self._num_columns)
                self._previous = tree.map_leaves(lambda x: x.numpy(), zero)
            tree.map_leaves(partial(_put, rows), self._previous, action)
        played = policy.env_action(action)
        tree.map_leaves(partial(_put, rows), self.actions, played)

    def _evaluate_dense(self, names: list[str], counts: list[int], inputs: Tree) -> Tensor:
        """Evaluate dense policies, each on its run of inputs ``[n, ...]``; return ``[n,
        params]``.
        """
        first, *others = (self._quick[name] for name in names)
        hidden = first.beside(others, inputs, counts).split(counts)
        policies = [self._policies[name] for name in names]
        each = [one.policy_head(rows) for one, rows in zip(policies, hidden, strict=True)]
        return policies[0].finished(torch.cat(each), inputs)

    def _evaluate_each(
        self, names: list[str], counts: list[int], rows: np.ndarray, batch: tuple[Tree, Tensor]
    ) -> Tensor:
        """Evaluate any policies one by one, and advance their states in ``rows`` ``[n]``."""
        each = []
        runs = split((torch.as_tensor(rows), *batch), counts)
        for name, (own, inputs, first) in zip(names, runs, strict=True):
            core = tree.map_leaves(_rows(own), self._cores[name])
            params, core = self._policies[name].act(inputs, first, core)
            tree.map_leaves(partial(_put, own), self._cores[name], core)
            each.append(params)
        return torch.cat(each)

    def policy(self, player: Snapshot) -> Policy:
        """Return a snapshot's policy, loading it if necessary.

        Raises:
            CheckpointError: it can't be loaded.
            ConfigError: its spaces differ.
        """
        policy = self._policies.get(player.name)
        if policy is None:
            policy = self._load(player.path)
            _check_spaces(player.name, policy, self._spaces)
            policy.compute_in("float32")
            still = self._still[player.name] = contextlib.ExitStack()
            still.enter_context(policy.still())
            loaded = self._policies.items()
            alike = (self._kinds[name] for name, one in loaded if _are_alike(one, policy))
            self._kinds[player.name] = next(alike, max(self._kinds.values(), default=0) + 1)
            torso = quick(policy.torso)
            if torso is not None and policy.core is None and policy.log_std is None:
                self._quick[player.name] = torso
            self._policies[player.name] = policy
            self._cores[player.name] = policy.initial_core(self._num_columns)
        return policy

    def keep(self, playing: set[str]) -> None:
        """Evict unused policies if there are many; ``names`` are in use."""
        if len(self._policies) > _LOADED:
            for name in self._policies.keys() - playing:
                del self._policies[name], self._cores[name], self._kinds[name]
                self._quick.pop(name, None)
                self._still.pop(name).close()

    def close(self) -> None:
        """Release all policies."""
        for still in self._still.values():
            still.close()
        self._policies, self._cores, self._still = {}, {}, {}
        self._kinds, self._quick = {}, {}


def _are_alike(one: Policy, other: Policy) -> bool:
    return one.network == other.network and one.inputs == other.inputs


def _rows(rows: Any) -> Callable[[Any], Any]:
    return lambda x: None if x is None else x[rows]


def _put(rows: Any, to: Any, x: Any) -> None:
    to[rows] = x


def _check_spaces(
    name: str, policy: Policy, spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
) -> None:
    for kind, ours in zip(("observation", "action"), spaces, strict=True):
        theirs = getattr(policy, f"{kind}_space")
        if not alike(theirs, ours, bounds=kind == "action"):
            raise ConfigError(
                f"{name} can't play here: its {kind} space is {theirs}, the game's is {ours}"
            )

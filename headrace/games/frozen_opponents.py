"""Plays columns of a vector environment with frozen policies.

Policies with the same network act as a batch: inputs are composed and actions sampled once for all
of them. Only the forward pass is separate for each policy.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.spaces.json import alike
from headrace.types import Tree

_LOADED = 64  # policies kept in memory besides those in use
Load = Callable[[Path], Policy]


@dataclass
class _Player:
    """A loaded snapshot."""

    policy: Policy
    kind: int  # equal for equal networks and inputs
    core: Tree  # [num_columns, ...] recurrent state of each column
    frozen: contextlib.ExitStack  # ends the freezing of its weights


class FrozenOpponents:
    """Frozen policies that play some of ``num_columns`` columns, with a recurrent state per column.

    Actions are sampled, because taking the likeliest actions would change a mixed strategy.

    Args:
        load: reads the policy of a snapshot's folder.
        spaces: observation and action space of a column.

    Attributes:
        actions: ``[num_columns, ...]`` latest action of each column.
    """

    def __init__(self, load: Load, spaces: tuple[Any, Any], num_columns: int) -> None:
        self._load, self._spaces, self._num_columns = load, spaces, num_columns
        self._players: dict[str, _Player] = {}
        self._generator = torch.Generator()
        self._previous: Tree = None  # [num_columns, ...] last actions, if they are inputs
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
            inputs: of all columns ``[B, ...]``: observations, masks or None, the last rewards, and
                whether an episode begins.
        """
        for player in players:
            self.policy(player)
        names = np.array([player.name for player in players])
        kinds = np.array([self._players[name].kind for name in names.tolist()])
        for kind in np.unique(kinds).tolist():
            own = np.flatnonzero(kinds == kind)
            own = own[names[own].argsort(kind="stable")]
            rows = columns[own]
            self._act(names[own], rows, [tree.map_leaves(_rows(rows), x) for x in inputs])

    def _act(self, names: np.ndarray, rows: np.ndarray, all_inputs: list[Any]) -> None:
        """Act in ``rows`` ``[n]`` with policies of one kind, whose ``names`` ``[n]`` are sorted."""
        policy, (obs, mask, reward, first) = self._players[names[0]].policy, all_inputs
        previous = None if self._previous is None else tree.map_leaves(_rows(rows), self._previous)
        inputs = policy.inputs.compose(obs, mask, previous, reward, first)
        inputs = tree.map_leaves(lambda x: torch.as_tensor(np.ascontiguousarray(x)), inputs)
        unique, each_count = np.unique(names, return_counts=True)
        players, counts = [self._players[name] for name in unique.tolist()], each_count.tolist()
        params = _evaluate_each(players, counts, rows, (inputs, torch.as_tensor(first)))
        noise = policy.distribution.noise((len(rows),), self._generator)
        action = tree.map_leaves(lambda x: x.numpy(), policy.distribution.sample(params, noise))
        if policy.inputs.previous:
            if self._previous is None:
                zero = policy.inputs.zero_action(self._num_columns)
                self._previous = tree.map_leaves(lambda x: x.numpy(), zero)
            tree.map_leaves(partial(_put, rows), self._previous, action)
        tree.map_leaves(partial(_put, rows), self.actions, policy.env_action(action))

    def policy(self, player: Snapshot) -> Policy:
        """Return a snapshot's policy, loading it if necessary.

        Raises:
            CheckpointError: it can't be loaded.
            ConfigError: its spaces differ.
        """
        if player.name not in self._players:
            policy = self._load(player.path)
            _check_spaces(player.name, policy, self._spaces)
            self._players[player.name] = self._loaded(policy)
        return self._players[player.name].policy

    def _loaded(self, policy: Policy) -> _Player:
        """Freeze a policy's weights and prepare it for acting."""
        policy.compute_in("float32")
        frozen = contextlib.ExitStack()
        frozen.enter_context(policy.frozen_weights())
        players = self._players.values()
        kinds = (player.kind for player in players if _have_one_kind(player.policy, policy))
        kind = next(kinds, max((player.kind for player in players), default=0) + 1)
        return _Player(policy, kind, policy.initial_core(self._num_columns), frozen)

    def keep(self, playing: set[str]) -> None:
        """Evict unused policies if there are many; ``playing`` are in use."""
        if len(self._players) > _LOADED:
            for name in self._players.keys() - playing:
                self._players.pop(name).frozen.close()

    def close(self) -> None:
        """Release all policies."""
        for player in self._players.values():
            player.frozen.close()
        self._players = {}


def _evaluate_each(
    players: Sequence[_Player], counts: list[int], rows: np.ndarray, batch: tuple[Tree, Tensor]
) -> Tensor:
    """Evaluate policies one by one, and advance their states in ``rows`` ``[n]``."""
    each = []
    inputs, first = batch
    runs = torch.as_tensor(rows).split(counts), _split(inputs, counts), first.split(counts)
    for player, own, inputs, first in zip(players, *runs, strict=True):
        core = tree.map_leaves(_rows(own), player.core)
        params, core = player.policy.act(inputs, first, core)
        tree.map_leaves(partial(_put, own), player.core, core)
        each.append(params)
    return torch.cat(each)


def _split(rows: Tree, counts: list[int]) -> Sequence[Tree]:
    """Split rows ``[N, ...]`` into groups of these sizes."""
    if isinstance(rows, Tensor):
        return rows.split(counts)
    ends = list(itertools.accumulate(counts))
    runs = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [tree.map_leaves(lambda x, run=run: x[run], rows) for run in runs]


def _have_one_kind(one: Policy, other: Policy) -> bool:
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

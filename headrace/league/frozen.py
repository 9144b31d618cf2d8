"""Frozen policies that play columns of a vector environment, a batch for each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array

from headrace.errors import ConfigError
from headrace.league.folder import Snapshot
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.spaces.json import alike
from headrace.types import Tree

_LOADED = 64  # policies that are kept in memory, besides those that play
Load = Callable[[Path], Policy]


class Frozen:
    """What plays some of ``num_columns`` columns; each keeps its own recurrent state in each.

    Actions are drawn from the policies, since a mixed strategy played by its likeliest actions is
    another one.

    Args:
        load: reads the policy of a snapshot's folder.
        spaces: of the observations and actions of a column.
    """

    def __init__(self, load: Load, spaces: tuple[Any, Any], num_columns: int) -> None:
        self._load, self._spaces, self._num_columns = load, spaces, num_columns
        self._policies: dict[str, Policy] = {}
        self._cores: dict[str, Tree] = {}  # [num_columns, ...] each
        self._still: dict[str, contextlib.ExitStack] = {}
        self._generator = torch.Generator()
        self._previous: Tree = None  # [num_columns, ...] actions, where a policy is given them
        self.actions: Any = create_empty_array(spaces[1], num_columns, np.zeros)

    def seed(self, seed: int) -> None:
        """Draw actions by this seed from now on."""
        self._generator.manual_seed(seed)

    @torch.inference_mode()
    def act(
        self,
        players: Sequence[Snapshot],
        columns: np.ndarray,
        shown: tuple[Tree, Tree, np.ndarray, np.ndarray],
    ) -> None:
        """Write what players do in their columns into ``actions``.

        Args:
            players: who plays each of ``columns`` ``[n]``.
            shown: of all columns ``[B, ...]``: observations, masks or None, the last rewards, and
                whether an episode begins.
        """
        names = np.array([player.name for player in players])
        for name, at in zip(*np.unique(names, return_index=True), strict=True):
            rows = columns[names == name]
            self._act(players[at], rows, [tree.map_leaves(_rows(rows), x) for x in shown])

    def _act(self, player: Snapshot, rows: np.ndarray, shown: list[Any]) -> None:
        policy, (obs, mask, reward, first) = self.policy(player), shown
        previous = None if self._previous is None else tree.map_leaves(_rows(rows), self._previous)
        inputs = policy.inputs.compose(obs, mask, previous, reward, first)
        inputs = tree.map_leaves(lambda x: torch.as_tensor(np.ascontiguousarray(x)), inputs)
        core = tree.map_leaves(lambda x: x[rows], self._cores[player.name])
        params, core = policy.act(inputs, torch.as_tensor(first), core)
        tree.map_leaves(lambda to, x: to.__setitem__(rows, x), self._cores[player.name], core)
        noise = policy.distribution.noise((len(rows),), self._generator)
        action = tree.map_leaves(lambda x: x.numpy(), policy.distribution.sample(params, noise))
        if policy.inputs.previous:
            if self._previous is None:
                zero = policy.inputs.zero_action(self._num_columns)
                self._previous = tree.map_leaves(lambda x: x.numpy(), zero)
            tree.map_leaves(lambda to, x: to.__setitem__(rows, x), self._previous, action)
        played = policy.env_action(action)
        tree.map_leaves(lambda to, x: to.__setitem__(rows, x), self.actions, played)

    def policy(self, player: Snapshot) -> Policy:
        """Of a snapshot, read if it hasn't been.

        Raises:
            CheckpointError: it can't be. ConfigError: it has other spaces.
        """
        policy = self._policies.get(player.name)
        if policy is None:
            policy = self._load(player.path)
            _check_spaces(player.name, policy, self._spaces)
            policy.compute_in("float32")
            still = self._still[player.name] = contextlib.ExitStack()
            still.enter_context(policy.still())
            self._policies[player.name] = policy
            self._cores[player.name] = policy.initial_core(self._num_columns)
        return policy

    def keep(self, playing: set[str]) -> None:
        """Forget policies that play no game, of these names, where there are many."""
        if len(self._policies) > _LOADED:
            for name in self._policies.keys() - playing:
                del self._policies[name], self._cores[name]
                self._still.pop(name).close()

    def close(self) -> None:
        """Let go of all policies."""
        for still in self._still.values():
            still.close()
        self._policies, self._cores, self._still = {}, {}, {}


def _rows(rows: np.ndarray) -> Callable[[Any], Any]:
    return lambda x: None if x is None else x[rows]


def _check_spaces(
    name: str, policy: Policy, spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
) -> None:
    for kind, ours in zip(("observation", "action"), spaces, strict=True):
        theirs = getattr(policy, f"{kind}_space")
        if not alike(theirs, ours, bounds=kind == "action"):
            raise ConfigError(
                f"{name} can't play here: its {kind} space is {theirs}, the game's is {ours}"
            )

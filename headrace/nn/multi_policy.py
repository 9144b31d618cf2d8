"""Combines several policies, each for some of a game's agents, behind the interface of one.

    columns      a0  a1  a2 | a0  a1  a2 | ...        of games, one after the other
    core: agent   0   1   2 |  0   1   2 | ...  [B]
    member        x   y   y |  x   y   y | ...        each acts on its rows

The recurrent state holds the agent of each column. It travels wherever a column travels: to actors
that act on some columns only, into rollouts and batches, and through evaluations. Therefore the
code between the environment and the learners has no case for several policies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import torch
from torch import Tensor, nn

from headrace.errors import ConfigError
from headrace.nn.image_precision import Precision
from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.nn.predict import predict
from headrace.nn.saving import Saver, saved_by
from headrace.ops import tree
from headrace.spaces import observations
from headrace.spaces.unified_spaces import Spaces
from headrace.types import Batch, Tree

AGENT, OWN = "agent", "own"  # parts of the core: [B] int64, and the core of the members


class MultiPolicy(nn.Module):
    """One policy for each name of a mapping, all with the same spaces and network.

    Args:
        mapping: policy of each agent.
        members: the policies, in the order of ``mapping.policies``.
    """

    def __init__(self, mapping: PolicyMapping, members: list[Policy]) -> None:
        super().__init__()
        self.mapping = mapping
        self.members = nn.ModuleList(members)
        self.register_buffer("_numbers", torch.tensor(mapping.numbers), persistent=False)
        self._numbers: Tensor  # [n] index of each agent's member
        one, self.network = self.alike, self.alike.network
        self.inputs, self.distribution = one.inputs, one.distribution
        self.observation_space = one.inputs.observation_space
        self.action_space = one.inputs.action_space
        self.place = None  # it uses the whole unified spaces

    @staticmethod
    def of(
        mapping: PolicyMapping,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        network: Network | None = None,
        info_mask: bool = False,
        own: Sequence[Spaces] = (),
    ) -> MultiPolicy:
        """Create new members; the arguments after ``mapping`` are those of :class:`Policy`.

        Args:
            own: spaces of each agent, if they differ and columns have unified spaces. A member
                whose agents have equal spaces takes their observations and returns their actions.
        """
        made = observation_space, action_space, network, info_mask
        multi = MultiPolicy(mapping, [Policy(*made) for _ in mapping.policies])
        spaces = dict(zip(mapping.agents, own, strict=False))
        for name, member in multi.policies.items():
            first, *others = (spaces.get(agent, made[:2]) for agent in mapping.of(name))
            if all(first == other for other in others):
                member.observation_space, member.action_space = first
                member.place = 0 if own else None
        return multi

    @property
    def policies(self) -> dict[str, Policy]:
        """Members by name."""
        return dict(zip(self.mapping.policies, self.members, strict=True))  # type: ignore[arg-type]

    @property
    def alike(self) -> Policy:
        """First member; the others differ only in their weights."""
        return self.members[0]  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.alike.device

    def initial_core(self, num_envs: int) -> Tree:
        """Return the state of ``num_envs`` columns of whole games at the start of an episode."""
        agent = torch.arange(num_envs, device=self._numbers.device) % len(self.mapping.agents)
        return {AGENT: agent, OWN: self.alike.initial_core(num_envs)}

    def compute_in(self, precision: Precision) -> None:
        """See :meth:`Policy.compute_in`."""
        for member in self.policies.values():
            member.compute_in(precision)

    def compile_torsos(self) -> None:
        """See :meth:`Policy.compile_torsos`."""
        for member in self.policies.values():
            member.compile_torsos()

    @contextlib.contextmanager
    def frozen_weights(self) -> Iterator[None]:
        """See :meth:`Policy.frozen_weights`."""
        with contextlib.ExitStack() as stack:
            for member in self.policies.values():
                stack.enter_context(member.frozen_weights())
            yield

    def rows(self, core: Tree) -> list[Tensor]:
        """Return the rows ``[n]`` int64 of a core that each member plays; there may be none."""
        number = self._numbers[core[AGENT]]
        return [(number == i).nonzero().flatten() for i in range(len(self.members))]

    def act(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """See :meth:`Policy.act`; each member acts on its rows."""
        size, own = (len(first), self.distribution.num_params), core[OWN]
        params = torch.empty(size, dtype=torch.float32, device=first.device)
        after = tree.map_leaves(torch.empty_like, own)
        for member, rows in zip(self.policies.values(), self.rows(core), strict=True):
            if len(rows):
                taken, before = (_of_rows(rows, x) for x in (inputs, own))
                params[rows], state = member.act(taken, first[rows], before)
                tree.map_leaves(lambda to, x, at=rows: to.__setitem__(at, x), after, state)
        return params, {AGENT: core[AGENT].clone(), OWN: after}

    def explorer(self) -> None:
        """Return None, because ``config/checks.py`` rejects ``use_sde`` with several policies."""

    def chooser(self, inputs: Tree, noise: Tensor, action: Tree, log_prob: Tensor) -> None:
        """Return None: the columns of the members change."""

    def part(self, batch: Batch, columns: Tensor) -> Batch:
        """Return a copy of columns ``[n]`` of a batch, with the core of their member."""
        part = batch.columns(columns)
        return replace(part, core=part.core[OWN])

    def env_action(self, action: Tree) -> Any:
        """See :meth:`Policy.env_action`."""
        return self.alike.env_action(action)

    @torch.inference_mode()
    def predict(
        self,
        obs: Any,
        state: Tree | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Any, Tree]:
        """Choose actions for the observations of all agents of one or more games.

        Args:
            obs: ``[n, ...]``, a row for each of ``mapping.agents`` in their order, game by game;
                with a ``state``, the rows of its agents.
            others: see :meth:`Policy.predict`.

        Raises:
            ConfigError: as there; or there is no ``state`` and rows of whole games are missing.
        """
        if state is None:
            self._check_whole(obs)
        return predict(self, obs, state, episode_start, deterministic, action_mask, reward)

    def _check_whole(self, obs: Any) -> None:
        checked, single = observations.checked(self.observation_space, obs)
        count, agents = len(tree.leaves(checked)[0]), self.mapping.agents
        if single or count % len(agents):
            raise ConfigError(
                f"{'one observation' if single else f'{count} observations'} can't be shared out "
                f"among policies: give one of each agent ({', '.join(agents)}), game by game, or "
                "ask one policy alone (policies['name'], or load(run, policy='name'))"
            )

    saver: Saver | None = None  # set if the run's settings are available

    def save(self, path: str | Path) -> Path:
        """Save the policies to a folder for ``hr.load(path)``, and return its path.

        Raises:
            ConfigError: the policies weren't trained or loaded by headrace.
            CheckpointError: the path holds something else, or can't be written.
        """
        return saved_by(self.saver, self, Path(path))

    def export_onnx(self, path: str | Path) -> Path:
        """Raise ConfigError, because a file holds one policy."""
        raise ConfigError(
            f"{path} would hold several policies: export one (policies['name'], or load(run, "
            f"policy='name')); there are {', '.join(self.mapping.policies)}"
        )


AnyPolicy: TypeAlias = Policy | MultiPolicy


def _of_rows(rows: Tensor, part: Tree) -> Tree:
    return tree.map_leaves(lambda x: x[rows], part)

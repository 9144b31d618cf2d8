"""Several policies that act as one: each plays some of a game's agents.

    columns      a0  a1  a2 | a0  a1  a2 | ...        of games, one behind the other
    core: agent   0   1   2 |  0   1   2 | ...  [B]
    member        x   y   y |  x   y   y | ...        each acts on its rows

Which agent a column is stands in its recurrent state. That state goes wherever a column goes: to
whoever acts on some of them, into rollouts and batches, and through evaluations. So nothing between
the environment and the learners knows of several policies.
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

AGENT, OWN = "agent", "own"  # in a team's core: [B] int64, and the core of its members


class MultiPolicy(nn.Module):
    """A policy for each name of a roster, all for the same spaces and of the same network.

    Args:
        roster: who plays whom. members: the policies, in the order of ``roster.policies``.
    """

    def __init__(self, roster: PolicyMapping, members: list[Policy]) -> None:
        super().__init__()
        self.roster = roster
        self.members = nn.ModuleList(members)
        self.register_buffer("_numbers", torch.tensor(roster.numbers), persistent=False)
        self._numbers: Tensor  # [n] of each agent, of its member
        one, self.network = self.alike, self.alike.network
        self.inputs, self.distribution = one.inputs, one.distribution
        self.observation_space = one.inputs.observation_space
        self.action_space = one.inputs.action_space
        self.place = None  # it takes the whole of joined spaces

    @staticmethod
    def of(
        roster: PolicyMapping,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        network: Network | None = None,
        info_mask: bool = False,
        own: Sequence[Spaces] = (),
    ) -> MultiPolicy:
        """With new members; the arguments behind ``roster`` are those of :class:`Policy`.

        Args:
            own: spaces of each agent, where they differ and those of columns are joined. A member
                whose agents have the same takes their observations, and gives their actions.
        """
        made = observation_space, action_space, network, info_mask
        team = MultiPolicy(roster, [Policy(*made) for _ in roster.policies])
        spaces = dict(zip(roster.agents, own, strict=False))
        for name, member in team.policies.items():
            first, *others = (spaces.get(agent, made[:2]) for agent in roster.of(name))
            if all(first == other for other in others):
                member.observation_space, member.action_space = first
                member.place = 0 if own else None
        return team

    @property
    def policies(self) -> dict[str, Policy]:
        """The members by name."""
        return dict(zip(self.roster.policies, self.members, strict=True))  # type: ignore[arg-type]

    @property
    def alike(self) -> Policy:
        """A member, which is as all others are but for its weights."""
        return self.members[0]  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.alike.device

    def initial_core(self, num_envs: int) -> Tree:
        """State of ``num_envs`` columns of whole games, at the start of an episode."""
        agent = torch.arange(num_envs, device=self._numbers.device) % len(self.roster.agents)
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
    def still(self) -> Iterator[None]:
        """See :meth:`Policy.still`."""
        with contextlib.ExitStack() as stack:
            for member in self.policies.values():
                stack.enter_context(member.still())
            yield

    def rows(self, core: Tree) -> list[Tensor]:
        """The rows ``[n]`` of a core that each member plays, int64; of some it may be none."""
        number = self._numbers[core[AGENT]]
        return [(number == i).nonzero().flatten() for i in range(len(self.members))]

    def act(self, inputs: Tree, first: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """See :meth:`Policy.act`: each member acts on its rows, which may be any."""
        size, own = (len(first), self.distribution.num_params), core[OWN]
        params = torch.empty(size, dtype=torch.float32, device=first.device)
        after = tree.map_leaves(torch.empty_like, own)
        for member, rows in zip(self.policies.values(), self.rows(core), strict=True):
            if len(rows):
                taken, before = (_of_rows(rows, x) for x in (inputs, own))
                params[rows], state = member.act(taken, first[rows], before)
                tree.map_leaves(lambda to, x, at=rows: to.__setitem__(at, x), after, state)
        return params, {AGENT: core[AGENT].clone(), OWN: after}

    def part(self, batch: Batch, columns: Tensor) -> Batch:
        """These columns ``[n]`` of a batch, as their member knows it; a copy."""
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
        """The actions for the observations of all agents of a game, or of several.

        Args:
            obs: ``[n, ...]``, a row for each of ``roster.agents`` in their order, game by game;
                with a ``state``, of whichever agents it is.
            others: see :meth:`Policy.predict`.

        Raises:
            ConfigError: as there; or observations are not of whole games at the beginning.
        """
        if state is None:
            self._check_whole(obs)
        return predict(self, obs, state, episode_start, deterministic, action_mask, reward)

    def _check_whole(self, obs: Any) -> None:
        checked, single = observations.checked(self.observation_space, obs)
        count, agents = len(tree.leaves(checked)[0]), self.roster.agents
        if single or count % len(agents):
            raise ConfigError(
                f"{'one observation' if single else f'{count} observations'} can't be shared out "
                f"among policies: give one of each agent ({', '.join(agents)}), game by game, or "
                "ask one policy alone (policies['name'], or load(run, policy='name'))"
            )

    saver: Saver | None = None  # set if the settings of its run are known

    def save(self, path: str | Path) -> Path:
        """Save the policies to a folder for ``hr.load(path)``, and return its path.

        Raises:
            ConfigError: the team wasn't trained or loaded by headrace.
            CheckpointError: the path holds something else, or can't be written.
        """
        return saved_by(self.saver, self, Path(path))

    def export_onnx(self, path: str | Path) -> Path:
        """Raise ConfigError: a file is of one policy."""
        raise ConfigError(
            f"{path} would hold several policies: export one (policies['name'], or load(run, "
            f"policy='name')); there are {', '.join(self.roster.policies)}"
        )


AnyPolicy: TypeAlias = Policy | MultiPolicy


def _of_rows(rows: Tensor, part: Tree) -> Tree:
    return tree.map_leaves(lambda x: x[rows], part)

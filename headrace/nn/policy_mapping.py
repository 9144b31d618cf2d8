"""Mapping from the agents of a game to the policies that play them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError, nearest, require, require_choice, shown

SHARED, PER_AGENT = "shared", "per-agent"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # policy names are parts of metric names
_VALID = "'shared', 'per-agent', or the policy of each agent, as in 'a:chaser,b:runner'"


@dataclass(frozen=True)
class PolicyMapping:
    """Agents of a game in the order of its columns, and the name of each agent's policy."""

    agents: tuple[str, ...]
    played_by: tuple[str, ...]  # policy of each agent

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of all policies, in the order of their first agents."""
        return tuple(dict.fromkeys(self.played_by))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Index in :attr:`policies` of each agent's policy."""
        return tuple(map(self.policies.index, self.played_by))

    def of(self, policy: str) -> tuple[str, ...]:
        """Return the agents that a policy plays."""
        pairs = zip(self.agents, self.played_by, strict=True)
        return tuple(agent for agent, one in pairs if one == policy)

    def check(self, policy: str) -> None:
        """Raise ConfigError if there is no policy of this name."""
        require_choice("policy", policy, self.policies)

    def to_json(self) -> dict[str, str]:
        """Return the policy of each agent, in the order of columns."""
        return dict(zip(self.agents, self.played_by, strict=True))

    @staticmethod
    def from_json(values: dict[str, str]) -> PolicyMapping:
        """Restore a mapping from the result of :meth:`to_json`."""
        return PolicyMapping(tuple(values), tuple(values.values()))


def written(policies: object) -> object:
    """Convert a dict from agents to policies to the text form of the command line.

    Other values are returned unchanged.

    Raises:
        ConfigError: the dict is empty or holds something else than text, or an agent's name holds a
            comma.
    """
    if not isinstance(policies, Mapping):
        return policies
    require(bool(policies), "policies", policies, _VALID)
    if not all(isinstance(x, str) for pair in policies.items() for x in pair):
        raise ConfigError(f"policies={shown(policies)} must name agents and policies by text (str)")
    for agent in policies:
        valid = "without commas in agents' names (per-agent takes any)"
        require("," not in agent, "policies", policies, valid)
    return ",".join(f"{agent}:{policy}" for agent, policy in policies.items())


def parse_policies(policies: str) -> dict[str, str] | None:
    """Parse the setting ``policies`` into the policy of each agent.

    Returns:
        None if all agents share one policy or each has its own.

    Raises:
        ConfigError: the text is invalid, an agent is named twice, or has no policy.
    """
    if policies in (SHARED, PER_AGENT):
        return None
    played_by: dict[str, str] = {}
    for part in policies.split(","):
        agent, colon, policy = part.strip().rpartition(":")
        if not colon and len(policies.split(",")) == 1:
            raise ConfigError(
                f"policies={shown(policies)} must be {_VALID}."
                f"{nearest(policies, (SHARED, PER_AGENT))}"
            )
        if not colon or not agent or not policy:
            unassigned = agent if colon and agent else part.strip()
            raise ConfigError(
                f"policies={shown(policies)} names no policy for {shown(unassigned)}: write "
                "agent:policy, as in a:chaser,b:runner"
            )
        if not _NAME.fullmatch(policy):
            raise ConfigError(
                f"policies={shown(policies)} names a policy {shown(policy)}, which must be of "
                "letters, digits, _, - and ., at most 64"
            )
        if agent in played_by:
            raise ConfigError(
                f"policies={shown(policies)} names {shown(agent)} twice: name each once"
            )
        played_by[agent] = policy
    return played_by


def mapping_of(policies: str, agents: tuple[str, ...], name: str) -> PolicyMapping | None:
    """Return the policy mapping of a game; None if all agents share one policy.

    Args:
        policies: the setting in its text form.
        agents: agents of the game; () for an environment with one.
        name: name of the game, for messages.

    Raises:
        ConfigError: the environment has one agent, or the setting names an agent that the game
            doesn't have, or leaves one out.
    """
    if policies == SHARED:
        return None
    if not agents:
        raise ConfigError(
            f"policies={shown(policies)} needs a game of several agents, and {name} has one: leave "
            "it out"
        )
    played_by = parse_policies(policies)
    if played_by is None:
        return PolicyMapping(agents, agents)
    for agent in played_by:
        if agent not in agents:
            raise ConfigError(
                f"policies={shown(policies)} names {shown(agent)}, which isn't an agent of {name}; "
                f"its agents are {_few(agents)}.{nearest(agent, agents)}"
            )
    left = tuple(agent for agent in agents if agent not in played_by)
    if left:
        raise ConfigError(
            f"policies={shown(policies)} leaves out {_few(left)} of {name}: name the policy of "
            f"each, as in {left[0]}:{next(iter(played_by.values()))}"
        )
    return PolicyMapping(agents, tuple(played_by[agent] for agent in agents))


def _few(agents: tuple[str, ...]) -> str:
    listed = ", ".join(agents[:6])
    return listed if len(agents) <= 6 else f"{listed} … ({len(agents)})"

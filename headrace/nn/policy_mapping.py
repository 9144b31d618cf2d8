"""Which policy plays which agent of a game."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError, nearest, require, require_choice, shown

SHARED, PER_AGENT = "shared", "per-agent"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # it is a part of metrics' names
_VALID = "'shared', 'per-agent', or the policy of each agent, as in 'a:chaser,b:runner'"


@dataclass(frozen=True)
class PolicyMapping:
    """The agents of a game in the order of its columns, and the policy of each, by name."""

    agents: tuple[str, ...]
    played_by: tuple[str, ...]  # of each agent

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of all policies, in the order of the first agent that each plays."""
        return tuple(dict.fromkeys(self.played_by))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The place in :attr:`policies` of each agent's."""
        return tuple(map(self.policies.index, self.played_by))

    def of(self, policy: str) -> tuple[str, ...]:
        """The agents that a policy plays."""
        pairs = zip(self.agents, self.played_by, strict=True)
        return tuple(agent for agent, one in pairs if one == policy)

    def check(self, policy: str) -> None:
        """Raise ConfigError unless there is a policy of this name."""
        require_choice("policy", policy, self.policies)

    def to_json(self) -> dict[str, str]:
        """The policy of each agent, in the order of columns."""
        return dict(zip(self.agents, self.played_by, strict=True))

    @staticmethod
    def from_json(values: dict[str, str]) -> PolicyMapping:
        """What :meth:`to_json` returned."""
        return PolicyMapping(tuple(values), tuple(values.values()))


def written(policies: object) -> object:
    """A mapping from agents to policies as the text that the command line has for it.

    What is no mapping, or one of other things than names, is returned as it is.

    Raises:
        ConfigError: an agent's name holds a comma, which would end it.
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


def mapping(policies: str) -> dict[str, str] | None:
    """The policy of each agent as it is written; None: all share one, or each has its own.

    Raises:
        ConfigError: it is none of these, an agent is named twice, or has no policy.
    """
    if policies in (SHARED, PER_AGENT):
        return None
    found: dict[str, str] = {}
    for part in policies.split(","):
        agent, colon, policy = part.strip().rpartition(":")
        if not colon and len(policies.split(",")) == 1:
            raise ConfigError(
                f"policies={shown(policies)} must be {_VALID}."
                f"{nearest(policies, (SHARED, PER_AGENT))}"
            )
        if not colon or not agent or not policy:
            who = agent if colon and agent else part.strip()
            raise ConfigError(
                f"policies={shown(policies)} names no policy for {shown(who)}: write agent:policy, "
                "as in a:chaser,b:runner"
            )
        if not _NAME.fullmatch(policy):
            raise ConfigError(
                f"policies={shown(policies)} names a policy {shown(policy)}, which must be of "
                "letters, digits, _, - and ., at most 64"
            )
        if agent in found:
            raise ConfigError(f"policies={shown(policies)} names {shown(agent)} twice: once is it")
        found[agent] = policy
    return found


def roster_of(policies: str, agents: tuple[str, ...], name: str) -> PolicyMapping | None:
    """Who plays whom in a game of these agents; None: all share one policy.

    Args:
        policies: the setting, as written. agents: () where the environment has one.
        name: of the game, for messages.

    Raises:
        ConfigError: there is one agent, or the setting names one that isn't there, or leaves one
            out.
    """
    if policies == SHARED:
        return None
    if not agents:
        raise ConfigError(
            f"policies={shown(policies)} needs a game of several agents, and {name} has one: leave "
            "it out"
        )
    known = mapping(policies)
    if known is None:
        return PolicyMapping(agents, agents)
    for agent in known:
        if agent not in agents:
            raise ConfigError(
                f"policies={shown(policies)} names {shown(agent)}, who is no agent of {name}; its "
                f"agents are {_few(agents)}.{nearest(agent, agents)}"
            )
    left = tuple(agent for agent in agents if agent not in known)
    if left:
        raise ConfigError(
            f"policies={shown(policies)} leaves out {_few(left)} of {name}: name the policy of "
            f"each, as in {left[0]}:{next(iter(known.values()))}"
        )
    return PolicyMapping(agents, tuple(known[agent] for agent in agents))


def _few(agents: tuple[str, ...]) -> str:
    listed = ", ".join(agents[:6])
    return listed if len(agents) <= 6 else f"{listed} … ({len(agents)})"

"""Mapping of agents to policies, and invalid mappings."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.nn.policy_mapping import PolicyMapping, mapping_of, parse_policies, written

AGENTS = ("wolf", "sheep_0", "sheep_1")


def test_agents_share_a_policy_have_their_own_or_that_which_is_named():
    assert mapping_of("shared", AGENTS, "herd") is None
    assert mapping_of("per-agent", AGENTS, "herd").policies == AGENTS
    text = written({"sheep_1": "prey", "wolf": "hunter", "sheep_0": "prey"})
    assert text == "sheep_1:prey,wolf:hunter,sheep_0:prey"
    mapping = mapping_of(text, AGENTS, "herd")
    assert mapping.policies == ("hunter", "prey")  # in the order of columns
    assert mapping.numbers == (0, 1, 1)
    assert mapping.of("prey") == ("sheep_0", "sheep_1")
    assert PolicyMapping.from_json(mapping.to_json()) == mapping
    assert parse_policies("player:1:a, player:2:b") == {"player:1": "a", "player:2": "b"}


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ("per_agent", "must be 'shared', 'per-agent', or the policy of each.*mean 'per-agent'"),
        ("wolf:", "names no policy for 'wolf': write agent:policy"),
        ("wolf:a,sheep_0,sheep_1:b", "names no policy for 'sheep_0'"),
        (":a", "names no policy for ':a'"),
        ("wolf:a b,sheep_0:c,sheep_1:c", "'a b', which must be of letters, digits"),
        ("wolf:a,wolf:b", "names 'wolf' twice"),
        ("wulf:a,sheep_0:b,sheep_1:b", "'wulf', which isn't an agent of herd.*Did you mean 'wolf'"),
        ("wolf:a", "leaves out sheep_0, sheep_1 of herd: name the policy of each, as in sheep_0:a"),
    ],
)
def test_what_is_no_mapping_of_a_game_is_one_sentence(policies, words):
    with pytest.raises(ConfigError, match=words) as raised:
        mapping_of(policies, AGENTS, "herd")
    assert "\n" not in str(raised.value)


def test_a_mapping_of_nobody_is_told_as_it_was_given():
    with pytest.raises(ConfigError, match=r"policies=\{\} must be 'shared', 'per-agent', or"):
        written({})


def test_an_environment_of_one_agent_has_one_policy():
    with pytest.raises(ConfigError, match="a game of several agents, and CartPole-v1 has one"):
        mapping_of("per-agent", (), "CartPole-v1")


def test_a_mapping_that_text_cant_hold_is_refused():
    with pytest.raises(ConfigError, match="without commas in agents' names"):
        written({"a,b": "c"})
    with pytest.raises(ConfigError, match="by text"):
        written({0: "c"})

"""A policy in the spaces of what it plays: all of its tasks joined, or one of them alone."""

from __future__ import annotations

import copy
from typing import Any

from gymnasium.vector import VectorEnv

from headrace.envs.names import Tasks
from headrace.envs.parallel_game_vector import agents_of
from headrace.envs.probe import probe
from headrace.envs.suites import the_same
from headrace.envs.tasks import check_order
from headrace.errors import ConfigError, require_choice
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy import Policy
from headrace.spaces import unified_spaces
from headrace.spaces.json import alike


def one_task(policy: Policy, name: str) -> Policy:
    """The same policy, with the same weights, in the spaces of one of its tasks.

    Args:
        policy: of several tasks, whose spaces are joined. name: of the task, as it was trained on.

    Raises:
        ConfigError: it has no such task, or doesn't know its tasks' spaces.
    """
    found = the_same(name, policy.tasks)
    if found is None:
        require_choice("task", name, policy.tasks)
    if not policy.task_spaces:
        raise ConfigError(
            f"task={name!r} can't be told from others, since the version of headrace that wrote "
            "this checkpoint didn't keep its tasks' spaces; a run that is resumed keeps them"
        )
    number = policy.tasks.index(str(found))
    own, observed = policy.task_spaces[number], [space for space, _ in policy.task_spaces]
    shown = policy.network.task_id or policy.network.per_task_values
    alone = copy.copy(policy)  # which holds the same tensors
    alone.observation_space, alone.action_space = own
    alone.place = unified_spaces.place(own[0], observed)
    alone.task, alone.tasks, alone.task_spaces = (number if shown else None), (), ()
    return alone


def fitting(policy: AnyPolicy, envs: VectorEnv, name: str) -> AnyPolicy:
    """What can play in environments of this name: the policy, or one of its tasks alone.

    Raises:
        ConfigError: nothing can, since a space or the agents are others.
    """
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    known = isinstance(policy, Policy) and policy.task_spaces and the_same(name, policy.tasks)
    if known and _other(policy, spaces):
        policy = one_task(policy, name)  # type: ignore[arg-type]
    if kind := _other(policy, spaces):
        raise ConfigError(
            f"the policy can't play {name}: its {kind} space is "
            f"{getattr(policy, f'{kind}_space')}, the environment's is {spaces[kind]}"
        )
    agents = agents_of(envs)
    if isinstance(policy, MultiPolicy) and policy.roster.agents != agents:
        raise ConfigError(
            f"the policies can't play {name}: they play {', '.join(policy.roster.agents)}, and "
            f"there {'is one agent' if not agents else 'are ' + ', '.join(agents)}"
        )
    return policy


def _other(policy: AnyPolicy, spaces: dict[str, Any]) -> str | None:
    """Which kind of space isn't the policy's; None: both are."""
    several = len(getattr(policy, "tasks", ())) > 1  # whose columns stand by their bounds
    for kind, theirs in spaces.items():
        ours = getattr(policy, f"{kind}_space")
        if not alike(ours, theirs, bounds=several or kind == "action"):
            return kind
    return None


def joined_for(
    policy: AnyPolicy, tasks: Tasks, engine: str, env_kwargs: dict[str, Any], seed: int
) -> Tasks:
    """Tasks that a policy can play: as they are if it knows the spaces of each, or else joined.

    Args:
        engine, env_kwargs, seed: see ``headrace.envs.probe.probe``.

    Raises:
        ConfigError: they can't be joined, or are in another order than the one it was shown.
    """
    known, spaces = (policy.tasks, policy.task_spaces) if isinstance(policy, Policy) else ((), ())
    if spaces and not tasks.joined and all(the_same(name, known) for name in tasks.names):
        return tasks
    check_order(tasks.names, known if tasks.shown else ())
    if tasks.joined:
        return tasks
    found: Tasks = probe(tasks, engine, env_kwargs, seed, looks_for_stacks=False).env
    return found

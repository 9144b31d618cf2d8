"""Adapts a multi-task policy to the spaces of one task or of all tasks together."""

from __future__ import annotations

import copy
from typing import Any

from gymnasium.vector import VectorEnv

from headrace.envs.names import Tasks
from headrace.envs.probe import probe
from headrace.envs.suites import the_same
from headrace.envs.tasks import check_order
from headrace.errors import ConfigError, require_choice
from headrace.games.vector import agents_of
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy import Policy
from headrace.spaces import unified_spaces
from headrace.spaces.json import alike


def one_task(policy: Policy, name: str) -> Policy:
    """Return the policy, with the same weights, in the spaces of one of its tasks.

    Args:
        policy: policy trained on several tasks with unified spaces.
        name: name of the task in training.

    Raises:
        ConfigError: the policy doesn't have this task, or its tasks' spaces weren't saved.
    """
    task = the_same(name, policy.tasks)
    if task is None:
        require_choice("task", name, policy.tasks)
    if not policy.task_spaces:
        raise ConfigError(
            f"task={name!r} can't be selected: this checkpoint was written by a headrace version "
            "that didn't save the tasks' spaces; resume the run to save them"
        )
    number = policy.tasks.index(str(task))
    own, observed = policy.task_spaces[number], [space for space, _ in policy.task_spaces]
    shown = policy.network.task_id or policy.network.per_task_values
    alone = copy.copy(policy)  # shares its tensors
    alone.observation_space, alone.action_space = own
    alone.place = unified_spaces.place(own[0], observed)
    alone.task, alone.tasks, alone.task_spaces = (number if shown else None), (), ()
    return alone


def fitting(policy: AnyPolicy, envs: VectorEnv, name: str) -> AnyPolicy:
    """Return the policy, or its single-task view, that fits environments of this name.

    Raises:
        ConfigError: a space or the agents differ.
    """
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    is_task = isinstance(policy, Policy) and policy.task_spaces and the_same(name, policy.tasks)
    if is_task and _other(policy, spaces):
        policy = one_task(policy, name)  # type: ignore[arg-type]
    if kind := _other(policy, spaces):
        raise ConfigError(
            f"the policy can't play {name}: its {kind} space is "
            f"{getattr(policy, f'{kind}_space')}, the environment's is {spaces[kind]}"
        )
    agents = agents_of(envs)
    if isinstance(policy, MultiPolicy) and policy.mapping.agents != agents:
        raise ConfigError(
            f"the policies can't play {name}: they play {', '.join(policy.mapping.agents)}, but it "
            f"has {'one agent' if not agents else ', '.join(agents)}"
        )
    return policy


def _other(policy: AnyPolicy, spaces: dict[str, Any]) -> str | None:
    """Return the kind of space that differs from the policy's; None: neither."""
    several = len(getattr(policy, "tasks", ())) > 1  # their columns are identified by bounds
    for kind, theirs in spaces.items():
        ours = getattr(policy, f"{kind}_space")
        if not alike(ours, theirs, bounds=several or kind == "action"):
            return kind
    return None


def joined_for(
    policy: AnyPolicy, tasks: Tasks, engine: str, env_kwargs: dict[str, Any], seed: int
) -> Tasks:
    """Return tasks that the policy can play, with unified spaces unless it knows each task's own.

    Args:
        engine, env_kwargs, seed: see ``headrace.envs.probe.probe``.

    Raises:
        ConfigError: the spaces can't be unified, or the order of tasks differs from training.
    """
    names, spaces = (policy.tasks, policy.task_spaces) if isinstance(policy, Policy) else ((), ())
    if spaces and not tasks.joined and all(the_same(name, names) for name in tasks.names):
        return tasks
    check_order(tasks.names, names if tasks.shown else ())
    if tasks.joined:
        return tasks
    unified: Tasks = probe(tasks, engine, env_kwargs, seed, looks_for_stacks=False).env
    return unified

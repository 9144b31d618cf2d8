"""Builds the policies of a run, one or several, and their learner."""

from __future__ import annotations

from headrace.config import Config
from headrace.envs.names import Tasks, env_name
from headrace.envs.probe import Probe
from headrace.errors import ConfigError
from headrace.learner.learner import Learner
from headrace.learner.multi_policy_learner import AnyLearner, MultiPolicyLearner
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy import Policy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.types import Group


def policy_mapping(config: Config, probe: Probe) -> PolicyMapping | None:
    """Return the policy mapping of a run; None if one policy plays all agents.

    Raises:
        ConfigError: the setting doesn't fit the environment's agents, or their spaces.
    """
    mapping = config.policy_mapping(probe.agents, env_name(probe.env))
    if mapping is None:
        probe.check_shared()
    return mapping


def check_minibatches(config: Config, probe: Probe) -> None:
    """Raise ConfigError if a recurrent policy has fewer columns than minibatches."""
    mapping, minibatches = policy_mapping(config, probe), getattr(config.algo, "minibatches", 1)
    if mapping is None or config.network.core is None:
        return
    games = config.rollouts_per_update * int(config.envs_per_actor) // len(probe.agents)
    for policy in mapping.policies:
        columns = games * len(mapping.of(policy))
        if minibatches > columns:
            raise ConfigError(
                f"minibatches={minibatches} is more than the {columns} environments that "
                f"{policy} plays in a batch: a recurrent policy's minibatches are whole sequences "
                f"of environments (nearest: {columns})"
            )


def new_policy(config: Config, probe: Probe) -> AnyPolicy:
    """Create a policy with new weights, drawn from torch's generator policy by policy."""
    made = probe.observation_space, probe.action_space, config.network, probe.info_mask
    mapping = policy_mapping(config, probe)
    if mapping is not None:
        return MultiPolicy.of(mapping, *made, probe.own_spaces)
    policy = Policy(*made)
    if isinstance(probe.env, Tasks):
        policy.tasks, policy.task_spaces = probe.env.names, probe.env.own
    return policy


def new_learner(config: Config, policy: AnyPolicy, device: str, group: Group) -> AnyLearner:
    """Create the learner of one rank on a device, with its share of the settings."""
    algo, threads = config.per_learner.algo, config.resolved_learner_threads
    if isinstance(policy, MultiPolicy):
        return MultiPolicyLearner(policy, algo, num_threads=threads, device=device, group=group)
    return Learner(policy, algo, num_threads=threads, device=device, group=group)

"""The policies of a run, one or several, and what trains them."""

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


def roster(config: Config, found: Probe) -> PolicyMapping | None:
    """Who plays whom; None: one policy plays all there is.

    Raises:
        ConfigError: the setting doesn't fit the environment's agents, or their spaces.
    """
    who = config.roster(found.agents, env_name(found.env))
    if who is None:
        found.check_shared()
    return who


def check_minibatches(config: Config, found: Probe) -> None:
    """Raise ConfigError where a recurrent policy has fewer columns than there are minibatches."""
    who, minibatches = roster(config, found), getattr(config.algo, "minibatches", 1)
    if who is None or config.network.core is None:
        return
    games = config.rollouts_per_update * int(config.envs_per_actor) // len(found.agents)
    for policy in who.policies:
        columns = games * len(who.of(policy))
        if minibatches > columns:
            raise ConfigError(
                f"minibatches={minibatches} is more than the {columns} environments that "
                f"{policy} plays in a batch: a recurrent policy's minibatches are whole sequences "
                f"of environments (nearest: {columns})"
            )


def new_policy(config: Config, found: Probe) -> AnyPolicy:
    """With new weights, drawn from torch's generator policy by policy."""
    made = found.observation_space, found.action_space, config.network, found.info_mask
    who = roster(config, found)
    if who is not None:
        return MultiPolicy.of(who, *made, found.own_spaces)
    policy = Policy(*made)
    if isinstance(found.env, Tasks):
        policy.tasks, policy.task_spaces = found.env.names, found.env.own
    return policy


def new_learner(config: Config, policy: AnyPolicy, device: str, group: Group) -> AnyLearner:
    """What trains it on a device, with the settings of one of the group's learners."""
    algo, threads = config.per_learner.algo, config.resolved_learner_threads
    if isinstance(policy, MultiPolicy):
        return MultiPolicyLearner(policy, algo, num_threads=threads, device=device, group=group)
    return Learner(policy, algo, num_threads=threads, device=device, group=group)

"""From a run's config and its costs to a setup of the arithmetic and to a scenario."""

from __future__ import annotations

from typing import Any

from headrace.config import Config
from headrace.studies.plan.arithmetic import Setup
from headrace.studies.plan.durations import Duration, Shape
from headrace.studies.plan.measure import Costs
from headrace.studies.plan.sharing import Cores
from headrace.studies.plan.simulate import Scenario


def given_setup(config: Config, **costs: Any) -> Setup:
    """The arithmetic's input: every actor and learner with cores of its own.

    Args:
        costs: the setup's ``env_step_s``, ``inference_s``, ``learner_sps`` and ``envs``.
    """
    share = config.per_learner
    return Setup(
        num_actors=config.num_learners * share.num_actors,
        envs_per_actor=share.envs_per_actor,
        num_learners=config.num_learners,
        synchronous=config.algo.max_lag == 0,
        total_steps=config.total_steps,
        **costs,
    )


def setup_of(config: Config, costs: Costs) -> Setup:
    """The same from measured costs.

    Args:
        config: of the whole run; costs: of one learner's share of it (``config.per_learner``).
    """
    step_s = costs.acting_s / config.fragment_length
    env_step_s = min(costs.env_step_s, step_s)
    batch_size = config.per_learner.resolved_batch_size
    return given_setup(
        config,
        env_step_s=env_step_s / costs.valid_share,
        inference_s=(step_s - env_step_s) / costs.valid_share,
        learner_sps=batch_size * costs.valid_share / costs.update_s,
    )


def given_scenario(config: Config, valid_share: float = 1.0, **costs: Any) -> Scenario:
    """The simulation's input for one learner and its actors.

    Args:
        config: of one learner.
        valid_share: of steps that are transitions.
        costs: the scenario's fields that no config says.
    """
    return Scenario(
        num_actors=config.num_actors,
        slots_per_actor=config.slots_per_actor,
        rollouts_per_update=config.rollouts_per_update,
        synchronous=config.algo.max_lag == 0,
        steps_per_rollout=config.rollout_steps * valid_share,
        sync=config.sync,
        max_policy_lag=config.max_policy_lag,
        **costs,
    )


def scenario_of(
    config: Config,
    costs: Costs,
    cores: float | None = None,
    cv: float = 0.0,
    shape: Shape = "constant",
    **more: Any,
) -> Scenario:
    """The same from measured costs.

    Args:
        config: of one learner. costs: of it.
        cores: that these share; None: those of the machine on which the costs were measured.
        cv, shape: of one row of a rollout instead of the measured deviation of whole rollouts; the
            mean is the measured one.
        more: further fields of the scenario.
    """
    acting = Duration(costs.acting_s, costs.acting_cv, "gamma")
    if cv > 0.0:
        row = Duration(costs.acting_s / config.fragment_length, cv, shape)
        acting = row.repeated(config.fragment_length)
    return given_scenario(
        config,
        costs.valid_share,
        acting=acting,
        update=Duration(costs.update_s, costs.update_cv, "gamma"),
        pull_s=costs.pull_s,
        cores=Cores(
            costs.cores if cores is None else cores,
            costs.acting_cores,
            costs.update_cores,
            costs.acting_crowding,
            costs.update_crowding,
        ),
        rollout_bytes=costs.rollout_bytes,
        weights_bytes=costs.weights_bytes,
        **more,
    )

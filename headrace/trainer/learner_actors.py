"""Starts and restarts the actors of one learner."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from headrace.actors.rollout_source import RolloutSource
from headrace.config import Config
from headrace.envs.probe import Probe
from headrace.errors import StacksChanged
from headrace.learner.hogwild import SharedModel
from headrace.learner.multi_policy_learner import AnyLearner, MultiPolicyLearner
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import cores, return_freed_memory
from headrace.rundir.run_progress import Progress
from headrace.trainer.env_changes import order
from headrace.trainer.memory_check import check_room
from headrace.types import Group

Rates = tuple[float, dict[str, float]]


class LearnerActors:
    """Manages the actors of one learner. They start with :meth:`start` and can be restarted.

    Attributes:
        source: the actors' rollouts; None before :meth:`start`.
        shared: model that actors apply gradients to; None unless actors train (A3C).
        share: the learner's part of the run's settings.

    Args:
        config: settings of the run.
        probe: properties of the run's environment.
        group: group of the run's learners.
        learned: policy, learner and progress of the run.
        chose_stacks: ``stacked_frames`` was "auto", so actors may restart with another value.
        seating: opponents of a league, for the actors; None without a league.
        notify: called with a line of text for the user.
    """

    def __init__(
        self,
        config: Config,
        probe: Probe,
        group: Group,
        learned: tuple[AnyPolicy, AnyLearner, Progress],
        chose_stacks: bool,
        seating: Any,
        notify: Callable[[str], None],
    ) -> None:
        self._config, self._probe, self._group = config, probe, group
        self._policy, self._learner, self._progress = learned
        self._chose_stacks = chose_stacks and config.stacked_frames == "once"
        self._seating, self._notify = seating, notify
        self.share = config.per_learner
        self.shared = shared_model(config, self._learner)
        self.source: RolloutSource | None = None

    def start(self, rates: Rates, together: bool = True) -> RolloutSource:
        """Start the actors, with the current weights and all changes of environments.

        Args:
            rates: learning rate and scheduled hyperparameters of the next update.
            together: all learners start their actors now. They wait for each other, so that none
                allocates memory before all have read how much is free.
        """
        config = self._config
        spec = self.share.actor_spec(
            self._probe.env,
            copy.deepcopy(self._policy).cpu(),  # an actor needs no accelerator
            device=str(self._learner.device),
            first_actor=self._group.rank * self.share.num_actors,
            rank=self._group.rank,
            agents=self._probe.agents,
            num_places=None if config.cluster is None else config.num_places,
            may_be_cut=config.preempt_fraction is not None,
            processors=None if config.cores_per_learner is None else frozenset(cores()),
            seating=self._seating,
        )
        model = None if self.shared is None else self.shared.opened(*rates)
        if together:
            with self._group.clock.aside():
                self._group.gather(torch.zeros(1))
        self.source = RolloutSource(spec, self._notify, model)
        order(self.source, self._progress.env_changes)
        self.publish()
        return_freed_memory()  # of benchmarks and pickles
        return self.source

    def hold_whole_stacks(self, config: Config, change: StacksChanged, rates: Rates) -> Config:
        """Restart the actors with memory for whole frame stacks, if ``stacked_frames`` is "auto".

        Waiting rollouts are discarded, and the current update starts again before any training step
        of it was taken. Each learner does this independently.

        Returns:
            the changed settings.

        Raises:
            StacksChanged: the setting isn't "auto", a replay buffer holds frames, or actors train.
        """
        algo = config.algo
        replays = getattr(algo, "replay_fraction", 0.0) > 0 or hasattr(algo, "buffer_size")
        holds = algo.learns_in_actors or replays
        if not self._chose_stacks or holds or config.stacked_frames == "whole":
            raise change
        assert self.source is not None
        self.source.close()
        self._config = config = replace(config, stacked_frames="whole")
        self.share = config.per_learner
        check_room(config, self._policy, self._probe.env)
        self._progress.epoch += 1  # other seeds of environments
        reason = str(change).partition(" (environment")[0]
        self._notify(f"auto: {reason}; actors restart and store whole stacks from now on")
        self.start(rates, together=False)
        return config

    def publish(self) -> None:
        """Publish the weights of the latest update to the actors."""
        assert self.source is not None
        updates = self._progress.updates
        self._learner.published(updates)
        self.source.publish(self._policy, updates, self._progress.epoch)

    def cut(self, version: int) -> None:
        """End the rollouts that actors are collecting with the weights of an update early."""
        if self.source is not None:
            self.source.cut(version)

    def close(self) -> None:
        """Stop the actors."""
        if self.source is not None:
            self.source.close()


def shared_model(config: Config, learner: AnyLearner) -> SharedModel | None:
    """Return the model that actors apply gradients to; None unless actors train (A3C)."""
    if not config.algo.learns_in_actors or isinstance(learner, MultiPolicyLearner):
        return None
    sizes = config.num_actors, config.rollouts_per_update
    return SharedModel(learner, *sizes, shared=config.transport == "shm")

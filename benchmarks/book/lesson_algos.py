"""APPO and PPO with updates that take a given time, as a stand-in for a learner on a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import headrace as hr
from headrace.types import ActorCritic, Batch, Fresh, Group, State


@dataclass(frozen=True)
class TimedAPPO(hr.APPO):
    """APPO whose updates sleep for ``update_s``."""

    update_s: float = 0.05

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterable[Batch]:
        """Sleep, then return the batches of APPO."""
        batches = super().batches(policy, fresh, state, group)
        time.sleep(self.update_s)
        return batches


@dataclass(frozen=True)
class TimedPPO(hr.PPO):
    """PPO whose updates sleep for ``update_s``."""

    update_s: float = 0.05

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterable[Batch]:
        """Sleep, then return the batches of PPO."""
        batches = super().batches(policy, fresh, state, group)
        time.sleep(self.update_s)
        return batches

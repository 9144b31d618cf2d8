"""A KL penalty whose weight adapts itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import require


def check_penalty(kl_coef: float, kl_target: float | None, num_steps: int) -> None:
    """The weight of a KL penalty, and the KL that it is adapted to (None: not adapted).

    Args:
        num_steps: optimiser steps away from the policy that the KL is measured to; a loss shows
            the KL before its own step, so it takes two to see any.
    """
    valid = "None where each update is a single optimiser step: it could never see its effect"
    require(kl_target is None or num_steps > 1, "kl_target", kl_target, valid)
    valid = "None if kl_coef is a schedule"
    require(kl_target is None or isinstance(kl_coef, int | float), "kl_target", kl_target, valid)
    valid = f"above 0 and needs kl_coef > 0 (is {kl_coef})"
    possible = kl_target is None or (kl_target > 0 and kl_coef > 0)
    require(possible, "kl_target", kl_target, valid)


@dataclass
class Penalty:
    """The weight of a KL penalty, adapted so that the KL stays near a target.

    Args:
        coef: the weight at the start, and always without a target. target: of the KL, or None.
        window: of how many latest optimiser steps the KL is averaged.
    """

    coef: float
    target: float | None
    window: int
    kls: tuple[float, ...] = ()

    def note(self, kl: float) -> None:
        """The mean KL of one optimiser step."""
        self.kls = (*self.kls, kl)[-self.window :]

    def adapt(self, coef: float | None = None) -> None:
        """Double the weight if the KL is above 1.5 times its target, halve it if below 1 / 1.5.

        Args:
            coef: the new weight, used only if there is no target; None: unchanged.

        Schulman et al. 2017, section 4. The weight stays above 1e-6, whence it can come back.
        """
        if self.target is None and coef is not None:
            self.coef = coef
        if self.target is None or not self.kls:
            return
        kl = sum(self.kls) / len(self.kls)
        if kl > 1.5 * self.target:
            self.coef *= 2.0
        elif kl < self.target / 1.5:
            self.coef = max(self.coef / 2.0, 1e-6)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"coef": self.coef, "kls": list(self.kls)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint; a weight that isn't adapted is the setting's."""
        if self.target is not None:
            self.coef, self.kls = saved["coef"], tuple(saved["kls"])

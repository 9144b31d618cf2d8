"""KL penalty with an adaptive weight, and checks of settings that limit the KL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import require


def check_kl_limit(kl_limit: float | None, num_steps: int) -> None:
    """Check kl_limit for ``num_steps`` optimiser steps on rollouts of the current policy."""
    valid = "None where each update is a single optimiser step, before which the KL is always 0"
    require(kl_limit is None or num_steps > 1, "kl_limit", kl_limit, valid)


def check_penalty(kl_coef: float, kl_target: float | None, num_steps: int) -> None:
    """Check the weight of a KL penalty, and the KL to which it is adapted (None: not adapted).

    Args:
        num_steps: optimiser steps since the reference policy of the KL. The loss has the KL before
            its own step, so two steps are needed for a KL above 0.
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
        coef: weight at the start, and always without a target.
        target: target of the KL, or None.
        window: number of latest optimiser steps over which the KL is averaged.
    """

    coef: float
    target: float | None
    window: int
    kls: tuple[float, ...] = ()

    def note(self, kl: float) -> None:
        """Record the mean KL of one optimiser step."""
        self.kls = (*self.kls, kl)[-self.window :]

    def follow(self, coef: float) -> None:
        """Adopt the current value of the setting, unless the weight is adapted."""
        if self.target is None:
            self.coef = coef

    def adapt(self) -> None:
        """Double the weight if the KL is above 1.5 times its target, halve it if below 1 / 1.5.

        Schulman et al. 2017, section 4. The weight stays above 1e-6, so that it can rise again.
        """
        if self.target is None or not self.kls:
            return
        kl = sum(self.kls) / len(self.kls)
        if kl > 1.5 * self.target:
            self.coef *= 2.0
        elif kl < self.target / 1.5:
            self.coef = max(self.coef / 2.0, 1e-6)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"coef": self.coef, "kls": list(self.kls)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a checkpoint; a weight that isn't adapted stays at its setting."""
        if self.target is not None:
            self.coef, self.kls = saved["coef"], tuple(saved["kls"])

"""Mixture of opponents and their shares of games: ``latest:0.5,pfsp:0.5``.

| kind | who plays the other seats |
|---|---|
| latest | the policy that is trained, and every seat is trained on |
| naive | the run's newest snapshot |
| uniform | any snapshot of the league, each as likely |
| pfsp | snapshots that the run rarely beats: weights ``(1 - p)²`` for a win rate of ``p`` |
| pfsp-var | snapshots as strong as the run: weights ``p (1 - p)`` |

The last two are AlphaStar's prioritised fictitious self-play (Vinyals et al. 2019, "Grandmaster
level in StarCraft II using multi-agent reinforcement learning", Methods: f_hard and f_var).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.errors import ConfigError, require_choice, shown

LATEST, NAIVE = "latest", "naive"
WEIGHTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # by win rates [n]
    "uniform": np.ones_like,
    "pfsp": lambda p: (1.0 - p) ** 2,
    "pfsp-var": lambda p: p * (1.0 - p),
}
KINDS = (LATEST, NAIVE, *WEIGHTS)
_SMALL = 1e-10


@dataclass(frozen=True)
class OpponentMix:
    """Shares of kinds of opponents, which add up to 1."""

    shares: tuple[tuple[str, float], ...]

    @staticmethod
    def of(text: str) -> OpponentMix:
        """Parse ``kind:share,kind:share``; a single kind may omit its share.

        Raises:
            ConfigError: a kind is unknown or repeated, or the shares don't add up to 1.
        """
        shares: dict[str, float] = {}
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            kind, colon, number = part.partition(":")
            require_choice("opponents", kind, KINDS)
            if kind in shares:
                raise ConfigError(f"opponents={shown(text)} must name {kind} once")
            try:
                shares[kind] = float(number) if colon else 1.0
            except ValueError:
                shares[kind] = math.nan
            if not 0.0 < shares[kind] <= 1.0:
                raise ConfigError(
                    f"opponents={shown(text)} must give {kind} a share above 0 and at most 1, as "
                    "in latest:0.5,pfsp:0.5"
                )
        total = sum(shares.values())
        if abs(total - 1.0) > 1e-6:
            near = {kind: float(f"{share / total:.3g}") for kind, share in shares.items()}
            most = max(near, key=near.__getitem__)
            near[most] += 1.0 - sum(near.values())
            raise ConfigError(
                f"opponents={shown(text)} must have shares that add up to 1, not {total:g} "
                f"(nearest: {OpponentMix(tuple(near.items()))})"
            )
        return OpponentMix(tuple(shares.items()))

    @property
    def latest(self) -> float:
        """Share of games in which every seat is trained."""
        return dict(self.shares).get(LATEST, 0.0)

    @property
    def frozen(self) -> tuple[tuple[str, float], ...]:
        """Kinds played by snapshots, with shares normalised among them."""
        others = [(kind, share) for kind, share in self.shares if kind != LATEST]
        total = sum(share for _, share in others)
        return tuple((kind, share / total) for kind, share in others)

    def games(self, num_columns: int, num_agents: int) -> tuple[int, int]:
        """Return the numbers of games with all seats trained and with one, for a number of columns.

        The trained columns are divided as evenly as whole games allow.

        Raises:
            ConfigError: no division into whole games exists.
        """
        both = round(num_columns * self.latest / num_agents)
        if self.latest == 1.0:
            fits = num_columns % num_agents == 0
            low = max(num_agents, num_columns // num_agents * num_agents)
            valid = f"a multiple of {num_agents}, the number of seats of a game"
        else:
            both = max(both, min(1, math.ceil(self.latest)))
            low = num_agents * both + 1
            both = min(both, (num_columns - 1) // num_agents)
            fits = self.latest == 0.0 or both > 0
            valid = f"at least {low}, for games of {num_agents} seats and of one"
        if not fits:
            raise ConfigError(
                f"envs_per_actor={num_columns} must be {valid}, with opponents="
                f"{str(self)!r} (nearest: {low})"
            )
        return both, num_columns - num_agents * both

    def __str__(self) -> str:
        return ",".join(f"{kind}:{share:g}" for kind, share in self.shares)


def probabilities(kind: str, win_rates: np.ndarray) -> np.ndarray:
    """Return the probability of each of n snapshots, ``[n]``; uniform if all weights are 0.

    Args:
        kind: one of ``WEIGHTS``.
        win_rates: ``[n]`` win rates against each.
    """
    weights = WEIGHTS[kind](np.asarray(win_rates, np.float64))
    total = float(weights.sum())
    return weights / total if total > _SMALL else np.full(len(weights), 1.0 / len(weights))

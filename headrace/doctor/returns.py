"""Rules about the returns of a run: flat, below those of the first policy, or lost again.

See ``learning.py``.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.doctor.history import RETURN, History

FEW_STEPS = 500  # optimiser steps after which training should have improved
_FEW_RESULTS, _FEW_EPISODES = 8, 200


def has_gained(h: History, share: float = 0.25) -> bool:
    """Return True if late returns exceed the first ones by more than noise and a share of them."""
    start, late = _least_at_first(h), h.known(RETURN, late=True)
    chance = 2 * float(np.median(np.abs(np.diff(late)))) if len(late) > 1 else 0.0
    return h.median(RETURN) - start > max(share * abs(start), chance)


def _least_at_first(h: History) -> float:
    """Return the lowest of the first three results; NaN without any."""
    return float(min(h.known(RETURN)[:3], default=math.nan))


def is_poor(h: History) -> bool:
    """Return True if little was gained, or most of it was lost again."""
    start, best, late = _least_at_first(h), h.best(RETURN), h.median(RETURN)
    if len(h.known(RETURN)) < 3 or h.is_game:
        return False
    if h.goes_on:  # it may have started at its best
        return bool(best - late > 0.5 * abs(best))
    return bool(best - start < 0.2 * abs(start) or late - start < 0.35 * (best - start))


def never_moved(h: History) -> float | None:
    """Return the level of returns if they stayed at those of the first policy, except for noise.

    Otherwise return None. Also return None early in a run, when learning may not have begun, and
    for resumed runs, whose first policy was trained.
    """
    returns, late = h.known(RETURN), h.known(RETURN, late=True)
    few = len(returns) < _FEW_RESULTS or len(late) < 4 or h.episodes < _FEW_EPISODES
    early = h.progress < 0.8 or h.optimiser_steps < FEW_STEPS
    if few or early or h.is_game or h.goes_on or not np.ptp(returns) > 0:
        return None
    quarters = [float(np.median(part)) for part in np.array_split(returns, 4)]
    level, noise = float(np.median(late)), float(np.std(late))
    began = np.abs(returns[:5] - level).max() < 3.5 * noise
    by_chance = float(np.std(quarters)) < 0.6 * float(np.std(returns))
    return level if began and (by_chance or np.ptp(quarters) < 0.1 * abs(level)) else None


def too_short(h: History) -> str | None:
    """List counts that are too low to judge a run's learning.

    Returns None if nothing is missing, or if all late returns are above all earlier ones.
    """
    returns, late = h.known(RETURN), h.known(RETURN, late=True)
    early = returns[: len(returns) - len(late)]
    if h.is_game or h.goes_on or (len(early) and len(late) and late.min() > early.max()):
        return None
    known = (
        (len(returns), _FEW_RESULTS, "results with a return"),
        (h.episodes, _FEW_EPISODES, "episodes"),
        (h.optimiser_steps, FEW_STEPS, "optimiser steps"),
    )
    lacking = [f"{x:,.0f} of {least} {name}" for x, least, name in known if x < least]
    return ", ".join(lacking) or None


def flat(h: History) -> str | None:
    """Returns never moved from those of the first policy."""
    level = never_moved(h)
    if level is None:
        return None
    return (
        f"returns never moved: after {h.episodes:,.0f} episodes they are still at "
        f"{level:,.{digits(level)}f}, like those of the first policy"
    )


def below_start(h: History) -> str | None:
    """Returns of the last quarter are all below those of the first policy, by more than noise."""
    counts, returns = h.all("charts/episodes"), h.all(RETURN)
    envs = h.setting("num_actors", 1) * h.setting("envs_per_actor", 1)
    known = np.isfinite(returns) & (counts >= max(30, envs))  # the first episodes to end are short
    returns = returns[known]
    few = len(returns) < _FEW_RESULTS or h.optimiser_steps < FEW_STEPS
    if few or h.progress < 0.8 or h.is_game:
        return None
    first, last = returns[:3].min(), returns[-max(3, len(returns) // 4) :].max()
    noise = 2.5 * float(np.median(np.abs(np.diff(returns, n=2))))
    if first - last > max(0.2 * abs(first), noise):
        return (
            f"returns are below those of the first policy: {last:,.{digits(last)}f} at best in "
            f"the last quarter, compared with {first:,.{digits(first)}f} at first"
        )
    return None


def are_equal(h: History) -> bool:
    """Return True if episodes ended, all with the same return."""
    known = [values for name in [RETURN, *h.agents] if len(values := h.known(name))]
    return bool(known) and not any(np.ptp(values) > 0 for values in known)


def flat_returns(h: History) -> str | None:
    """All episodes have the same return, whatever is tried."""
    returns, last = h.known(RETURN), h.median("losses/entropy")
    # A random initial policy with the same return hadn't found the optimum.
    most = h.max_entropy
    tries = most is None or last > 0.75 * most or h.first("losses/entropy") > 0.9 * most
    few = h.episodes < 100 or h.progress < 0.5  # training may not have started everywhere
    few |= h.steps_without_end > 0.25 * h.steps[-1]
    if len(returns) >= 3 and are_equal(h) and tries and not few and not h.goes_on:
        return (
            f"every episode returns {returns[0]:g} whatever the actions, so there is nothing "
            "to learn from"
        )
    return None


def return_lost(h: History) -> str | None:
    """Returns dropped again by more than noise."""
    returns = h.known(RETURN)
    explained = h.known("losses/explained_variance")
    if len(returns) < 6 or h.progress < 0.5 or not len(explained) or h.is_game:
        return None
    if np.quantile(explained, 0.75) < 0.2:  # returns are noise
        return None
    start, best = h.start(RETURN), h.best(RETURN)
    now = float(returns[-max(3, len(returns) // 4) :].max())  # best of the last quarter
    chance = 2.5 * float(np.median(np.abs(np.diff(returns, n=2))))  # 4 standard deviations of noise
    gain, loss = best - start, best - now
    most = gain > 0.6 * abs(start) and loss > 0.5 * gain
    whole = gain > 0.25 * abs(start) and loss > 0.8 * gain
    if (most or whole) and loss > chance:
        count = digits(best)
        return f"the return collapsed: it fell from {best:,.{count}f} to {now:,.{count}f}"
    return None


def digits(value: float) -> int:
    """Return how many decimals of a return are shown."""
    return 1 if abs(value) >= 10 else 2

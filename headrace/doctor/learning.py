"""Rules about training metrics: one function per problem.

Each takes a :class:`History` and returns its sentence, or None. Metrics are medians over the second
half of the steps so far, unless the sentence says otherwise. Training that hasn't started to
improve, or has converged, is not a problem: symptoms of both only count with poor returns or after
enough optimiser steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.doctor.history import RETURN, History
from headrace.doctor.returns import (
    FEW_STEPS,
    are_equal,
    digits,
    has_gained,
    is_poor,
    never_moved,
)

_FAR_MEANS = 2.5  # distance of means from the middle, in units of the bounds


def value_blind(h: History) -> str | None:
    """Explained variance stays near 0 while returns don't rise."""
    explained, course = h.median("losses/explained_variance"), h.known("losses/explained_variance")
    began = h.optimiser_steps > FEW_STEPS and h.progress > 0.25
    if not began or not len(course):
        return None
    ignored = h.setting("value_coef", 1.0) < 0.01  # in the loss; noise may then explain a little
    never = len(course) > 5 and np.quantile(course, 0.9) < 0.1 and course.max() < 0.5
    learns = has_gained(h) or h.goes_on or h.is_game
    blind = never and h.last("charts/updates") > 20 and not learns
    if explained < (0.3 if ignored else 0.02) and (ignored or blind):
        return (
            f"the value function explains nothing: it predicts {max(explained, 0.0):.0%} of the "
            "variance of its targets, so that advantages are noise"
        )
    return None


def entropy_collapsed(h: History) -> str | None:
    """Entropy is a few percent of its maximum, at a poor return."""
    last, first = h.median("losses/entropy"), h.first("losses/entropy")
    most = h.max_entropy
    level = never_moved(h)
    if level is not None and _is_certain(h, last, first):
        return (
            f"entropy collapsed: it fell from {first:.2f} to {last:.2f} nats, while returns stay "
            f"at {level:,.{digits(level)}f}, so the policy became certain without learning"
        )
    if most is None:
        if last < first - 3.0 * h.num_continuous and h.progress < 0.5 and is_poor(h):
            return (
                f"entropy collapsed: from {first:.2f} to {last:.2f} nats in {h.progress:.0%} of "
                "the steps, so that hardly any other action is tried"
            )
    elif last < 0.03 * most and is_poor(h):
        return (
            f"entropy collapsed: {last:.3f} of at most {most:.2f} nats, so that hardly any other "
            f"action is tried, at a return of {h.median(RETURN):,.1f}"
        )
    return None


def _is_certain(h: History, last: float, first: float) -> bool:
    """Return True if entropy fell by more than half, or 1.5 nats per continuous action."""
    if h.max_entropy is None:
        return last < first - 1.5 * h.num_continuous
    return last < 0.5 * h.max_entropy


def means_outside(h: History) -> str | None:
    """Means of continuous actions are far outside their bounds."""
    size = h.median("losses/mean_size")
    if size > _FAR_MEANS:
        return (
            f"means of actions are far outside their bounds: {size:.1f} times as far from the "
            "middle as the bounds, so most sampled actions are clipped to the bounds"
        )
    return None


def random_policy(h: History) -> str | None:
    """Entropy is still at its maximum, with a large bonus."""
    last, first = h.median("losses/entropy"), h.first("losses/entropy")
    coef, most = h.setting("entropy_coef", 0.0), h.max_entropy
    if coef < 0.05 or h.progress < 0.25 or h.optimiser_steps < FEW_STEPS or has_gained(h):
        return None  # a small bonus can't outweigh advantages
    if h.is_game and coef < 1.0:
        return None  # the best policy may be random
    if most is not None and last > 0.97 * most:
        grown = f"its entropy is {last / most:.1%} of the maximum"
    elif most is None and last > first + 0.3 * h.num_continuous:
        grown = f"its entropy grew from {first:.2f} to {last:.2f} nats"
    else:
        return None
    return (
        f"the policy stays random: {grown}, because the bonus (entropy_coef={coef:g}) outweighs "
        "the returns"
    )


def kl_high(h: History) -> str | None:
    """KL between the acting and the current policy is high."""
    kl = h.lively("losses/approx_kl")
    clips = math.isfinite(h.setting("clip"))  # IMPALA without clipping moves further
    if kl > (0.1 if clips else 1.0):
        return (
            f"the policy moves too far in an update: KL {kl:.2g} nats from the policy that acted, "
            "compared with the usual 0.01 to 0.05"
        )
    return None


def clip_fraction(h: History) -> str | None:
    """PPO's clip stops the gradient of too many ratios."""
    share = h.lively("losses/clipfrac")
    if share > 0.4:
        return (
            f"the clip discards much of the gradient: {share:.0%} of the ratios are outside "
            f"1 ± {h.setting('clip'):g}, compared with the usual 5% to 30%"
        )
    return None


def lag_high(h: History) -> str | None:
    """Data is many updates old, and the policy has changed meanwhile."""
    lag, kl, share = (h.lively(x) for x in ("lag/mean", "losses/approx_kl", "losses/clipfrac"))
    replays = h.setting("buffer_size", 0) > 0 or h.setting("replay_fraction", 0.0) > 0
    if replays or h.setting("algo", "") == "a3c":  # its lag counts gradients of other actors
        return None
    if lag > 6 or (lag > 3.5 and (kl > 0.03 or share > 0.3)):
        clipped = f" and {share:.0%} of the ratios are clipped" if math.isfinite(share) else ""
        return (
            f"data is too old: {lag:.1f} updates on average, during which the policy moved by "
            f"{kl:.2g} nats{clipped}"
        )
    return None


def gradient_clipped(h: History) -> str | None:
    """Gradient norms are far above ``max_grad_norm`` from the start."""
    norms, most = h.known("losses/grad_norm"), float(h.setting("max_grad_norm", math.inf))
    early = norms[: max(1, len(norms) // 4)]  # norms may grow once a task is solved
    least = min(float(np.median(early)), h.median("losses/grad_norm")) if len(norms) else 0.0
    if least > (15 if _is_scaled(h) else 40) * most > 0 and not h.goes_on:
        return (
            f"the gradient is always clipped: its norm is {least:.2g}, {least / most:.0f} "
            "times max_grad_norm, so that steps don't depend on its size"
        )
    return None


def returns_unnormalised(h: History) -> str | None:
    """A value loss of large returns outweighs the policy loss."""
    mean = h.median(RETURN)
    loss = h.median("losses/value_loss")
    if not _is_scaled(h) and loss > 50 and abs(mean) > 50:
        return (
            f"returns are large and not normalised: {mean:,.0f} on average, and a value loss of "
            f"{loss:,.0f}, which outweighs the policy loss"
        )
    return None


def _is_scaled(h: History) -> bool:
    """Return True if values are normalised."""
    return bool(h.setting("normalize_values", False) or h.setting("normalize_returns", False))


def evaluation_far(h: History) -> str | None:
    """Evaluations without sampling are far worse than training."""
    elsewhere = bool(h.setting("eval_env_kwargs", ""))  # different on purpose
    if elsewhere or h.is_game or h.optimiser_steps < FEW_STEPS or h.progress < 0.5:
        return None
    recent = h.steps >= 0.6 * h.steps[-1]
    columns = RETURN, "eval/episodic_return", "seconds"
    trained, played, seconds = (h.all(name)[recent] for name in columns)
    if not len(trained) or not np.isfinite(trained + played).all():
        return None
    # Training continues during an evaluation, so the evaluated policy may be old.
    several = len(np.unique(played)) >= 3 or np.ptp(seconds) > 20
    size = max(np.ptp(h.known(RETURN)), 0.5 * abs(trained.min()), 1e-9)
    if several and trained.min() - played.max() > 0.6 * size:
        return (
            f"evaluations are far from training: {played[-1]:,.1f} where training has "
            f"{trained[-1]:,.1f}"
        )
    return None


def greedy_far(h: History) -> str | None:
    """In the final evaluation, most likely actions are far worse than sampled ones."""
    greedy, sampled = h.evaluation, h.evaluation.get("other_mode")
    if not greedy.get("deterministic", False) or sampled is None or h.is_game:
        return None
    mean, other = greedy["mean"], sampled["mean"]
    if mean is None or other is None:  # not finite
        return None
    chance = math.hypot(_chance(greedy), _chance(sampled))
    worst, longest = min(sampled["returns"]), max(sampled["lengths"])
    lengths = [n for x, n in zip(greedy["returns"], greedy["lengths"], strict=True) if x < worst]
    loops = any(length > longest for length in lengths)  # until a time limit
    if loops or len(lengths) > 1:
        chance = min(chance, 2 * sampled["std"])
    if other - mean > max(0.2 * max(abs(mean), abs(other)), chance):
        return (
            f"the most likely actions are far worse than sampled ones: they return {mean:,.1f} in "
            f"the final evaluation, and sampled actions {other:,.1f}"
        )
    return None


def _chance(evaluation: Mapping[str, Any]) -> float:
    """Return three standard errors of an evaluation's mean."""
    return float(3 * evaluation["std"] / math.sqrt(evaluation["episodes"]))


def standstill(h: History) -> str | None:
    """Updates hardly change the policy."""
    early = h.all("charts/learning_rate") > 0.2 * h.setting("learning_rate", 0.0)
    is_old = h.median("lag/steps") > 0.5
    if is_old:  # a policy's KL from itself is 0, as in IMPACT's first updates
        early &= ~(h.all("lag/steps") < 0.5)
    kl = h.all("losses/approx_kl")[early]
    kl, entropy = kl[np.isfinite(kl)], h.known("losses/entropy")
    size = h.num_continuous if h.max_entropy is None else h.max_entropy
    if len(kl) < 2 or not len(entropy) or are_equal(h):  # equal returns give no gradient
        return None
    if np.ptp(entropy) > 0.02 * size:  # a converged policy also moves little
        return None
    moved = float(np.median(kl))
    if is_old:
        clipped = h.median("losses/clipfrac") > 0.3  # another problem
        if moved < 1e-5 and not clipped:
            return (
                f"the policy stands still: an update moves it by {moved:.1g} nats, compared "
                "with the usual 0.001 to 0.05"
            )
    elif h.last("charts/updates") > 20 and np.ptp(entropy) < 5e-4 * size:
        return (
            "the policy stands still: in all updates so far its entropy changed by "
            f"{np.ptp(entropy):.1g} nats"
        )
    return None

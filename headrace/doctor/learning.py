"""What figures of learning say is wrong: a function for each illness.

Each looks at a :class:`History` and returns its sentence, or None. Figures are medians over the
second half of the steps so far, unless the sentence says otherwise. Learning that hasn't begun, or
is over, is no illness: what only says so must come with returns that are poor, or with optimiser
steps enough to have begun.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.doctor.history import RETURN, History

_FEW_STEPS = 500  # of the optimiser, in which nothing need have been learnt


def has_gained(h: History, share: float = 0.25) -> bool:
    """Whether returns rose, and stayed, by more than chance and a share of what they began with."""
    start, late = _least_at_first(h), h.known(RETURN, late=True)
    chance = 2 * float(np.median(np.abs(np.diff(late)))) if len(late) > 1 else 0.0
    return h.median(RETURN) - start > max(share * abs(start), chance)


def _least_at_first(h: History) -> float:
    """Of the first three results, in which much may have been learnt; NaN without any."""
    return float(min(h.known(RETURN)[:3], default=math.nan))


def is_poor(h: History) -> bool:
    """Whether little was gained, or is left: who has found the best action needs no entropy."""
    start, best, late = _least_at_first(h), h.best(RETURN), h.median(RETURN)
    if len(h.known(RETURN)) < 3 or h.is_game:
        return False
    if h.goes_on:  # it may have begun at its best
        return bool(best - late > 0.5 * abs(best))
    return bool(best - start < 0.2 * abs(start) or late - start < 0.35 * (best - start))


def value_blind(h: History) -> str | None:
    """Explained variance stays near 0 where returns don't rise."""
    explained, course = h.median("losses/explained_variance"), h.known("losses/explained_variance")
    began = h.optimiser_steps > _FEW_STEPS and h.progress > 0.25
    if not began or not len(course):
        return None
    ignored = h.setting("value_coef", 1.0) < 0.01  # by the loss; then noise may explain a little
    never = len(course) > 5 and np.quantile(course, 0.9) < 0.1 and course.max() < 0.5
    learns = has_gained(h) or h.goes_on or h.is_game
    blind = never and h.last("charts/updates") > 20 and not learns
    if explained < (0.3 if ignored else 0.02) and (ignored or blind):
        return (
            f"the value function explains nothing: it predicts {max(explained, 0.0):.0%} of the "
            "variance of what it is to predict, so that advantages are noise"
        )
    return None


def entropy_collapsed(h: History) -> str | None:
    """Entropy is a few hundredths of the greatest, at a poor return."""
    last, first = h.median("losses/entropy"), h.first("losses/entropy")
    most = h.max_entropy
    if most is None:
        if last < first - 3.0 * h.num_continuous and h.progress < 0.5 and is_poor(h):
            return (
                f"entropy collapsed: from {first:.2f} to {last:.2f} nats in {h.progress:.0%} of "
                "the steps, so that hardly another action is tried"
            )
    elif last < 0.03 * most and is_poor(h):
        return (
            f"entropy collapsed: {last:.3f} of at most {most:.2f} nats, so that hardly another "
            f"action is tried, at a return of {h.median(RETURN):,.1f}"
        )
    return None


def random_policy(h: History) -> str | None:
    """Entropy is the greatest still, under a large bonus."""
    last, first = h.median("losses/entropy"), h.first("losses/entropy")
    coef, most = h.setting("entropy_coef", 0.0), h.max_entropy
    if coef < 0.05 or h.progress < 0.25 or h.optimiser_steps < _FEW_STEPS or has_gained(h):
        return None  # a bonus so small can't outweigh advantages
    if h.is_game and coef < 1.0:
        return None  # whose best policy may be a random one
    if most is not None and last > 0.97 * most:
        grown = f"its entropy is {last / most:.1%} of the greatest there is"
    elif most is None and last > first + 0.3 * h.num_continuous:
        grown = f"its entropy grew from {first:.2f} to {last:.2f} nats"
    else:
        return None
    return (
        f"the policy stays random: {grown}, for the bonus (entropy_coef={coef:g}) outweighs the "
        "returns"
    )


def kl_high(h: History) -> str | None:
    """KL of the policy that acted from the one that learns, nats."""
    kl = h.lively("losses/approx_kl")
    clips = math.isfinite(h.setting("clip"))  # IMPALA, which doesn't, moves further in good health
    if kl > (0.1 if clips else 1.0):
        return (
            f"the policy moves too far in an update: KL {kl:.2g} nats from the one that acted, "
            "where 0.01 to 0.05 is usual"
        )
    return None


def clip_fraction(h: History) -> str | None:
    """The share of ratios at which PPO's clip stops the gradient."""
    share = h.lively("losses/clipfrac")
    if share > 0.4:
        return (
            f"the clip throws away most of what is learnt: {share:.0%} of the ratios are outside "
            f"1 ± {h.setting('clip'):g}, where 5% to 30% is usual"
        )
    return None


def lag_high(h: History) -> str | None:
    """Data is many updates old, and the policy moved meanwhile."""
    lag, kl, share = (h.lively(x) for x in ("lag/mean", "losses/approx_kl", "losses/clipfrac"))
    replays = h.setting("buffer_size", 0) > 0 or h.setting("replay_fraction", 0.0) > 0
    if replays or h.setting("algo", "") == "a3c":  # whose lag is of others' gradients
        return None
    if lag > 6 or (lag > 3.5 and (kl > 0.03 or share > 0.3)):
        clipped = f" and {share:.0%} of the ratios are clipped" if math.isfinite(share) else ""
        return (
            f"data is too old: {lag:.1f} updates on average, in which the policy moved by "
            f"{kl:.2g} nats{clipped}"
        )
    return None


def gradient_clipped(h: History) -> str | None:
    """Norms are far above ``max_grad_norm`` from the beginning."""
    norms, most = h.known("losses/grad_norm"), float(h.setting("max_grad_norm", math.inf))
    early = norms[: max(1, len(norms) // 4)]  # later it may grow, of a task that is solved
    least = min(float(np.median(early)), h.median("losses/grad_norm")) if len(norms) else 0.0
    if least > (15 if _is_scaled(h) else 40) * most > 0 and not h.goes_on:
        return (
            f"the gradient is always clipped: its norm is {least:.2g}, {least / most:.0f} "
            "times max_grad_norm, so that steps say nothing of its size"
        )
    return None


def returns_unnormalised(h: History) -> str | None:
    """A value loss of returns in the hundreds outweighs the policy's."""
    mean = h.median(RETURN)
    loss = h.median("losses/value_loss")
    if not _is_scaled(h) and loss > 50 and abs(mean) > 50:
        return (
            f"returns are large and not normalised: {mean:,.0f} on average, and a value loss of "
            f"{loss:,.0f} beside which the policy's is nothing"
        )
    return None


def _is_scaled(h: History) -> bool:
    """Whether values are learnt in units of their own."""
    return bool(h.setting("normalize_values", False) or h.setting("normalize_returns", False))


def evaluation_far(h: History) -> str | None:
    """The policy that acts without chance is far worse than training."""
    elsewhere = bool(h.setting("eval_env_kwargs", ""))  # and so far on purpose
    if elsewhere or h.is_game or h.optimiser_steps < _FEW_STEPS or h.progress < 0.5:
        return None
    recent = h.steps >= 0.6 * h.steps[-1]
    columns = RETURN, "eval/episodic_return", "seconds"
    trained, played, seconds = (h.all(name)[recent] for name in columns)
    if not len(trained) or not np.isfinite(trained + played).all():
        return None
    # An evaluation takes a while, in which training goes on: its policy may be an old one.
    several = len(np.unique(played)) >= 3 or np.ptp(seconds) > 20
    size = max(np.ptp(h.known(RETURN)), 0.5 * abs(trained.min()), 1e-9)
    if several and trained.min() - played.max() > 0.6 * size:
        return (
            f"evaluations are far from training: {played[-1]:,.1f} where training has "
            f"{trained[-1]:,.1f}"
        )
    return None


def standstill(h: History) -> str | None:
    """An update hardly changes what the policy does."""
    early = h.all("charts/learning_rate") > 0.2 * h.setting("learning_rate", 0.0)
    kl = h.all("losses/approx_kl")[early]
    kl, entropy = kl[np.isfinite(kl)], h.known("losses/entropy")
    size = h.num_continuous if h.max_entropy is None else h.max_entropy
    if len(kl) < 2 or not len(entropy):
        return None
    if np.ptp(entropy) > 0.02 * size:  # who has learnt all moves little, too
        return None
    moved = float(np.median(kl))
    if h.median("lag/steps") > 0.5:
        clipped = h.median("losses/clipfrac") > 0.3  # another illness
        if moved < 1e-5 and not clipped:
            return (
                f"the policy stands still: an update moves it by {moved:.1g} nats, where 0.001 to "
                "0.05 is usual"
            )
    elif h.last("charts/updates") > 20 and np.ptp(entropy) < 5e-4 * size:
        return (
            "the policy stands still: in all updates so far its entropy changed by "
            f"{np.ptp(entropy):.1g} nats"
        )
    return None


def flat_returns(h: History) -> str | None:
    """All episodes return the same, whatever is tried."""
    returns, last = h.known(RETURN), h.median("losses/entropy")
    varies = any(np.ptp(h.known(name)) > 0 for name in [RETURN, *h.agents] if len(h.known(name)))
    # One that was random at first, and returned the same, hadn't found the best before.
    most = h.max_entropy
    tries = most is None or last > 0.75 * most or h.first("losses/entropy") > 0.9 * most
    few = h.episodes < 100 or h.progress < 0.5  # where not all have begun to learn
    few |= h.steps_without_end > 0.25 * h.steps[-1]
    if len(returns) >= 3 and not varies and tries and not few and not h.goes_on:
        return (
            f"every episode returns {returns[0]:g}, so that there is nothing to learn from: no "
            "action was found that changes it"
        )
    return None


def return_lost(h: History) -> str | None:
    """What had been gained is gone, by more than chance."""
    returns = h.known(RETURN)
    explained = h.known("losses/explained_variance")
    if len(returns) < 6 or h.progress < 0.5 or not len(explained) or h.is_game:
        return None
    if np.quantile(explained, 0.75) < 0.2:  # returns rise and fall by chance
        return None
    start, best = h.start(RETURN), h.best(RETURN)
    now = float(returns[-max(3, len(returns) // 4) :].max())  # of its last quarter the best
    chance = 2.5 * float(np.median(np.abs(np.diff(returns, n=2))))  # 4 deviations of mere noise
    if best - start > 0.6 * abs(start) and best - now > max(0.7 * (best - start), chance):
        digits = 1 if abs(best) >= 10 else 2
        return (
            f"what was learnt is lost: the return fell from {best:,.{digits}f} to {now:,.{digits}f}"
        )
    return None

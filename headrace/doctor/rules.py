"""The table of rules: what a figure says is wrong, and the setting that usually mends it.

A rule's function looks at a :class:`History` and returns its sentence, or None. Figures are medians
over the second half of the steps so far, unless the sentence says otherwise. Thresholds were chosen
on other seeds than those that ``benchmarks/doctor.py`` reports (see docs/doctor.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace.doctor.history import History

_RETURN = "charts/episodic_return"


class Rule(NamedTuple):
    """One illness."""

    name: str
    found: Callable[[History], str | None]
    mends: str  # the setting that usually does
    explained_by: tuple[str, ...] = ()  # names of illnesses of which this one is a symptom


def _value(h: History) -> str | None:
    explained = h.median("losses/explained_variance")
    course = h.known("losses/explained_variance")
    # Where all episodes return the same at last, there is little left to explain.
    if explained < 0.05 and np.quantile(course, 0.75) < 0.1 and h.progress > 0.25:
        return (
            f"the value function explains nothing: it predicts {max(explained, 0.0):.0%} of the "
            "variance of what it is to predict, so that advantages are noise"
        )
    return None


def _entropy(h: History) -> str | None:
    last, first = h.median("losses/entropy"), h.first("losses/entropy")
    most = h.max_entropy
    if most is None:
        if last < first - 3.0 * h.num_continuous and h.progress < 0.5:
            return (
                f"entropy collapsed: from {first:.2f} to {last:.2f} nats in {h.progress:.0%} of "
                "the steps, so that hardly another action is tried"
            )
    elif last < 0.03 * most and _is_poor(h):
        return (
            f"entropy collapsed: {last:.3f} of at most {most:.2f} nats, so that hardly another "
            f"action is tried, at a return of {h.median(_RETURN):,.1f}"
        )
    return None


def _is_poor(h: History) -> bool:
    """Whether little was gained, or is left: who has found the best action needs no entropy."""
    returns = h.known(_RETURN)
    if len(returns) < 4:
        return False
    start, best, late = returns[0], returns.max(), h.median(_RETURN)
    if h.goes_on:  # it may have begun at its best
        return bool(best - late > 0.5 * abs(best))
    return bool(best - start < 0.2 * abs(start) or late - start < 0.5 * (best - start))


def _random(h: History) -> str | None:
    last, most = h.median("losses/entropy"), h.max_entropy
    coef = h.setting("entropy_coef", 0.0)
    if coef > 0 and most is not None and last > 0.97 * most and h.progress > 0.25:
        return (
            f"the policy stays random: its entropy is {last / most:.1%} of the greatest there is, "
            f"for the bonus (entropy_coef={coef:g}) outweighs the returns"
        )
    return None


def _kl(h: History) -> str | None:
    kl = h.median("losses/approx_kl")
    clips = math.isfinite(h.setting("clip"))  # IMPALA, which doesn't, moves further in good health
    if kl > (0.1 if clips else 0.7):
        return (
            f"the policy moves too far in an update: KL {kl:.2g} nats from the one that acted, "
            "where 0.01 to 0.05 is usual"
        )
    return None


def _clip(h: History) -> str | None:
    share = h.median("losses/clipfrac")
    if share > 0.5:
        return (
            f"the clip throws away most of what is learnt: {share:.0%} of the ratios are outside "
            f"1 ± {h.setting('clip'):g}, where 5% to 30% is usual"
        )
    return None


def _lag(h: History) -> str | None:
    lag, kl, share = (h.median(x) for x in ("lag/mean", "losses/approx_kl", "losses/clipfrac"))
    replays = h.setting("buffer_size", 0) > 0 or h.setting("replay_fraction", 0.0) > 0
    if lag > 3.5 and not replays and (kl > 0.03 or share > 0.3):
        clipped = f" and {share:.0%} of the ratios are clipped" if math.isfinite(share) else ""
        return (
            f"data is too old: {lag:.1f} updates on average, in which the policy moved by "
            f"{kl:.2g} nats{clipped}"
        )
    return None


def _learner_idle(h: History) -> str | None:
    learner, actor = h.median("utilisation/learner"), h.median("utilisation/actor")
    if learner < 0.3 and actor > 0.9 and h.setting("transport", "shm") != "serial":
        return f"the learner idles: it waits for rollouts {1 - learner:.0%} of its time"
    return None


def _actors_idle(h: History) -> str | None:
    actor, learner = h.median("utilisation/actor"), h.median("utilisation/learner")
    count = h.setting("num_actors", 1)
    if count >= 2 and actor < 0.25 and learner > 0.8:
        return f"actors idle: {count} of them act {actor:.0%} of their time and wait for the rest"
    return None


def _gradient(h: History) -> str | None:
    norm, most = h.median("losses/grad_norm"), float(h.setting("max_grad_norm", math.inf))
    if norm > 20 * most:
        return (
            f"the gradient is always clipped: its norm is {norm:.2g}, {norm / most:.0f} times "
            "max_grad_norm, so that steps say nothing of its size"
        )
    return None


def _unnormalised(h: History) -> str | None:
    mean = h.median(_RETURN)
    loss = h.median("losses/value_loss")
    scaled = h.setting("normalize_values", False) or h.setting("normalize_returns", False)
    if not scaled and loss > 50 and abs(mean) > 50:
        return (
            f"returns are large and not normalised: {mean:,.0f} on average, and a value loss of "
            f"{loss:,.0f} beside which the policy's is nothing"
        )
    return None


def _evaluation(h: History) -> str | None:
    trained, played = h.all(_RETURN), h.all("eval/episodic_return")
    both = np.isfinite(trained) & np.isfinite(played)
    every = float(h.setting("eval_interval", math.inf))
    if not both.any() or h.steps[-1] < 4 * every or h.setting("eval_env_kwargs", ""):
        return None  # what is evaluated in another environment is far on purpose
    size = max(np.ptp(trained[np.isfinite(trained)]), 0.1 * abs(trained[both][-1]), 1e-9)
    gaps = (played - trained)[both & (h.steps > h.steps[-1] - 3 * every)]
    above = (gaps > 0.6 * size).all() and h.progress > 0.5  # before, training explores
    if len(gaps) and ((gaps < -0.6 * size).all() or above):
        return (
            f"evaluations are far from training: {played[both][-1]:,.1f} where training has "
            f"{trained[both][-1]:,.1f}"
        )
    return None


def _environment(h: History) -> str | None:
    share = h.median("utilisation/environment")
    if share > 50 / 51:
        times = share / max(1 - share, 1e-4)
        return f"the environment is {times:,.0f} times slower than the policy that acts in it"
    return None


def _standstill(h: History) -> str | None:
    early = h.all("charts/learning_rate") > 0.2 * h.setting("learning_rate", 0.0)
    kl = h.all("losses/approx_kl")[early]
    kl = kl[np.isfinite(kl)]
    reused = h.median("lag/steps") > 0.5  # else it is compared with itself
    clipped = h.median("losses/clipfrac") > 0.3  # another illness
    if len(kl) >= 5 and np.median(kl) < 1e-5 and reused and not clipped:
        return (
            f"the policy stands still: an update moves it by {np.median(kl):.1g} nats, where "
            "0.001 to 0.05 is usual"
        )
    return None


def _dropped(h: History) -> str | None:
    size = h.setting("fragment_length", 1) * h.setting("envs_per_actor", 1)
    learnt, dropped = h.steps[-1] / size, h.last("lag/dropped")
    if dropped > 0.3 * (learnt + dropped):
        return (
            f"{dropped / (learnt + dropped):.0%} of the rollouts were dropped, too old when their "
            "turn came"
        )
    return None


def _deaths(h: History) -> str | None:
    lost = h.last("queue/lost")
    return f"{lost:,.0f} rollouts were lost with actors that died" if lost >= 2 else None


def _endless(h: History) -> str | None:
    per_env = h.steps[-1] / max(1, h.setting("num_actors", 1) * h.setting("envs_per_actor", 1))
    limit = h.setting("max_episode_steps", 3_000)  # of games without one few take 30,000
    if not len(h.known(_RETURN)) and per_env > 10 * limit:
        return f"no episode has ended in {per_env:,.0f} steps of each environment"
    return None


def _flat(h: History) -> str | None:
    returns, last = h.known(_RETURN), h.median("losses/entropy")
    if h.max_entropy is None:
        tries = last > h.first("losses/entropy") - 0.3 * h.num_continuous
    else:
        tries = last > 0.9 * h.max_entropy  # else what all episodes return may be the best
    if len(returns) >= 8 and np.ptp(returns) == 0 and tries and not h.goes_on:
        return (
            f"every episode returns {returns[0]:g}, so that there is nothing to learn from: no "
            "action was found that changes it"
        )
    return None


def _forgot(h: History) -> str | None:
    returns = h.known(_RETURN)
    if len(returns) < 10 or h.progress < 0.5:
        return None
    start, best, now = returns[0], returns.max(), float(np.median(returns[-5:]))
    if best - start > 0.2 * abs(start) and best - now > 0.6 * (best - start):
        return f"what was learnt is lost: the return fell from {best:,.1f} to {now:,.1f}"
    return None


def _uneven(h: History) -> str | None:
    sync, learn, wait = (h.median(f"time/{name}") for name in ("sync", "learn", "wait"))
    share = sync / (sync + learn + wait) if sync + learn + wait > 0 else 0.0
    if share > 0.4:
        return f"learners wait for the slowest of them {share:.0%} of their time"
    return None


RULES = (
    Rule("environment-slow", _environment,
         "more actors or envs_per_actor; engine=async or threads where it waits"),
    Rule("endless-episodes", _endless,
         "a time limit: --wrapper 'TimeLimit:{\"max_episode_steps\":1000}'"),
    Rule("flat-returns", _flat, "a denser reward in a wrapper, or more entropy_coef"),
    Rule("actors-die", _deaths, "the environment's own error, which the terminal showed"),
    Rule("standstill", _standstill, "a larger learning_rate, or more epochs",
         ("clip-fraction", "entropy-collapsed")),
    Rule("kl-high", _kl, "a smaller learning_rate, or fewer epochs"),
    Rule("random-policy", _random, "a smaller entropy_coef"),
    Rule("returns-unnormalised", _unnormalised, "scale_free=True, or reward_scale"),
    Rule("gradient-clipped", _gradient, "a larger max_grad_norm",
         ("returns-unnormalised",)),
    Rule("lag-high", _lag, "a smaller max_lag, or fewer actors", ("kl-high",)),
    Rule("clip-fraction", _clip, "a larger clip, or a smaller learning_rate",
         ("kl-high", "lag-high")),
    Rule("value-blind", _value, "value_coef, normalize_values=True, or a smaller gamma",
         ("flat-returns", "kl-high", "endless-episodes", "standstill", "returns-unnormalised")),
    Rule("entropy-collapsed", _entropy, "more entropy_coef, or a smaller learning_rate"),
    Rule("return-lost", _forgot, "a smaller learning_rate, or lr_schedule=linear",
         ("kl-high", "entropy-collapsed")),
    Rule("evaluation-far", _evaluation,
         "eval_deterministic=False, if the policy that acts by chance is the better one"),
    Rule("rollouts-dropped", _dropped, "a larger max_lag or batch_size, or max_policy_lag=None"),
    Rule("learner-idle", _learner_idle, "more num_actors or envs_per_actor",
         ("environment-slow",)),
    Rule("actors-idle", _actors_idle, "fewer num_actors, or more learner_threads or num_learners"),
    Rule("learners-uneven", _uneven, "preempt_fraction, or cores_per_learner"),
)  # fmt: skip
"""Where several are found, the first is told first: it may be the cause of the others."""

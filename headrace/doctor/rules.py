"""The table of rules: name, check and remedy of each problem.

Thresholds were chosen on other seeds than those that ``benchmarks/doctor.py`` reports (see
docs/results/learning.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.doctor import learning, returns, work
from headrace.doctor.history import History
from headrace.errors import wrapper

TIME_LIMIT = 'TimeLimit:{"max_episode_steps":1000}'  # a wrapper
RESIZE = 'ResizeObservation:{"shape":[84,84]}'  # another one


class Rule(NamedTuple):
    """A problem, its check and its remedies."""

    name: str
    check: Callable[[History], str | None]
    remedies: tuple[str, ...]  # alternatives; each usually fixes it
    explained_by: tuple[str, ...] = ()  # names of problems that cause this one as a symptom

    def remedy(self, settings: Mapping[str, Any], continuous: bool = True) -> str:
        """Return what to change, without alternatives that are set already or have no effect.

        Wrappers are written as a keyword or a flag.

        Args:
            settings: settings by name.
            continuous: whether actions have continuous parts, which noise_color affects.
        """
        useful = [
            one for one in self.remedies
            if not _is_set(one, settings) and (continuous or not one.startswith("noise_color="))
        ]  # fmt: skip
        text = either(useful or self.remedies)
        for name in (TIME_LIMIT, RESIZE):
            text = text.replace(name, wrapper(name))
        return text


def either(alternatives: Sequence[str]) -> str:
    """Join alternatives, as in "a, b, or c"."""
    *rest, last = alternatives
    return f"{', '.join(rest)}, or {last}" if rest else last


def _is_set(remedy: str, settings: Mapping[str, Any]) -> bool:
    """Return True if a remedy is ``name=value``, and the setting has this value."""
    name, _, value = remedy.partition(",")[0].partition("=")
    return bool(value) and name in settings and str(settings[name]) in (value, f"{value}.0")


_CAUSES = (
    *("flat-returns", "standstill", "kl-high", "random-policy", "returns-unnormalised"),
    *("gradient-clipped", "lag-high", "clip-fraction", "value-blind", "entropy-collapsed"),
    *("endless-episodes", "means-outside", "below-start"),
)  # problems that explain flat returns
RULES = (
    Rule("environment-slow", work.environment_slow,
         ("more actors or envs_per_actor; engine=threads if it waits for I/O",)),
    Rule("endless-episodes", work.endless_episodes,
         (f"a time limit: {TIME_LIMIT}",)),
    Rule("flat-returns", returns.flat_returns,
         ("a denser reward in a wrapper", "a larger entropy_coef")),
    Rule("actors-die", work.actors_die, ("fixing the environment's error, shown on the terminal",)),
    Rule("standstill", learning.standstill, ("a larger learning_rate", "more epochs"),
         ("clip-fraction", "entropy-collapsed", "flat-returns")),
    Rule("kl-high", learning.kl_high, ("a smaller learning_rate", "fewer epochs")),
    Rule("random-policy", learning.random_policy, ("a smaller entropy_coef",), ("flat-returns",)),
    Rule("returns-unnormalised", learning.returns_unnormalised,
         ("scale_free=True", "a smaller reward_scale")),
    Rule("gradient-clipped", learning.gradient_clipped, ("a larger max_grad_norm",),
         ("returns-unnormalised",)),
    Rule("lag-high", learning.lag_high, ("a smaller max_lag", "fewer actors"), ("kl-high",)),
    Rule("clip-fraction", learning.clip_fraction, ("a larger clip", "a smaller learning_rate"),
         ("kl-high", "lag-high")),
    Rule("value-blind", learning.value_blind,
         ("a larger value_coef", "normalize_values=True", "a smaller gamma"),
         ("flat-returns", "kl-high", "endless-episodes", "standstill", "returns-unnormalised",
          "entropy-collapsed")),
    Rule("means-outside", learning.means_outside, ("bounds_coef=0.01", "squash_actions=True")),
    Rule("entropy-collapsed", learning.entropy_collapsed,
         ("a larger entropy_coef", "a smaller learning_rate"), ("flat-returns",)),
    Rule("return-lost", returns.return_lost, ("a smaller learning_rate", "lr_schedule=linear"),
         ("kl-high", "entropy-collapsed")),
    Rule("below-start", returns.below_start,
         ("a larger gamma", "noise_color=1", "a smaller learning_rate"),
         ("kl-high", "entropy-collapsed", "return-lost", "means-outside")),
    Rule("flat", returns.flat,
         ("longer training", "core=lstm", "noise_color=1", "a denser reward"), _CAUSES),
    Rule("greedy-far", learning.greedy_far,
         ("longer training", "eval_deterministic=False")),
    Rule("evaluation-far", learning.evaluation_far,
         ("eval_deterministic=False, if sampled actions perform better",), ("greedy-far",)),
    Rule("rollouts-dropped", work.rollouts_dropped,
         ("a larger max_lag or batch_size", "max_policy_lag=None")),
    Rule("learner-idle", work.learner_idle, ("more actors or envs_per_actor",),
         ("environment-slow",)),
    Rule("learner-slow", work.learner_slow,
         ("a smaller network", f"smaller images ({RESIZE})", "fewer passes over each batch",
          "a GPU")),
    Rule("small-image", work.small_image, ("conv=auto; one_hot for grids of symbols",)),
    Rule("actors-idle", work.actors_idle,
         ("fewer actors", "more learners or learner_threads")),
    Rule("learners-uneven", work.learners_uneven, ("preempt_fraction", "cores_per_learner")),
)  # fmt: skip
"""Findings are reported in this order: earlier ones may cause later ones."""

"""The page impact of the results book."""

from __future__ import annotations

from book.experiment import Experiment
from book.impact_cases import COMPARE, CONTINUOUS, DISCRETE, RATIOS, SCALE, TARGETS
from book.impact_checks import (
    compare_with_table,
    likelihood_ratios,
    ratio_cases,
    recipes_of,
    search_cases,
    searched,
    table_cases,
)
from book.impact_judges import (
    best_buffer,
    best_passes,
    both_gain,
    drops_less,
    higher,
    in_steps,
    in_time,
    large_where_rare,
    lower_bound,
    number_of_runs,
    short_periods,
    table,
    target_periods,
    throughput,
    truncated,
    unstable,
    wall_time,
    workers,
    workers_decline,
)
from book.page import Page
from book.rows import Row

LIKELIHOOD = Experiment("impact_likelihood", ratio_cases, dict, likelihood_ratios)
TABLES = Experiment("impact_tables", table_cases, recipes_of, compare_with_table)
SEARCHED = Experiment("impact_searched", search_cases, dict, searched)

_CONTINUOUS, _DISCRETE = ("impact_continuous",), ("impact_discrete",)
_COMPARED, _TARGETS, _RATIOS = ("impact_compared",), ("impact_targets",), ("impact_ratios",)
_WORKERS, _FORMULAS = ("impact_workers",), ("impact_likelihood",)

_CLAIMS = (
    Row(
        "Abstract", "less wall time than IMPALA on discrete actions", "CartPole, 2 actors",
        _COMPARED, wall_time,
    ),
    Row(
        "Abstract", "IMPALA's sample efficiency drops with parallel actors",
        "CartPole, weights 8 batches old", _DISCRETE,
        higher("impact_discrete", "area", "IMPALA", "IMPALA, 8 batches old"),
    ),
    Row("Abstract", "IMPACT's drops less", "the same", _DISCRETE, drops_less),
    Row(
        "Section 1", "IMPALA can't take several SGD steps per batch", "Pendulum, 1 and 10 passes",
        _CONTINUOUS, higher("impact_continuous", "final_return", "IMPALA", "IMPALA, 10 passes"),
    ),
    Row(
        "Contribution 1", "the target network allows several SGD steps per batch",
        "Pendulum; APPO has no target",
        _CONTINUOUS,
        higher("impact_continuous", "final_return", "IMPACT", "K=1", "APPO, 10 passes"),
    ),
    Row(
        "Section 3.1", "μ/π′ is truncated at ρ; on-policy, the ratio is PPO's",
        "random Gaussian policies", _FORMULAS, truncated,
    ),
    Row(
        "Section 3.1", "higher ρ learns faster", "regulator, ρ = 8 and 1",
        _TARGETS, higher("impact_targets", "area", "rho=8", "rho=1"),
    ),
    Row(
        "Section 3.1", "higher ρ is less stable", "regulator, ρ = 8 and 1",
        _TARGETS, unstable("impact_targets", "rho=8", "rho=1"),
    ),
)  # fmt: skip
_FIGURES = (
    Row(
        "Fig. 3a", "R3 is better than R2", "regulator, weights of up to 160 steps ago",
        _RATIOS, higher("impact_ratios", "final_return", "R3, stale", "R2, stale"),
    ),
    Row(
        "Fig. 3a", "R3 is better than R1", "the same",
        _RATIOS, higher("impact_ratios", "final_return", "R3, stale", "R1, stale"),
    ),
    Row(
        "Section 4.1", "R1 drops in the middle of training, R3 doesn't", "the same",
        _RATIOS, unstable("impact_ratios", "R1, stale", "R3, stale"),
    ),
    Row(
        "Fig. 3b", "robust to target periods of NK/16 to 16 NK (within a tenth)",
        "regulator, NK = 80; runs are too short to judge 4 NK and 16 NK", _TARGETS, target_periods,
    ),
    Row(
        "Section 4.1.1", "no learning with updates every 1 to 4 steps", "the same",
        _TARGETS, short_periods,
    ),
    Row(
        "Section 4.1.1", "too rare updates slow learning", "the same",
        _TARGETS, higher("impact_targets", "area", "IMPACT", "16 NK"),
    ),
    Row(
        "Figs. 4b, 4c", "K = 2 is best in steps and in time", "CartPole, K = 1 to 32",
        _DISCRETE, best_passes,
    ),
    Row(
        "Section 4.2", "some K > 1 gains in both steps and time", "the same",
        _DISCRETE, both_gain,
    ),
    *(
        Row(f"Fig. {number}a", f"IMPACT is ahead of {other} in time", f"{name}, 0.2 ms per step",
            _COMPARED, in_time(task, other))
        for number, task, name in ((5, "continuous", "Pendulum"), (6, "discrete", "CartPole"))
        for other in ("PPO", "IMPALA")
    ),
    *(
        Row(f"Fig. {number}b", f"IMPACT is ahead of {other} in steps", name,
            (f"impact_{task}",), in_steps(task, other))
        for number, task, name in ((5, "continuous", "Pendulum"), (6, "discrete", "CartPole"))
        for other in ("PPO", "IMPALA")
    ),
    Row(
        "Section 4.3", "continuous: N = 16, K = 20 is best", "Pendulum",
        _CONTINUOUS, best_buffer,
    ),
    Row(
        "Section 4.3", "discrete: N = 1, K = 2 is best", "CartPole", _DISCRETE,
        higher("impact_discrete", "area", "N=1, K=2", "K=2", "K=8", "N=16, K=20"),
    ),
    Row(
        "Section 4.3", "larger K lowers throughput", "CartPole, one core", _DISCRETE, throughput,
    ),
    Row(
        "Fig. 7", "more workers, higher return in the same time",
        "CartPole, 1 ms per step, one environment each", _WORKERS, workers,
    ),
    Row("Section 4.4", "gains of more workers decline", "the same", _WORKERS, workers_decline),
)  # fmt: skip
_APPENDIX = (
    Row(
        "Table 1", "settings of discrete tasks", "`--recipe impact-discrete`, Pong",
        ("impact_tables",), table("Pong"),
    ),
    Row(
        "Table 2", "settings of continuous tasks", "`--recipe impact-continuous`, three tasks",
        ("impact_tables",), table("Hopper", "Humanoid", "HalfCheetah"),
    ),
    Row(
        "Tables 3, 4", "values and numbers of runs of the searches", "each value set in the recipe",
        ("impact_searched",), number_of_runs,
    ),
    Row(
        "Fig. 9", "IMPALA + PPO objective = APPO is better", "Pendulum, one pass",
        _CONTINUOUS, higher("impact_continuous", "area", "APPO", "IMPALA"),
    ),
    Row(
        "Fig. 9", "APPO + circular buffer (R2) is better", "the same, 10 passes each",
        _CONTINUOUS, higher("impact_continuous", "area", "R2", "APPO, 10 passes"),
    ),
    Row(
        "Fig. 9", "+ target-worker clipping is better", "the same, 10 passes",
        _CONTINUOUS, higher("impact_continuous", "area", "IMPACT", "R2"),
    ),
    Row(
        "Appendix C", "asynchronous PPO is behind PPO", "Pendulum, 10 passes",
        _CONTINUOUS, higher("impact_continuous", "area", "PPO", "APPO, 10 passes"),
    ),
    Row(
        "Appendix D", "IMPALA: high rates fall after a fast start", "Pendulum, rates × 10 and / 10",
        _CONTINUOUS, unstable("impact_continuous", "IMPALA, rate × 10", "IMPALA, rate / 10"),
    ),
    Row(
        "Fig. 10", "IMPACT's clipped ratio is a lower bound of PPO's", "random Gaussian policies",
        _FORMULAS, lower_bound,
    ),
    Row(
        "Appendix E", "π/μ is large where μ is low", "the same", _FORMULAS, large_where_rare,
    ),
    Row(
        "Beyond", "a target period of NK/16 helps IMPACT", "regulator", _TARGETS,
        higher("impact_targets", "final_return", "NK/16", "IMPACT"),
    ),
    Row(
        "Beyond", "scale-free values help IMPACT", "Pendulum", _CONTINUOUS,
        higher("impact_continuous", "area", "not normalised", "literal"),
    ),
    Row(
        "Beyond", "normalised advantages help IMPACT", "Pendulum", _CONTINUOUS,
        higher("impact_continuous", "area", "IMPACT", "not normalised"),
    ),
    Row(
        "Beyond", "an annealed learning rate helps IMPACT", "Pendulum", _CONTINUOUS,
        higher("impact_continuous", "area", "annealed", "IMPACT"),
    ),
)  # fmt: skip
_UNTESTED = (
    Row("Figs. 5, 6, 8", "returns of HalfCheetah, Hopper, Humanoid and six Atari games",
        why="16 or 32 cores and a GPU for three hours per run; the full form has the first three"),
    Row("Section 4.3", "tuned baselines", why="the 115 searches of Tables 3 and 4"),
    Row("Appendix D", "A3C solves InvertedPendulum but no harder control",
        why="a result of other papers"),
    Row("Section 6", "", why="names no future work"),
)  # fmt: skip

PAGE = Page(
    "impact",
    "IMPACT",
    source="Luo et al. (2020), *IMPACT: Importance Weighted Asynchronous Architectures with "
    "Clipped Target Networks*",
    rows=(*_CLAIMS, *_FIGURES, *_APPENDIX, *_UNTESTED),
    experiments=(LIKELIHOOD, TABLES, SEARCHED, RATIOS, TARGETS, CONTINUOUS, DISCRETE, COMPARE,
                 SCALE),
    intro="π is the learner's policy, μ the worker's, π′ the target network's. Settings keep the "
    "proportions of Tables 1 and 2. The *regulator* is linear-quadratic control with eight "
    "actions. Values are training returns: their mean over training (*steps*), at the time at "
    "which the fastest run ended (*time*), or of the last 100 episodes. The full form replaces "
    "Pendulum by HalfCheetah, and CartPole by LunarLander.",
)  # fmt: skip

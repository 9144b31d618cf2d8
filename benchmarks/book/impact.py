"""The page on IMPACT of the results book: its claims, and the runs that test them."""

from __future__ import annotations

from book.experiment import Experiment
from book.impact_cases import (
    COMPARE,
    CONTINUOUS,
    DISCRETE,
    MUJOCO,
    MUJOCO_RUNS,
    RATIOS,
    SCALE,
    TARGETS,
)
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
_MUJOCO = ("impact_mujoco",)
_WORKERS, _FORMULAS = ("impact_workers",), ("impact_likelihood",)
_OLD = "CartPole, weights fetched for every batch or every 8"
_STALE = "regulator, weights up to 160 SGD steps old"
_PASSES = "CartPole, K = 1 to 32"
_MANY = "CartPole, 1 ms per step, one environment per worker"
_GAUSSIAN = "random Gaussian policies"
_RHO = {"rho=8": "ρ = 8", "rho=1": "ρ = 1"}
_RATIO = {"R1, stale": "R1", "R2, stale": "R2", "R3, stale": "R3"}
_NK = {"IMPACT": "NK"}

_CLAIMS = (
    Row(
        "Abstract", "IMPACT needs less time than IMPALA with discrete actions",
        "CartPole, 2 actors, 0.2 ms per step", _COMPARED, wall_time,
    ),
    Row(
        "Abstract", "IMPALA's sample efficiency drops with parallel actors (old weights)", _OLD,
        _DISCRETE,
        higher("impact_discrete", "area", "IMPALA", "IMPALA, 8 batches old",
               names={"IMPALA": "new weights", "IMPALA, 8 batches old": "old"}),
    ),
    Row("Abstract", "IMPACT's sample efficiency drops less", _OLD, _DISCRETE, drops_less),
    Row(
        "Section 1", "IMPALA can't take several SGD steps per batch", "Pendulum, 1 and 10 passes",
        _CONTINUOUS,
        higher("impact_continuous", "final_return", "IMPALA", "IMPALA, 10 passes",
               names={"IMPALA": "1 pass", "IMPALA, 10 passes": "10 passes"}),
    ),
    Row(
        "Contribution 1", "the target network allows several SGD steps per batch",
        "Pendulum; APPO has no target network",
        _CONTINUOUS,
        higher("impact_continuous", "final_return", "IMPACT", "K=1", "APPO, 10 passes",
               names={"IMPACT": "IMPACT (K = 10)", "K=1": "IMPACT (K = 1)",
                      "APPO, 10 passes": "APPO (10 passes)"}),
    ),
    Row(
        "Section 3.1", "the factor min(μ/π′, ρ) is at most ρ; with μ = π′, R3 is PPO's ratio R2",
        _GAUSSIAN, _FORMULAS, truncated,
    ),
    Row(
        "Section 3.1", "a larger ρ learns faster", "regulator",
        _TARGETS, higher("impact_targets", "area", "rho=8", "rho=1", names=_RHO),
    ),
    Row(
        "Section 3.1", "a larger ρ is less stable", "regulator",
        _TARGETS, unstable("impact_targets", "rho=8", "rho=1", names=_RHO),
    ),
)  # fmt: skip
_FIGURES = (
    Row(
        "Fig. 3a", "R3 is better than R2", _STALE,
        _RATIOS, higher("impact_ratios", "final_return", "R3, stale", "R2, stale", names=_RATIO),
    ),
    Row(
        "Fig. 3a", "R3 is better than R1", _STALE,
        _RATIOS, higher("impact_ratios", "final_return", "R3, stale", "R1, stale", names=_RATIO),
    ),
    Row(
        "Section 4.1", "the return drops in mid-training with R1, but not with R3",
        _STALE, _RATIOS, unstable("impact_ratios", "R1, stale", "R3, stale", names=_RATIO),
    ),
    Row(
        "Fig. 3b", "robust to target periods from NK/16 to 16 NK (within 10% of the gain)",
        "regulator, NK = 80; runs are too short to judge 4 NK and 16 NK", _TARGETS, target_periods,
    ),
    Row(
        "Section 4.1.1", "no learning if the target is updated every 1 to 4 steps",
        "regulator, NK = 80", _TARGETS, short_periods,
    ),
    Row(
        "Section 4.1.1", "too rare target updates slow learning", "regulator, NK = 80",
        _TARGETS, higher("impact_targets", "area", "IMPACT", "16 NK", names=_NK),
    ),
    Row(
        "Figs. 4b, 4c", "K = 2 is best, at equal steps and at equal time", _PASSES,
        _DISCRETE, best_passes,
    ),
    Row(
        "Section 4.2", "some K > 1 is better than K = 1, at equal steps and at equal time", _PASSES,
        _DISCRETE, both_gain,
    ),
    *(
        Row(f"Fig. {number}a", f"IMPACT's return is above {other}'s at equal time",
            f"{env}, 2 actors, 0.2 ms per step", _COMPARED,
            in_time("impact_compared", f"{env}-v1", other))
        for number, env in ((5, "Pendulum"), (6, "CartPole"))
        for other in ("PPO", "IMPALA")
    ),
    *(
        Row(f"Fig. {number}b", f"IMPACT's return is above {other}'s at equal steps", env,
            (experiment,), in_steps(experiment, own, other))
        for number, env, experiment, own in (
            (5, "Pendulum", *_CONTINUOUS, "IMPACT"), (6, "CartPole", *_DISCRETE, "K=2")
        )
        for other in ("PPO", "IMPALA")
    ),
    *(
        Row(f"Fig. 5{part}", f"{env[:-3]}: IMPACT's return is above {other}'s at equal {by}",
            "Table 2, scaled down (see above)", _MUJOCO, judge)
        for env in MUJOCO
        for other in ("PPO", "IMPALA")
        for part, by, judge in (
            ("a", "time", in_time("impact_mujoco", env, other)),
            ("b", "steps", in_steps("impact_mujoco", "IMPACT", other, env)),
        )
    ),
    Row(
        "Section 4.3", "continuous actions: N = 16 and K = 20 is best", "Pendulum",
        _CONTINUOUS, best_buffer,
    ),
    Row(
        "Section 4.3", "discrete actions: N = 1 and K = 2 is best", "CartPole", _DISCRETE,
        higher("impact_discrete", "area", "N=1, K=2", "K=2", "K=8", "N=16, K=20",
               names={"N=1, K=2": "N = 1 and K = 2", "K=2": "N = 4 and K = 2",
                      "K=8": "N = 4 and K = 8", "N=16, K=20": "N = 16 and K = 20"}),
    ),
    Row(
        "Section 4.3", "a larger K lowers throughput", "CartPole, one core", _DISCRETE, throughput,
    ),
    Row("Fig. 7", "more workers reach a higher return in the same time", _MANY, _WORKERS, workers),
    Row("Section 4.4", "each doubling of the workers gains less", _MANY, _WORKERS, workers_decline),
)  # fmt: skip
_APPENDIX = (
    Row(
        "Table 1", "settings for discrete actions", "`--recipe impact-discrete`, Pong",
        ("impact_tables",), table("Pong"),
    ),
    Row(
        "Table 2", "settings for continuous actions",
        "`--recipe impact-continuous`, Hopper, Humanoid, HalfCheetah",
        ("impact_tables",), table("Hopper", "Humanoid", "HalfCheetah"),
    ),
    Row(
        "Tables 3, 4", "values and numbers of runs of the hyperparameter searches",
        "each value set in the recipe", ("impact_searched",), number_of_runs,
    ),
    Row(
        "Fig. 9", "IMPALA with PPO's objective (APPO) is better than IMPALA", "Pendulum, 1 pass",
        _CONTINUOUS, higher("impact_continuous", "area", "APPO", "IMPALA"),
    ),
    Row(
        "Fig. 9", "a circular buffer (ratio R2) makes APPO better",
        "Pendulum, 10 passes",
        _CONTINUOUS, higher("impact_continuous", "area", "R2", "APPO, 10 passes"),
    ),
    Row(
        "Fig. 9", "target-worker clipping (IMPACT) makes it better still", "Pendulum, 10 passes",
        _CONTINUOUS, higher("impact_continuous", "area", "IMPACT", "R2"),
    ),
    Row(
        "Appendix C", "asynchronous PPO (APPO) is worse than PPO", "Pendulum, 10 passes",
        _CONTINUOUS, higher("impact_continuous", "area", "PPO", "APPO, 10 passes",
                            names={"APPO, 10 passes": "APPO"}),
    ),
    Row(
        "Appendix D", "IMPALA with a high learning rate starts fast, then gets worse",
        "Pendulum, learning rate × 10 and / 10",
        _CONTINUOUS, unstable("impact_continuous", "IMPALA, rate × 10", "IMPALA, rate / 10",
                              names={"IMPALA, rate × 10": "rate × 10",
                                     "IMPALA, rate / 10": "rate / 10"}),
    ),
    Row(
        "Fig. 10", "IMPACT's clipped ratio is never above PPO's", _GAUSSIAN,
        _FORMULAS, lower_bound,
    ),
    Row(
        "Appendix E", "π/μ is large where μ is small", _GAUSSIAN, _FORMULAS, large_where_rare,
    ),
    Row(
        "Beyond", "a target period of NK/16 helps IMPACT", "regulator, NK = 80", _TARGETS,
        higher("impact_targets", "final_return", "NK/16", "IMPACT", names=_NK),
    ),
    Row(
        "Beyond", "`scale_free=True` helps IMPACT", "Pendulum, advantages not normalised",
        _CONTINUOUS,
        higher("impact_continuous", "area", "not normalised", "literal",
               names={"not normalised": "True", "literal": "False"}),
    ),
    Row(
        "Beyond", "normalised advantages help IMPACT", "Pendulum", _CONTINUOUS,
        higher("impact_continuous", "area", "IMPACT", "not normalised",
               names={"IMPACT": "normalised"}),
    ),
    Row(
        "Beyond", "a linearly decreasing learning rate helps IMPACT", "Pendulum", _CONTINUOUS,
        higher("impact_continuous", "area", "annealed", "IMPACT",
               names={"annealed": "decreasing", "IMPACT": "constant"}),
    ),
)  # fmt: skip
_UNTESTED = (
    Row("Figs. 5, 6, 8", "returns after three hours, and on six Atari games",
        why="16 or 32 cores and a GPU for three hours per run"),
    Row("Section 4.3", "tuned baselines", why="needs the 115 runs of the searches in Tables 3, 4"),
    Row("Appendix D", "A3C solves InvertedPendulum but no harder control",
        why="a result of other papers"),
    Row("Section 6", "future work", why="the section names none"),
)  # fmt: skip

PAGE = Page(
    "impact",
    "IMPACT",
    source="Luo et al. (2020), *IMPACT: Importance Weighted Asynchronous Architectures with "
    "Clipped Target Networks*",
    rows=(*_CLAIMS, *_FIGURES, *_APPENDIX, *_UNTESTED),
    experiments=(LIKELIHOOD, TABLES, SEARCHED, RATIOS, TARGETS, CONTINUOUS, DISCRETE, COMPARE,
                 MUJOCO_RUNS, SCALE),
    intro="π is the learner's policy, μ the worker's, π′ the target network's. The probability "
    "ratio is R1 = π/π′, R2 = π/μ (PPO's) or R3 = min(μ/π′, ρ) · π/μ (IMPACT's). The buffer holds "
    "N batches, each for K passes; target periods count SGD steps. Small tasks have the clipping "
    "of Tables 1 and 2, higher learning rates, no KL penalty, and minibatches of 256 steps. MuJoCo "
    "tasks run in one process with Table 2's settings, but 1/32 of the batch, fewer steps, 64 × 64 "
    "units and `scale_free=True`. IMPALA has the learning rate of the others there, and N is 4, "
    "chosen on Hopper with another seed (Table 2: 16). The *regulator* is linear-quadratic control "
    "with eight actions. *Mean return*: over the training curve; *final return*: of the last 100 "
    "training episodes; *equal time*: when the first run ended (processor time of runs in one "
    "process). *Beyond*: changes that aren't in the paper. In rows without \"ms per step\", the "
    "full form has HalfCheetah instead of Pendulum, and LunarLander instead of CartPole.",
)  # fmt: skip

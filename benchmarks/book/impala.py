"""The page impala of the results book."""

from __future__ import annotations

from book import impala_runs, impala_speed, impala_tasks
from book.impala_judges import (
    correction,
    final_best,
    gain_of_replay,
    populations,
    stability,
    tasks,
    transfer,
    variant,
    weighted,
)
from book.impala_speed_judges import (
    architectures,
    below,
    clock,
    contracts,
    estimates,
    folding,
    headline,
    larger_batch,
    layers,
    learners_alike,
    learners_faster,
    online,
    ratio_to_a3c,
    traces,
    waits,
)
from book.page import Page
from book.rows import Row

EXPERIMENTS = impala_runs.EXPERIMENTS + impala_tasks.EXPERIMENTS + impala_speed.EXPERIMENTS
A2C = ("A2C, sync step", "A2C, sync trajectory", "A2C, dynamic batching")
DYNAMIC = "IMPALA, dynamic batching"
V, SINGLE, MIXED = ("impala_vtrace",), ("impala_single",), ("impala_corrections",)
FOUR, SPEED, NETWORK = ("impala_four_tasks",), ("impala_throughput",), ("impala_network",)
DEEP = {"algo": "impala", "net": "deep"}
SHALLOW = {"algo": "impala", "net": "shallow"}
A3C_DEEP = {"algo": "a3c", "net": "deep"}
AGENT, EXPERTS = {"who": "agent"}, {"who": "experts"}

_ANALYSIS = (
    Row("Equation 2", "on policy, V-trace is the n-step Bellman target", "random problems", V,
        below(1e-9, "bellman_error")),
    Row("Remarks 1, 2", "recursion equals definition; on policy TD(λ)", "same", V,
        below(1e-9, "definition_error", "td_lambda_error", "gae_error")),
    Row("Section 4.1", "large ρ̄ gives V of π, small ρ̄ of μ", "same, exact", V,
        below(1e-6, "limits_error")),
    Row("Theorem 1", "contraction to V of the policy in between", "same, exact", V, contracts),
    Row("Remark 3", "c̄ changes speed, not the fixed point", "c̄ 1 and 0.1", V, traces),
    Row("Theorem 2", "online learning converges", "2,000 updates", V, online),
    Row("Appendix A.3", "r + γv′ is unbiased, v isn't", "sampled", V, estimates),
)  # fmt: skip
_SPEED = (
    Row("Abstract", "250,000 frames/s", "CartPole, 2 × 256 environments", ("impala_rate",),
        headline),
    Row("Introduction", "30 times faster than A3C", "same", ("impala_rate",), ratio_to_a3c),
    Row("Section 3.1", "folding time into the batch is faster", "shallow network",
        NETWORK, folding),
    Row("Figure 3", "2 and 15 convolutions", "parameters counted", NETWORK, layers),
    Row("Figure 2", "A2C's actors wait for the slowest", "uneven episodes", SPEED, waits),
    Row("Table 1, task 1", "IMPALA is fastest", "even steps of 5 ms, steps/s", SPEED,
        architectures("IMPALA", ("A3C", *A2C), "even")),
    Row("Table 1, task 2", "IMPALA is fastest", "uneven episodes", SPEED,
        architectures("IMPALA", ("A3C", *A2C), "uneven")),
    Row("Table 1", "dynamic batching is faster", "even steps", SPEED,
        architectures(DYNAMIC, ("IMPALA",), "even")),
    Row("Table 1", "batch 128 is faster than 32", "shallow network, LSTM", NETWORK, larger_batch),
)  # fmt: skip
_TASKS = (
    Row("Figure 4, top", "IMPALA ends above A3C", "3 tasks, best 3 settings", SINGLE,
        final_best("impala", ("a3c",))),
    Row("Figure 4, top", "IMPALA is ahead during training", "same, whole curve", SINGLE,
        final_best("impala", ("a3c",), "_area")),
    Row("Section 5.2.1", "IMPALA ends above A2C", "same", SINGLE, final_best("impala", ("a2c",))),
    Row("Figure 4, bottom", "IMPALA is more robust than A3C", "same, all settings sorted", SINGLE,
        stability),
    Row("Section 5.2.2", "ρ̄ = 1 is best of 1, 10, 100", "CartPole, replay, lag 8",
        ("impala_variants",), variant(("rho_bar=10", "rho_bar=100"))),
    Row("Table 2, no replay", "V-trace is best", "3 tasks, lag 8, best 3 settings", MIXED,
        correction(0.0, ("one_step", "epsilon", "none"))),
    Row("Table 2, replay", "V-trace is best", "same, half replayed", MIXED,
        correction(0.5, ("one_step", "epsilon", "none"))),
    Row("Table 2, replay", "V-trace is best", "CartPole, 600,000 steps", ("impala_variants",),
        variant(("one_step", "epsilon", "none"))),
    Row("Section 5.2.2", "ε-correction and none are far behind V-trace", "3 tasks, half replayed",
        MIXED, correction(0.5, ("epsilon", "none"))),
    Row("Section 5.2.2", "the same", "CartPole, 600,000 steps", ("impala_variants",),
        variant(("epsilon", "none"))),
    Row("Section 5.2.2", "ε-correction is better than none", "3 tasks, half replayed", MIXED,
        correction(0.5, ("none",), "epsilon")),
    Row("Section 5.2.2", "V-trace gains from replay", "3 tasks", MIXED, gain_of_replay),
    Row("Appendix E, plot 2", "importance sampling is more robust", "3 tasks, all settings", MIXED,
        weighted),
    Row("Appendix E.3", "r + γv′ is better than v", "CartPole, replay, lag 8",
        ("impala_variants",), variant(("q=v",))),
    Row("Table 3", "IMPALA scores above A3C, one agent", "4 tasks, deep", FOUR,
        tasks(AGENT | DEEP, AGENT | A3C_DEEP, "impala_four_tasks")),
    Row("Table 3", "deep is better than shallow", "3 and 1 layers", FOUR,
        tasks(AGENT | DEEP, AGENT | SHALLOW, "impala_four_tasks")),
    Row("Table 3", "PBT is better than a sweep", "benchmarks/pbt.py", ("impala_pbt",),
        populations),
    Row("Table 3, Figure 5", "one agent is better than experts", "4 unrelated tasks", FOUR,
        transfer("impala_four_tasks")),
    Row("Appendix B", "positive transfer between related tasks", "3 lengths of CartPole's pole",
        ("impala_poles",), transfer("impala_poles")),
    Row("Table 3", "more learners end as high", "CartPole, 1 and 2 learners",
        ("impala_learners",), learners_alike),
    Row("Figure 6", "more learners are faster", "same", ("impala_learners",), learners_faster),
    Row("Figure 6", "IMPALA needs less time than A3C", "CartPole, seconds to 400",
        ("impala_clock",), clock),
    Row("Table 4", "IMPALA's experts score above A3C's", "4 tasks, deep", FOUR,
        tasks(EXPERTS | DEEP, EXPERTS | A3C_DEEP, "impala_four_tasks")),
    Row("Table 4", "deep experts are better than shallow ones", "same", FOUR,
        tasks(EXPERTS | DEEP, EXPERTS | SHALLOW, "impala_four_tasks")),
    Row("Table 4", "one agent competes with A3C's shallow experts", "same", FOUR,
        tasks(AGENT | DEEP, EXPERTS | {"algo": "a3c", "net": "shallow"}, "impala_four_tasks",
              -0.05)),
)  # fmt: skip
_NOT_RUN = (
    Row("Table 1", "rates on several machines", why="needs 150 to 500 processors and a GPU"),
    Row("Table 3, Figures 5, 6", "scores on DMLab-30", why="needs 10¹⁰ frames of DeepMind Lab"),
    Row("Table 4, Appendix C", "scores on Atari", why="needs 57 games × 200 million frames"),
    Row("Section 5.3.2", "a game in less than an hour", why="needs hundreds of processors"),
    Row("Appendices D, F, G", "settings", why="no claims; our copy of the paper ends in B"),
)
PAGE = Page(
    "impala",
    "IMPALA",
    source="Espeholt et al. 2018, IMPALA",
    rows=_ANALYSIS + _SPEED + _TASKS + _NOT_RUN,
    experiments=EXPERIMENTS,
    intro=(
        "Scores are 0 for random actions and 1 for a trained agent. The 3 tasks are CartPole, "
        "Acrobot and LunarLander, with the same sampled settings for all algorithms and a forced "
        "lag, whatever the load. Differences are means over tasks. The 4 tasks add a Pendulum and "
        "use default settings, with which IMPALA makes 6 passes and A3C one."
    ),
)

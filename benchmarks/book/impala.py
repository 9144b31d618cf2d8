"""The page on IMPALA of the results book: its claims, and the runs that test them."""

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

_EXACT, _SAMPLED = "random MDPs, solved exactly", "random MDPs, sampled trajectories"
_BEST = "3 tasks, 3 best sampled settings"
_LAG, _REPLAY = "5 tasks, lag 8, 3 best settings", "5 tasks, lag 8, replay, 3 best settings"
_CARTPOLE = "CartPole, lag 8, replay"
_WAITS = "environments that wait 5 ms per step"
_VARIANTS = ("impala_variants",)

_ANALYSIS = (
    Row("Equation 2", "on policy (π = μ), V-trace targets are n-step Bellman targets",
        "random trajectories", V, below(1e-9, "bellman_error")),
    Row("Remarks 1, 2", "V-trace's recursion equals its definition; on policy with λ, it is TD(λ)",
        "random trajectories", V,
        below(1e-9, "definition_error", "td_lambda_error", "gae_error")),
    Row("Section 4.1", "V-trace's fixed point is π's value for large ρ̄, μ's for small ρ̄", _EXACT,
        V, below(1e-6, "limits_error")),
    Row("Theorem 1", "V-trace is a contraction to the value of a policy between π and μ", _EXACT,
        V, contracts),
    Row("Remark 3", "c̄ changes the speed of convergence, not the fixed point", _EXACT, V, traces),
    Row("Theorem 2", "learning online from samples converges to this fixed point",
        "random MDPs, 2,000 updates", V, online),
    Row("Appendix A.3", "r + γv′ estimates Q without bias, the V-trace target v doesn't", _SAMPLED,
        V, estimates),
)  # fmt: skip
_SPEED = (
    Row("Abstract", "one learner trains on 250,000 frames/s", "CartPole, 2 actors × 256 "
        "environments", ("impala_rate",), headline),
    Row("Introduction", "IMPALA has 30 times the throughput of A3C", "CartPole, 2 actors × 256 "
        "environments", ("impala_rate",), ratio_to_a3c),
    Row("Section 3.1", "folding time into the batch makes the network faster", "shallow network, "
        "forward and backward", NETWORK, folding),
    Row("Figure 3", "the networks have 2 and 15 convolutions", "layers counted", NETWORK, layers),
    Row("Figure 2", "A2C's actors wait for the slowest, IMPALA's don't",
        f"{_WAITS}, uneven episodes", SPEED, waits),
    Row("Table 1, task 1", "IMPALA is faster than A3C and A2C", f"{_WAITS}, equal episodes", SPEED,
        architectures("IMPALA", ("A3C", *A2C), "even")),
    Row("Table 1, task 2", "IMPALA is faster than A3C and A2C", f"{_WAITS}, uneven episodes",
        SPEED, architectures("IMPALA", ("A3C", *A2C), "uneven")),
    Row("Table 1", "dynamic batching makes IMPALA faster", f"{_WAITS}, equal episodes", SPEED,
        architectures(DYNAMIC, ("IMPALA",), "even")),
    Row("Table 1", "the learner is faster with a batch of 128 than of 32",
        "shallow network with LSTM, forward and backward", NETWORK, larger_batch),
)  # fmt: skip
_TASKS = (
    Row("Figure 4, top", "IMPALA's final score is above A3C's", _BEST, SINGLE,
        final_best("impala", ("a3c",))),
    Row("Figure 4, top", "IMPALA's score during training is above A3C's",
        f"{_BEST}, mean of the training curve", SINGLE, final_best("impala", ("a3c",), "_area")),
    Row("Section 5.2.1", "IMPALA's final score is above A2C's", _BEST, SINGLE,
        final_best("impala", ("a2c",))),
    Row("Figure 4, bottom", "IMPALA is more robust to its settings than A3C",
        "3 tasks, all sampled settings", SINGLE, stability),
    Row("Section 5.2.2", "V-trace with ρ̄ = 1 is better than with 10 or 100", _CARTPOLE, _VARIANTS,
        variant(("rho_bar=10", "rho_bar=100"), "ρ̄ = 1")),
    Row("Table 2, no replay", "V-trace is the best of four corrections", _LAG, MIXED,
        correction(0.0, ("one_step", "epsilon", "none"))),
    Row("Table 2, replay", "V-trace is the best of four corrections", _REPLAY, MIXED,
        correction(0.5, ("one_step", "epsilon", "none"))),
    Row("Table 2, replay", "V-trace is the best of four corrections", _CARTPOLE, _VARIANTS,
        variant(("one_step", "epsilon", "none"))),
    Row("Section 5.2.2", "V-trace is far better than ε-correction and no correction", _REPLAY,
        MIXED, correction(0.5, ("epsilon", "none"))),
    Row("Section 5.2.2", "V-trace is far better than ε-correction and no correction", _CARTPOLE,
        _VARIANTS, variant(("epsilon", "none"))),
    Row("Section 5.2.2", "ε-correction is better than no correction", _REPLAY, MIXED,
        correction(0.5, ("none",), "epsilon")),
    Row("Section 5.2.2", "replay makes V-trace better", _LAG, MIXED,
        gain_of_replay),
    Row("Appendix E, plot 2", "corrections by importance sampling (V-trace, one-step) are more "
        "robust to settings than others", "5 tasks, lag 8, all sampled settings", MIXED, weighted),
    Row("Appendix E.3", "V-trace with r + γv′ in the advantage is better than with v", _CARTPOLE,
        _VARIANTS, variant(("q=v",), "r + γv′")),
    Row("Table 3", "one agent for all tasks: IMPALA scores above A3C", "4 tasks, deep network",
        FOUR, tasks(AGENT | DEEP, AGENT | A3C_DEEP, "impala_four_tasks", ("IMPALA", "A3C"))),
    Row("Table 3", "one agent for all tasks: deep networks score above shallow ones",
        "IMPALA, 4 tasks", FOUR,
        tasks(AGENT | DEEP, AGENT | SHALLOW, "impala_four_tasks", ("deep", "shallow"))),
    Row("Table 3", "population-based training beats a random search",
        "`benchmarks/pbt.py`, 4 members, best member's mean reward", ("impala_pbt",), populations),
    Row("Table 3, Figure 5", "one agent for all tasks scores above one expert per task",
        "IMPALA, 4 unrelated tasks, deep network", FOUR, transfer("impala_four_tasks")),
    Row("Appendix B", "one agent for related tasks scores above one expert per task",
        "IMPALA, CartPole with 3 lengths of the pole", ("impala_poles",), transfer("impala_poles")),
    Row("Table 3", "several learners reach the same return", "CartPole, 1 and 2 learners",
        ("impala_learners",), learners_alike),
    Row("Figure 6", "several learners train faster", "CartPole, 1 and 2 learners",
        ("impala_learners",), learners_faster),
    Row("Figure 6", "IMPALA needs less time than A3C", "CartPole, time to a return of 400",
        ("impala_clock",), clock),
    Row("Table 4", "one expert per task: IMPALA scores above A3C", "4 tasks, deep network", FOUR,
        tasks(EXPERTS | DEEP, EXPERTS | A3C_DEEP, "impala_four_tasks", ("IMPALA", "A3C"))),
    Row("Table 4", "one expert per task: deep networks score above shallow ones",
        "IMPALA, 4 tasks", FOUR,
        tasks(EXPERTS | DEEP, EXPERTS | SHALLOW, "impala_four_tasks", ("deep", "shallow"))),
    Row("Table 4", "one IMPALA agent for all tasks competes with A3C's experts",
        "4 tasks, experts with shallow networks", FOUR,
        tasks(AGENT | DEEP, EXPERTS | {"algo": "a3c", "net": "shallow"}, "impala_four_tasks",
              ("IMPALA agent", "A3C experts"), -0.05)),
)  # fmt: skip
_NOT_RUN = (
    Row("Table 1", "throughput on several machines", why="needs 150 to 500 processors and a GPU"),
    Row("Table 3, Figures 5, 6", "scores on DMLab-30", why="needs 10¹⁰ frames of DeepMind Lab"),
    Row("Table 4, Appendix C", "scores on Atari", why="needs 57 games × 200 million frames"),
    Row("Section 5.3.2", "an agent learns a game in less than an hour",
        why="needs hundreds of processors"),
    Row("Appendices D, F, G", "hyperparameters", why="settings, no claims"),
)  # fmt: skip
PAGE = Page(
    "impala",
    "IMPALA",
    source="Espeholt et al. (2018), *IMPALA: Scalable Distributed Deep-RL with Importance Weighted "
    "Actor-Learner Architectures*",
    rows=_ANALYSIS + _SPEED + _TASKS + _NOT_RUN,
    experiments=EXPERIMENTS,
    intro=(
        "π is the learner's policy, μ the actors'; ρ̄ and c̄ are V-trace's clipping thresholds. "
        "Scores are 0 for a random policy and 1 for a reference policy; differences are means over "
        "tasks. *3 tasks*: CartPole, Acrobot and LunarLander, with the same randomly sampled "
        "settings for all algorithms, and a fixed policy lag. *5 tasks*: these, SimpleSatellite "
        "and a linear-quadratic regulator with two actions. *4 tasks*: the 3 tasks and "
        "Pendulum, with default settings (6 passes over each batch for IMPALA, 1 for A3C). *Lag "
        "8*: actors use the weights of 8 updates ago. *Replay*: half of each batch is replayed. "
        "CartPole's returns are of the last 100 training episodes, at most 500."
    ),
)

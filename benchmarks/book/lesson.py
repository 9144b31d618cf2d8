"""The page on the course lesson: its claims, and the runs that test them."""

from __future__ import annotations

from book import lesson_judges as judges
from book.lesson_learning import EXAMPLE, FORMULAS, LARGE, STALE, TABLE
from book.lesson_speed import BUSY, RATES, THREADS
from book.page import Page
from book.rows import Row

_GAME = "SSAConjunction, APPO"
_SMALL = "SimpleSatellite, APPO"
_MANY = "512 environments, 20 ms per step"
_PROCESS = "values of a random MDP from stale actors' data"
_STALE = "CartPole, APPO, weights fetched every 16 updates"
_LARGE_RATE = "CartPole, learning rates up to 0.005"

ROWS = (
    Row("Target", "250,000 frames/s", why="needs a GPU and 32 or more cores"),
    Row("Scaling problem", "in a synchronous loop, a GPU works 33% of the time", "timed, PPO",
        ("lesson_utilisation",), judges.synchronous),
    Row("Straggler problem", "one slow actor slows a synchronous loop",
        "timed, 8 actors, one 10 times as slow", ("lesson_utilisation",), judges.straggler),
    Row("Learner", "with decoupled actors, the learner is always busy",
        "timed, APPO, three actors", ("lesson_utilisation",), judges.decoupled),
    Row("Actors", "actors never wait for the learner", _MANY, ("lesson_waiting",),
        judges.threads(False)),
    Row("Slow actor", "the learner waits for no single actor", f"{_MANY}, one takes 200 ms",
        ("lesson_waiting",), judges.threads(True)),
    Row("Importance ratio", "0.1 to 0.8 is a ratio of 8; five ratios of 2 make 32", "formula",
        ("lesson_formulas",), judges.ratio),
    Row("Policy lag", "with 512 environments, the policy lag is 2 to 10 updates", _MANY,
        ("lesson_throughput",), judges.lag),
    Row("V-trace target", "the lesson's backward loop computes V-trace",
        "the lesson's example and random rollouts", ("lesson_formulas",),
        judges.small_error("error")),
    Row("V-trace, on-policy", "with equal policies, V-trace is the n-step return",
        "random rollouts", ("lesson_formulas",), judges.small_error("error_n_step")),
    Row("c-bar", "with c-bar = 1, products of ratios never grow along a rollout",
        "random rollouts", ("lesson_formulas",), judges.traces),
    Row("Clipping, variance", "clipped ratios bound the variance of targets", _PROCESS,
        ("lesson_formulas",), judges.variance),
    Row("Clipping, bias", "V-trace underestimates values", _PROCESS,
        ("lesson_formulas",), judges.bias),
    Row("vtrace=True", "values are more biased without V-trace", _PROCESS,
        ("lesson_formulas",), judges.correction),
    Row("vtrace=True, learning", "returns are higher with V-trace than with GAE", _STALE,
        ("lesson_stale",), judges.stale("GAE", off_policy="gae")),
    Row("Larger rho-bar", "rho-bar above 1 risks instability with stale actors", _STALE,
        ("lesson_stale",), judges.stale("rho-bar 100", rho_bar=100.0)),
    Row("entropy_coeff", "an entropy bonus of 0.01 keeps the policy random", _SMALL,
        ("lesson_example",), judges.entropy),
    Row("grad_clip", "clipping gradients at 40 prevents collapses", _SMALL,
        ("lesson_example",), judges.clipping),
    Row("train_batch_size", "an update takes 4,096 steps", "settings", ("lesson_formulas",),
        judges.batch),
    Row("rollout_fragment_length", "longer fragments save overhead",
        "two actors, environments without a wait", ("lesson_throughput",), judges.fragments),
    Row("Python games", "512 environments, 20 ms: 25,600 steps/s, 50 million in 32 minutes",
        _MANY, ("lesson_throughput",), judges.speed(20)),
    Row("Python games, 5 ms", "by the same formula, 102,400 steps/s",
        "512 environments, 5 ms per step", ("lesson_throughput",), judges.speed(5)),
    Row("Rust games", "2 ms: 256,000 steps/s, 50 million in 3 minutes",
        "512 environments, 2 ms per step", ("lesson_throughput",), judges.speed(2)),
    Row("Bottleneck", "fewer actors leave the learner idle", "32 × 16 or 16 × 8 environments, "
        "20 ms per step", ("lesson_throughput",), judges.bottleneck),
    Row("Sizes", "a GPU trains on 500,000 steps/s; 64 to 96 workers saturate it",
        why="needs GPUs"),
    Row("Table, throughput", "APPO has a higher throughput than PPO", "timed, one actor",
        ("lesson_utilisation",), judges.faster),
    Row("Table, A3C", "A3C is unstable, APPO is stable", _LARGE_RATE,
        ("lesson_table",), judges.stable("appo", "a3c")),
    Row("Table, IMPALA", "APPO is more stable than IMPALA", _LARGE_RATE, ("lesson_table",),
        judges.stable("appo", "impala")),
    Row("Table, wargame", "APPO is the right choice for wargames", _GAME,
        ("lesson_conjunction",), judges.wargame("one")),
    Row("Two GPUs", "64 workers and twice the batch train it, too", f"{_GAME}, two learners",
        ("lesson_conjunction",), judges.wargame("two")),
    Row("Two learners", "two learners with averaged gradients learn the same as one",
        f"{_GAME}, equal batches", ("lesson_conjunction",), judges.learners),
    Row("Two learners, speed", "a second learner is not faster if actors limit the speed", _MANY,
        ("lesson_throughput",), judges.second_learner),
    Row("Example, start", "returns start near 0", "SimpleSatellite", ("lesson_example",),
        judges.random),
    Row("Example, return", "the return climbs", _SMALL, ("lesson_example",), judges.climbs),
    Row("Example, priorities", "the policy learns to observe the highest priority", _SMALL,
        ("lesson_example",), judges.prefers),
    Row("Example, scaling", "128 instead of 12 environments: about 10 times the throughput",
        "20 ms per step", ("lesson_throughput",), judges.growth),
)  # fmt: skip

PAGE = Page(
    "lesson",
    "Course lesson",
    source="A course lesson on IMPALA and APPO for games of space situational awareness",
    rows=ROWS,
    experiments=(FORMULAS, RATES, THREADS, BUSY, EXAMPLE, STALE, TABLE, LARGE),
    intro="Its code runs with headrace ([tutorial](../lesson.md)), and the runs below have its "
    "settings. Environments that wait (2, 5 or 20 ms per step) stand for slow games. *Timed*: "
    "collecting 512 steps takes 96 ms and an update 50 ms, both by waiting. *Values of a random "
    "MDP*: a target policy is evaluated from the steps of a worse policy. Returns are of the last "
    "100 training episodes; CartPole's are at most 500.",
)

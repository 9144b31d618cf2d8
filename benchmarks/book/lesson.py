"""The page of the results book on the course lesson: its claims, and what was run."""

from __future__ import annotations

from book import lesson_judges as judges
from book.lesson_learning import EXAMPLE, FORMULAS, LARGE, STALE, TABLE
from book.lesson_speed import BUSY, RATES, THREADS
from book.page import Page
from book.rows import Row

_GAME = "SSAConjunction"
_SMALL = "SimpleSatellite"
_MANY = "512 environments, 20 ms"
_PROCESS = "random process, stale actors"

ROWS = (
    Row("Target", "250,000 frames/s", why="needs a GPU and 32 or more cores"),
    Row("Scaling problem", "in a synchronous loop, a GPU works 33% of the time", "timed, PPO",
        ("lesson_utilisation",), judges.synchronous),
    Row("Straggler problem", "one slow actor slows a synchronous loop",
        "timed, one slow actor of 8", ("lesson_utilisation",), judges.straggler),
    Row("Learner", "with decoupled actors, the learner is always busy",
        "timed, APPO, three actors", ("lesson_utilisation",), judges.decoupled),
    Row("Actors", "actors never wait for the learner", "512 threads, 20 ms",
        ("lesson_waiting",), judges.threads(False)),
    Row("Slow actor", "the learner waits for no single actor", "512 threads, one takes 200 ms",
        ("lesson_waiting",), judges.threads(True)),
    Row("Importance ratio", "0.1 to 0.8 is a ratio of 8; five ratios of 2 make 32", "formula",
        ("lesson_formulas",), judges.ratio),
    Row("Policy lag", "512 environments lag 2 to 10 updates", _MANY,
        ("lesson_throughput",), judges.lag),
    Row("V-trace target", "the backward loop", "the lesson's example and random rollouts",
        ("lesson_formulas",), judges.small_error("error")),
    Row("V-trace, on-policy", "equal policies: the n-step return", "random rollouts",
        ("lesson_formulas",), judges.small_error("error_n_step")),
    Row("c-bar", "trace products never grow", "random rollouts",
        ("lesson_formulas",), judges.traces),
    Row("Clipping, variance", "clipped ratios bound the variance", _PROCESS,
        ("lesson_formulas",), judges.variance),
    Row("Clipping, bias", "V-trace underestimates", _PROCESS,
        ("lesson_formulas",), judges.bias),
    Row("vtrace=True", "values are biased without it", _PROCESS,
        ("lesson_formulas",), judges.correction),
    Row("vtrace=True, learning", "returns are higher with it", "CartPole, weights pulled every 16 "
        "updates, vs. GAE", ("lesson_stale",), judges.stale("GAE", off_policy="gae")),
    Row("Larger rho-bar", "risks instability with stale actors", "CartPole, rho-bar 100",
        ("lesson_stale",), judges.stale("rho-bar 100", rho_bar=100.0)),
    Row("entropy_coeff", "an entropy bonus of 0.01 keeps the policy random", _SMALL,
        ("lesson_example",), judges.entropy),
    Row("grad_clip", "clipping gradients at 40 prevents collapses", _SMALL,
        ("lesson_example",), judges.clipping),
    Row("train_batch_size", "an update takes 4,096 steps", "settings", ("lesson_formulas",),
        judges.batch),
    Row("rollout_fragment_length", "longer fragments save overhead", "150 steps, "
        "two actors", ("lesson_throughput",), judges.fragments),
    Row("Python games", "512 environments, 20 ms: 25,600 steps/s, 50 million in 32 minutes",
        "512 environments, 20 ms", ("lesson_throughput",), judges.speed(20)),
    Row("Python games, 5 ms", "by the same formula: 102,400 steps/s", "512 environments, 5 ms",
        ("lesson_throughput",), judges.speed(5)),
    Row("Rust games", "2 ms: 256,000 steps/s, 50 million in 3 minutes", "512 environments, 2 ms",
        ("lesson_throughput",), judges.speed(2)),
    Row("Bottleneck", "fewer actors leave the learner idle", _MANY, ("lesson_throughput",),
        judges.bottleneck),
    Row("Sizes", "a GPU trains on 500,000 steps/s; 64 to 96 workers saturate it",
        why="needs GPUs"),
    Row("Table, throughput", "APPO's is higher than PPO's", "timed, one actor",
        ("lesson_utilisation",), judges.faster),
    Row("Table, A3C", "unstable; APPO is stable", "CartPole, large learning rate",
        ("lesson_table",), judges.stable("appo", "a3c")),
    Row("Table, IMPALA", "APPO is stabler", "CartPole, large learning rate", ("lesson_table",),
        judges.stable("appo", "impala")),
    Row("Table, wargame", "APPO is the right choice", _GAME, ("lesson_conjunction",),
        judges.wargame("one")),
    Row("Two GPUs", "64 workers and twice the batch train it, too", _GAME,
        ("lesson_conjunction",), judges.wargame("two")),
    Row("Two learners", "learn the same from averaged gradients", _GAME + ", equal batches",
        ("lesson_conjunction",), judges.learners),
    Row("Two learners, speed", "no gain if actors limit the speed", _MANY,
        ("lesson_throughput",), judges.second_learner),
    Row("Example, start", "returns near 0", "SimpleSatellite", ("lesson_example",), judges.random),
    Row("Example, return", "the return climbs", _SMALL, ("lesson_example",), judges.climbs),
    Row("Example, priorities", "the policy learns to prefer high priorities", _SMALL,
        ("lesson_example",), judges.prefers),
    Row("Example, scaling", "128 instead of 12 environments: about 10 times the throughput",
        "20 ms", ("lesson_throughput",), judges.growth),
)  # fmt: skip

PAGE = Page(
    "lesson",
    "Course lesson",
    source="A course lesson on IMPALA and APPO for games of space situational awareness",
    rows=ROWS,
    experiments=(FORMULAS, RATES, THREADS, BUSY, EXAMPLE, STALE, TABLE, LARGE),
    intro="Its code runs with headrace ([tutorial](../lesson.md)); runs below have its settings. "
    "Environments that wait take 2, 5 or 20 ms per step. *Timed*: 512 steps take 96 ms and an "
    "update 50 ms, both by waiting.",
)

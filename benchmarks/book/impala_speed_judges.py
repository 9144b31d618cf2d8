"""Returns verdicts and results for the page on IMPALA: V-trace's properties, and speed."""

from __future__ import annotations

import statistics

from book.impala_judges import Data, Judge, held
from book.rows import Judgement, Runs, Verdict, more, spread

# -- properties of V-trace -------------------------------------------------------------------------


def below(bound: float, *names: str) -> Judge:
    """Judge whether all errors are within rounding."""

    def judge(data: Data) -> Judgement:
        largest = max(max(data["impala_vtrace"].values(name)) for name in names)
        return held(largest < bound, f"largest error {largest:.0e}")

    return judge


def contracts(data: Data) -> Judgement:
    """Judge whether the modulus is within theorem 1's bound, and the fixed point as stated."""
    runs = data["impala_vtrace"]
    excess, error = (max(runs.values(name)) for name in ("modulus_excess", "fixed_point_error"))
    text = f"contraction modulus minus its bound at most {excess:.3f}".replace("-", "−")
    return held(excess <= 1e-9 and error < 1e-9, f"{text}; fixed point off by {error:.0e}")


def traces(data: Data) -> Judgement:
    """Judge whether a larger c_bar converges faster to the same fixed point."""
    runs = data["impala_vtrace"]
    fast, slow = runs.values("rate_c_1"), runs.values("rate_c_01")
    same = max(runs.values("fixed_point_error")) < 1e-9
    faster = all(a < b for a, b in zip(fast, slow, strict=True))
    text = f"error per sweep × {spread(fast, 2)} with c̄ = 1, × {spread(slow, 2)} with c̄ = 0.1"
    return held(same and faster, text)


def online(data: Data) -> Judgement:
    """Judge whether sampled values approach the value of the policy in between."""
    runs = data["impala_vtrace"]
    error, pi, mu = (runs.values(name) for name in ("online_error", "to_pi", "to_mu"))
    near = max(error) < 0.25 * min(*pi, *mu)
    text = f"distance to the fixed point {spread(error, 2)}, to π's value {spread(pi, 2)}"
    return held(near, f"{text}, to μ's {spread(mu, 2)}")


def estimates(data: Data) -> Judgement:
    """Judge whether r + gamma v' is unbiased, and v is not (at 5 standard errors of sampling)."""
    runs = data["impala_vtrace"]
    q, v = runs.values("q_bias_se"), runs.values("v_bias_se")
    biases = [spread(runs.values(name), 2) for name in ("q_bias", "v_bias")]
    text = f"largest bias: r + γv′ {biases[0]}, v {biases[1]}"
    return held(max(q) < 5 < min(v), text)


# -- speed -----------------------------------------------------------------------------------------


def headline(data: Data) -> Judgement:
    """Judge whether a learner reaches the paper's frames per second."""
    rates = data["impala_rate"].where(algo="impala").values("sps")
    verdict = more(rates, 250_000.0)
    return Judgement(Verdict.NOT_REPRODUCED if verdict is Verdict.REFUTED else verdict,
                     f"{spread(rates)} steps/s")  # fmt: skip


def ratio_to_a3c(data: Data) -> Judgement:
    """Judge whether IMPALA is 30 times faster than A3C with one environment per actor."""
    runs = data["impala_rate"]
    own = runs.where(algo="impala").values("sps")
    many, one = (runs.where(algo="a3c", envs_per_actor=n).values("sps") for n in (256, 1))
    by_many, by_one = (statistics.fmean(own) / statistics.fmean(rates) for rates in (many, one))
    verdict = more(own, [30 * rate for rate in one])
    text = f"{by_one:.0f} times; {by_many:.1f} times A3C with 256 environments per actor"
    return Judgement(Verdict.NOT_REPRODUCED if verdict is Verdict.REFUTED else verdict, text)


def architectures(name: str, others: tuple[str, ...], task: str) -> Judge:
    """Judge whether an architecture is faster than the fastest of others on a task."""

    def judge(data: Data) -> Judgement:
        runs = data["impala_throughput"].where(task=task)
        rates = {other: runs.where(architecture=other).values("sps") for other in others}
        rival = max(rates, key=lambda other: statistics.fmean(rates[other]))
        own = runs.where(architecture=name).values("sps")
        return Judgement(
            more(own, rates[rival]),
            f"steps/s: {name} {spread(own)}; fastest other, {rival}: {spread(rates[rival])}",
        )

    return judge


def waits(data: Data) -> Judgement:
    """Judge whether actors of A2C wait more than IMPALA's in the uneven task."""
    runs = data["impala_throughput"].where(task="uneven")
    idle = {
        name: [1 - x for x in runs.where(architecture=name).values("actor_busy")]
        for name in ("A2C, sync trajectory", "IMPALA")
    }
    a, b = idle.values()
    text = f"waiting share of the actors' time: A2C {spread(a, 2)}, IMPALA {spread(b, 2)}"
    return Judgement(more(a, b), text)


def clock(data: Data) -> Judgement:
    """Judge whether IMPALA needs fewer seconds than A3C."""
    runs = data["impala_clock"].by("algo")
    a, b = (runs[name].values("seconds_to_target") for name in ("impala", "a3c"))
    steps = [spread(runs[name].values("steps_to_target")) for name in ("impala", "a3c")]
    text = f"IMPALA {spread(a, 1)} s ({steps[0]} steps), A3C {spread(b, 1)} s ({steps[1]} steps)"
    missed = sum(not run.get("reached") for run in runs["impala"])
    if missed:
        return Judgement(Verdict.NOT_REPRODUCED, f"{text}; IMPALA missed it {missed} times")
    return Judgement(more(b, a), text)


def learners_faster(data: Data) -> Judgement:
    """Judge whether two learners are faster than one."""
    one, two = (of.values("sps") for of in _by_learners(data))
    ratio = statistics.fmean(two) / statistics.fmean(one)
    text = f"steps/s: 1 learner {spread(one)}, 2 learners {spread(two)} (factor {ratio:.2f})"
    return Judgement(more(two, one), text)


def learners_alike(data: Data) -> Judgement:
    """Judge whether two learners end as high as one, within a tenth of its return."""
    one, two = (of.values("final_return") for of in _by_learners(data))
    verdict = more(two, one, -0.1 * abs(statistics.fmean(one)))
    return Judgement(verdict, f"return: 1 learner {spread(one, 0)}, 2 learners {spread(two, 0)}")


def _by_learners(data: Data) -> tuple[Runs, Runs]:
    runs = data["impala_learners"].by("learners")
    return runs[1], runs[2]


def layers(data: Data) -> Judgement:
    """Judge whether the networks have the paper's numbers of convolutions."""
    runs, names = data["impala_network"], ("impala_shallow", "impala_deep")
    counts = [set(runs.values(name)) for name in names]
    weights = [max(runs.values(f"{name}_parameters")) / 1e6 for name in names]
    each = " and ".join(f"{max(count):.0f}" for count in counts)
    text = f"{each}; {weights[0]:.1f} and {weights[1]:.1f} million parameters"
    return held(counts == [{2}, {15}], text)


def folding(data: Data) -> Judgement:
    """Judge whether a whole batch in one pass is faster than one environment, step by step."""
    runs = data["impala_network"]
    fold, one = runs.values("folded"), runs.values("one_environment")
    text = f"frames/s: folded {spread(fold)}, frame by frame {spread(one)}"
    return Judgement(more(fold, one), text)


def larger_batch(data: Data) -> Judgement:
    """Judge whether a learner is faster with 128 than with 32 rollouts."""
    runs = data["impala_network"]
    large, small = runs.values("batch_128"), runs.values("batch_32")
    text = f"frames/s: batch of 128 {spread(large)}, of 32 {spread(small)}"
    return Judgement(more(large, small), text)

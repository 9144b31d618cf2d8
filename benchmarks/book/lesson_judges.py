"""Returns verdicts and results for the page on the course lesson, from runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from learning_tasks import TASKS

from book.rows import Judgement, Runs, Verdict, holds, more, own_setting, ratios, spread

Data = Mapping[str, Runs]
BUSY, FULL = 0.9, 0.95  # shares that count as nearly always busy, and as the whole ceiling
SAME = 0.1  # relative difference of equal speeds
EXACT = 1e-4


def percent(values: Sequence[float]) -> str:
    """Format shares."""
    return spread([100 * value for value in values], 1) + "%"


def at_least(values: Sequence[float], level: float, verdict: Verdict) -> Verdict:
    """Return ``verdict`` if the mean reaches a level."""
    return verdict if fmean(values) >= level else Verdict.NOT_REPRODUCED


# -- waiting environments --------------------------------------------------------------------------


def synchronous(data: Data) -> Judgement:
    busy = data["lesson_utilisation"].where(algo="ppo", actors=1).values("learner_busy")
    near = abs(fmean(busy) - 1 / 3) <= 0.05
    verdict = Verdict.IN_KIND if near else Verdict.NOT_REPRODUCED
    return Judgement(verdict, f"learner busy {percent(busy)} of the time")


def straggler(data: Data) -> Judgement:
    runs = data["lesson_utilisation"]
    kept = {
        algo: ratios(
            runs.where(algo=algo, one_is_slow=True), runs.where(algo=algo, actors=1), "sps"
        )
        for algo in ("ppo", "appo")
    }
    result = f"share of the speed kept: PPO {percent(kept['ppo'])}, APPO {percent(kept['appo'])}"
    return Judgement(more(kept["appo"], kept["ppo"]), result)


def decoupled(data: Data) -> Judgement:
    busy = data["lesson_utilisation"].where(algo="appo", actors=3).values("learner_busy")
    text = f"learner busy {percent(busy)} of the time"
    return Judgement(at_least(busy, BUSY, Verdict.IN_KIND), text)


def faster(data: Data) -> Judgement:
    runs = data["lesson_utilisation"].where(actors=1)
    appo, ppo = (runs.where(algo=algo).values("sps") for algo in ("appo", "ppo"))
    return Judgement(more(appo, ppo), f"steps/s: APPO {spread(appo)}, PPO {spread(ppo)}")


def threads(slow: bool) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["lesson_waiting"].where(one_is_slow=slow)
        training = runs.where(what="training").values("share")
        text = f"{percent(training)} of the possible steps/s while training"
        if acting := runs.where(what="acting").values("share"):
            text += f", {percent(acting)} without training"
        return Judgement(at_least(training, FULL, Verdict.REPRODUCED), text)

    return judge


def _rates(actors: int, envs: int, step_ms: int, learners: int = 1) -> dict[str, int]:
    return {"actors": actors, "envs": envs, "step_ms": step_ms, "learners": learners}


def lag(data: Data) -> Judgement:
    lag = data["lesson_throughput"].where(**_rates(32, 16, 20)).values("lag")
    inside = all(2 <= value <= 10 for value in lag)
    verdict = Verdict.IN_KIND if inside else Verdict.NOT_REPRODUCED
    return Judgement(verdict, f"mean lag {spread(lag)} updates")


def speed(step_ms: int) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["lesson_throughput"].where(**_rates(32, 16, step_ms))
        sps, share = runs.values("sps"), runs.values("share")
        minutes = 50e6 / fmean(sps) / 60
        text = f"{spread(sps)} steps/s ({percent(share)}); 50 million in {minutes:.1f} minutes"
        return Judgement(at_least(share, FULL, Verdict.REPRODUCED), text)

    return judge


def growth(data: Data) -> Judgement:
    runs = data["lesson_throughput"]
    few, some, many = (runs.where(**_rates(*sizes, 20)) for sizes in ((3, 4), (16, 8), (32, 16)))
    grown, most = ratios(some, few, "sps"), ratios(many, few, "sps")
    text = f"{spread(grown)} times; with 512 environments {spread(most)} times"
    return Judgement(at_least(grown, BUSY * 128 / 12, Verdict.REPRODUCED), text)


def bottleneck(data: Data) -> Judgement:
    runs = data["lesson_throughput"]
    few, many = (
        runs.where(**_rates(*sizes, 20)).values("learner_busy") for sizes in ((16, 8), (32, 16))
    )
    text = f"learner busy: 32 actors {percent(many)}, 16 actors {percent(few)}"
    return Judgement(more(many, few), text)


def second_learner(data: Data) -> Judgement:
    runs = data["lesson_throughput"]
    one, two = (runs.where(**_rates(32, 16, 20, n)) for n in (1, 2))
    gain = ratios(two, one, "sps")
    same = abs(fmean(gain) - 1) <= SAME
    verdict = Verdict.IN_KIND if same else Verdict.NOT_REPRODUCED
    return Judgement(verdict, f"{spread(gain)} times the steps/s of one learner")


def fragments(data: Data) -> Judgement:
    runs = data["lesson_throughput"]
    short, long = (runs.where(step_ms=0, fragment=n).values("sps") for n in (10, 150))
    text = f"steps/s: rollouts of 150 steps {spread(long)}, of 10 steps {spread(short)}"
    return Judgement(more(long, short), text)


# -- formulas --------------------------------------------------------------------------------------


def small_error(name: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        most = max(data["lesson_formulas"].values(name))
        return Judgement(holds(most < EXACT), f"largest difference {most:.0e}")

    return judge


def ratio(data: Data) -> Judgement:
    runs = data["lesson_formulas"]
    one, five = (runs.values(name)[0] for name in ("ratio_8", "ratio_32"))
    same = math.isclose(one, 8, rel_tol=EXACT) and math.isclose(five, 32, rel_tol=EXACT)
    return Judgement(holds(same), f"{one:.3g} and {five:.3g}")


def traces(data: Data) -> Judgement:
    grow = max(data["lesson_formulas"].values("traces_grow"))
    return Judgement(holds(grow == 0), f"{grow:.0%} of the products grow")


def variance(data: Data) -> Judgement:
    full, clipped = (data["lesson_formulas"].values(n) for n in ("sd_unclipped", "sd_vtrace"))
    least = min(a / b for a, b in zip(full, clipped, strict=True))
    text = f"standard deviation of the targets {spread(clipped)}; "
    text += f"unclipped at least {least:.0f} times that"
    return Judgement(holds(least > 1), text)


def bias(data: Data) -> Judgement:
    bias = data["lesson_formulas"].values("bias_vtrace")
    return Judgement(own_setting(more(0.0, bias)), f"mean bias of the values {spread(bias)}")


def correction(data: Data) -> Judgement:
    with_it, without = (
        [abs(value) for value in data["lesson_formulas"].values(name)]
        for name in ("bias_vtrace", "bias_uncorrected")
    )
    text = f"size of the bias: without {spread(without)}, with V-trace {spread(with_it)}"
    return Judgement(own_setting(more(without, with_it)), text)


def batch(data: Data) -> Judgement:
    runs = data["lesson_formulas"]
    one, two = (int(runs.values(name)[0]) for name in ("batch_1", "batch_2"))
    text = f"{one:,} steps (whole rollouts of 800 steps); {two:,} with two learners"
    return Judgement(holds(one == 4096), text)


# -- learning --------------------------------------------------------------------------------------


def stale(name: str, **other: Any) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["lesson_stale"]
        own = runs.where(off_policy="vtrace", rho_bar=1.0).values("final_return")
        others = runs.where(**other).values("final_return")
        text = f"final return: V-trace {spread(own)}, {name} {spread(others)}"
        return Judgement(more(own, others), text)

    return judge


def stable(better: str, worse: str) -> Callable[[Data], Judgement]:
    def kept(runs: Runs) -> list[float]:
        return [run.values["final_return"] / run.values["peak_return"] for run in runs]

    def judge(data: Data) -> Judgement:
        a, b = (kept(data["lesson_table"].where(algo=name)) for name in (better, worse))
        text = f"final / peak return: {better.upper()} {percent(a)}, {worse.upper()} {percent(b)}"
        return Judgement(more(a, b), text)

    return judge


def _example(variant: str, name: str) -> Callable[[Data], list[float]]:
    return lambda data: data["lesson_example"].where(variant=variant).values(name)


def random(data: Data) -> Judgement:
    values = _example("literal", "random_return")(data)
    difference = more(values, 0.0)
    verdict = Verdict.REPRODUCED if difference is Verdict.NOT_REPRODUCED else Verdict.REFUTED
    return Judgement(verdict, f"return {spread(values)} with random actions")


def climbs(data: Data) -> Judgement:
    final, chance = (_example("literal", n)(data) for n in ("final_return", "random_return"))
    text = f"final return {spread(final)}, random actions {spread(chance)}; tuned, evaluated: "
    text += f"{percent(_example('tuned', 'share_of_best')(data))} of the optimum"
    return Judgement(own_setting(more(final, chance)), text)


def prefers(data: Data) -> Judgement:
    own, tuned = (_example(v, "picks_best")(data) for v in ("literal", "tuned"))
    text = f"at {percent(own)} of steps (random: 20%), with tuned settings {percent(tuned)}"
    return Judgement(own_setting(more(own, 0.2)), text)


def entropy(data: Data) -> Judgement:
    own, without = (_example(v, "entropy")(data) for v in ("serial", "no entropy bonus"))
    text = f"final entropy {spread(own)}, without {spread(without)} (uniform policy: 1.61)"
    return Judgement(more(own, without), text)


def clipping(data: Data) -> Judgement:
    own, without = (_example(v, "evaluated")(data) for v in ("serial", "not clipped"))
    norm = max(_example("not clipped", "norm_max")(data))
    text = f"evaluated return {spread(own)}, unclipped {spread(without)}; norms up to {norm:.0f}"
    return Judgement(more(own, without), text)


def learners(data: Data) -> Judgement:
    runs = data["lesson_conjunction"]
    one, two = (runs.where(kind=kind).values("evaluated") for kind in ("one", "split"))
    same = more(two, one) is Verdict.NOT_REPRODUCED
    verdict = Verdict.IN_KIND if same else Verdict.NOT_REPRODUCED
    return Judgement(verdict, f"evaluated return: two learners {spread(two)}, one {spread(one)}")


def wargame(kind: str) -> Callable[[Data], Judgement]:
    def judge(data: Data) -> Judgement:
        runs = data["lesson_conjunction"].where(kind=kind)
        own, steps = runs.values("evaluated"), max(runs.values("total_steps"))
        low = TASKS["SSAConjunction-v0"].low
        better = more(own, low) is Verdict.IN_KIND
        text = f"evaluated return {spread(own)} after {steps:,} steps, random actions {low}"
        return Judgement(Verdict.IN_KIND if better else Verdict.NOT_REPRODUCED, text)

    return judge

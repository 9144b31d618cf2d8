"""Returns verdicts and results in words for the page on IMPALA, from runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from book.impala_runs import METHODS
from book.rows import Judgement, Runs, Verdict, all_of, more, spread
from headrace.studies.aggregation import mean_se

Data = Mapping[str, Runs]
Judge = Callable[[Data], Judgement]
ZERO = 0.0
NAMES = {
    "impala": "IMPALA",
    "a3c": "A3C",
    "a2c": "A2C",
    "vtrace": "V-trace",
    "one_step": "one-step",
    "epsilon": "ε-correction",
    "none": "no correction",
    "rho_bar=10": "ρ̄ = 10",
    "rho_bar=100": "ρ̄ = 100",
    "q=v": "v",
}
BEST = 3  # of the sampled settings, as in the paper


def held(true: bool, text: str) -> Judgement:
    """Return the judgement of a property that doesn't depend on scale."""
    return Judgement(Verdict.REPRODUCED if true else Verdict.REFUTED, text)


def across(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[Verdict, str]:
    """Compare two groups of runs on several tasks by the mean of the differences.

    Returns:
        the verdict, and the difference with its standard error.
    """
    differences, errors = [], []
    for a, b in pairs:
        (mean_a, se_a), (mean_b, se_b) = mean_se(a), mean_se(b)
        differences.append(mean_a - mean_b)
        errors += [0.0 if math.isnan(se) else se for se in (se_a, se_b)]
    mean, se = statistics.fmean(differences), math.hypot(*errors) / len(pairs)
    text = f"{mean:+.2f} ± {se:.2f}".replace("-", "−")
    if abs(mean) <= 2 * se:
        return Verdict.NOT_REPRODUCED, text
    return (Verdict.IN_KIND if mean > 0 else Verdict.REFUTED), text


def best(values: Sequence[float]) -> list[float]:
    """Return the largest values, of the best settings."""
    return sorted(values, reverse=True)[:BEST]


def paired(runs: Runs, name: str, other: str) -> list[float]:
    """Return differences between two values, as means over tasks for each seed."""
    return [
        statistics.fmean(a - b for a, b in zip(of.values(name), of.values(other), strict=True))
        for of in runs.by("seed").values()
    ]


def means(runs: Runs, names: Sequence[str], select: Callable[..., list[float]] = list) -> str:
    """Return names with their means over tasks of the selected values."""
    found = {
        name: statistics.fmean(
            statistics.fmean(select(of.values(name))) for of in runs.by("task").values()
        )
        for name in names
    }
    return ", ".join(f"{_shown(name)} {mean:.2f}" for name, mean in found.items())


def _shown(name: str) -> str:
    name = name.removesuffix("_area")
    return NAMES.get(name, name)


def against_each(runs: Runs, name: str, others: Sequence[str]) -> tuple[Verdict, str]:
    """Judge whether the best settings of one are above those of each other one, over tasks.

    Returns:
        REFUTED if one of the others is above it, and the differences in words.
    """
    verdicts, texts = [], []
    for other in others:
        pairs = [(best(of.values(name)), best(of.values(other))) for of in runs.by("task").values()]
        verdict, text = across(pairs)
        verdicts.append(verdict)
        texts.append(f"{_shown(other)} {text}")
    return all_of(verdicts), f"difference from {', '.join(texts)}"


# -- single tasks ----------------------------------------------------------------------------------


def final_best(name: str, others: Sequence[str], suffix: str = "") -> Judge:
    """Judge whether an algorithm's best settings beat those of the best other one, over tasks."""

    def judge(data: Data) -> Judgement:
        runs, rivals = data["impala_single"], [other + suffix for other in others]
        verdict, text = against_each(runs, name + suffix, rivals)
        told = means(runs, [name + suffix, *rivals], best)
        return Judgement(verdict, f"score {told}; {text}")

    return judge


def stability(data: Data) -> Judgement:
    """Judge whether IMPALA scores higher than A3C over all sampled settings."""
    runs, curves = data["impala_single"], []
    for algo in ("impala", "a3c"):
        by_task = [sorted(of.values(algo), reverse=True) for of in runs.by("task").values()]
        ranks = [statistics.fmean(rank) for rank in zip(*by_task, strict=False)]
        curves.append(f"{_shown(algo)} {' '.join(f'{x:.1f}' for x in ranks)}")
    gains = paired(runs, "impala", "a3c")
    text = f"scores, best setting first: {'; '.join(curves)}; mean difference {spread(gains, 2)}"
    return Judgement(more(gains, ZERO), text)


# -- corrections -----------------------------------------------------------------------------------


def correction(replay: float, others: Sequence[str], name: str = "vtrace") -> Judge:
    """Judge whether a correction's best settings beat those of others, over tasks."""

    def judge(data: Data) -> Judgement:
        runs = data["impala_corrections"].where(replay=replay)
        verdict, text = against_each(runs, name, others)
        told = means(runs, (name, *others), best)
        return Judgement(verdict, f"score {told}; {text}")

    return judge


def gain_of_replay(data: Data) -> Judgement:
    """Judge whether V-trace's score is higher with replay."""
    runs, gains = data["impala_corrections"], {}
    for name in METHODS:
        pairs = [
            (best(of.where(replay=0.5).values(name)), best(of.where(replay=0.0).values(name)))
            for of in runs.by("task").values()
        ]
        gains[name] = across(pairs)
    text = ", ".join(f"{_shown(name)} {gain}" for name, (_, gain) in gains.items())
    return Judgement(gains["vtrace"][0], f"change of the score with replay: {text}")


def weighted(data: Data) -> Judgement:
    """Judge whether importance sampling beats the other corrections over all settings."""
    runs = data["impala_corrections"]
    two = [paired(runs, name, "epsilon") for name in ("vtrace", "one_step")]
    rest = [paired(runs, name, "none") for name in ("vtrace", "one_step")]
    gains = [statistics.fmean(each) for each in zip(*two, *rest, strict=True)]
    text = f"score {means(runs, METHODS)}; difference of the pairs {spread(gains, 2)}"
    return Judgement(more(gains, ZERO), text)


def variant(others: Sequence[str], own_name: str = "V-trace") -> Judge:
    """Judge whether V-trace as in the paper returns more than each of its variants."""

    def judge(data: Data) -> Judgement:
        runs = data["impala_variants"]
        rivals = {name: runs.values(name) for name in others}
        own, rival = runs.values("vtrace"), max(rivals.values(), key=statistics.fmean)
        shown = {own_name: own, **rivals}
        text = ", ".join(f"{_shown(name)}: {spread(v, 0)}" for name, v in shown.items())
        return Judgement(more(own, rival), f"return with {text}")

    return judge


# -- several tasks ---------------------------------------------------------------------------------


def tasks(
    left: Mapping[str, str],
    right: Mapping[str, str],
    experiment: str,
    names: tuple[str, str],
    margin: float = 0.0,
) -> Judge:
    """Judge whether one group of agents has a higher mean score than another.

    Args:
        names: both groups in the result.
        margin: negative: by how much the first may be lower.
    """

    def judge(data: Data) -> Judgement:
        a, b = (data[experiment].where(**case).values("mean") for case in (left, right))
        text = f"mean score: {names[0]} {spread(a, 2)}, {names[1]} {spread(b, 2)}"
        return Judgement(more(a, b, margin), text)

    return judge


def transfer(experiment: str) -> Judge:
    """Judge whether one agent scores higher than the experts."""
    deep = {"algo": "impala", "net": "deep"}
    names = ("one agent", "experts")
    return tasks({"who": "agent", **deep}, {"who": "experts", **deep}, experiment, names)


def populations(data: Data) -> Judgement:
    """Judge whether the best member of a population beats that of a random sweep."""
    arms = data["impala_pbt"].by("arm")
    a, b = arms["population"].values("best"), arms["sweep"].values("best")
    text = f"reward per step, at most 1: population {spread(a, 2)}, search {spread(b, 2)}"
    return Judgement(more(a, b), text)

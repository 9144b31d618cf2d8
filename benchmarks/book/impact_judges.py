"""Returns verdicts and results for the page on IMPACT, from runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from book.impact_cases import BUFFERS, BY, MEASURES, PASSES, WORKERS
from book.rows import Judgement, Run, Runs, Verdict, all_of, holds, more, named, worst

Data = Mapping[str, Runs]
Judge = Callable[[Data], Judgement]

NO_NAMES: Mapping[str, str] = {}
_FACTORS = ("NK/16", "NK/4", "4 NK", "16 NK")
_LEARNT, _TOLERANCE = 0.25, 0.1  # shares of the reference's improvement


def of(data: Data, experiment: str, variant: str, name: str) -> list[float]:
    """Return a value of all seeds of a variant."""
    return data[experiment].where(variant=variant).values(name)


def listed(values: Mapping[str, Sequence[float]], names: Mapping[str, str] = NO_NAMES) -> str:
    """Format the values of variants; ``names`` replaces names of variants."""
    return named({names.get(name, name.replace("=", " = ")): each for name, each in values.items()})


def higher(
    experiment: str, name: str, best: str, *others: str, names: Mapping[str, str] = NO_NAMES
) -> Judge:
    """Return a judge: the first variant has a larger value than each of the others.

    Args:
        name: ``area`` or ``final_return``.
        names: other names of variants in the result.
    """

    def judge(data: Data) -> Judgement:
        values = {v: of(data, experiment, v, name) for v in (best, *others)}
        verdict = all_of([more(values[best], values[other]) for other in others])
        return Judgement(verdict, f"{MEASURES[name]} with {listed(values, names)}")

    return judge


# -- curves ----------------------------------------------------------------------------------------


def curve(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, seconds since the first update, and returns."""
    steps, seconds, returns = np.array(run.values["curve"]).reshape(-1, 3).T
    first = seconds[-1] - run.values["seconds"]  # the clock starts before the first update
    share = run.values.get("core_share", 1.0)
    return steps, (seconds - first) * share, returns


def duration(run: Run) -> float:
    """Return the seconds of a run since its first update."""
    return float(run.values["seconds"] * run.values.get("core_share", 1.0))


def equal_time(runs: Runs, by: str) -> dict[Any, list[float]]:
    """Return the returns at the time at which the first run ended, by a setting of the cases."""
    end = min(duration(run) for run in runs)

    def then(run: Run) -> float:
        _, seconds, returns = curve(run)
        return float(np.interp(end, seconds, returns))

    return {key: [then(run) for run in each] for key, each in runs.by(by).items()}


def improved(run: Run) -> float:
    """Return the final return above the first point of the curve."""
    return float(run.values["final_return"] - run.values["curve"][0][2])


def dropped(run: Run) -> float:
    """Return the largest fall of the training return from its highest value before."""
    _, _, returns = curve(run)
    return round(float(np.max(np.maximum.accumulate(returns) - returns)), 3)


def drops_less(data: Data) -> Judgement:
    """Judge the abstract: with old weights, IMPACT loses less of its mean return than IMPALA."""
    fresh = {"IMPALA": "IMPALA", "IMPACT": "K=2"}
    lost = {}
    for name, variant in fresh.items():
        names = (variant, f"{name}, 8 batches old")
        new, old = (of(data, "impact_discrete", each, "area") for each in names)
        lost[name] = [1 - b / a for a, b in zip(new, old, strict=False)]
    text = f"share of the mean return lost with {listed(lost)}"
    return Judgement(more(lost["IMPALA"], lost["IMPACT"]), text)


# -- figure 3 --------------------------------------------------------------------------------------


def target_periods(data: Data) -> Judgement:
    """Judge Figure 3b: final returns with other periods are within a tenth of the gain."""
    runs = data["impact_targets"]
    base = runs.where(variant="IMPACT")
    margin = -_TOLERANCE * float(np.mean([improved(run) for run in base]))
    final = {name: of(data, "impact_targets", name, "final_return") for name in _FACTORS}
    known = base.values("final_return")
    judged = [name for name in final if not name.endswith(" NK")]  # longer: few target updates
    verdicts = [more(final[name], known, margin) for name in judged]
    return Judgement(all_of(verdicts), f"final return with {listed({'NK': known, **final})}")


def short_periods(data: Data) -> Judgement:
    """Judge section 4.1.1: target updates every few steps prevent learning."""
    runs = data["impact_targets"]
    base, short = ([improved(r) for r in runs.where(variant=v)] for v in ("IMPACT", "t=2"))
    verdict = more([_LEARNT * x for x in base], short)
    return Judgement(verdict, f"gain in return with {listed({'NK': base, 'every 2 steps': short})}")


def unstable(
    experiment: str, more_so: str, less_so: str, names: Mapping[str, str] = NO_NAMES
) -> Judge:
    """Return a judge: the return of the first variant falls further during training."""

    def judge(data: Data) -> Judgement:
        runs = data[experiment]
        a, b = ([dropped(r) for r in runs.where(variant=v)] for v in (more_so, less_so))
        text = f"largest fall of the return with {listed({more_so: a, less_so: b}, names)}"
        return Judgement(more(a, b), text)

    return judge


# -- figure 4 --------------------------------------------------------------------------------------


def best_passes(data: Data) -> Judgement:
    """Judge Figure 4: K = 2 is best in steps and in time."""
    tables = _by_passes(data)
    verdicts = [more(t["K=2"], t[k]) for t in tables.values() for k in t if k != "K=2"]
    results = []
    for name, t in tables.items():
        best = max(t, key=lambda k: float(np.mean(t[k])))
        results.append(f"{BY[name]} with {listed({k: t[k] for k in dict.fromkeys(('K=2', best))})}")
    return Judgement(all_of(verdicts), "; ".join(results))


def both_gain(data: Data) -> Judgement:
    """Judge section 4.2: some K above 1 is better than K = 1 in steps and in time."""
    tables = _by_passes(data)
    larger = [k for k in tables["steps"] if k != "K=1"]
    found = {k: worst([more(t[k], t["K=1"]) for t in tables.values()]) for k in larger}
    order = list(Verdict)
    k = min(found, key=lambda name: order.index(found[name]))
    results = [
        f"{BY[name]} with {listed({k: t[k], 'K=1': t['K=1']})}" for name, t in tables.items()
    ]
    return Judgement(found[k], "; ".join(results))


def _by_passes(data: Data) -> dict[str, dict[str, list[float]]]:
    """Return mean returns over equal steps and returns at equal time, by K."""
    names = {f"K={passes}" for passes in PASSES}
    runs = Runs(tuple(run for run in data["impact_discrete"] if run.case["variant"] in names))
    area = {k: each.values("area") for k, each in runs.by("variant").items()}
    return {"steps": area, "time": equal_time(runs, "variant")}


def throughput(data: Data) -> Judgement:
    """Judge section 4.3: larger K, fewer steps per second."""
    of_k = data["impact_discrete"]
    speed = {
        k: [r.values["env_steps"] / duration(r) for r in of_k.where(variant=k)]
        for k in ("K=1", "K=2", "K=8", "K=32")
    }
    names = list(speed)
    pairs = itertools.pairwise(names)
    verdict = worst([more(speed[a], speed[b]) for a, b in pairs])
    return Judgement(verdict, f"steps/s with {listed(speed)}")


def best_buffer(data: Data) -> Judgement:
    """Judge section 4.3: N = 16, K = 20 is best in continuous tasks."""
    area = {v: of(data, "impact_continuous", v, "area") for v in ("N=16, K=20", "K=2", "N=1")}
    area |= {"N=8, K=10": of(data, "impact_continuous", "IMPACT", "area")}
    best = "N=16, K=20"
    verdict = all_of([more(area[best], each) for name, each in area.items() if name != best])
    return Judgement(verdict, f"mean return with {listed(area, BUFFERS)}")


# -- comparisons -----------------------------------------------------------------------------------


def in_steps(experiment: str, own: str, other: str, env: str | None = None) -> Judge:
    """Return a judge: IMPACT's mean return over equal steps is above that of another algorithm.

    Args:
        own: IMPACT's variant with the settings of the paper.
        env: only runs of this environment.
    """

    def judge(data: Data) -> Judgement:
        runs = data[experiment].where(**({"env": env} if env else {}))
        ours, theirs = (runs.where(variant=v).values("area") for v in (own, other))
        text = f"mean return with {listed({'IMPACT': ours, other: theirs})}"
        return Judgement(more(ours, theirs), text)

    return judge


def in_time(experiment: str, env: str, other: str) -> Judge:
    """Return a judge: IMPACT's return at equal time is above that of another algorithm."""

    def judge(data: Data) -> Judgement:
        values = equal_time(data[experiment].where(env=env), "variant")
        both = listed({v: values[v] for v in ("IMPACT", other)})
        return Judgement(more(values["IMPACT"], values[other]), f"return with {both}")

    return judge


def wall_time(data: Data) -> Judgement:
    """Judge the abstract: IMPACT needs less time than IMPALA to IMPALA's final return."""
    runs = data["impact_compared"].where(env="CartPole-v1")
    goal = float(np.mean(runs.where(variant="IMPALA").values("final_return")))
    needed = {
        v: [_seconds_to(r, goal) for r in runs.where(variant=v)] for v in ("IMPACT", "IMPALA")
    }
    result = f"seconds to IMPALA's final return ({goal:.0f}) with {listed(needed)}"
    missed = [r for r in runs.where(variant="IMPACT") if np.max(curve(r)[2]) < goal]
    if missed:
        return Judgement(Verdict.NOT_REPRODUCED, f"{result}; IMPACT missed it {len(missed)} times")
    return Judgement(more(needed["IMPALA"], needed["IMPACT"]), result)


def _seconds_to(run: Run, goal: float) -> float:
    """Return the seconds to a return; if it is not reached, those of the run."""
    _, seconds, returns = curve(run)
    reached = np.flatnonzero(returns >= goal)
    return float(seconds[reached[0]]) if len(reached) else duration(run)


def workers(data: Data) -> Judgement:
    """Judge Figure 7: more workers reach higher returns in the same time."""
    values = equal_time(data["impact_workers"], "workers")
    verdict = more(values[WORKERS[-1]], values[WORKERS[0]])
    named_values = {f"{n} worker{'s' * (n > 1)}": each for n, each in values.items()}
    return Judgement(verdict, f"return with {listed(named_values)}")


def workers_decline(data: Data) -> Judgement:
    """Judge section 4.4: each doubling of workers raises steps/s less than the one before."""
    runs = data["impact_workers"]
    speed = {n: runs.where(workers=n).values("sps") for n in WORKERS}
    factor = {
        f"{n} to {2 * n} workers": [b / a for a, b in zip(speed[n], speed[2 * n], strict=False)]
        for n in WORKERS[:-1]
    }
    values = list(factor.values())
    return Judgement(more(values[0], values[-1]), f"factor of steps/s from {listed(factor)}")


# -- without training ------------------------------------------------------------------------------


def lower_bound(data: Data) -> Judgement:
    """Judge Figure 10: IMPACT's clipped ratio is nowhere above PPO's."""
    runs = data["impact_likelihood"]
    two, one = (max(runs.values(name)) for name in ("above_ppo", "above_ppo_rho_1"))
    result = f"above PPO's at some action: {two:.0%} of policies with ρ = 2, {one:.0%} with ρ = 1"
    return Judgement(holds(two == 0), result)


def large_where_rare(data: Data) -> Judgement:
    """Judge appendix E: the ratio π/μ is large where the worker's probability is low."""
    rare = data["impact_likelihood"].values("large_is_rare")
    share = f"{np.mean(rare):.0%} of policies"
    result = f"where π/μ peaks above 3, μ is below a tenth of its peak: {share}"
    return Judgement(holds(min(rare) > 0.9), result)


def truncated(data: Data) -> Judgement:
    """Judge section 3.1: the ratio to the worker's policy is truncated at rho."""
    above = max(data["impact_likelihood"].values("above_rho"))
    differs = max(data["impact_likelihood"].values("differs_on_policy"))
    result = f"factor above ρ: {above:.0%} of policies; largest R3 − R2 with μ = π′: {differs:g}"
    return Judgement(holds(above == 0 and differs == 0), result)


def table(*tasks: str) -> Judge:
    """Return a judge: the recipes hold the columns of a table."""

    def judge(data: Data) -> Judgement:
        runs = [run for task in tasks for run in data["impact_tables"].where(task=task)]
        total, wrong = (sum(r.values[name] for r in runs) for name in ("settings", "differing"))
        return Judgement(holds(wrong == 0), f"{total - wrong} of {total} settings agree")

    return judge


def number_of_runs(data: Data) -> Judgement:
    """Judge Tables 3 and 4: the values are valid settings, as many as the runs."""
    runs = data["impact_searched"]
    agree = all(run.values["agree"] for run in runs)
    values = sum(runs.values("values"))
    stated = "as many" if agree else "another number of"
    return Judgement(holds(agree), f"{values:.0f} values are valid; the paper states {stated} runs")

"""``headrace plan``: predicts a run's speed and its bottleneck."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from headrace.errors import ConfigError
from headrace.studies import flags
from headrace.studies.machine import show, wide_console
from headrace.studies.plan.arithmetic import Setup, forecasts, saturating_actors
from headrace.studies.plan.measure import MeasuredCosts, measure
from headrace.studies.plan.settings import DEFAULT, Plan
from headrace.studies.plan.simulate import simulate

_MAX_ROLLOUTS = 100_000  # of a simulation whose number of updates isn't given
_UPDATES = 300


def main(argv: Sequence[str]) -> int:
    """``headrace plan [ALGORITHM] [--recipe NAME] [flags]``.

    Raises:
        ConfigError: a flag is invalid, or the environment can't be measured.
    """
    plan, console = flags.parse(Plan, "headrace plan", argv, DEFAULT), wide_console()
    costs: MeasuredCosts | None = None
    share, algorithm = plan.config.per_learner, plan.config.algo_name
    if plan.measure is not None:
        console.print(f"measuring {plan.measure} with {algorithm} on this machine")
        costs = measure(dataclasses.replace(share, env=plan.measure), plan.measure_seconds)
        console.print(costs.summary)
    elif share.algo.learns_in_actors:
        raise ConfigError("a3c can't be planned: its actors learn (choose appo, impala, ppo …)")
    show_arithmetic(plan.setup(costs), algorithm, console)
    if plan.simulate:
        _simulate(plan, costs, console)
    elif costs is not None:  # the arithmetic assumes separate cores for all actors and learners
        have = costs.cores if plan.cores is None else plan.cores
        want = share.num_actors * costs.acting_cores + costs.update_cores
        if want > have:
            console.print(
                f"the actors and the learner need {want:.1f} cores but there are {have:g}: this "
                "table assumes enough cores; add --simulate for this machine"
            )
    return 0


def show_arithmetic(setup: Setup, algorithm: str, console: Console) -> None:
    """Print the table of forecasts, and the bottleneck."""
    console.print(
        f"plan of {algorithm}: {setup.num_actors} actor(s) x {setup.envs_per_actor} environments, "
        f"{1e3 * setup.vector_step_s:.3g} ms per step of an actor, {setup.num_learners} learner(s) "
        f"of {setup.learner_sps:,.0f} steps/s, "
        + ("taking turns (synchronous)" if setup.synchronous else "side by side (asynchronous)")
    )
    rows = [
        {
            "": name,
            "steps/s": f"{each.rates.sps:,.0f}",
            f"{setup.total_steps:,} steps in": span(each.seconds),
            "bottleneck": each.rates.bottleneck,
            "learner busy": f"{each.rates.utilisation_learners:.0%}",
            "actors busy": f"{each.rates.utilisation_actors:.0%}",
        }
        for name, each in forecasts(setup)
    ]
    show(rows, "", console, wrap=True)
    enough = saturating_actors(setup)
    if enough is not None:
        console.print(f"{enough:,} actors saturate the learner(s): more would not help")


def span(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _simulate(plan: Plan, costs: MeasuredCosts | None, console: Console) -> None:
    """Print the table and write the plot; several learners are assumed equal to this one."""
    from headrace.studies.plan.picture import draw

    scenario, config = plan.scenario(costs), plan.config
    few = max(5, min(_UPDATES, _MAX_ROLLOUTS // scenario.rollouts_per_update))
    outcome = simulate(scenario, few if plan.updates is None else plan.updates)
    sps, total_steps = outcome.sps * config.num_learners, config.total_steps
    lags = sorted(outcome.lags.elements())
    p95 = lags[int(0.95 * (len(lags) - 1))] if lags else 0
    rows = {
        "steps/s": f"{sps:,.0f}",
        f"{total_steps:,} steps in": span(total_steps / sps) if sps else "for ever",
        "learner busy": f"{outcome.utilisation_learner:.0%}",
        "actors busy": f"{outcome.utilisation_actors:.0%}",
        "queue depth": f"mean {outcome.depth_mean:.2f}, max {max(outcome.depths, default=0)} of "
        f"{scenario.num_credits}",
        "policy lag": f"mean {outcome.lag_mean:.2f}, 95 % {p95}, max {outcome.lag_max} updates",
        "rollouts": f"{outcome.trained:,} trained on, {outcome.dropped:,} dropped, "
        f"{outcome.waiting:,} left waiting",
        "weights fetched": f"{outcome.pulls:,} times",
        "crashes": f"{outcome.crashes:,}",
        "simulated": f"{outcome.updates:,} updates, {outcome.simulated_s:,.1f} s",
    }
    show([{"simulated": name, "": value} for name, value in rows.items()], "", console, wrap=True)
    plan.output.parent.mkdir(parents=True, exist_ok=True)
    actors = f"{scenario.num_actors} actor(s) x {config.per_learner.envs_per_actor} environments"
    title = f"{config.algo_name}, {actors}, {outcome.updates:,} updates simulated"
    draw(outcome, title, plan.output)
    console.print(f"plot: {plan.output}")

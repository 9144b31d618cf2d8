"""What a run will take, and who will be its bottleneck: ``headrace plan``."""

# Annotations are evaluated here at once: tyro reads those of Plan.

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.config import Config
from headrace.errors import ConfigError, require
from headrace.studies import flags
from headrace.studies.machine import show, wide_console
from headrace.studies.plan.arithmetic import Envs, Setup, forecasts, saturating_actors
from headrace.studies.plan.build import given_scenario, given_setup, scenario_of, setup_of
from headrace.studies.plan.durations import Duration, Shape, rollout_duration
from headrace.studies.plan.measure import Costs, measure
from headrace.studies.plan.sharing import Cores
from headrace.studies.plan.simulate import Outcome, Scenario, simulate

_DEFAULT = Config(num_actors=32, envs_per_actor=16, total_steps=50_000_000)
_MAX_ROLLOUTS = 100_000  # of a simulation whose number of updates isn't given
_UPDATES = 300


@dataclass(frozen=True)
class Plan:
    """Say beforehand how fast a run will be, who its bottleneck is, and what would help.

    By arithmetic from the costs that are given, or from costs measured on this machine (--measure);
    with --simulate also by a simulation of actors, slots, queue and weights.
    """

    env_step_ms: float = 20.0
    """Milliseconds of one step of one environment; measured with --measure."""
    envs: Envs = "waiting"
    """Environments of an actor wait side by side, or compute one after the other."""
    inference_ms: float = 0.0
    """Milliseconds per step of all environments of an actor, for the policy; measured likewise."""
    learner_sps: float = 500_000.0
    """Steps per second that one learner can take in; measured likewise."""
    measure: str | None = None
    """Environment whose costs, with the algorithm and its network, are measured on this machine."""
    measure_seconds: float = 4.0
    """How long to measure."""
    simulate: bool = False
    """Simulate the run, event by event, and draw a picture."""
    updates: int | None = None
    """Updates to simulate; None: 300, or as many as 100,000 rollouts make."""
    step_shape: Shape = "constant"
    """Distribution of the time of a step: constant, lognormal or gamma."""
    step_cv: float = 0.0
    """Its deviation, relative to its mean."""
    stragglers: int = 0
    """Actors that are slower than the others."""
    straggler_factor: float = 4.0
    """How many times slower they are."""
    mtbf_s: float | None = None
    """Mean seconds of acting between two crashes of an actor; None: it never crashes."""
    restart_s: float = 5.0
    """Seconds until it acts again."""
    drift: float = 0.001
    """Nats of KL per update of lag, for weight_sync=adaptive."""
    cores: float | None = None
    """Cores that a learner and its actors share; None: those of this machine with --measure,
    otherwise one for each."""
    bandwidth_gbps: float | None = None
    """Gbit/s that all transfers of rollouts and weights share; None: they take no time."""
    rollout_kb: float = 0.0
    """Kilobytes of one rollout; measured with --measure."""
    weights_kb: float = 0.0
    """Kilobytes of the weights; measured with --measure."""
    output: Path = Path("plan.png")
    """Where the picture of a simulation goes."""
    config: Config = field(default_factory=lambda: _DEFAULT)
    """The run."""

    def __post_init__(self) -> None:
        gbps = self.bandwidth_gbps
        require(gbps is None or gbps > 0, "bandwidth_gbps", gbps, "above 0, or None")
        require(self.cores is None or self.cores > 0, "cores", self.cores, "above 0, or None")
        require(self.measure_seconds > 0, "measure_seconds", self.measure_seconds, "above 0")
        require(self.updates is None or self.updates >= 5, "updates", self.updates, "5 or more")
        steps = self.config.total_steps
        require(steps >= 1, "total_steps", steps, "1 or more")

    @property
    def given(self) -> Setup:
        """The arithmetic's input from the flags alone."""
        return given_setup(
            self.config,
            env_step_s=self.env_step_ms / 1e3,
            envs=self.envs,
            inference_s=self.inference_ms / 1e3,
            learner_sps=self.learner_sps,
        )


def main(argv: Sequence[str]) -> int:
    """``headrace plan [ALGORITHM] [--recipe NAME] [flags]``.

    Raises:
        ConfigError: a flag is wrong, or the environment can't be measured.
    """
    run(flags.parse(Plan, "headrace plan", argv, _DEFAULT), wide_console())
    return 0


def run(plan: Plan, console: Console) -> Outcome | None:
    """Print what is asked for; returns what the simulation found, if there was one.

    Raises:
        ConfigError: as :func:`main`.
    """
    costs: Costs | None = None
    setup, share = plan.given, plan.config.per_learner
    if plan.measure is not None:
        config = dataclasses.replace(plan.config, env=plan.measure)
        share = config.per_learner
        console.print(f"measuring {plan.measure} with {config.algo_name} on this machine")
        costs = measure(share, plan.measure_seconds)
        console.print(costs.summary)
        setup = setup_of(config, costs)
    elif plan.config.algo.learns_in_actors:
        raise ConfigError("a3c can't be planned: its actors learn (choose appo, impala, ppo …)")
    show_arithmetic(setup, plan.config.algo_name, console)
    if costs is not None and not plan.simulate:
        _warn_of_cores(share, costs, plan.cores, console)
    if not plan.simulate:
        return None
    scenario = _scenario(plan, share, costs)
    few = max(5, min(_UPDATES, _MAX_ROLLOUTS // scenario.rollouts_per_update))
    outcome = simulate(scenario, few if plan.updates is None else plan.updates)
    show_outcome(outcome, scenario, plan.config.num_learners, plan.config.total_steps, console)
    from headrace.studies.plan.picture import draw

    plan.output.parent.mkdir(parents=True, exist_ok=True)
    title = f"{plan.config.algo_name}, {share.num_actors} actor(s) x {share.envs_per_actor}"
    draw(outcome, f"{title} environments, {outcome.updates:,} updates simulated", plan.output)
    console.print(f"picture: {plan.output}")
    return outcome


def _warn_of_cores(share: Config, costs: Costs, cores: float | None, console: Console) -> None:
    """The arithmetic gives everybody cores of their own; say so where there are too few."""
    have = costs.cores if cores is None else cores
    want = share.num_actors * costs.acting_cores + costs.update_cores
    if want > have:
        console.print(
            f"the actors and the learner want {want:.1f} cores and there are {have:g}: this table "
            "is for a machine that has them; add --simulate for this one"
        )


def show_arithmetic(setup: Setup, algorithm: str, console: Console) -> None:
    """The table of forecasts, and who is the bottleneck."""
    console.print(
        f"plan of {algorithm}: {setup.num_actors} actor(s) x {setup.envs_per_actor} environments, "
        f"{1e3 * setup.vector_step_s:.3g} ms per step of an actor, {setup.num_learners} learner(s) "
        f"of {setup.learner_sps:,.0f} steps/s, "
        + ("taking turns (synchronous)" if setup.synchronous else "side by side (asynchronous)")
    )
    rows = [
        {
            "": forecast.name,
            "steps/s": f"{forecast.sps:,.0f}",
            f"{setup.total_steps:,} steps in": span(forecast.seconds),
            "bottleneck": forecast.bottleneck,
            "learner busy": f"{forecast.setup.rates.utilisation_learners:.0%}",
            "actors busy": f"{forecast.setup.rates.utilisation_actors:.0%}",
        }
        for forecast in forecasts(setup)
    ]
    show(rows, "", console, wrap=True)
    enough = saturating_actors(setup)
    if enough is not None:
        console.print(f"{enough:,} actors saturate the learner(s): more would bring nothing")


def span(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _scenario(plan: Plan, share: Config, costs: Costs | None) -> Scenario:
    gbps = plan.bandwidth_gbps
    more: dict[str, Any] = {
        "stragglers": plan.stragglers,
        "straggler_factor": plan.straggler_factor,
        "mtbf_s": plan.mtbf_s,
        "restart_s": plan.restart_s,
        "drift": plan.drift,
        "bytes_per_s": None if gbps is None else gbps * 1e9 / 8 / plan.config.num_learners,
        "seed": share.seed,
    }
    if costs is not None:
        return scenario_of(share, costs, plan.cores, plan.step_cv, plan.step_shape, **more)
    step = Duration(max(plan.env_step_ms, 1e-9) / 1e3, plan.step_cv, plan.step_shape)
    acting = rollout_duration(
        step, share.fragment_length, share.envs_per_actor, plan.envs, plan.inference_ms / 1e3
    )
    computing = acting.mean_s if plan.envs == "computing" else 0.0
    busy = max(computing, plan.inference_ms / 1e3 * share.fragment_length)
    return given_scenario(
        share,
        acting=acting,
        update=Duration(share.resolved_batch_size / plan.learner_sps),
        cores=Cores(math.inf if plan.cores is None else plan.cores, busy / acting.mean_s, 1.0),
        rollout_bytes=1e3 * plan.rollout_kb,
        weights_bytes=1e3 * plan.weights_kb,
        **more,
    )


def show_outcome(
    outcome: Outcome, scenario: Scenario, num_learners: int, total_steps: int, console: Console
) -> None:
    """The table of a simulation; with several learners, each is taken to be like this one."""
    sps = outcome.sps * num_learners
    lags = sorted(outcome.lags.elements())
    p95 = lags[int(0.95 * (len(lags) - 1))] if lags else 0
    rows = {
        "steps/s": f"{sps:,.0f}",
        f"{total_steps:,} steps in": span(total_steps / sps) if sps else "for ever",
        "learner busy": f"{outcome.utilisation_learner:.0%}",
        "actors busy": f"{outcome.utilisation_actors:.0%}",
        "queue depth": f"mean {outcome.depth_mean:.2f}, max {max(outcome.depths, default=0)} of "
        f"{scenario.num_actors * scenario.slots_per_actor} slots",
        "policy lag": f"mean {outcome.lag_mean:.2f}, 95 % {p95}, max {outcome.lag_max} updates",
        "rollouts": f"{outcome.trained:,} trained on, {outcome.dropped:,} dropped, "
        f"{outcome.waiting:,} left waiting",
        "weights fetched": f"{outcome.pulls:,} times",
        "crashes": f"{outcome.crashes:,}",
        "simulated": f"{outcome.updates:,} updates, {outcome.simulated_s:,.1f} s",
    }
    show([{"simulated": name, "": value} for name, value in rows.items()], "", console, wrap=True)

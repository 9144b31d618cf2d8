"""IMPALA's corrections under a forced lag (Espeholt et al. 2018, section 5.2.2, Table 2).

    python benchmarks/corrections.py --forced-lag 8 --seeds 5

Compares V-trace, one-step importance sampling, the epsilon correction and no correction, each with
and without replay of half of every batch. The actor uses the weights of exactly ``forced_lag``
updates ago, in the learner's process, so results don't depend on timing and are reproducible. All
four share their settings. Learning rate and reward scale were chosen for V-trace without lag and
replay; gamma and lambda are from the CartPole recipe. The replay buffer is large enough for its
age to matter. Runs measure returns, not time, so several run in parallel (``--jobs``).

The reported numbers are the mean return of the last 100 training episodes, of 100 episodes of the
final policy (with sampled actions), and over the learning curve, each as mean ± standard error over
seeds. Finished runs are not repeated. The output is runs.csv, summary.csv and plots.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from common import draw_bars
from rich.console import Console

from headrace.studies.aggregation import grouped, means, plus_minus
from headrace.studies.children import Children
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.plotting import draw_curves
from headrace.studies.run_table import Case, Study, grid

CORRECTIONS = ("vtrace", "one_step", "epsilon", "none")
MEASURES = ("final_return", "evaluation_return", "mean_return")
RESULTS = (*MEASURES, "env_steps", "updates", "lag_min", "lag_max", "kl")
CURVE_POINTS = 100
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Args:
    """Compare the corrections; see the module's docstring."""

    env_id: str = "CartPole-v1"
    """Any environment that headrace can make."""
    forced_lag: int = 8
    """Updates between the acting weights and the newest ones."""
    seeds: int = 5
    """Number of seeds, from 0."""
    corrections: tuple[Literal["vtrace", "one_step", "epsilon", "none"], ...] = CORRECTIONS
    """Corrections to compare."""
    replay_fractions: tuple[float, ...] = (0.0, 0.5)
    """Replayed fractions of each batch."""
    total_steps: int = 600_000
    """Environment steps of a run."""
    num_envs: int = 32
    """Environments of the single actor."""
    fragment_length: int = 20
    """Steps per environment and update."""
    replay_updates: int = 600
    """Capacity of the replay buffer in updates; a run has about 940."""
    learning_rate: float = 2e-3
    """Initial learning rate of Adam, annealed linearly to 0."""
    gamma: float = 0.98
    """Discount."""
    reward_scale: float = 0.1
    """Factor on training rewards."""
    lam: float = 0.95
    """Lambda of V-trace and of n-step returns."""
    entropy_coef: float = 0.01
    """Coefficient of the entropy bonus."""
    jobs: int = 2
    """Parallel runs, with one thread each."""
    output: Path = Path("runs/benchmarks/corrections")
    """Folder for runs.csv, summary.csv, curves and plots."""


NOT_A_SETTING = ("seeds", "corrections", "replay_fractions", "jobs", "output")
SETTINGS = tuple(f.name for f in dataclasses.fields(Args) if f.name not in NOT_A_SETTING)
COLUMNS = ("correction", "replay_fraction", "seed", *SETTINGS, *RESULTS)


def cases_of(args: Args) -> list[Case]:
    """Return all cases, ordered by seed, so that an interrupted study covers every cell."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    axes = {"correction": args.corrections, "replay_fraction": args.replay_fractions}
    return grid(settings, **axes, seed=range(args.seeds))


def config_of(case: Case) -> Any:
    """Return the settings of a case; its forced lag isn't one of them."""
    import headrace as hr

    names = ("correction", "replay_fraction", "learning_rate", "gamma", "lam", "reward_scale")
    algo = hr.IMPALA(
        replay_capacity=case["replay_updates"] * case["num_envs"],
        epochs=1,
        minibatches=1,
        clip=math.inf,
        lr_schedule="constant",
        **{name: case[name] for name in (*names, "entropy_coef")},
    )
    return hr.Config(
        case["env_id"], algo, num_actors=1, envs_per_actor=case["num_envs"],
        fragment_length=case["fragment_length"], transport="serial", seed=case["seed"],
        total_steps=case["total_steps"], scale_free=False,
    )  # fmt: skip


def train(case: Case) -> dict[str, Any]:
    """Run a case in this process. Return its results, with the learning curve as ``curve``."""
    import torch

    import headrace as hr

    torch.set_num_threads(1)
    config = config_of(case)
    policy, result = train_late(config, case["forced_lag"])
    torch.manual_seed(case["seed"])  # of the sampled actions of the evaluation
    evaluation = hr.evaluate(policy, config.env, 100, deterministic=False)
    return result | {"evaluation_return": evaluation.mean}


def train_late(config: Any, forced_lag: int) -> tuple[Any, dict[str, Any]]:
    """Train with weights that are published ``forced_lag`` updates late.

    The learning rate falls linearly to 0. Return the policy and the results.
    """
    import torch

    import headrace as hr
    from headrace.actors.rollout_source import RolloutSource
    from headrace.envs.names import resolve
    from headrace.learner.batches import gather
    from headrace.learner.learner import Learner
    from headrace.rundir.episodes import Episodes

    env = resolve(config.env)
    with contextlib.closing(hr.make_vec(env, 1)) as envs:
        spaces = envs.single_observation_space, envs.single_action_space
    torch.manual_seed(config.seed)
    policy, episodes = hr.Policy(*spaces, config.network), Episodes()
    learner = Learner(policy, config.algo)
    source = RolloutSource(config.actor_spec(env, copy.deepcopy(policy)), print)
    source.publish(policy, 0, 0)
    past = [copy.deepcopy(policy) for _ in range(forced_lag + 1)]  # by version, modulo
    env_steps, updates, progress, lags, kls, curve = 0, 0, 0.0, set(), [], []
    try:
        while progress < 1:
            taken = source.take(config.rollouts_per_update, lambda: False)
            for _, header, rollout in taken:
                lags.add(updates - header.version)
                env_steps += header.valid_steps
                episodes.add(rollout.episode_return.numpy(), rollout.episode_length.numpy())
            batch, rate = gather([x for *_, x in taken]), config.algo.learning_rate * (1 - progress)
            metrics = learner.update(lambda batch=batch: batch, rate)
            updates += 1
            past[updates % len(past)].load_state_dict(policy.state_dict())
            if updates > forced_lag:
                source.publish(past[(updates + 1) % len(past)], updates - forced_lag, 0)
            source.release([slot for slot, *_ in taken])
            kls.append(metrics["approx_kl"])
            progress = env_steps / config.total_steps
            if progress * CURVE_POINTS > len(curve) and episodes.count:
                curve.append((env_steps, episodes.mean_return))
    finally:
        source.close()
        learner.close()
    return policy, {
        "final_return": episodes.mean_return,
        "mean_return": statistics.fmean(y for _, y in curve),
        "env_steps": env_steps,
        "updates": updates,
        "lag_min": min(lags),
        "lag_max": max(lags),  # the first updates have fewer than forced_lag predecessors
        "kl": statistics.fmean(kls),
        "curve": curve,
    }


def train_apart(case: Case, children: Children, curves: Path) -> dict[str, Any]:
    """Run a case in a separate process. Write its curve to ``curves``, and return its results."""
    result = children.call(train, case, TIMEOUT_S)
    curve_path(case, curves).write_text(json.dumps(result.pop("curve")), encoding="utf-8")
    return result


def curve_path(case: Case, curves: Path) -> Path:
    """Return a name that depends on all settings of a run."""
    digest = hashlib.sha256(json.dumps(dict(case)).encode()).hexdigest()[:12]
    return curves / f"{case['correction']}-{case['replay_fraction']}-{case['seed']}-{digest}.json"


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per correction and replay fraction, with the difference from no correction.

    ``…_z`` is (mean − mean of none) / sqrt(SE² + SE of none²): the difference in standard errors.
    """
    cells: dict[tuple[float, str], dict[str, Any]] = {}
    by_cell = grouped(rows, lambda row: (row["replay_fraction"], row["correction"]))
    for (fraction, correction), own in by_cell.items():
        known = {"replay_fraction": fraction, "correction": correction, "seeds": len(own)}
        kl = statistics.fmean(row["kl"] for row in own)
        cells[fraction, correction] = {**known, **means(own, MEASURES), "kl": kl}
    for (fraction, _), cell in cells.items():
        none = cells.get((fraction, "none"))
        for name in MEASURES:
            cell[f"{name}_z"] = None if none in (None, cell) else distance(cell, none, name)
    return list(cells.values())


def distance(cell: Case, other: Case, name: str) -> float | None:
    """Return the difference in its standard errors; None without an error or a difference."""
    error = math.hypot(cell[f"{name}_se"], other[f"{name}_se"])
    return (cell[name] - other[name]) / error if error > 0 else None


def report(study: Study, cases: list[Case], args: Args, console: Console) -> None:
    """Print the table and the verdict; write plots and summary.csv."""
    summary = summarise(study.done(cases))
    spell_z = lambda z: "" if z is None else f"{z:+.1f}"  # noqa: E731
    show([
        {
            "correction": row["correction"],
            "replay": f"{row['replay_fraction']:g}",
            "seeds": row["seeds"],
            "last 100 episodes": plus_minus(row, "final_return"),
            "vs. none, in SE": spell_z(row["final_return_z"]),
            "evaluation": plus_minus(row, "evaluation_return"),
            "vs. none, in SE ": spell_z(row["evaluation_return_z"]),
            "whole curve": plus_minus(row, "mean_return"),
            "KL": f"{row['kl']:.3f}",
        }
        for row in summary
    ], f"{args.env_id}, lag {args.forced_lag}: return, mean ± standard error", console)  # fmt: skip
    bars = {
        correction: {
            f"replay {row['replay_fraction']:g}": (row["final_return"], row["final_return_se"])
            for row in own
        }
        for correction, own in grouped(summary, lambda row: row["correction"]).items()
    }
    title = f"{args.env_id}, forced lag {args.forced_lag}, {args.seeds} seeds"
    label = "return (last 100 episodes)"
    draw_bars(bars, title, label, args.output / "corrections.png")
    panels: dict[str, dict[str, list[Any]]] = {}
    for case in cases:
        path = curve_path(case, args.output / "curves")
        if path.exists():
            panel = panels.setdefault(f"steps (replay {case['replay_fraction']:g})", {})
            points = json.loads(path.read_text(encoding="utf-8"))
            panel.setdefault(case["correction"], []).append(list(zip(*points, strict=True)))
    draw_curves(panels, title, label, args.output / "curves.png")
    write_csv(args.output / "summary.csv", summary)


def main(args: Args) -> int:
    """Run missing cases, print and write results. Return 1 if runs failed."""
    console = wide_console()
    head(__doc__, ", ".join(f"{name}={getattr(args, name)}" for name in SETTINGS), console)
    study, cases, curves = Study(args.output, COLUMNS), cases_of(args), args.output / "curves"
    curves.mkdir(exist_ok=True)
    study.run(cases, lambda *case: train_apart(*case, curves), console, args.jobs)
    if study.done(cases):
        report(study, cases, args, console)
        console.print(f"results: {args.output}/runs.csv, summary.csv, corrections.png, curves.png")
    return study.status(console, "correction", "replay_fraction", "seed")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))

"""Learning curves on Atari: headrace's recipe vs. single-file PPO with envpool.

    python benchmarks/atari.py                                   # Pong, three seeds and one
    python benchmarks/atari.py --game Breakout --target 1000
    python benchmarks/atari.py --programs "headrace bfloat16,headrace float32" --steps 500_000

headrace runs ``headrace train appo --recipe atari`` with IMPALA's shallow network. The other
program is atari_ppo.py, with the settings that CleanRL publishes for Atari and the network of Mnih
et al. (2015). Programs use all cores, one program at a time. A run stops half a point above the
target (mean score of the last 100 training games), or at its limit of steps or seconds. Wall-clock
time starts with the process. CPU time is measured too, because other programs on the machine
affect it less. Finally, each policy plays 100 games with sampled actions.

A run is saved as ``OUTPUT/GAME/PROGRAM/SEED.json`` and not repeated. It is rejected if it was made
with other settings. For games with lives, headrace's curve shows evaluations during training.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atari_ppo
import numpy as np
import tyro
from common import keep, kept, train_command
from learning_report import markdown
from processor import Processor
from rich.console import Console

from headrace.errors import ConfigError, require, require_choice
from headrace.processes import num_cores
from headrace.rundir.curves import read_run
from headrace.studies.children import Children
from headrace.studies.machine import machine, show, wide_console
from headrace.studies.plotting import curves, picture

PEER = "CleanRL-style"
PROGRAMS = ("headrace", "headrace bfloat16", "headrace float32", PEER)
CLOSING_S = 900.0  # for an evaluation and a checkpoint
PATIENCE_S = 3600.0  # per actor, because other programs may use the machine
LOOK_S = 2.0  # seconds between measurements of CPU time
WITHOUT_LIVES = ("Pong", "Boxing", "Freeway", "Tennis", "Skiing", "Bowling", "Enduro")
NUM_EVALUATIONS = 20  # evaluation during training, for games with lives


@dataclass(frozen=True)
class Args:
    """Measure learning on a game; see the module's docstring."""

    game: str = "Pong"
    programs: str = "headrace,CleanRL-style"
    """Comma-separated: headrace, headrace bfloat16, headrace float32, CleanRL-style."""
    seeds: int = 3
    peer_seeds: int = 1
    """Number of seeds of the slower single-file program (the first ones)."""
    first_seed: int = 1
    steps: int = 2_000_000
    """Environment steps over which the learning rate falls to 0."""
    peer_steps: int = 3_000_000
    """Steps of the single-file program, over which its learning rate falls to 0."""
    seconds: float = 7200.0
    target: float = 18.5
    """Target mean score of the last 100 training games."""
    beyond: float = 0.5
    """Score above the target at which a run stops, as the evaluation may be a point lower."""
    episodes: int = 100
    """Episodes of the evaluation."""
    output: Path = Path("runs/atari")

    def __post_init__(self) -> None:
        for name in self.programs.split(","):
            require_choice("programs", name, PROGRAMS)
        for name in ("seeds", "peer_seeds", "steps", "peer_steps", "episodes"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        require(self.beyond >= 0, "beyond", self.beyond, "0 or more (nearest: 0)")


def run_headrace(program: str, seed: int, args: Args, children: Children) -> dict[str, Any]:
    """Run ``headrace train`` in a temporary folder."""
    lives, processor = args.game not in WITHOUT_LIVES, Processor(LOOK_S)
    flags: dict[str, Any] = {"recipe": "atari", "env_id": args.game, "seed": seed}
    flags |= {"total_steps": args.steps, "eval_episodes": args.episodes}
    flags["actor_timeout_s"] = PATIENCE_S
    flags["log_interval_s"] = max(1.0, args.seconds / 1000)
    if program != "headrace":
        flags["precision"] = program.removeprefix("headrace ")
    if lives:
        flags |= {"eval_interval": max(1, args.steps // NUM_EVALUATIONS)}
    else:
        flags["stop_return"] = args.target + args.beyond
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train_command("appo", run_dir, args.seconds, children, CLOSING_S, processor, **flags)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        settings = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        curve = learning_curve(run_dir, lives)
        if (why := summary.get("no_evaluation", "interrupted")) != "interrupted":
            raise RuntimeError(f"seed {seed} was not evaluated: {why}")
        evaluation = summary.get("evaluation") or evaluated(run_dir, args.episodes, children)
    known = {"env_steps": summary["env_steps"], "evaluation": evaluation}
    return {"curve": curve, **known, "processor": processor.points, "settings": settings}


def evaluated(run_dir: Path, episodes: int, children: Children) -> dict[str, Any]:
    """Evaluate a run that stopped at its time limit before its evaluation."""
    command = [f"{sysconfig.get_path('scripts')}/headrace", "evaluate", str(run_dir), "--json"]
    output = run_dir.with_name("evaluation.log")
    ended = children.run([*command, "--episodes", str(episodes)], output, CLOSING_S)
    if ended.code:
        raise ended.error("headrace evaluate")
    return json.loads(output.read_text(encoding="utf-8").splitlines()[-1])  # type: ignore[no-any-return]


def learning_curve(run_dir: Path, lives: bool) -> list[tuple[float, int, float]]:
    """Return seconds, steps and scores of whole games, in training or (with lives) evaluations."""
    run, score = read_run(run_dir), "return_mean" if lives else "charts/episodic_return"
    seconds, steps = (run.curve(x, score, lives) for x in ("seconds", "env_steps"))
    return list(zip(seconds[0], *steps, strict=True))


def run_peer(seed: int, args: Args, children: Children) -> dict[str, Any]:
    """Run the single-file program in a separate process."""
    request = {name: getattr(args, name) for name in ("game", "seconds", "episodes")}
    request |= {"seed": seed, "steps": args.peer_steps, "target": args.target + args.beyond}
    request |= {"threads": num_cores(), "interval_s": 1.0, "started": time.monotonic()}
    processor, limit_s = Processor(LOOK_S), args.seconds + CLOSING_S
    run = children.call(atari_ppo.train, request, limit_s, watch=processor)
    return {**run, "processor": processor.points}


def to_target(run: dict[str, Any], target: float) -> tuple[bool, float, float]:
    """Return whether a run reached the target, and its wall-clock and CPU seconds until then.

    If it did not, the seconds are those of the whole training.
    """
    reached = [seconds for seconds, _, score in run["curve"] if score >= target]
    seconds = reached[0] if reached else run["curve"][-1][0]
    known = zip(*run["processor"], strict=True)
    return bool(reached), seconds, float(np.interp(seconds, *known))


def row(program: str, runs: list[dict[str, Any]], target: float) -> dict[str, str]:
    """Return the cells of a program in the table, with every seed."""

    reached, seconds, processors = zip(*[to_target(run, target) for run in runs], strict=True)
    known = [True] * len(runs)

    def each(values: Sequence[float], form: str, reached: Sequence[bool]) -> str:
        signs = ["" if known else "> " for known in reached]
        told = "; ".join(f"{s}{value:{form}}" for s, value in zip(signs, values, strict=True))
        return f"{max(signs)}{statistics.median(values):{form}} ({told})"

    return {
        "": program,
        "evaluated": each([run["evaluation"]["mean"] for run in runs], ".1f", known),
        f"seconds to {target:g}": each(seconds, ",.0f", reached),
        "CPU seconds": each(processors, ",.0f", reached),
        "steps": each([run["env_steps"] for run in runs], ",.0f", known),
        "steps/s": each([run["env_steps"] / run["curve"][-1][0] for run in runs], ",.0f", known),
    }


def compared(ours: dict[str, Any], theirs: dict[str, Any], target: float) -> str:
    """Return a run's time to the target relative to another run, which may have missed it."""
    (reached, *mine), (known, *other) = to_target(ours, target), to_target(theirs, target)
    if not reached:
        return f"the first seed did not reach {target:g}"
    sign = "" if known else "less than "
    wall, work = (x / y for x, y in zip(mine, other, strict=True))
    return (f"to {target:g} the first seed takes {sign}{wall:.2f} of the other program's seconds, "
            f"{sign}{work:.2f} of its CPU time")  # fmt: skip


def report(found: dict[str, list[dict[str, Any]]], args: Args, console: Console) -> None:
    """Write the table as text and Markdown, and the plot."""
    title = f"{args.game}, {args.seeds} seeds, on {machine()}"
    rows = [row(name, runs, args.target) for name, runs in found.items()]
    show(rows, title, console)
    first = next(iter(found))
    if found.get(PEER) and first != PEER:
        console.print(f"{first}: {compared(found[first][0], found[PEER][0], args.target)}")
    (args.output / f"{args.game}.md").write_text(f"{title}\n\n{markdown(rows)}\n", encoding="utf-8")
    path = args.output / f"{args.game}.png"
    with picture(path, title, (9.0, 4.0), ncols=2, sharey=True) as (_, panels):
        for panel, axis, label in zip(panels, (0, 1), ("minutes", "steps"), strict=True):
            scale = 1 / 60 if axis == 0 else 1
            drawn = {
                name: [([p[axis] * scale for p in r["curve"]], [p[2] for p in r["curve"]])
                       for r in runs]
                for name, runs in found.items()
            }  # fmt: skip
            curves(panel, drawn, runs=True)
            panel.set_xlabel(label)
        lives = args.game not in WITHOUT_LIVES
        panels[0].set_ylabel("score of evaluated games" if lives else "score of training games")
        panels[0].legend()
    console.print(f"results: {args.output}/{args.game}.md and .png")


def main(args: Args) -> int:
    """Run missing cases and report."""
    console, children = wide_console(), Children()
    programs = args.programs.split(",")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in programs}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    folder = args.output / args.game
    paths = {
        (seed, program): folder / program.replace(" ", "-") / f"{seed}.json"
        for seed, program in itertools.product(seeds, programs)
        if program != PEER or seed < args.first_seed + args.peer_seeds
    }
    there = {key: kept(path, args) for key, path in paths.items()}  # or no seed
    for (seed, program), last in there.items():
        if last is None:
            if program == PEER:
                run = run_peer(seed, args, children)
            else:
                run = run_headrace(program, seed, args, children)
            last = keep(paths[seed, program], args, run)
        found[program].append(last)
        console.print(f"{program}, seed {seed}: evaluated {last['evaluation']['mean']:.1f} after "
                      f"{last['env_steps']:,} steps and {last['curve'][-1][0]:,.0f} s")  # fmt: skip
    report(found, args, console)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args)))
    except ConfigError as error:
        sys.exit(f"atari.py: {error}")

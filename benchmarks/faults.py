"""Injects faults into every phase of short runs, and checks that they end cleanly and resume.

Each trial draws a backend, a phase and a fault, runs a short training with it, and then resumes
the run. The same seed and number draw the same trial. A trial fails if a command hangs, prints a
traceback, fails without a message, leaves processes, memory or files behind, loses more
steps than the checkpoint interval allows, or can't be resumed.

    python benchmarks/faults.py                       an hour; needs Linux
    python benchmarks/faults.py --minutes 3 --backends serial shm
    python benchmarks/faults.py --seed 7 --trial 31   repeat one trial

Results are in ``faults.jsonl``; a second call continues after the last trial of its seed.
"""

from __future__ import annotations

import errno
import json
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import tyro
from faults_checks import Fault
from faults_run import run_trial

BACKENDS = ("serial", "shm", "learners", "ray", "ray_learners", "cluster_env")
PHASES = {  # the file whose opening marks the phase, and which openings of it
    "start": ("config.json", (1,)),
    "first update": ("metrics.jsonl", (1,)),
    "training": ("metrics.jsonl", (1,)),  # a little later
    "checkpoint": ("policy.safetensors", (1, 2)),
    "rest of a checkpoint": ("trainer.pt", (1, 2)),
    "evaluation": ("evaluations.jsonl", (1,)),
    "end": ("summary.json", (1,)),
    "plot": ("curve.png", (1,)),
    "report": ("report.html", (1,)),
}
OUTSIDE = {  # faults from outside: the process and the signal
    "kill the command": ("command", signal.SIGKILL),
    "interrupt the command": ("command", signal.SIGINT),
    "interrupt the group": ("group", signal.SIGINT),
    "terminate the command": ("command", signal.SIGTERM),
    "hang up": ("command", signal.SIGHUP),
    "stop the command": ("command", signal.SIGSTOP),
    "kill a child": ("child", signal.SIGKILL),
    "terminate a child": ("child", signal.SIGTERM),
    "stop a child": ("child", signal.SIGSTOP),
}
INSIDE = {  # faults inside the process that opens the file: action and value
    "no space": ("error", errno.ENOSPC),
    "input/output error": ("error", errno.EIO),
    "read-only": ("error", errno.EROFS),
    "too many files": ("error", errno.EMFILE),
    "full disk": ("full", 0.5),
    "slow disk": ("delay", 0.3),
    "clock back": ("clock", -7200.0),
    "clock forward": ("clock", 86400.0),
}


@dataclass(frozen=True)
class Args:
    minutes: float = 60.0
    """Minutes after which no further trial starts."""
    seed: int = 0
    """Random seed of the trials."""
    trial: int | None = None
    """Repeat only this trial, and print its output."""
    backends: tuple[str, ...] = BACKENDS
    """Backends to draw from."""
    names: tuple[str, ...] = (*OUTSIDE, *INSIDE)
    """Faults to draw from."""
    output: Path = Path("results/faults")
    """Folder of faults.jsonl."""


def drawn(
    seed: int,
    number: int,
    backends: tuple[str, ...],
    names: tuple[str, ...] = (*OUTSIDE, *INSIDE),
) -> Fault:
    """Return the fault of a trial."""
    rng = random.Random(f"{seed} {number}")
    backend = backends[number % len(backends)]
    phases = list(PHASES)[:3] if backend == "cluster_env" else list(PHASES)
    if not set(names) & set(OUTSIDE) and backend != "cluster_env":
        phases.remove("start")  # may have no file, in which faults happen
    phase = rng.choice(phases)
    file, numbers = PHASES[phase]
    late = rng.uniform(0.2, 1.5) if phase == "training" else rng.choice((0.0, 0.0, 0.05))
    if phase == "start" and rng.random() < 0.5:
        file, late = "", rng.uniform(0.0, 2.5)  # before there is any file
    kinds = {**OUTSIDE} if not file or backend == "cluster_env" else {**OUTSIDE, **INSIDE}
    wanted = [one for one in kinds if one in names]
    if not wanted:
        raise SystemExit(f"none of {', '.join(names)} happens with backend {backend}")
    name = rng.choice(wanted)
    what, value = kinds[name]
    return Fault(backend, phase, name, file, rng.choice(numbers), late, what, value)


def main(args: Args) -> int:
    """Run trials; returns 0 if none failed."""
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "faults.jsonl"
    if args.trial is not None:
        return int(bool(trial(args, args.trial, None)))
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [one for one in done if one["seed"] == args.seed]
    number = max((one["trial"] for one in done), default=-1) + 1
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        trial(args, number, path)
        number += 1
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [one for one in rows if one["seed"] == args.seed]
    failed = [one for one in rows if one["faults"]]
    print(f"{len(rows)} trials: {dict(Counter(one['backend'] for one in rows))}")
    print(f"{sum(one['happened'] for one in rows)} faults happened; {len(failed)} trials failed")
    for one in failed:
        again = f"--seed {args.seed} --trial {one['trial']} --backends {' '.join(args.backends)}"
        if args.names != Args.names:
            again += f" --names {' '.join(map(repr, args.names))}"
        print(f"  {again}: {one['what']}: {one['faults']}")
    return int(bool(failed))


def trial(args: Args, number: int, path: Path | None) -> list[str]:
    """Run one trial and record it; return a list of problems."""
    fault = drawn(args.seed, number, args.backends, args.names)
    with tempfile.TemporaryDirectory() as folder:
        result = run_trial(fault, Path(folder), seed=number)
        if path is None or result.faults:
            print("\n".join(f"    {line}" for line in result.output.splitlines()[-60:]))
    what = f"{fault.backend}: {fault.name} at {fault.phase}"
    said = "; ".join(result.faults) or "ok"
    print(f"{number:4d} {what}{'' if result.happened else ' (never)'}: {said}", flush=True)
    if path is not None:
        row = {"seed": args.seed, "trial": number, "backend": fault.backend, "what": what}
        row |= {"happened": result.happened, "statuses": result.statuses, "faults": result.faults}
        row["counts"] = result.counts
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return result.faults


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))

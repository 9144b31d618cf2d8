"""Stress test: does a run survive faults, and does it count its steps correctly?

Two learners train APPO on CartPole with ``headrace train``, in a run directory on a small separate
disk. Every few seconds an actor, learner, evaluator or fork server is killed or stopped. Sometimes
the disk is full for a while, or the command itself is killed and its run resumed. Finally, the
run is left undisturbed for some steps, and must have solved the task.

    python benchmarks/chaos.py                     20 minutes; needs Linux, and root for the disk
    python benchmarks/chaos.py --minutes 3 --kills 2 --fulls 1

Environments count their steps in files that survive kills. The number of steps trained on can only
be smaller, by rollouts in progress or queued when a process died, and by steps trained on while
the disk was full, because a result that couldn't be written may be lost with its learners.
``chaos.json`` has all events, and the counts of each life of the command.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from chaos_run import Chaos, Life, env_steps, live, small_disk

from headrace.rundir.config_file import from_json

SETTINGS = {
    "env_id": "chaos_env:CountedCartPole",
    "engine": "sync",
    "num_learners": 2,
    "num_actors": 2,
    "envs_per_actor": 8,
    "fragment_length": 32,
    "total_steps": 10**9,
    "checkpoint_interval": 5_000,
    "eval_interval": 20_000,
    "actor_timeout_s": 10,
    "learner_timeout_s": 20,
    "max_restarts": 100_000,
    "log_interval_s": 0.05,
}


@dataclass(frozen=True)
class Args:
    minutes: float = 20.0
    """Minutes with faults."""
    every: float = 5.0
    """Seconds between faults of processes."""
    kills: int = 10
    """Number of times the command is killed and its run resumed."""
    fulls: int = 2
    """Number of times the disk is full, for 20 s in the middle of a life."""
    last_steps: int = 300_000
    """Undisturbed environment steps at the end."""
    target: float = 475.0
    """Mean return of the last evaluation that counts as solved."""
    seed: int = 0
    """Random seed of the faults and of the run."""
    output: Path = Path("results/chaos")
    """Folder for chaos.json and the command's output."""


def main(args: Args) -> int:
    """Run the stress test. Return 0 if all checks pass."""
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "output.txt").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("temporary", "counts")]
        for place in places:
            place.mkdir()
        with small_disk(Path(folder) / "disk") as disk:
            chaos = Chaos(args.output, disk, *places, rng=random.Random(args.seed))
            return report(args, chaos, lives(args, chaos))


def lives(args: Args, chaos: Chaos) -> list[Life]:
    """Run all lives of the command: those that end by a kill, and the last one."""
    length_s = 60 * args.minutes / (args.kills + 1)
    full_lives = [int((i + 0.5) * (args.kills + 1) / args.fulls) for i in range(args.fulls)]
    fulls = [chaos.begun + (life + 0.5) * length_s for life in full_lives]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    flags += [f"--run-dir={chaos.run_dir}", f"--seed={args.seed}"]
    chaos.start(0, "train", "appo", *flags)
    found = []
    for number in range(args.kills + 1):
        end = chaos.begun + (number + 1) * length_s
        found.append(live(chaos, number, end, args.every, fulls, kill=True))
        chaos.say(f"life {number}: {found[-1]}")
        chaos.start(number + 1, "resume", str(chaos.run_dir), *_last(args, chaos, number))
    found.append(live(chaos, args.kills + 1, 0.0, args.every, [], kill=False))
    chaos.say(f"life {args.kills + 1}: {found[-1]}")
    return found


def _last(args: Args, chaos: Chaos, number: int) -> list[str]:
    """Return the flags of the next life."""
    if number < args.kills:
        return []
    return [f"--total-steps={env_steps(chaos.run_dir) + args.last_steps}"]


def slope_within_lives(memory: list[tuple[int, float, float]]) -> float:
    """Return the growth in MiB per minute: median over pairs within a life (Theil and Sen)."""
    pairs = [(one, other) for one in memory for other in memory if one[0] == other[0]]
    slopes = [(y[2] - x[2]) / (y[1] - x[1]) for x, y in pairs if y[1] > x[1]]
    return 60 * float(np.median(slopes))


def report(args: Args, chaos: Chaos, found: list[Life]) -> int:
    """Print and write the results."""
    config = from_json(json.loads((chaos.run_dir / "config.json").read_text())["config"])
    share = config.per_learner
    fragment = share.rollout_steps
    in_flight = config.num_learners * share.num_credits * fragment + config.resolved_batch_size
    summary = json.loads((chaos.run_dir / "summary.json").read_text())
    harmed = Counter(e["what"].rpartition(" ")[0] for e in chaos.events if e["what"].count(" ") < 4)
    counted_all, trained = sum(x.counted for x in found), sum(x.trained for x in found)
    ends = sum(1 + one.group_restarts for one in found)
    actors = sum(e["what"].startswith(("killed actor", "stopped actor")) for e in chaos.events)
    unseen = sum(x.while_full for x in found)
    may_be_lost = ends * in_flight + actors * fragment + unseen
    memory = np.array([mib for _, _, mib in chaos.memory])
    slope = slope_within_lives(chaos.memory)
    mean = summary.get("evaluation", {}).get("mean")
    left = [one.end for one in found if "left behind" in one.end]
    print(f"faults: {dict(harmed)}")
    print(f"steps counted by environments: {counted_all:,}; trained on: {trained:,}")
    print(
        f"not trained on: {counted_all - trained:,}; possible losses: {may_be_lost:,}, "
        f"of which while the disk was full: {unseen:,}"
    )
    print(f"memory: median {np.median(memory):.0f} MiB, slope within lives {slope:+.2f} MiB/min")
    print(f"last evaluation: {mean} (target {args.target:g}); left behind: {left or 'nothing'}")
    exact = 0 <= counted_all - trained <= may_be_lost
    good = exact and not left and mean is not None and mean >= args.target
    values = {
        "lives": [vars(one) for one in found],
        "harmed": dict(harmed),
        "counted": counted_all,
        "trained": trained,
        "may_be_lost": may_be_lost,
        "of_that_while_full": unseen,
        "memory_mib": float(np.median(memory)),
        "memory_slope_mib_per_minute": slope,
        "memory": chaos.memory,
        "evaluation": mean,
        "good": good,
        "events": chaos.events,
    }
    path = args.output / "chaos.json"
    path.write_text(json.dumps(values, indent=2) + "\n")
    print(f"{'all checks passed' if good else 'checks FAILED'}; {path}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))

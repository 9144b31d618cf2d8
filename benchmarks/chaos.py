"""Does a run survive whatever is done to it, and does it count right what it did?

Two learners train APPO on CartPole by the real command, in a directory on a small disk of its own.
Every few seconds an actor, a learner, an evaluator or a fork server is killed or stopped; now and
then the disk is full for a while, and the command itself is killed and its run resumed. In the end
it is left alone for some steps, and must have solved the task.

    python benchmarks/chaos.py                     20 minutes; needs Linux, and root for its disk
    python benchmarks/chaos.py --minutes 3 --kills 2 --fulls 1

Environments count their own steps in files that no kill can lose. What is trained on can only be
less: by the rollouts that were begun or waiting when a process died, and by what was trained on
while the disk was full, where a result that couldn't be written may have ended with its learners.
``chaos.json`` has all events, and for each life of the command what was counted and trained on.
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
    """How long things are done to it."""
    every: float = 5.0
    """Seconds between kills and stops of its processes."""
    kills: int = 10
    """How often the command is killed, and its run resumed."""
    fulls: int = 2
    """How often its disk is full, for 20 s in the middle of a life."""
    last_steps: int = 300_000
    """Environment steps at the end in which nothing is done to it."""
    target: float = 475.0
    """Mean return of the last evaluation that counts as solved."""
    seed: int = 0
    """Of what is done when; the run's seed as well."""
    output: Path = Path("results/chaos")
    """Folder for chaos.json and the command's output."""


def main(args: Args) -> int:
    """Do all of it; 0 where everything held."""
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
    """All lives of the command: those that end by a kill, and the last one."""
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
    """Flags of the life after this one."""
    if number < args.kills:
        return []
    return [f"--total-steps={env_steps(chaos.run_dir) + args.last_steps}"]


def slope_within_lives(memory: list[tuple[int, float, float]]) -> float:
    """MiB a minute: the median over all pairs of looks at the same life (Theil and Sen)."""
    pairs = [(one, other) for one in memory for other in memory if one[0] == other[0]]
    slopes = [(y[2] - x[2]) / (y[1] - x[1]) for x, y in pairs if y[1] > x[1]]
    return 60 * float(np.median(slopes))


def report(args: Args, chaos: Chaos, found: list[Life]) -> int:
    """Print and write what came of it."""
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
    print(f"done to it: {dict(harmed)}")
    print(f"steps that environments counted: {counted_all:,}; trained on: {trained:,}")
    print(
        f"not trained on: {counted_all - trained:,}; may have been lost: {may_be_lost:,}, "
        f"of that while the disk was full: {unseen:,}"
    )
    print(
        f"memory: median {np.median(memory):.0f} MiB, slope within lives {slope:+.2f} MiB a minute"
    )
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
    print(f"{'all held' if good else 'NOT all held'}; {path}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))

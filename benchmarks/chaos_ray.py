"""Stress test on Ray: does a run survive faults, and does it count its steps correctly?

Two learners and their actors train APPO on CartPole on four hosts (network namespaces,
``tests/launch/hosts.sh``). Every few seconds an actor, a learner or a whole host is killed. Hosts
come back some seconds later. Finally, the run is left undisturbed for some steps, and must have
solved the task.

    python benchmarks/chaos_ray.py                 5 minutes; needs Linux, root, iproute2 and Ray
    python benchmarks/chaos_ray.py --minutes 2

Memory is measured for the command and for the server of Ray's head, which are never killed.

Environments count their steps in files that survive kills. The number of steps trained on can only
be smaller, by rollouts that results count as lost, and by rollouts in progress or queued when the
learners restarted or the run ended. ``chaos.json`` has all events.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tyro
from chaos_env import FOLDER, counted
from chaos_run import MARK, Chaos, Life, last_result
from hosts import HEAD, Network, check_possible, variables

import headrace as hr
from headrace.errors import ConfigError
from headrace.rundir.config_file import from_json
from headrace.rundir.files import read_jsonl

WORKERS, CORES = (2, 3, 4), 2  # hosts other than the head's, and the resources of each
AWAY_S = 4.0  # seconds until a host comes back
KINDS = {"actor": 5, "learner": 2, "node": 3}
NAMES = {"actor": "ray::HeadraceAct", "learner": "ray::HeadraceLea"}
SETTINGS = {
    "env_id": "chaos_env:CountedCartPole", "engine": "sync", "num_learners": 2, "num_actors": 4,
    "envs_per_actor": 8, "fragment_length": 32, "batch_size": 2048, "total_steps": 10**9,
    "checkpoint_interval": 5_000, "learner_timeout_s": 30, "actor_timeout_s": 120,
    "max_restarts": 100_000, "log_interval_s": 0.05, "cluster": f"ray:{HEAD}",
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    minutes: float = 5.0
    """Minutes with faults."""
    every: float = 10.0
    """Seconds between kills."""
    last_steps: int = 100_000
    """Undisturbed environment steps at the end."""
    target: float = 475.0
    """Mean return of 20 episodes at the end that counts as solved."""
    seed: int = 0
    """Random seed of the faults and of the run."""
    output: Path = Path("results/chaos_ray")
    """Folder for chaos.json and the output of the hosts."""


def started(args: Args, chaos: Chaos, network: Network) -> None:
    """Start Ray's head and the command, and let the other hosts join."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    flags += [f"--run-dir={chaos.run_dir}", f"--seed={args.seed}"]
    train = [sys.executable, "-m", "headrace", "train", "appo", *flags]
    chaos.command = network.run(1, *network.with_head(0), *train)
    for host in WORKERS:
        network.join(host, CORES)


def processes(chaos: Chaos) -> dict[str, list[psutil.Process]]:
    """Return the live actors and learners."""
    found: dict[str, list[psutil.Process]] = {kind: [] for kind in NAMES}
    for one in chaos.family():
        with contextlib.suppress(psutil.Error):
            for kind, name in NAMES.items():
                if one.name().startswith(name):
                    found[kind].append(one)
    return found


def harm(chaos: Chaos, network: Network, back: dict[int, float]) -> None:
    """Kill an actor, a learner or a host. ``back``: times at which hosts come back."""
    found = processes(chaos)
    kinds = [kind for kind in KINDS if kind == "node" or found[kind]]
    kind = chaos.rng.choices(kinds, [KINDS[k] for k in kinds])[0]
    if kind == "node":
        host = chaos.rng.choice([host for host in WORKERS if host not in back])
        network.do("kill", str(host))
        back[host] = time.monotonic() + AWAY_S
        chaos.say(f"killed node host{host}")
        return
    one = chaos.rng.choice(found[kind])
    with contextlib.suppress(psutil.Error):
        one.kill()
        chaos.say(f"killed {kind} {one.pid}")


def live(args: Args, chaos: Chaos, network: Network) -> Life:
    """Disturb the run for the given time, then let it finish."""
    life, back, num_looks = Life(0), dict[int, float](), 0
    assert chaos.command is not None
    while not last_result(chaos.run_dir):
        assert chaos.command.poll() is None, "the run never started"
        time.sleep(0.1)
    begun, next_harm, leave_at = time.monotonic(), time.monotonic() + args.every, None
    while chaos.command.poll() is None:
        time.sleep(0.02)
        now = time.monotonic()
        life.note(last_result(chaos.run_dir))
        for host in [host for host, at in back.items() if at < now]:
            del back[host]
            network.join(host, CORES)
        if now - begun < 60 * args.minutes:
            if now >= next_harm:
                next_harm += args.every
                harm(chaos, network, back)
        elif leave_at is None and not back:
            leave_at = life.seen + args.last_steps
            chaos.say(f"undisturbed until step {leave_at:,}")
        elif leave_at is not None and life.seen >= leave_at:
            chaos.say("asked to stop")
            chaos.command.send_signal(signal.SIGTERM)
            leave_at = 10**12
        if now - begun > 15 * (num_looks + 1):
            num_looks += 1
            look(chaos)
    life.note(last_result(chaos.run_dir))
    life.end = f"exit code {chaos.command.wait()}"
    return life


def look(chaos: Chaos) -> None:
    """Record the memory of the processes that live all the time: the command and Ray's head."""
    assert chaos.command is not None
    pss = psutil.Process(chaos.command.pid).memory_full_info().pss
    for one in chaos.family():
        with contextlib.suppress(psutil.Error):
            if one.name() == "gcs_server":
                pss += one.memory_full_info().pss
    chaos.memory.append((0, time.monotonic() - chaos.begun, pss / 2**20))


def slope(memory: list[tuple[int, float, float]]) -> float:
    """Return the growth in MiB per minute: median over all pairs (Theil and Sen)."""
    pairs = [(a, b) for a in memory for b in memory if b[1] > a[1]]
    return 60 * float(np.median([(b[2] - a[2]) / (b[1] - a[1]) for a, b in pairs]))


def lost_in_all(counts: list[int]) -> int:
    """Return counts of rollouts from results. A restart continues the count of its checkpoint."""
    return counts[0] + sum(max(0, b - a) for a, b in itertools.pairwise(counts))


def report(args: Args, chaos: Chaos, life: Life, left: list[str]) -> int:
    """Print and write the results."""
    config = from_json(json.loads((chaos.run_dir / "config.json").read_text())["config"])
    restarts = (args.output / "host1.txt").read_text().count("restarting all learners")
    share, lines = config.per_learner, read_jsonl(chaos.run_dir / "metrics.jsonl")
    in_flight = 2 * share.num_credits * share.rollout_steps + config.resolved_batch_size
    harmed = Counter(event["what"].split()[1] for event in chaos.events if "kill" in event["what"])
    all_lost = lost_in_all([int(line["queue/lost"]) for line in lines])
    life.counted = counted(chaos.counts)
    may_be_lost = (1 + restarts) * in_flight + all_lost * share.rollout_steps
    mean = hr.evaluate(hr.load(chaos.run_dir), "CartPole-v1", 20).mean
    good = 0 <= life.counted - life.trained <= may_be_lost and not left and mean >= args.target
    values: dict[str, Any] = {
        "harmed": dict(harmed), "counted": life.counted, "trained": life.trained,
        "may_be_lost": may_be_lost, "lost_rollouts": all_lost,
        "restarts_of_learners": restarts, "memory_slope_mib_per_minute": slope(chaos.memory),
        "memory_mib": float(np.median([mib for _, _, mib in chaos.memory])),
        "evaluation": mean, "left": left, "end": life.end, "good": good,
    }  # fmt: skip
    for name, value in values.items():
        print(f"{name}: {value}")
    values |= {"memory": chaos.memory, "events": chaos.events}
    (args.output / "chaos.json").write_text(json.dumps(values, indent=2) + "\n")
    return 0 if good else 1


def main(args: Args) -> int:
    """Run the stress test. Return 0 if all checks pass."""
    check_possible("this benchmark")
    args.output.mkdir(parents=True, exist_ok=True)
    for file in args.output.glob("host*.txt"):
        file.unlink()
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        counts.mkdir()
        env = os.environ | variables() | {FOLDER: str(counts), MARK: str(os.getpid())}
        chaos = Chaos(args.output, Path(folder), Path(folder), counts, random.Random(args.seed))
        network = Network(args.output.resolve(), env)
        with network.up(4):
            started(args, chaos, network)
            life = live(args, chaos, network)
            time.sleep(5.0)
            left = [f"{p.pid} {p.name()}" for some in processes(chaos).values() for p in some]
        return report(args, chaos, life, left)


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args)))
    except ConfigError as error:
        sys.exit(f"{Path(__file__).name}: {error}")

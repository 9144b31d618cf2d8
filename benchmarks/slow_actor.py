"""Effect of one slow environment on the other actors.

Four actors step environments that wait 1 ms per step. In the second run, the environments of one
actor wait 10 times as long. The rate of the *other three* is compared. Two rollouts of each actor
may be in flight, so that actors don't wait for anything else.

    python benchmarks/slow_actor.py
"""

from __future__ import annotations

import collections
import statistics
import tempfile
import time
from pathlib import Path

from waiting import Waiting

import headrace as hr
from headrace.actors.rollout_source import RolloutSource

NUM_ACTORS, SECONDS, REPEATS, STEP_S = 4, 6.0, 3, 0.001


def rollouts_per_second(claim: str) -> list[float]:
    """Return the rate of each actor, slowest first.

    Args:
        claim: a path; the actor whose environment creates it is slow. Empty: none is slow.
    """
    config = hr.Config(
        Waiting, hr.APPO(max_lag=2 * NUM_ACTORS - 1), num_actors=NUM_ACTORS, envs_per_actor=1,
        fragment_length=32, batch_size=32, inference="actor",
    )  # fmt: skip
    policy = hr.Policy(Waiting.observation_space, Waiting.action_space)
    environment = lambda: Waiting(STEP_S, claim)  # noqa: E731
    source = RolloutSource(config.actor_spec(environment, policy), print)
    source.publish(policy, 0, 0)
    counts: collections.Counter[int] = collections.Counter()
    try:
        _count(source, collections.Counter(), 2.0)  # every actor has started
        _count(source, counts, SECONDS)
    finally:
        source.close()
    return sorted(counts[actor] / SECONDS for actor in range(NUM_ACTORS))


def _count(source: RolloutSource, counts: collections.Counter[int], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for slot, header, _ in source.take(1, lambda: False):
            counts[header.actor] += 1
            source.release([slot])


def main() -> None:
    """Print the rates and their ratio, pair by pair."""
    ratios = []
    for repeat in range(REPEATS):
        even = rollouts_per_second("")
        with tempfile.TemporaryDirectory() as folder:
            uneven = rollouts_per_second(str(Path(folder) / "claim"))
        ratios.append(statistics.mean(uneven[1:]) / statistics.mean(even))
        print(
            f"repeat {repeat}: all equal {[f'{r:.1f}' for r in even]} rollouts/s, "
            f"one slow {[f'{r:.1f}' for r in uneven]}; rate of the others × {ratios[-1]:.3f}"
        )
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()

"""Steps a ClusterEnv for some seconds or more, for the trials of faults.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import headrace as hr

SECONDS = 4.0
FEWEST_STEPS = 480  # also on a busy machine, so that every fault has its time


def main(run_dir: Path) -> None:
    """Take random actions, and write the number of steps to the files that a run would write."""
    run_dir.mkdir(exist_ok=True)
    config = {"env_name": "CartPole-v1", "envs_per_node": 8}
    with hr.ClusterEnv(config, hr.LocalConfig(nodes=2, timeout_s=20)) as envs:
        envs.reset(seed=0)
        end, steps = time.monotonic() + SECONDS, 0
        while time.monotonic() < end or steps < FEWEST_STEPS:
            envs.step(envs.action_space.sample())
            steps += envs.num_envs
            (run_dir / "metrics.jsonl").write_text(f'{{"env_steps": {steps}}}\n')
    (run_dir / "summary.json").write_text(f'{{"env_steps": {steps}}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))

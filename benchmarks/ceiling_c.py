"""Compiles and runs ceiling.c, which trains PPO on CartPole-v1 in plain C."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("ceiling.c")
FLAGS = ("-O3", "-march=native", "-ffast-math")


def compiler() -> str | None:
    """Return the system's C compiler: $CC, or the first of cc, gcc and clang that exists."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in names if (path := shutil.which(name))), None)


def build(folder: Path) -> Path:
    """Compile the program for this processor and return its path."""
    program, cc = folder / "ceiling", compiler()
    assert cc is not None
    subprocess.run([cc, *FLAGS, "-o", program, SOURCE, "-lm"], check=True)
    return program


def rate(work: Any, seconds: float, cores: list[int], updates: int = 2) -> dict[str, float]:
    """Run one program per core at the same time, each with its own environments.

    Args:
        work: see :class:`same_work.Work`.
        cores: numbers of cores; empty: one program on any core.
        updates: least number of updates.

    Returns:
        Steps per second of all together, and their mean episode length at the end.
    """
    shape = (work.num_envs, work.num_steps, work.epochs, work.minibatches)
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        arguments = [str(value) for value in (*shape, seconds, updates)]
        commands = [
            [*pinned(core), str(program), *arguments, str(seed)]
            for seed, core in enumerate(cores or [None])
        ]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands
        ]
        results = [json.loads(one.communicate()[0]) for one in running]
    length = sum(result["episode_length"] for result in results) / len(results)
    return {"sps": sum(result["sps"] for result in results), "episode_length": length}


def pinned(core: int | None) -> list[str]:
    """Return the prefix of a command that runs on one core; empty if the system has none."""
    return [] if core is None or not shutil.which("taskset") else ["taskset", "-c", str(core)]

"""Checkpoints of tests with interrupted saves, and checks of what is left."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gymnasium.spaces import Box, Discrete

from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.rundir import checkpoint, checkpoint_writer
from headrace.spaces.json import space_to_json


@dataclass
class Parts:
    """Return a small policy with its description; the weights encode the step of the save."""

    config: dict[str, Any]
    policy: Policy

    def _at(self, value: float) -> None:
        with torch.no_grad():
            for weight in self.policy.parameters():
                weight.fill_(value)

    def save(self, run_dir: Path, env_steps: int, value: float | None = None) -> Path:
        self._at(env_steps if value is None else value)
        state = {"env_steps": env_steps, "value": torch.tensor(float(value or env_steps))}
        return checkpoint_writer.save(run_dir, self.config, self.policy, state)

    def save_best(self, run_dir: Path, env_steps: int) -> Path:
        self._at(env_steps)
        return checkpoint_writer.save_policy(run_dir, self.config, self.policy, env_steps)

    def save_and_rotate(self, run_dir: Path, env_steps: int) -> None:
        path = self.save(run_dir, env_steps)
        checkpoint_writer.point("best", path)
        checkpoint_writer.rotate(run_dir, 1)

    def save_linked(self, run_dir: Path, env_steps: int) -> None:
        """Write pointers as older versions did."""
        path = self.save(run_dir, env_steps)
        (path.parent / "latest").unlink()
        for name in ("latest", "best"):
            (path.parent / name).symlink_to(path.name)

    def save_copied(self, run_dir: Path, env_steps: int) -> None:
        """Write the layout that results from a copy that follows links."""
        path = self.save(run_dir, env_steps)
        (path.parent / "latest").unlink()
        for name in ("latest", "best"):
            shutil.copytree(path, path.parent / name)

    def same(self, folder: Path) -> float:
        """Check that all parts of a checkpoint belong to one save, and return its step."""
        policy = checkpoint.load_policy(folder)
        values = {v for weight in policy.parameters() for v in weight.detach().unique().tolist()}
        if (folder / "trainer.pt").exists():
            values.add(float(checkpoint.load_trainer(folder)["value"]))
        assert len(values) == 1
        return values.pop()


def parts() -> Parts:
    """Return the setup of a simulated environment."""
    spaces = Box(-1, 1, (3,)), Discrete(2)
    network = Network(hidden=(4,))
    names = ("observation_space", "action_space")
    described = {name: space_to_json(s) for name, s in zip(names, spaces, strict=True)}
    config = {"network": network.to_json(), "env": "CartPole-v1"}
    described |= {"format": checkpoint_writer.FORMAT, "info_mask": False, "config": config}
    return Parts(described, Policy(*spaces, network, False))


def check(parts: Parts, run_dir: Path, new: int) -> None:
    """Check that whatever is found after an interrupted save of ``new`` is complete."""
    whole = [p for p in (run_dir / "checkpoints").glob("step_*") if p.suffix != ".tmp"]
    if not whole:
        assert not any((run_dir / "checkpoints").glob("latest"))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pointer may be missing for an instant
        found = checkpoint.find(run_dir)
    assert parts.same(found) in (64.0, 3.0, float(new))
    for path in whole:
        parts.same(path)


# State before step 128 is saved, by name: called with parts and the run directory.
SITUATIONS = {
    "a first checkpoint": lambda parts, run_dir: None,
    "another": lambda parts, run_dir: parts.save(run_dir, 64),
    "the same step again": lambda parts, run_dir: parts.save(run_dir, 128, 3.0),
    "next to a link": lambda parts, run_dir: parts.save_linked(run_dir, 64),
    "next to a folder": lambda parts, run_dir: parts.save_copied(run_dir, 64),
}


def each_death(before: Path, run_dir: Path, dies: Callable[[int], bool]) -> Iterator[int]:
    """Yield copies of a run in which a process died at its first, second … call, until none dies.

    Args:
        dies: runs in ``run_dir``, and returns whether it died at its n-th call.
    """
    for count in itertools.count(1):
        shutil.rmtree(run_dir, ignore_errors=True)
        shutil.copytree(before, run_dir, symlinks=True)
        if not dies(count):
            return
        yield count

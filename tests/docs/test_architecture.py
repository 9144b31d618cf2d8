"""Compares the three walkthroughs of docs/architecture.md with a run and the source."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.learner import native

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
PACKAGE = f"{ROOT}/headrace/"
REWARD = 123.456

# Helpers that every part calls, in which a reward is one tensor among others.
HELPERS = {
    "types.py", "ops/tree.py", "ops/ratio.py", "nn/popart.py", "algos/common.py",
    "envs/single_frames.py", "envs/probe.py", "learner/hogwild.py",
    "processes/defaults.py", "processes/pickling.py", "transport/slab.py",
}  # fmt: skip


class SameReward(gym.Env[Any, Any]):
    """Rewards each of seven steps with REWARD."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(3, np.float32), REWARD, self.steps >= 7, False, {}


def listed(heading: str) -> list[str]:
    """Return the files of the numbered list under a heading of the page."""
    section = PAGE.split(f"### {heading}")[1].split("\n#")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)


def holds_reward(value: Any, depth: int = 0) -> bool:
    """Return whether a value, or a part of it, is the reward."""
    if depth > 4 or isinstance(value, type):
        return False
    if isinstance(value, float):
        return abs(value - REWARD) < 1e-3
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool((np.abs(value - REWARD) < 1e-3).any())
    if isinstance(value, torch.Tensor):
        floating = value.dtype.is_floating_point
        return floating and bool(((value.detach() - REWARD).abs() < 1e-3).any())
    if dataclasses.is_dataclass(value):
        parts = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    elif isinstance(value, dict):
        parts = list(value.values())
    else:
        parts = list(value)[:50] if isinstance(value, tuple | list) else []
    return any(holds_reward(part, depth + 1) for part in parts)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], list[str]]:
    """Return the files that the reward passes through, and functions in call order."""
    rewards: set[str] = set()
    calls: list[str] = []

    def profile(frame: Any, event: str, result: Any) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return
        file = file.removeprefix(PACKAGE)
        if event == "call":
            calls.append(f"{file} {frame.f_code.co_name}")
        if event == "return" and file not in rewards:
            values = [v for name, v in frame.f_locals.items() if name != "self"]
            if any(map(holds_reward, [*values, result])):
                rewards.add(file)

    sizes: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 16}
    folder = tmp_path_factory.mktemp("walkthroughs")
    config = hr.Config(
        SameReward, hr.IMPALA(), total_steps=256, transport="serial", engine="sync",
        batch_size=64, eval_episodes=0, run_dir=str(folder / "run"), **sizes,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(native, "functions", lambda dtype: None)  # which not every machine has
        trainer = stack.enter_context(hr.Trainer(config))
        sys.setprofile(profile)
        try:
            for _ in trainer:
                pass
        finally:
            sys.setprofile(None)
    return rewards, calls


def test_a_reward_passes_through_the_listed_files(traced):
    assert traced[0] - HELPERS == set(listed("A reward, from"))


def test_a_weight_passes_through_the_listed_files_in_their_order(traced):
    section = PAGE.split("### A weight, from")[1].split("\n#")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`.*\(`([\w.]+)`\)", section, re.MULTILINE)
    assert len(steps) == len(listed("A weight, from"))
    calls = traced[1][traced[1].index("actors/actor.py _pull") + 1 :]  # the initial weights
    for file, function in steps:
        name = f"{file} {function.rpartition('.')[2]}"
        assert name in calls, f"{name} isn't called after the functions before it"
        calls = calls[calls.index(name) :]


def test_a_setting_is_in_the_listed_files_only():
    found = subprocess.run(
        ["grep", "-rlw", "--include=*.py", "log_interval_s", "."],
        cwd=PACKAGE, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert {name.removeprefix("./") for name in found} == set(listed("A setting, from"))


def test_files_that_pages_name_exist():
    made_by_examples = {"algos/vmpo.py", "envs/halves.py", "transport/local.py"}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for name in set(re.findall(r"`(?:headrace/)?(\w+/[\w/]+\.py)`", page.read_text())):
            is_known = any((root / name).exists() for root in (ROOT, Path(PACKAGE)))
            assert is_known or name in made_by_examples, f"{page.name}: no file {name}"


def test_the_page_is_short_and_has_no_measurements():
    assert len(PAGE.split()) <= 2500
    assert not re.search(r"\d (µs|us|ms|GB|MB|steps/s)\b", PAGE)

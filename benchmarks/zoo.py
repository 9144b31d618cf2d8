"""Trains the policies that come with headrace, and copies them to headrace/zoo/policies.

python benchmarks/zoo.py                    all of them, about ten minutes on two cores
python benchmarks/zoo.py --only cartpole    one

Each is one run of its recipe with seed 0, evaluated on 100 episodes. Runs that exist in --output
aren't trained again. docs/zoo.md lists the results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import torch

import headrace
from headrace import zoo
from headrace.rundir import checkpoint, checkpoint_writer, folders
from headrace.rundir.atomic_files import json_text
from headrace.studies.machine import markdown

ALGORITHMS = {
    "cartpole": "appo",
    "conjunction": "appo",
    "lunarlander": "ppo",
    "pendulum": "ppo",
    "satellite": "appo",
}
FLAGS = {"conjunction": ["--total-steps", "3_000_000"]}
PAGE = Path(__file__).parents[1] / "docs/zoo.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
MAX_BYTES = 1_000_000


def command(name: str) -> list[str]:
    """Return the command that trains a policy, without its run directory."""
    words = ["train", ALGORITHMS[name], "--recipe", name, "--seed", "0", "--eval-episodes", "100"]
    return ["headrace", *words, *FLAGS.get(name, [])]


def trained(name: str, output: Path) -> Path:
    """Return the run of a policy. Train it if it is missing."""
    run = output / name
    if not (run / "summary.json").exists():
        flags = [*command(name)[1:], "--run-dir", str(run), "--overwrite"]
        subprocess.run([sys.executable, "-m", "headrace", *flags], check=True)
    return run


def report(name: str, run: Path) -> dict[str, Any]:
    """Return the description of a policy."""
    summary = json.loads((run / "summary.json").read_text())
    played = summary["evaluation"]
    return {
        "command": " ".join(command(name)),
        "env": json.loads((run / "config.json").read_text())["config"]["env"],
        "seed": 0,
        "env_steps": summary["env_steps"],
        "seconds": round(summary["seconds_total"], 1),
        "evaluation": {k: played[k] for k in ("episodes", "mean", "std", "min", "max")},
        "versions": {
            "headrace": headrace.__version__,
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }


def keep(name: str, run: Path, to: Path) -> None:
    """Copy a run's policy and its report to a folder of policies, replacing an earlier one."""
    values = checkpoint.read_config(checkpoint.find(run))
    values.pop("signature", None)  # of the machine that trained it
    config = values["config"]
    config |= {"run_dir": None, "engine": "auto"}  # engines differ between machines
    policy = checkpoint.load_policy(checkpoint.find(run), trusted=True)
    files = checkpoint_writer.policy_files(values, policy)
    made = folders.write(to, "best_0", files)
    (made / "report.json").write_text(json_text(report(name, run)), encoding="utf-8")
    size = sum(file.stat().st_size for file in made.iterdir())
    assert size <= MAX_BYTES, f"{name} has {size} bytes"
    shutil.rmtree(to / name, ignore_errors=True)
    os.replace(made, to / name)


def rows() -> list[dict[str, str]]:
    """Return the table of docs/zoo.md."""
    found = []
    for name in sorted(path.name for path in zoo.POLICIES.iterdir()):
        one = json.loads((zoo.POLICIES / name / "report.json").read_text())
        played = one["evaluation"]
        found.append({
            "name": f"`{name}`",
            "environment": f"`{one['env']}`",
            "return, 100 episodes": f"{played['mean']:.1f} ± {played['std']:.1f}",
            "steps": f"{one['env_steps']:,}",
            "seconds": f"{one['seconds']:.0f}",
            "command": f"`{one['command']}`",
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--output", type=Path, default=Path("runs/zoo"))
    args = parser.parse_args()
    zoo.POLICIES.mkdir(exist_ok=True)
    for name in args.only:
        keep(name, trained(name, args.output), zoo.POLICIES)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(rows())}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

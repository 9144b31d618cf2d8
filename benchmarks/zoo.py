"""Trains the policies that come with headrace, and puts them into headrace/zoo/policies.

python benchmarks/zoo.py                    all of them, some ten minutes on two cores
python benchmarks/zoo.py --only cartpole    one

Each is one run of its recipe with seed 0, evaluated on 100 episodes; a run that is in --output
already isn't trained again. docs/zoo.md has what came out.
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
from headrace.rundir import checkpoint, folders
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
    """What trains a policy, without where its run goes."""
    words = ["train", ALGORITHMS[name], "--recipe", name, "--seed", "0", "--eval-episodes", "100"]
    return ["headrace", *words, *FLAGS.get(name, [])]


def trained(name: str, output: Path) -> Path:
    """The run of a policy, trained now unless it is there."""
    run = output / name
    if not (run / "summary.json").exists():
        flags = [*command(name)[1:], "--run-dir", str(run), "--overwrite"]
        subprocess.run([sys.executable, "-m", "headrace", *flags], check=True)
    return run


def report(name: str, run: Path) -> dict[str, Any]:
    """What is said of a policy."""
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
    """Put a run's policy and its report into a folder of policies, in place of an earlier one."""
    values = checkpoint.read_config(checkpoint.find(run))
    values.pop("signature", None)  # of whoever trained it
    config = values["config"]
    config |= {"run_dir": None, "engine": "auto"}  # other machines have other engines
    policy = checkpoint.load_policy(checkpoint.find(run), trusted=True)
    files = checkpoint.policy_files(values, policy)
    made = folders.write(to, "best_0", files)
    (made / "report.json").write_text(json_text(report(name, run)), encoding="utf-8")
    size = sum(file.stat().st_size for file in made.iterdir())
    assert size <= MAX_BYTES, f"{name} has {size} bytes"
    shutil.rmtree(to / name, ignore_errors=True)
    os.replace(made, to / name)


def rows() -> list[dict[str, str]]:
    """The table of docs/zoo.md."""
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

"""The house: which part stands on which floor, and which files are the engine.

python tests/house.py        counts the lines of engine, studies, game and the rest
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Lowest floor first. A part (a folder, or a module of the root) imports from floors below its own
# only: what stands on one floor doesn't know of each other.
FLOORS = [
    "errors",
    "processes validation callbacks extras",
    "ops schedules process",
    "types",
    "spaces transport",
    "nn algos",
    "games learner",
    "envs",
    "actors",
    "evaluation config cluster_env distributed doctor",
    "recipes rundir",
    "reporting",
    "evaluating",
    "trainer",
    "launch training",
    "api ray",
    "studies zoo integrations jobs",
    "cli",
    "__init__ __main__ headrace_ssa",
]

# What a reader has to hold in the head to change how headrace trains.
ENGINE = [
    "headrace/types.py",
    "headrace/config",
    "headrace/actors",
    "headrace/learner",
    "headrace/trainer",
    "headrace/transport",
    "headrace/ops",
    "headrace/algos",
    "headrace/nn/policy.py",
    "headrace/nn/inputs.py",
]
STUDIES = ["headrace/studies", "headrace/recipes"]
GAME = ["headrace_ssa"]


def files(places: list[str]) -> Iterator[Path]:
    """The Python files of these files and folders."""
    for place in places:
        path = ROOT / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def num_lines(places: list[str]) -> int:
    """Of these files and folders, blank ones and comments included."""
    return sum(len(file.read_text().splitlines()) for file in files(places))


def main() -> None:
    """Print the lines of each part of the package."""
    counts = {name: num_lines(places) for name, places in
              (("engine", ENGINE), ("studies", STUDIES), ("game", GAME))}  # fmt: skip
    total = num_lines(["headrace", "headrace_ssa"])
    counts["rest"] = total - sum(counts.values())
    for name, count in {**counts, "all": total}.items():
        print(f"{name:8} {count:6,}")


if __name__ == "__main__":
    main()

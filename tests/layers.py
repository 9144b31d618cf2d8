"""Import layers of the package, and line counts: python tests/layers.py

It prints the lines of the engine, the studies, the satellite games and the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Lowest layer first. A part (a folder, or a module at the root) imports only from layers below its
# own. Parts of the same layer don't import each other.
LAYERS = [
    "errors",
    "processes validation callbacks extras native",
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

# The code that a change of training has to consider.
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
    """Yield Python files, including those in folders."""
    for place in places:
        path = ROOT / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def num_lines(places: list[str]) -> int:
    """Count lines in files and folders, including blank lines and comments."""
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

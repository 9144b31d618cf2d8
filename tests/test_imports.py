"""Imports point one way, and importing the package does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent

# What each part may import of the others, lowest first. A part is a package or a module.
ALLOWED = {
    "errors": set(),
    "registration": set(),
    "platform": set(),
    "clock": set(),
    "sync": {"errors"},
    "ops": {"errors"},
    "types": {"clock", "ops"},
    "transport": {"ops"},
    "envs": {"errors", "ops", "platform"},
    "algos": {"errors", "ops", "types"},
    "nn": {"errors", "ops", "types"},
    "stepping": {"nn", "ops", "types"},
    "own_pace": {"envs", "nn", "ops", "stepping", "types"},
    "collector": {"errors", "nn", "ops", "stepping", "transport", "types"},
    "actor": {"collector", "envs", "nn", "own_pace", "sync", "transport", "types"},
    "optimizer": set(),
    "learner": {"nn", "ops", "optimizer", "types"},
    "metrics": {"transport"},
    "hogwild": {"learner", "metrics", "nn", "transport", "types"},
    "actor_process": {"actor", "hogwild", "platform", "transport"},
    "evaluation": {"envs", "nn"},
    "checkpoint": {"errors", "nn"},
    "plot": {"errors", "metrics"},
    "shares": {"errors"},
    "cluster": {"envs", "errors", "ops", "platform", "sync", "types"},
    "config": {"algos", "envs", "errors", "nn", "platform", "shares", "sync"},
    "recipes": {"algos", "config", "errors", "nn"},
    "report": {"config", "metrics", "plot"},
    "fleet": {"actor", "actor_process", "errors", "platform", "transport"},
    "rollouts": {
        "actor", "config", "errors", "fleet", "hogwild", "nn", "platform", "transport", "types",
    },
    "intake": {"config", "hogwild", "metrics", "rollouts", "sync", "types"},
    "group": {"clock", "errors", "transport"},
    "exchange": {"actor", "errors", "group", "metrics", "nn", "ops", "types"},
    "preemption": {"types"},
    "probe": {"config", "envs", "nn"},
    "progress": {"metrics"},
    "plan": {
        "actor", "algos", "collector", "config", "envs", "errors", "exchange", "learner", "metrics",
        "nn", "ops", "platform", "probe", "recipes", "sync", "transport", "types",
    },
    "tally": {"config", "metrics", "plan", "progress"},
    "runlog": {"evaluation", "exchange", "metrics"},
    "archive": {
        "checkpoint", "config", "errors", "exchange", "learner", "metrics", "nn", "probe",
        "progress", "types",
    },
    "trainer": {
        "archive", "config", "envs", "errors", "evaluation", "exchange", "fleet", "hogwild",
        "intake", "learner", "metrics", "nn", "platform", "preemption", "probe", "progress",
        "rollouts", "runlog", "tally", "types",
    },
    "torchrun": {"checkpoint", "config", "errors", "group", "types"},
    "learner_process": {"config", "errors", "group", "platform", "trainer"},
    "learner_group": {
        "checkpoint", "config", "envs", "errors", "fleet", "learner_process", "metrics", "nn",
        "platform", "probe",
    },
    "api": {
        "algos", "checkpoint", "config", "errors", "evaluation", "learner_group", "metrics", "nn",
        "platform", "report", "torchrun", "trainer", "types",
    },
    "bench": {
        "algos", "api", "cluster", "config", "envs", "errors", "evaluation", "group", "learner",
        "metrics", "nn", "platform", "recipes", "types",
    },
    "cli": {
        "algos", "api", "bench", "checkpoint", "config", "errors", "evaluation", "fleet",
        "plan", "platform", "plot", "recipes", "torchrun",
    },
    "__init__": {
        "algos", "api", "cluster", "config", "envs", "evaluation", "learner_group", "metrics",
        "nn", "registration", "trainer",
    },
    "__main__": {"cli"},
}  # fmt: skip


def part_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(source: str) -> set[str]:
    """The parts of headrace that a source imports anywhere: at the top, in functions, for types."""
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            names = [node.module or ""]
            if node.module == "headrace":
                names = [f"headrace.{alias.name}" for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("headrace.")}
    return parts


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_a_module_imports_only_what_lies_below_it(file):
    part = part_of(file)
    assert part in ALLOWED, f"say in ALLOWED what {part} may import"
    extra = imported(file.read_text()) - ALLOWED[part] - {part}
    assert not extra, f"{file.relative_to(ROOT)} must not import {sorted(extra)}"


def test_what_is_allowed_has_no_cycle():
    order = list(ALLOWED)
    for part, below in ALLOWED.items():
        for other in below:
            assert order.index(other) < order.index(part), f"{part} imports {other}, not below it"
    assert {part_of(file) for file in FILES} == set(ALLOWED)


def test_the_list_says_what_the_design_says():
    assert not ALLOWED["algos"] & {"nn", "transport", "envs"}
    assert not ALLOWED["transport"] & {"nn", "algos", "envs"}
    assert not ALLOWED["envs"] & {"nn", "algos", "transport", "types"}
    wired = {part for part, below in ALLOWED.items() if "trainer" in below}
    assert wired == {"api", "learner_process", "__init__"}


def test_the_check_sees_imports_inside_functions_and_under_other_names():
    source = "def f():\n    from headrace import nn as x, envs\n    import headrace.algos.ppo as p"
    assert imported(source) == {"nn", "envs", "algos"}


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_the_package_loads_no_torch_and_starts_nothing():
    python(
        "import sys, threading, headrace\n"
        "import psutil\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'matplotlib', 'tensorboard', 'multiprocessing'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert threading.active_count() == 1\n"
        "assert psutil.Process().children() == []\n"
    )


def test_public_names_are_the_same_objects_in_any_order_of_import():
    python(
        "import headrace.trainer, headrace.evaluation, headrace.api, headrace.config\n"
        "import headrace as hr, inspect\n"
        "assert inspect.isclass(hr.Trainer) and hr.Trainer is hr.trainer.Trainer\n"
        "assert inspect.isclass(hr.Config) and hr.Config is hr.config.Config\n"
        "for name in ('train', 'load', 'resume', 'evaluate', 'make_vec'):\n"
        "    assert inspect.isfunction(getattr(hr, name)), name\n"
        "assert set(hr.__all__) == set(hr._HOME) == set(dir(hr))\n"
        "for name in hr.__all__:\n"
        "    assert getattr(hr, name).__name__ == name\n"
        "from headrace import train, Trainer, PPO\n"
        "assert train is hr.train and not hasattr(hr, 'trian')\n"
        "import psutil\n"
        "assert psutil.Process().children() == []\n"
    )


@pytest.mark.parametrize(
    "before",
    [
        "import headrace, gymnasium",
        "import gymnasium, headrace",
        "import headrace, importlib.util; importlib.util.find_spec('gymnasium'); import gymnasium",
    ],
)
def test_gymnasium_knows_the_environments_in_any_order_of_import(before):
    python(
        f"{before}\n"
        "names = [name for name in gymnasium.registry if name.startswith('headrace/')]\n"
        "assert names == ['headrace/SimpleSatellite-v0', 'headrace/SSAConjunction-v0'], names\n"
        "import sys\n"
        "assert not [f for f in sys.meta_path if type(f).__module__ == 'headrace.registration']\n"
        "assert 'headrace.envs' not in sys.modules\n"
    )

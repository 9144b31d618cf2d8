"""Imports point one way, and importing the package does nothing."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import textwrap
from collections.abc import Container
from pathlib import Path

import pytest
from patience import PATIENCE_S

from headrace.algos import NAMES
from tests.layers import LAYERS, ROOT, files

LAYER_OF = {part: layer for layer, parts in enumerate(LAYERS) for part in parts.split()}


def part_of(file: Path) -> str:
    inside = file.relative_to(ROOT).parts
    return inside[0] if inside[0] != "headrace" else inside[1].removesuffix(".py")


@functools.cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def imported(source: str) -> set[str]:
    """Return the parts of headrace that a source imports at the top, in functions or for types."""
    parts = set()
    for node in nodes(source):
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
        parts |= {"headrace_ssa"} & {name.split(".")[0] for name in names}
    return parts


FILES = sorted(files(["headrace", "headrace_ssa"]))


@pytest.mark.parametrize("part", sorted(LAYER_OF))
def test_a_part_imports_only_what_lies_below_it(part):
    for file in (file for file in FILES if part_of(file) == part):
        for other in imported(file.read_text()) - {part}:
            assert LAYER_OF[other] < LAYER_OF[part], f"{file.relative_to(ROOT)}: {other}"


def test_every_file_has_a_layer_and_the_root_is_small():
    assert {part_of(file) for file in FILES} == set(LAYER_OF)
    assert len(list((ROOT / "headrace").glob("*.py"))) <= 9
    assert len(LAYERS) < 20


def test_modules_do_not_import_each_other():
    modules = {".".join(f.relative_to(ROOT).with_suffix("").parts): f for f in FILES}
    names = {name.removesuffix(".__init__"): file for name, file in modules.items()}
    below = {name: _modules(file.read_text(), names) - {name} for name, file in names.items()}
    while free := [name for name, others in below.items() if not others]:
        below = {name: below[name] - set(free) for name in below.keys() - set(free)}
    assert not below, f"these import each other: {sorted(below)}"


def _modules(source: str, known: Container[str]) -> set[str]:
    """Return the known modules that a source imports."""
    found = set()
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in known}


def test_the_check_sees_imports_inside_functions_and_under_other_names():
    source = "def f():\n    from headrace import nn as x, envs\n    import headrace.algos.ppo as p"
    assert imported(source) == {"nn", "envs", "algos"}
    assert _modules("from headrace import a\nimport b", {"headrace.a", "b"}) == {"headrace.a", "b"}


def ray_modules(source: str) -> set[str]:
    """Return the modules of Ray that a source imports or runs, also in functions."""
    names = set()
    for node in nodes(source):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and _is_import(node.func):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
        elif isinstance(node, ast.Constant) and str(node.value).startswith("ray.scripts"):
            names.add(node.value)  # python -m
    return {name for name in names if name.split(".")[0] == "ray"}


def _is_import(function: ast.expr) -> bool:
    return ast.unparse(function).rpartition(".")[2] in ("import_module", "__import__")


def test_only_the_ray_package_imports_ray():
    found = {part_of(file) for file in FILES if ray_modules(file.read_text())}
    assert found == {"ray"}


def test_lower_parts_reach_the_ray_package_at_one_place_each():
    seams = set()
    for file in FILES:
        for node in nodes(file.read_text()):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray_package":
                seams.add((part_of(file), ast.literal_eval(node.args[0])))
    assert seams == {("actors", "fleet"), ("launch", "learners"), ("trainer", "connection")}


@pytest.mark.parametrize(
    "source",
    [
        "import ray",
        "def f():\n    import ray.util as x",
        "from ray.exceptions import RayError",
        "importlib.import_module('ray')",
        "__import__('ray.util')",
        "command = ['-m', 'ray.scripts.scripts']",
    ],
)
def test_the_check_sees_every_way_to_import_ray(source):
    assert ray_modules(source)


def test_headraces_own_ray_package_is_not_taken_for_ray():
    assert not ray_modules("from headrace.ray.node import RayNode\nimport headrace.ray\nx = 'ray'")


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_the_package_loads_no_torch_and_starts_nothing():
    python(
        "import sys, threading, headrace\n"
        "import psutil\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'matplotlib', 'tensorboard', 'imageio'}\n"
        "heavy |= {'multiprocessing'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert threading.active_count() == 1\n"
        "assert psutil.Process().children() == []\n"
    )


HELP = """
import contextlib, io, sys
from headrace.cli import main
for command in {commands!r}:
    shown = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
        main([*command.split(), "--help"])
    assert "usage: headrace " + command in shown.getvalue(), shown.getvalue()
    heavy = {{"torch", "gymnasium", "matplotlib", "ray"}} & set(sys.modules)
    assert not heavy, (command, heavy)
"""
READING = ["evaluate", "play", "plot", "report", "watch", "doctor"]  # runs or policies
RATING = ["score", "references", "league"]
TRAINING = [f"train {name}" for name in NAMES]


def test_the_help_of_commands_loads_no_torch():
    python(HELP.format(commands=READING + RATING + TRAINING))


# Both need a Python that has imported nothing but parts of the package, which takes a second.
BY_PARTS = """
import json, sys, traceback
import headrace.trainer.trainer, headrace.evaluation, headrace.api, headrace.config
import headrace.cli.training
found = {}
"""
GAME = """
from headrace.envs.names import resolve
assert resolve('Pong').id == 'ALE/Pong-v5'
slow = {'tensorboard', 'matplotlib', 'imageio', 'envpool', 'onnx', 'ray'}
slow |= {'headrace.reporting.page', 'sympy', 'torch._dynamo'}
import headrace as hr, numpy as np, torch
from gymnasium.spaces import Box, Discrete
policy = hr.Policy(Box(0, 255, (4, 84, 84), np.uint8), Discrete(3), hr.Network(conv='nature'))
policy.compute_in('bfloat16')
with torch.inference_mode(), policy.frozen_weights():
    policy.torso(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
assert not slow & set(sys.modules), slow & set(sys.modules)
"""
NAMES = """
import headrace as hr, inspect
assert inspect.isclass(hr.Trainer) and hr.Trainer is hr.trainer.trainer.Trainer
assert inspect.isclass(hr.Config) and hr.Config is hr.config.Config
for name in ('train', 'load', 'resume', 'evaluate', 'make_vec'):
    assert inspect.isfunction(getattr(hr, name)), name
assert set(hr.__all__) == set(hr._HOME) == set(dir(hr))
for name in hr.__all__:
    assert getattr(hr, name).__name__ == name
from headrace import train, Trainer, PPO
assert train is hr.train and not hasattr(hr, 'trian')
import psutil
assert psutil.Process().children() == []
"""


@pytest.fixture(scope="module")
def by_parts() -> dict[str, str]:
    """Return the traceback of each failing import, the game's before that of the names."""
    code = BY_PARTS
    for name, part in {"game": GAME, "names": NAMES}.items():
        failed = f"except Exception:\n    found['{name}'] = traceback.format_exc()\n"
        code += f"try:\n{textwrap.indent(part, '    ')}{failed}"
    return json.loads(python(f"{code}print(json.dumps(found))"))


def test_public_names_are_the_same_objects_in_any_order_of_import(by_parts):
    assert "names" not in by_parts, by_parts["names"]


def test_a_run_of_a_game_acts_without_what_writes_draws_compiles_or_plays_something_else(by_parts):
    assert "game" not in by_parts, by_parts["game"]


def test_importing_headrace_tells_gymnasium_nothing_until_a_game_is_named():
    python(
        "import sys, headrace, gymnasium\n"
        "before = list(sys.meta_path)\n"
        "from headrace.envs.names import resolve\n"
        "ours = lambda: [name for name in gymnasium.registry if name.startswith('headrace/')]\n"
        "assert ours() == [] and 'headrace_ssa' not in sys.modules\n"
        "assert resolve('headrace/SSAConjunction-v0').id == 'headrace/SSAConjunction-v0'\n"
        "names = ('SimpleSatellite', 'SSAConjunction', 'OrbitalDominance')\n"
        "assert ours() == [f'headrace/{name}-v0' for name in names], ours()\n"
        "assert sys.meta_path == before\n"
    )


def test_gymnasium_finds_the_games_by_their_package():
    python(
        "import gymnasium\n"
        "env = gymnasium.make('headrace_ssa:headrace/SimpleSatellite-v0')\n"
        "assert env.reset(seed=0)[0].shape == env.observation_space.shape\n"
    )

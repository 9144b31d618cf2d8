"""Optional packages: training works without them, and features that need one name its extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import extras
from headrace.errors import ConfigError

OPTIONAL = [
    *("matplotlib", "tensorboard", "imageio", "simpy", "scipy", "optuna", "ray", "onnx", "pandas"),
    *("onnxscript", "rliable", "pettingzoo", "envpool", "pygame", "PIL"),
]
FEATURES = {
    "headrace plot run": "a plot needs matplotlib, which isn't installed: pip install "
    "'headrace[plots]'",
    "headrace report run": "pip install 'headrace[plots]'",
    "headrace evaluate run --episodes 1 --video out": "pip install 'headrace[video]'",
    "headrace plan appo": "headrace plan needs simpy, which isn't installed: pip install "
    "'headrace[studies]'",
    "headrace bench scaling": "pip install 'headrace[studies]'",
    "headrace league run": "headrace league needs scipy, which isn't installed: pip install "
    "'headrace[studies]'",
    "headrace sweep ppo": "pip install 'headrace[sweep]'",
    "headrace pbt ppo": "pip install 'headrace[studies]'",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Returns a folder that hides the optional packages, in child processes too."""
    folder = tmp_path_factory.mktemp("bare")
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL}))\n"
    (folder / "sitecustomize.py").write_text(blocked)
    return folder


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(Path(extras.__file__).parents[1])])
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(bare):
    flags = "--env-id CartPole-v1 --total-steps 2000 --num-actors 1 --run-dir run --eval-episodes 2"
    return run(bare, ["headrace", "train", "appo", *flags.split()])


def test_a_default_run_trains_and_says_once_what_it_leaves_out(bare, trained):
    assert trained.returncode == 0, trained.stderr
    lines = [line for line in trained.stdout.splitlines() if "left out" in line]
    assert lines == [
        "left out: curve.png and report.html, TensorBoard files; to get them: "
        "pip install 'headrace[plots,tensorboard]'"
    ]
    assert "Traceback" not in trained.stdout + trained.stderr
    assert "needs matplotlib" not in trained.stdout + trained.stderr
    names = {path.name for path in (bare / "run").iterdir()}
    assert {"metrics.jsonl", "summary.json", "machine.json", "checkpoints"} <= names
    assert not any(name.startswith(("events", "curve", "report")) for name in names)


@pytest.mark.parametrize(
    "words",
    ["resume run --total-steps 3000", "evaluate run --episodes 2", "completion bash"],
)
def test_commands_of_a_default_install_work(bare, trained, words):
    done = run(bare, ["headrace", *words.split()])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", FEATURES)
def test_a_feature_without_its_package_names_the_extra(bare, trained, command):
    done = run(bare, command.split())
    assert done.returncode != 0
    text = " ".join((done.stdout + done.stderr).split())
    assert FEATURES[command] in text, text
    assert "Traceback" not in text


def test_only_missing_packages_are_explained():
    with pytest.raises(ModuleNotFoundError, match=r"headrace\.nothing"), extras.needs("x", "y"):
        import headrace.nothing  # noqa: F401
    with (
        pytest.raises(ConfigError, match=r"x needs no_such, which isn't installed: pip install '"),
        extras.needs("x", "y"),
    ):
        import no_such.module  # noqa: F401
    extras.require("x", "y", "torch")

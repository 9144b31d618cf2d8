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


TRAINED = "headrace train appo --env-id CartPole-v1 --total-steps 2000 --num-actors 1 --run-dir run"
WORKING = [
    f"{TRAINED} --eval-episodes 2",
    "headrace resume run --total-steps 3000",
    "headrace evaluate run --episodes 2",
    "headrace completion bash",
]
PROGRAM = """
import sys, traceback
from headrace.cli import main

for command in sys.argv[1:]:
    try:
        status = main(command.split()[1:])
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    print(f"status of {command}: {status}", flush=True)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Returns a folder that hides the optional packages, in child processes too."""
    folder = tmp_path_factory.mktemp("bare")
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL}))\n"
    (folder / "sitecustomize.py").write_text(blocked)
    return folder


@pytest.fixture(scope="module")
def outputs(bare) -> dict[str, tuple[int, str]]:
    """Returns the exit status and output of each command, all in one new process."""
    commands = [*WORKING, *FEATURES]
    path = os.pathsep.join([str(bare), str(Path(extras.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-u", "-c", PROGRAM, *commands], cwd=bare,
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    found, rest = {}, done.stdout
    for command in commands:
        text, _, rest = rest.partition(f"status of {command}: ")
        status, _, rest = rest.partition("\n")
        found[command] = int(status), text
    return found


def test_a_default_run_trains_and_reports_once_what_it_skips(bare, outputs):
    _, text = outputs[WORKING[0]]
    assert [line for line in text.splitlines() if "left out" in line] == [
        "left out: curve.png and report.html, TensorBoard files; to get them: "
        "pip install 'headrace[plots,tensorboard]'"
    ]
    assert "needs matplotlib" not in text
    names = {path.name for path in (bare / "run").iterdir()}
    assert {"metrics.jsonl", "summary.json", "machine.json", "checkpoints"} <= names
    assert not any(name.startswith(("events", "curve", "report")) for name in names)


@pytest.mark.parametrize("command", WORKING, ids=lambda command: command.split()[1])
def test_commands_of_a_default_install_work(outputs, command):
    status, text = outputs[command]
    assert status == 0, text
    assert "Traceback" not in text


@pytest.mark.parametrize("command", FEATURES)
def test_a_feature_without_its_package_names_the_extra(outputs, command):
    status, text = outputs[command]
    text = " ".join(text.split())
    assert status != 0
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

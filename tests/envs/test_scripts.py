"""Environments that a script defines or registers, in actors and later on the command line."""

from __future__ import annotations

import functools
import importlib
import json
import pickle
import sys
from types import ModuleType

import cloudpickle
import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from worlds import CountingEnv

import headrace as hr
from headrace.cli import main
from headrace.config import Config
from headrace.envs import scripts
from headrace.envs.names import Registry, import_path, resolve
from headrace.errors import ConfigError

PACKAGE = """
import gymnasium
gymnasium.register("Sidecar/Thing-v0", "worlds:CountingEnv")
"""
SCRIPT = """
import sys
import sidecar  # for what it registers
import gymnasium
import headrace as hr
from worlds import CountingEnv

class Mine(CountingEnv):
    pass

gymnasium.register("Mine-v0", "__main__:Mine")

def make_env():
    return gymnasium.make("Sidecar/Thing-v0")

def cut(env):
    return gymnasium.wrappers.TimeLimit(env, 2)

if __name__ == "__main__":
    sizes = dict(num_actors=1, envs_per_actor=2, fragment_length=4, total_steps=16)
    sizes |= dict(eval_episodes=0, algo=hr.A2C(), transport="serial", learner_threads=1)
    for name, env, wrappers in [("class", Mine, [cut])]:
        hr.train(env, run_dir=f"runs/{name}", wrappers=wrappers, **sizes)
    hr.train(make_env, run_dir="runs/function", **sizes | dict(transport="shm", max_restarts=0))
    assert "Sidecar/Thing-v0" in gymnasium.registry
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yields the folder of a script with a package that registers something, and cleans up."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sidecar.py").write_text(PACKAGE)
    (tmp_path / "script.py").write_text(SCRIPT)
    before, modules = dict(gymnasium.registry), set(sys.modules)
    yield tmp_path
    gymnasium.registry.clear()
    gymnasium.registry.update(before)
    for name in set(sys.modules) - modules:
        if name == "sidecar" or name.startswith("_headrace_script_"):
            del sys.modules[name]


def test_a_script_s_runs_are_evaluated_and_resumed_from_the_command_line(folder, start, capsys):
    script = start("script.py", shared=True)
    assert script.wait() == 0, script.output
    for name, length in (("class", "2.0"), ("function", "")):
        config = json.loads((folder / "runs" / name / "config.json").read_text())["config"]
        assert config["env_file"] == str(folder / "script.py")
        run = f"runs/{name}"
        assert main(["evaluate", run, "--episodes", "2"]) == 0
        assert f"length {length}" in capsys.readouterr().out
        if name == "class":
            assert main(["resume", run, "--total-steps", "32"]) == 0
        again = json.loads((folder / "runs" / name / "config.json").read_text())["config"]
        for setting in ("env", "env_file", "wrappers"):
            assert again[setting] == config[setting]


def test_what_a_script_registered_is_registered_where_its_code_arrives(folder):
    sys.path.append(str(folder))
    sidecar = importlib.import_module("sidecar")
    assert sidecar
    sent = (
        cloudpickle.dumps(resolve(lambda: gymnasium.make("Sidecar/Thing-v0"))),
        (pickle.dumps(Registry())),
    )
    for pickled in sent:
        del gymnasium.registry["Sidecar/Thing-v0"]
        cloudpickle.loads(pickled)
        assert isinstance(gymnasium.make("Sidecar/Thing-v0").unwrapped, CountingEnv)
    assert resolve(CountingEnv) is CountingEnv  # its module is imported there


def test_an_id_that_a_script_registers_is_found_again_by_importing_the_script(folder):
    assert scripts.found("env", "Mine-v0", str(folder / "script.py")) == "Mine-v0"
    made = gymnasium.make("Mine-v0").unwrapped
    assert type(made).__name__ == "Mine"
    assert hr.Config("Mine-v0").to_json()["env"] == "Mine-v0"


def test_a_script_that_trains_when_it_is_imported_is_told(folder):
    file = folder / "unguarded.py"
    file.write_text("import headrace as hr\nclass A: pass\nhr.train('CartPole-v1')\n")
    with pytest.raises(ConfigError, match=r"unguarded.py starts training when it is imported.*if"):
        scripts.found("env", "__main__:A", str(file))
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("__main__:Mine", None, "without a file.*define Mine here first.*env='module:Mine'"),
        ("__main__:Gone", "script.py", "defines no Gone"),
        ("__main__:Mine", "moved.py", "moved.py doesn't exist"),
        ("__main__:A", "broken.py", "broken.py .* failed: SystemExit"),
        ("__main__:<lambda>", "script.py", "can't be found by its name: define it at the top"),
        ("worlds:make.<locals>.env", None, "can't be found by its name"),
    ],
)
def test_what_can_not_be_found_again_is_told_in_a_sentence(folder, name, file, words):
    (folder / "broken.py").write_text("import argparse, sys\nsys.exit(argparse.__name__)\n")
    with pytest.raises(ConfigError, match=words) as error:
        scripts.found("env", name, file and str(folder / file))
    assert "\n" not in str(error.value)


def test_what_a_notebook_defines_is_found_in_the_same_notebook(monkeypatch):
    notebook = ModuleType("__main__")
    exec("import os\nclass Mine: pass\ndef make(): pass\nnumber = 3", vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert scripts.found("env", "__main__:Mine", None) is notebook.Mine
    assert scripts.found("env", "__main__:make", None) is notebook.make
    for name in ("Gone", "number", "os", "os.system"):
        with pytest.raises(ConfigError, match=f"define {name} here first, or move it into"):
            scripts.found("env", f"__main__:{name}", None)


def test_a_module_beside_a_script_is_found_from_elsewhere(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "own_envs.py").write_text("from worlds import CountingEnv as Own\n")
    file = str(folder / "elsewhere" / "own_envs.py")
    assert scripts.found("env", "own_envs:Own", file) == "own_envs:Own"
    assert resolve("own_envs:Own") is CountingEnv


def test_a_config_names_what_it_can_and_marks_what_it_can_not():
    assert import_path(CountingEnv) == "worlds.counting:CountingEnv"
    assert "<" in import_path(functools.partial(CountingEnv, 3))
    assert import_path(EnvSpec("Some-v0", CountingEnv)) == "Some-v0"
    assert Config("CartPole-v1").env_file is None
    assert Config("worlds:CountingEnv").env_file is None
    assert (Config(CountingEnv).env_file or "").endswith("worlds/counting.py")


def test_the_file_that_is_remembered_is_the_script_s(folder, monkeypatch):
    def wrap(env):
        return env

    main_module = sys.modules["__main__"]
    monkeypatch.setattr(main_module, "__file__", str(folder / "script.py"), raising=False)
    monkeypatch.setattr(main_module, "__spec__", None)
    wrap.__module__ = "__main__"
    assert scripts.file_of(CountingEnv, wrap) == str(folder / "script.py")
    of_worlds = scripts.file_of(CountingEnv)
    assert scripts.file_of(functools.partial(functools.partial(CountingEnv), 3)) == of_worlds
    assert scripts.file_of(json.JSONDecoder, gymnasium.Wrapper) is None  # Python's, a package's
    debian = ModuleType("debian")
    debian.__file__ = "/usr/lib/python3/dist-packages/debian.py"
    monkeypatch.setitem(sys.modules, "debian", debian)
    wrap.__module__ = "debian"
    assert scripts.file_of(wrap) is None


def test_a_run_on_a_lambda_says_how_to_go_on(tmp_path, capsys):
    sizes = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 4, "total_steps": 8}
    sizes |= {"eval_episodes": 0, "algo": hr.A2C(), "transport": "serial"}
    make, run = lambda: CountingEnv(), str(tmp_path / "run")
    hr.train(make, run_dir=run, **sizes)
    assert main(["evaluate", run]) == 2
    assert "can't be found by its name" in capsys.readouterr().err
    hr.resume(run, env=make, total_steps=16)

"""A run directory runs only code that its user named; and the signature."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import gymnasium
import pytest
from torch import nn

import headrace as hr
from headrace.api import resume_config
from headrace.cli import main
from headrace.cli.import_path import import_from_here_if_named
from headrace.errors import CheckpointError
from headrace.rundir import import_allowlist
from headrace.rundir.config_file import replaced
from headrace.rundir.json_values import plain

SIZES = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 4, "total_steps": 8}
SIZES |= {"eval_episodes": 0, "algo": hr.A2C(), "transport": "serial"}


class Torso(nn.Module):
    def __init__(self, space) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, obs):
        return self.layer(obs.float())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose environment, wrapper and torso are named by modules; read-only."""
    run = tmp_path_factory.mktemp("trusted") / "run"
    named = {"network": hr.Network(torso=f"{__name__}:Torso")}
    hr.train("worlds:CountingEnv", run_dir=str(run), **named, **SIZES)
    return run


@pytest.fixture
def run(trained, tmp_path):
    """Return a copy in another folder of the same user."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


def change(run: Path, **config: object) -> None:
    """Write other settings into all of a run's config.json, as an attacker would."""
    for sums in run.rglob("SHA256SUMS"):
        sums.unlink()
    for file in {file.resolve() for file in run.rglob("config.json")}:
        values = json.loads(file.read_text())
        values["config"] |= config
        file.write_text(json.dumps(values))


def test_what_its_user_named_on_this_machine_needs_no_word(run):
    assert isinstance(hr.load(run).predict([0, 0, 0, 0])[0].item(), int)
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    hr.resume(run, total_steps=16)


def test_a_command_in_a_run_directory_is_not_run(run, tmp_path, capsys):
    mark = tmp_path / "executed"
    change(run, env="subprocess:getoutput", env_kwargs={"cmd": f"touch {mark}"})
    for command in ("evaluate", "resume"):
        assert main([command, str(run)]) == 2
        said = capsys.readouterr().err
        assert "is not signed by you on this machine" in said
        assert "env='subprocess:getoutput'" in said
        assert "--trust" in said
        assert said.count("\n") == 1
    with pytest.raises(CheckpointError, match="trust=True"):
        hr.resume(run)
    assert not mark.exists()


EVIL = "import pathlib\npathlib.Path({!r}).touch()\nmake = flat = Net = int\n"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"env": "evil:make"}, "env='evil:make'"),
        ({"env": "evil:Id-v0"}, "env='evil:Id-v0'"),
        ({"env": "__main__:make", "env_file": "evil.py"}, "env='__main__:make'"),
        ({"env": "Evil-v0", "env_file": "evil.py"}, "env='Evil-v0 in .*evil.py'"),
        ({"env": "GymV26Environment-v0", "env_kwargs": {"env_id": "evil:A"}}, "env='GymV26"),
        ({"env": "CartPole-v1", "wrappers": ["evil:flat"]}, r"wrappers=\['evil:flat'\]"),
        ({"env": "CartPole-v1", "wrappers": ['RecordVideo:{"video_folder":"a"}']}, "RecordVideo"),
        ({"network": {"torso": "evil:Net"}}, "torso='evil:Net'"),
    ],
)
def test_no_name_of_another_s_is_imported(run, tmp_path, monkeypatch, capsys, config, words):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL.format(str(tmp_path / "executed")))
    if "env_file" in config:
        config = config | {"env_file": str(tmp_path / config["env_file"])}
    values = json.loads((run / "config.json").read_text())["config"]
    network = values["network"] | {"torso": None} | config.get("network", {})
    change(run, **config | {"network": network})
    with pytest.raises(CheckpointError, match=words):
        hr.resume(run, total_steps=16)
    assert main(["evaluate", str(run)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert "evil" not in sys.modules


def test_a_torso_alone_keeps_a_policy_from_being_loaded(run):
    change(run, env="subprocess:getoutput")
    with pytest.raises(CheckpointError, match=r"torso='.*:Torso'"):
        hr.load(run)
    assert hr.load(run, trust=True)
    assert hr.load(run, network=hr.Network(torso=Torso))  # given, so nothing is read


def test_a_run_of_another_user_needs_their_word_and_plain_ids_do_not(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="is not signed by you"):
        hr.resume(run)
    assert main(["evaluate", str(run), "--episodes", "1", "--trust"]) == 0
    assert main(["resume", str(run), "--total-steps", "16", "--trust"]) == 0  # and is signed now
    assert main(["evaluate", str(run), "--episodes", "1"]) == 0
    plain = json.loads((run / "config.json").read_text())["config"]
    plain |= {"network": {"torso": None}, "wrappers": ['TimeLimit:{"max_episode_steps":3}']}
    for env in ("CartPole-v1", "ALE/Pong-v5", "headrace/SimpleSatellite-v0"):
        assert import_allowlist.code_in(plain | {"env": env, "env_file": None}) == {}


def test_without_a_place_for_a_key_nothing_is_signed_and_runs_go_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    run = tmp_path / "run"
    hr.train("worlds:CountingEnv", run_dir=str(run), **SIZES)
    assert json.loads((run / "config.json").read_text())["signature"] is None
    assert main(["evaluate", str(run)]) == 2
    assert "has no signature" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--episodes", "1", "--trust"]) == 0


def test_the_key_is_made_once_and_read_by_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = hr.Config("worlds:CountingEnv").to_json()
    first = import_allowlist.sign(config)
    key = tmp_path / "headrace" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert import_allowlist.sign(config) == first
    assert [file.name for file in key.parent.iterdir()] == ["key"]
    for name, value in (("env", "a:b"), ("env_kwargs", {"a": 1}), ("wrappers", ["a:b"])):
        assert import_allowlist.sign(config | {name: value}) != first
    os.chmod(key, 0o644)
    assert import_allowlist.sign(config) is None
    for changed in ({"m": {9: 1, 10: 2}}, {9: 1, "a": 2}, {"x": float("nan")}):
        given = config | {"env_kwargs": changed}
        os.chmod(key, 0o600)
        assert import_allowlist.sign(given) == import_allowlist.sign(
            json.loads(json.dumps(plain(given)))
        )


def test_a_signature_of_other_letters_is_only_wrong(trained):
    values = json.loads((trained / "config.json").read_text())
    for signature in ("ü", "\udc80"):
        with pytest.raises(CheckpointError, match="is not signed by you"):
            import_allowlist.check(
                trained, values | {"signature": signature}, False, import_allowlist.CODE
            )


def test_a_module_in_a_run_directory_is_not_imported_for_an_id(run, monkeypatch, capsys):
    change(run, env="procgen-coinrun-v0", network=hr.Network().to_json(), total_steps=16)
    (run / "procgen.py").write_text(EVIL.format(str(run / "executed")))
    monkeypatch.chdir(run)
    for command in ("evaluate", "resume"):
        monkeypatch.setattr(sys, "path", sys.path[:])
        assert main([command, "."]) == 2
        assert "pip install procgen" in capsys.readouterr().err
        assert str(run) not in sys.path
    assert not (run / "executed").exists()


def test_the_working_directory_is_the_last_to_import_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    plain_config = hr.Config("CartPole-v1").to_json()
    import_from_here_if_named(plain_config)
    assert str(tmp_path) not in sys.path
    import_from_here_if_named(plain_config | {"env": "mine:Env"})
    assert sys.path[-1] == str(tmp_path)


def test_arguments_are_trusted_with_gymnasium_s_own_environments_only():
    kwargs = {"config": {"other_vehicles_type": "evil.X"}}
    config = hr.Config("CartPole-v1", env_kwargs=kwargs).to_json()
    assert import_allowlist.code_in(config) == {}
    for env in ("merge-v0", "VizdoomBasic-v0"):
        assert import_allowlist.code_in(config | {"env": env}) == {"env_kwargs": kwargs}
    assert import_allowlist.code_in(config, ("env_kwargs",)) == {"env_kwargs": kwargs}  # another's


def test_arguments_of_another_s_are_not_used(run):
    kwargs = {"config": {"other_vehicles_type": "evil.X"}}
    change(run, env="merge-v0", env_kwargs=kwargs, network=hr.Network().to_json())
    with pytest.raises(CheckpointError, match=r"env_kwargs=.*evil\.X"):
        hr.resume(run)
    assert main(["evaluate", str(run)]) == 2


class Own(gymnasium.Env):
    pass


def test_a_file_that_nobody_signed_is_not_taken_over(run):
    change(run, env="CartPole-v1", env_file="/tmp/evil.py", network=hr.Network().to_json())
    here = os.path.abspath(__file__)
    assert resume_config(run).env_file is None
    assert resume_config(run, env=Own).env_file == here
    assert resume_config(run, wrappers=[gymnasium.Wrapper]).env_file is None
    assert replaced(hr.Config("a:B", env_file="/tmp/old.py"), {"env": Own}).env_file == here
    kept = replaced(hr.Config("a:B", env_file="/tmp/old.py"), {"total_steps": 8})
    assert kept.env_file == "/tmp/old.py"


def test_a_league_that_another_names_is_not_written_to(run, tmp_path, capsys):
    harmless = {"env": "CartPole-v1", "wrappers": [], "network": hr.Network().to_json()}
    change(run, league=str(tmp_path / "elsewhere"), **harmless)
    assert main(["resume", str(run), "--total-steps", "16"]) == 2
    assert "write to the folder it names: league=" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "elsewhere").exists()

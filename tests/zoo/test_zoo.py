"""The policies that come with headrace are what their reports say, and can be watched."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import gymnasium
import pytest

import headrace as hr
from headrace import zoo
from headrace.cli import main
from headrace.cli.training import config_of
from headrace.processes import display
from headrace.rundir import checksums
from headrace.rundir.config_file import from_json
from headrace.zoo import play

PAGE = Path(__file__).parents[2] / "docs/zoo.md"


@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_policy_is_small_whole_nobodys_and_of_the_command_that_it_names(name):
    folder, known = zoo.folder(name), zoo.report(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 1_000_000
    assert checksums.fault(folder, *checksums.POLICY_FILES) is None
    values = json.loads((folder / "config.json").read_text())
    assert "signature" not in values
    assert values["config"]["run_dir"] is None
    words = shlex.split(known["command"])
    assert words[:2] == ["headrace", "train"]
    config = config_of(words[2], words[3:])
    trained, said = (one.settled.to_json() for one in (from_json(values["config"]), config))
    if values["action_space"]["type"] == "Discrete":  # which has nothing to scale
        trained["network"]["scale_actions"] = said["network"]["scale_actions"]
        trained["algo"]["noise_color"] = said["algo"]["noise_color"]
    if trained["algo"]["kl_limit"] is None:  # older than this setting, which rarely has an effect
        trained["algo"]["kl_limit"] = said["algo"]["kl_limit"]
    assert trained["network"]["one_hot"] in ((), [], None)  # decided by the run
    said["network"]["one_hot"] = trained["network"]["one_hot"]
    for part in ("algo", "network", "seed", "total_steps", "eval_episodes", "env"):
        assert trained[part] == said[part], part
    assert known["env"] == config.env
    assert known["env_steps"] >= config.total_steps or config.stop_return is not None


def test_the_page_has_a_row_for_each_policy_with_its_figures():
    rows = re.findall(r"^\| `(\w+)` \| `\S+` \| (\S+) ± (\S+) \|.* \| `(.*)` \|$",
                      PAGE.read_text(encoding="utf-8"), re.MULTILINE)  # fmt: skip
    assert [row[0] for row in rows] == zoo.NAMES
    for name, mean, std, command in rows:
        known = zoo.report(name)
        assert (command, known["evaluation"]["episodes"]) == (known["command"], 100)
        assert float(mean) == round(known["evaluation"]["mean"], 1)
        assert float(std) == round(known["evaluation"]["std"], 1)


def test_policies_play_as_well_as_their_reports_say():
    assert hr.evaluate(zoo.load("cartpole"), "CartPole-v1", episodes=4).mean == 500.0
    satellite = hr.evaluate(zoo.load("satellite"), "headrace/SimpleSatellite-v0", episodes=200)
    assert satellite.mean == pytest.approx(zoo.report("satellite")["evaluation"]["mean"], abs=8)
    with pytest.raises(hr.ConfigError, match=r"'cartpol'.*Did you mean 'cartpole'"):
        zoo.load("cartpol")


def test_without_a_display_an_episode_is_filmed_and_all_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(display, "has_display", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert main(["play", "pendulum", "--episodes", "2"]) == 0
    shown = capsys.readouterr()
    assert len(re.findall(r"^return -\d+\.\d\d after 200 steps$", shown.out, re.MULTILINE)) == 2
    assert "plays/pendulum/episode.mp4" in shown.err
    assert (tmp_path / "plays/pendulum/episode.mp4").stat().st_size > 1000
    assert main(["play", "satellite", "--episodes", "1"]) == 0
    shown = capsys.readouterr()
    assert "can't record a video" in shown.err
    assert "after 20 steps" in shown.out


class Shown(gymnasium.Env):
    """Records how it is rendered; five steps."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012
    modes: list = []  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.modes.append(render_mode)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (4,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}


def test_with_a_display_the_environment_shows_itself(monkeypatch, capsys):
    Shown.modes.clear()
    monkeypatch.setattr(display, "has_display", lambda: True)
    monkeypatch.setattr(play.resolve_imports, "environment", lambda *args, **kwargs: Shown)
    assert main(["play", "cartpole"]) == 0
    assert capsys.readouterr().out == 3 * "return 5.00 after 5 steps\n"
    assert set(Shown.modes) == {"human"}


def test_a_display_is_looked_for_where_the_system_says(monkeypatch):
    monkeypatch.setattr(display.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not display.has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert display.has_display()
    monkeypatch.setattr(display.sys, "platform", "darwin")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert display.has_display()
    monkeypatch.setenv("SSH_CONNECTION", "somewhere")
    assert not display.has_display()


def test_what_is_neither_a_policy_nor_a_run_and_a_strangers_code_are_refused(tmp_path, capsys):
    assert main(["play", "cartpol"]) == 2
    assert "Did you mean 'cartpole'" in capsys.readouterr().err
    for file in zoo.folder("cartpole").iterdir():
        text = file.read_bytes()
        if file.name == "config.json":
            text = text.replace(b'"CartPole-v1"', b'"os:getcwd"')
        if file.name != checksums.NAME:
            (tmp_path / file.name).write_bytes(text)
    assert main(["play", str(tmp_path)]) == 2
    assert "would import and run the code it names: env='os:getcwd'" in capsys.readouterr().err


def test_a_number_of_episodes_below_0_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["play", "cartpole", "--episodes", "-2"]) == 2
    assert "episodes=-2 must be 0 or more" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Swarm(gymnasium.vector.SyncVectorEnv):
    """Shown in a vector environment whose attribute ``agents`` isn't the names of a game's."""

    agents = 3

    def __init__(self, num_envs=1):
        super().__init__([Shown] * num_envs)


def test_an_attribute_agents_without_names_is_no_game(tmp_path, capsys):
    how = {"transport": "serial", "total_steps": 64, "eval_episodes": 0, "quiet": True}
    sizes = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 32, "batch_size": 64}
    hr.train(Swarm, "a2c", run_dir=tmp_path / "run", **how, **sizes)
    words = ["play", str(tmp_path / "run"), "--episodes", "1", "--trust", "--video", str(tmp_path)]
    assert main(words) == 0
    assert capsys.readouterr().out == "return 5.00 after 5 steps\n"


def test_the_returns_of_a_game_are_printed_by_agent(tmp_path, capsys):
    how = {"transport": "serial", "total_steps": 200, "eval_episodes": 0, "quiet": True}
    env = "pettingzoo:classic/tictactoe_v3"
    sizes = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 8}
    hr.train(env, "ppo", run_dir=tmp_path / "game", **how, **sizes)
    assert main(["play", str(tmp_path / "game"), "--episodes", "2", "--video", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    pattern = r"returns player_1 -?\d\.00, player_2 -?\d\.00 after \d+ steps"
    assert len([line for line in lines if re.fullmatch(pattern, line)]) == 2, lines

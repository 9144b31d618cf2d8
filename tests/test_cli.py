"""The command line and users' own scripts, as users run them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
import textwrap

import pytest
import warm

import headrace as hr
from headrace.cli import main
from headrace.cli.flags import grouped, named
from headrace.cli.short_help import common_settings
from headrace.errors import ConfigError
from headrace.rundir import checkpoint

SIZES = ("--envs-per-actor", "8", "--fragment-length", "8", "--learner-threads", "1")
SERIAL = (*SIZES, "--num-actors", "1", "--transport", "serial", "--eval-episodes", "0")


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """Return a folder for runs of ``headrace.cli.main``."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def status_of(arguments):
    """Return the exit status; tyro exits itself if a flag can't be parsed."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def test_train_evaluate_resume_and_plot_work_on_one_run(run_dir, capsys):
    arguments = ("--run-dir", str(run_dir), "--total-steps", "640", *SERIAL)
    assert main(["train", "ppo", "--env-id", "CartPole-v1", "--epochs", "2", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "ppo on CartPole-v1" in shown
    assert "checkpoint" in shown
    config = json.loads((run_dir / "config.json").read_text())["config"]
    assert (config["algo"]["name"], config["algo"]["epochs"]) == ("ppo", 2)

    assert main(["evaluate", str(run_dir), "--episodes", "4", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values == json.loads(hr.evaluate(hr.load(run_dir), "CartPole-v1", 4).to_json())
    assert main(["evaluate", str(run_dir), "--episodes", "4"]) == 0
    assert f"return {values['mean']:.2f}" in capsys.readouterr().out

    before = json.loads((run_dir / "summary.json").read_text())
    assert main(["resume", str(run_dir), "--total-steps", "1280"]) == 0
    after = json.loads((run_dir / "summary.json").read_text())
    assert before["env_steps"] < 1280 <= after["env_steps"]
    assert after["updates"] > before["updates"]

    capsys.readouterr()
    assert main(["plot", str(run_dir), "--output", str(run_dir / "two.png")]) == 0
    assert "two.png" in capsys.readouterr().out
    assert (run_dir / "two.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "pppo"], ["'pppo'", "'ppo'"]),
        (["train"], ["train needs an algorithm"]),
        (["train", "ppo", *SERIAL, "--env-id", "CartPol-v1"], ["CartPol-v1", "CartPole-v1"]),
        (["train", "ppo", *SERIAL, "--batch-size", "100"], ["batch_size=100", "64 or 128"]),
        (["train", "appo", *SERIAL, "--rho-bar", "0.5"], ["rho_bar=0.5", "c_bar=1.0"]),
        (["train", "ppo", *SERIAL, "--recipe", "cartpol"], ["'cartpol'", "'cartpole'"]),
        (["resume", "nowhere"], ["nowhere", "does not exist"]),
        (["evaluate", "nowhere"], ["nowhere", "does not exist"]),
        (["plot", "nowhere"], ["nowhere", "does not exist"]),
        (["plan", "pppo"], ["'pppo'", "'ppo'"]),
        (["plan", "--learner-sps", "0"], ["learner_sps=0.0", "above 0"]),
    ],
    ids=lambda value: " ".join(value[:2]) if len(value) > 1 else value[0],
)
def test_an_error_is_one_line_and_status_2(run_dir, capsys, monkeypatch, arguments, words):
    monkeypatch.setattr("headrace.actors.fleet.start_fork_server", lambda: None)
    status = status_of(arguments)
    shown = capsys.readouterr()
    assert status == 2
    assert "Traceback" not in shown.err
    for word in words:
        assert word in " ".join(shown.err.split())
    assert list(run_dir.parent.iterdir()) == []


def test_help_version_and_typos_come_at_once(capsys, monkeypatch):
    def start():
        raise AssertionError("a process was started")

    monkeypatch.setattr("headrace.actors.fleet.start_fork_server", start)
    for line, words in {
        "": ["headrace needs a command: train, resume"],
        "trian": ["'trian'", "Did you mean 'train'"],
        "train": ["train needs an algorithm: a2c"],
        "train pppo": ["'pppo'", "Did you mean 'ppo'"],
        "resume": ["headrace resume RUN"],
        "bench scalin": ["'scalin'", "Did you mean 'scaling'"],
        "--verson": ["--verson"],
    }.items():
        assert status_of(line.split()) == 2, line
        told = " ".join(capsys.readouterr().err.split())
        assert all(word in told for word in words), (line, told)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {hr.__version__}\n"
    for line, words in {
        "--help": ["train", "resume", "evaluate", "plot", "plan", "bench"],
        "train --help": ["ppo", "Synchronous PPO"],
        "bench --help": ["scaling", "aaps"],
        "resume --help": ["RUN", "--learning-rate"],
    }.items():
        with pytest.raises(SystemExit) as end:
            main(line.split())
        assert end.value.code == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words), (line, shown)


def test_settings_are_listed_in_the_order_that_people_need_them(capsys):
    with pytest.raises(SystemExit):
        main(["train", "ppo", "--help-all"])
    shown = capsys.readouterr().out
    order = (
        "--recipe", "--env-id", "--total-steps", "--seed", "--run-dir", "--learning-rate",
        "--hidden", "--eval-episodes", "--checkpoint-interval", "--num-actors", "--engine",
    )  # fmt: skip
    places = [shown.index(f" {flag}") for flag in order]
    assert places == sorted(places)
    assert "cartpole,conjunction" in shown  # recipes, as choices
    with pytest.raises(SystemExit):
        main(["train", "a2c", "--recipe", "cartpole", "--help"])
    assert "(default: 475.0)" in capsys.readouterr().out


@pytest.mark.parametrize("name", hr.algos.NAMES)
def test_the_short_help_shows_the_common_settings_with_their_own_defaults(name, capsys):
    assert main(["train", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"headrace train {name} --help-all" in shown
    config = hr.Config(algo=hr.algos.ALGORITHMS[name]())
    flags = {flag.field: flag for group in grouped(config).values() for flag in group}
    for setting in common_settings(name):
        flag = flags[setting.name]
        assert setting.flag in flag.names, setting
        assert setting.text == " ".join(flag.help.split()), setting
        assert setting.default == str(flag.default) or setting.name == "env", setting
    assert "(default with --recipe: its own; with --total-steps: CartPole-v1)" in " ".join(
        shown.split()
    )
    assert len(common_settings(name)) == 15  # and --recipe


def test_every_setting_is_one_flag_with_a_text():
    for name, cls in hr.algos.ALGORITHMS.items():
        flags = [flag for group in grouped(hr.Config(algo=cls())).values() for flag in group]
        fields = [f.name for kind in (hr.Config, cls, hr.Network) for f in dataclasses.fields(kind)]
        assert sorted(flag.field for flag in flags) == sorted({*fields} - {"algo", "network"}), name
        assert len({*fields}) == len(fields)  # a name says whose setting it is
        assert all(flag.help for flag in flags)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--gamma", "0.99"], {"gamma": 0.99}),  # its default
        (["--learning_rate=1e-5", "--no-fused"], {"learning_rate": 1e-5, "fused": False}),
        (["--env", "A-v0", "--hidden", "8", "9"], {"env": "A-v0", "hidden": (8, 9)}),
        (["--scale-free", "--core", "None"], {"scale_free": True, "core": None}),
    ],
)
def test_a_setting_is_named_also_with_the_value_that_it_has(arguments, expected):
    assert named("test", arguments, hr.Config(algo=hr.PPO())) == expected


def test_errors_in_flags_name_the_nearest_flag_or_its_algorithms():
    with pytest.raises(ConfigError, match="--num-actors x must be a whole number such as"):
        named("test", ["--gamma", "1", "--num-actors", "x"], hr.Config(algo=hr.PPO()))
    with pytest.raises(
        ConfigError, match=r"--num-actor is not a flag of test\. Did you mean '--num-a"
    ):
        named("test", ["--gamma", "1", "--num-actor", "2"], hr.Config(algo=hr.PPO()))
    with pytest.raises(ConfigError, match=r"--network-core is .* Did you mean '--core'"):
        named("test", ["--network-core", "lstm"], hr.Config(algo=hr.PPO()))
    with pytest.raises(ConfigError, match=r"--max-lag is not a .* is a setting of a3c, appo"):
        named("test", ["--max-lag=2"], hr.Config(algo=hr.PPO()))


def test_an_environment_without_its_flag_gets_a_hint(capsys):
    assert main(["train", "ppo", "CartPole-v1"]) == 2
    assert "an environment is --env-id CartPole-v1" in capsys.readouterr().err


def test_a_run_needs_an_environment(capsys):
    assert main(["train", "ppo", "--num-actors", "1"]) == 2  # not CartPole for a million steps
    text = "headrace train ppo needs an environment: --env-id CartPole-v1, or a recipe"
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["-v", "-V", "--version"])
def test_the_version_has_short_forms(flag, capsys):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"headrace {hr.__version__}\n"


def test_help_all_without_an_algorithm_lists_the_choices(capsys):
    with pytest.raises(SystemExit):
        main(["--help-all"])
    assert "{train,resume," in capsys.readouterr().out


def test_ctrl_c_saves_a_checkpoint_says_so_and_leaves_nothing_behind(start, tmp_path, gone):
    arguments = ("--run-dir", "run", "--total-steps", "1000000000", "--num-actors", "2", *SIZES)
    script = start("-m", "headrace", "train", "appo", "--env-id", "CartPole-v1", *arguments)
    script.wait_for("steps/s")
    family = script.family()
    assert len(family) >= 4  # itself, the fork server, two actors
    os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does, to all of them
    assert script.wait() == 130, script.output
    assert "Traceback" not in script.output
    assert "environment steps" in script.output
    assert script.output.count("stopped early; to continue: headrace resume run") == 1
    assert gone(family) == []
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "evaluation" not in summary
    latest = checkpoint.find(tmp_path / "run")
    assert latest.name == f"step_{summary['env_steps']}"
    assert hr.load(tmp_path / "run") is not None
    assert summary["updates"] > 0


# -- users' scripts -----------------------------------------------------------------------------

ENVIRONMENT = """
    import gymnasium
    import numpy as np
    import headrace as hr

    class Walk(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9, 9, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, goal=3):
            self.goal = goal

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.x = 0
            return self.observe(), {}

        def step(self, action):
            self.x += 1 if action else -1
            done = abs(self.x) == self.goal
            return self.observe(), float(self.x == self.goal), done, False, {}

        def observe(self):
            return np.array([self.x], np.float32)

    settings = dict(
        num_actors=2, envs_per_actor=8, fragment_length=8, total_steps=300, eval_episodes=0,
        run_dir="run", overwrite=True,
    )
"""

TRAININGS = {
    "a class in a script without a main guard": """
        hr.train(Walk, hr.PPO(), env_kwargs={"goal": 2}, **settings)
    """,
    "an id registered in the script": """
        gymnasium.register("Walk-v0", entry_point=Walk, max_episode_steps=50)
        hr.train("Walk-v0", hr.APPO(), **settings)
    """,
    "an id registered by name": """
        gymnasium.register("Walk-v1", entry_point="__main__:Walk", max_episode_steps=50)
        hr.train("Walk-v1", hr.APPO(), **settings)
    """,
    "a lambda": """
        hr.train(lambda: Walk(goal=4), hr.A2C(), **settings)
    """,
    "a class in a module next to the script": """
        import walks
        hr.train(walks.Walk, hr.A2C(), **settings)
    """,
}


def test_environments_of_users_train_in_other_processes(tmp_path):
    """All in one script, one after the other, because starting Python is slow."""
    environment = textwrap.dedent(ENVIRONMENT)
    (tmp_path / "walks.py").write_text(environment)
    report = 'import json; print("trained", json.load(open("run/summary.json"))["env_steps"])\n'
    trainings = [textwrap.dedent(text) + report for text in TRAININGS.values()]
    script = environment + 'print("top level", flush=True)\n' + "".join(trainings)
    (tmp_path / "script.py").write_text(script)
    output = warm.run(tmp_path, "script.py")
    steps = [int(x.split()[1]) for x in output.splitlines() if x.startswith("trained")]
    assert len(steps) == len(TRAININGS)
    assert min(steps) >= 300
    assert output.count("top level") == 1  # no actor runs the script again


@contextlib.contextmanager
def unread():
    """Make standard output a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output, contextlib.redirect_stdout(output):
        yield


@pytest.mark.parametrize("command", [["--help"], ["train", "ppo", "--help"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_gets_no_traceback(command):
    with unread():
        assert main(command) == 141
        print("unread", flush=True)


def test_a_run_whose_reader_has_seen_enough_goes_on(run_dir):
    small = ["--total-steps", "640", "--run-dir", str(run_dir)]
    with unread():
        assert main(["train", "ppo", "--env-id", "CartPole-v1", *SERIAL, *small]) == 0
    assert json.loads((run_dir / "summary.json").read_text())["env_steps"] >= 640


def test_another_broken_pipe_is_no_reader_s(monkeypatch):
    def broken(*_):
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr("headrace.cli.chosen", broken)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(BrokenPipeError, match="of a worker"):
        main(["train"])

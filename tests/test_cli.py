"""The command line and users' own scripts, as users run them."""

from __future__ import annotations

import json
import os
import signal
import textwrap

import pytest

import headrace as hr
from headrace.cli import main

SIZES = ("--envs-per-actor", "8", "--fragment-length", "8", "--learner-threads", "1")
SERIAL = (*SIZES, "--num-actors", "1", "--transport", "serial", "--eval-episodes", "0")


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """Where runs of ``headrace.cli.main`` go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_train_evaluate_resume_and_plot_work_on_one_run(run_dir, capsys):
    arguments = ("--run-dir", str(run_dir), "--total-steps", "640", *SERIAL)
    assert main(["train", "ppo", "--epochs", "2", *arguments]) == 0
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
        (["plot", "nowhere"], ["nowhere", "no metrics"]),
        (["plan", "pppo"], ["'pppo'", "'ppo'"]),
        (["plan", "--learner-sps", "0"], ["learner_sps=0.0", "above 0"]),
    ],
    ids=lambda value: " ".join(value[:2]) if len(value) > 1 else value[0],
)
def test_an_error_is_one_line_and_status_2(run_dir, capsys, monkeypatch, arguments, words):
    monkeypatch.setattr("headrace.acting.fleet.start_fork_server", lambda: None)
    try:
        status = main(arguments)
    except SystemExit as end:  # tyro reports a bad value of an algorithm's field itself
        status = end.code
    shown = capsys.readouterr()
    assert status == 2
    assert "Traceback" not in shown.err
    for word in words:
        assert word in " ".join(shown.err.split())
    assert list(run_dir.parent.iterdir()) == []


def test_without_a_command_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert "usage: headrace" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "train ALGORITHM" in capsys.readouterr().out


def test_ctrl_c_saves_a_checkpoint_says_so_and_leaves_nothing_behind(start, tmp_path, gone):
    arguments = ("--run-dir", "run", "--total-steps", "1000000000", "--num-actors", "2", *SIZES)
    script = start("-m", "headrace.cli", "train", "appo", *arguments)
    script.wait_for("steps/s")
    family = script.family()
    assert len(family) >= 4  # itself, the fork server, two actors
    os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does, to all of them
    assert script.wait(20) == 0, script.output
    assert "Traceback" not in script.output
    assert "environment steps" in script.output
    assert gone(family) == []
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "evaluation" not in summary
    latest = (tmp_path / "run" / "checkpoints" / "latest").resolve()
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
        num_actors=2, envs_per_actor=8, fragment_length=8, total_steps=1000, eval_episodes=0,
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
    "a class in a module beside the script": """
        import walks
        hr.train(walks.Walk, hr.A2C(), **settings)
    """,
}


def test_environments_of_users_train_in_other_processes(start, tmp_path):
    """All in one script, one after the other, because starting Python takes the time."""
    environment = textwrap.dedent(ENVIRONMENT)
    (tmp_path / "walks.py").write_text(environment)
    report = 'import json; print("trained", json.load(open("run/summary.json"))["env_steps"])\n'
    trainings = [textwrap.dedent(text) + report for text in TRAININGS.values()]
    script = environment + 'print("top level", flush=True)\n' + "".join(trainings)
    (tmp_path / "script.py").write_text(script)
    run = start("script.py")
    assert run.wait(60) == 0, run.output
    steps = [int(x.split()[1]) for x in run.output.splitlines() if x.startswith("trained")]
    assert len(steps) == len(TRAININGS)
    assert min(steps) >= 1000
    assert run.output.count("top level") == 1  # no actor runs the script again

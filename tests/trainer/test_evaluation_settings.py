"""Evaluations follow their settings and don't affect training."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.cli import main
from headrace.errors import CheckpointError, ConfigError
from headrace.rundir import checkpoint, import_allowlist
from headrace.rundir.closing_table import closing_table


class Paying(gymnasium.Env):
    """Rewards action 1 with ``reward`` at each of ``length`` steps."""

    action_space = Discrete(2)

    def __init__(self, reward=1.0, length=4, size=1):
        self.reward, self.length = reward, length
        self.observation_space = Box(0.0, 1.0, (size,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        self.time += 1
        obs, over = np.zeros(self.observation_space.shape, np.float32), self.time == self.length
        return obs, self.reward * float(action), over, False, {}


@pytest.fixture
def paying(tiny):
    """Creates the settings of a run of two updates whose evaluations have higher rewards."""

    def make(**settings):
        given = {"env": Paying, "env_kwargs": {"reward": 1.0}, "eval_env_kwargs": {"reward": 7.0}}
        sizes = {"transport": "serial", "total_steps": 128, "eval_episodes": 8}
        return tiny(**given | sizes | settings)

    return make


def test_every_evaluation_of_a_run_has_its_own_arguments(paying, finish, capsys):
    config = paying(eval_interval=64)
    trainer, results = finish(config)
    summary = trainer.finish()
    returns = [result.episode_return for result in results if result.episode_return is not None]
    assert max(returns) <= 4.0
    played = [json.loads(s) for s in (trainer.run_dir / "evaluations.jsonl").open()]
    played += [summary["evaluation"]]
    assert len(played) == 3
    assert all(value % 7 == 0 for one in played for value in one["returns"])

    written = json.loads((trainer.run_dir / "config.json").read_text())["config"]
    assert written["eval_env_kwargs"] == {"reward": 7.0}
    assert main(["evaluate", str(trainer.run_dir), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["returns"] == list(summary["evaluation"]["returns"])
    assert again["episodes"] == 8  # as many as the run's


def test_arguments_of_evaluations_may_change_where_a_run_is_resumed(paying, finish, capsys):
    trainer, _ = finish(paying())
    resumed = hr.resume(
        trainer.run_dir, total_steps=192, eval_env_kwargs={"reward": 5.0, "length": 3}
    )
    assert resumed is not None
    summary = json.loads((trainer.run_dir / "summary.json").read_text())
    assert set(summary["evaluation"]["lengths"]) == {3}
    assert all(value % 5 == 0 for value in summary["evaluation"]["returns"])
    assert "eval_env_kwargs {'reward': 7.0} → " in capsys.readouterr().out


def test_actions_of_an_evaluation_are_drawn_if_asked(paying, finish):
    """An untrained policy takes either action in half of all steps, by the seed alone."""
    policy = hr.Policy(Paying().observation_space, Paying.action_space)
    kwargs = {"env_kwargs": {"length": 200}, "engine": "sync"}
    drawn = []
    for state in (3, 4):  # of torch's own generator, which doesn't count
        torch.manual_seed(state)
        drawn.append(hr.evaluate(policy, Paying, 4, 1, **kwargs, deterministic=False))
    assert drawn[0] == drawn[1]
    assert 50 < drawn[0].min < drawn[0].max < 150
    fixed = hr.evaluate(policy, Paying, 4, 1, **kwargs)
    assert set(fixed.returns) in ({0.0}, {200.0})

    trainer, _ = finish(paying(eval_deterministic=False, eval_env_kwargs={"length": 200}))
    summary = trainer.finish()
    assert len(set(summary["evaluation"]["returns"])) > 1
    shown = closing_table(summary).columns[1]._cells
    assert any("sampled actions" in str(cell) for cell in shown)


def test_an_evaluation_on_another_environment_is_refused_before_it_starts(paying, tmp_path):
    for kwargs, words in (
        ({"size": 2}, r"with eval_env_kwargs Paying is another environment: its observation space"),
        ({"rewrd": 2}, "Paying takes .* but no 'rewrd'"),
    ):
        with pytest.raises(ConfigError, match=words) as error:
            hr.Trainer(paying(eval_env_kwargs=kwargs))
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()
    hr.Trainer(paying(eval_env_kwargs={"size": 2}, eval_episodes=0)).close()
    with pytest.raises(ConfigError, match=r"eval_env_kwargs=.* can't be written to config.json"):
        paying(eval_env_kwargs={"a": object()})


def test_arguments_of_evaluations_are_signed_as_those_of_training_are(paying, finish):
    trainer, _ = finish(paying())
    folder = checkpoint.find(trainer.run_dir)
    values = checkpoint.read_config(folder)
    import_allowlist.check(folder, values, False, import_allowlist.CODE)
    values["config"]["eval_env_kwargs"] = {"reward": 9.0}
    with pytest.raises(CheckpointError, match=r"signed .* eval_env_kwargs="):
        import_allowlist.check(folder, values, False, ("eval_env_kwargs",))

"""Names that MLflow refuses don't keep it from logging the other values."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import gymnasium

import headrace as hr


class Named(gymnasium.Env):
    """Has arguments and infos with names that MLflow refuses."""

    def __init__(self, maze=None):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (4,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        info = {"reward[0]": 1.0, "lap//time": 2.0, "solved": 3.0}
        return self.observation_space.sample(), 1.0, True, False, info


def test_names_that_mlflow_refuses_are_changed(tmp_path, monkeypatch):
    logged: dict[str, float] = {}

    class Client:
        def __init__(self, uri):
            self.get_experiment_by_name = lambda name: SimpleNamespace(experiment_id="1")
            self.create_run = lambda *args, **how: SimpleNamespace(info=SimpleNamespace(run_id="2"))
            self.log_artifact = self.set_terminated = lambda *args: None

        def log_batch(self, run_id, metrics=(), params=()):
            logged.update(one[:2] for one in (*metrics, *params))

    kinds = SimpleNamespace(Param=lambda *args: args, Metric=lambda *args: args)
    stub = SimpleNamespace(MlflowClient=Client, entities=kinds)
    monkeypatch.setitem(sys.modules, "mlflow", stub)
    from headrace.integrations.mlflow import MLflow

    hr.train(Named, "ppo", callbacks=[MLflow()], env_kwargs={"maze": {"(0, 1)": "wall"}},
             total_steps=64, num_actors=1, envs_per_actor=2, fragment_length=16, batch_size=32,
             transport="serial", eval_episodes=0, quiet=True, run_dir=tmp_path / "run")  # fmt: skip
    assert (logged["env/reward_0_"], logged["env/lap/_/time"]) == (1.0, 2.0)
    assert logged["env/solved"] == 3.0
    assert logged["env_kwargs.maze._0_ 1_"] == "wall"

"""A loop of one's own over a task of several, as the page on tasks shows it."""

from __future__ import annotations

import re

import pytest

import headrace as hr
from tests.docs.test_docs import ROOT

TASKS = ["CartPole-v1", "Acrobot-v1"]


@pytest.mark.parametrize("told", [False, True])
def test_a_loop_of_ones_own_plays_a_task_as_an_evaluation_does(tmp_path, monkeypatch, capsys, told):
    page = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")
    _, loop = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    if told:
        (how,) = re.findall(r"`Joined\(…(, task=.*?)\)`", page)
        loop = loop.replace("policy.action_space)", f"policy.action_space{how})")
    monkeypatch.chdir(tmp_path)
    sizes = {"num_actors": 2, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
    network = hr.Network(hidden=(8,), task_id=told)
    run = {"run_dir": "runs/three", "total_steps": 64, "eval_episodes": 0}
    hr.train(tasks=TASKS, algo=hr.A2C(), network=network, **run, **sizes)
    capsys.readouterr()
    exec(compile(loop, "docs/tasks.md", "exec"), {"hr": hr})
    played = hr.evaluate(hr.load("runs/three"), TASKS, 1, seed=0)
    assert float(capsys.readouterr().out) == played.tasks["Acrobot-v1"].mean

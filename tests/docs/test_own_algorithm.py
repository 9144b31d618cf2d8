"""The page on custom algorithms runs from top to bottom."""

from __future__ import annotations

import re

import pytest
from warm import headrace, run

import headrace as hr
from tests.docs.test_docs import ROOT, commands_of, shorter

PAGE = (ROOT / "docs/own_algorithm.md").read_text(encoding="utf-8")
SCRIPTS = {
    "reinforce": re.findall(r"```python\n# reinforce.py\n(.*?)```", PAGE, re.DOTALL)[0],
    "vmpo": (ROOT / "examples/vmpo.py").read_text(encoding="utf-8"),
}


def test_the_page_on_custom_algorithms_runs(tmp_path):
    assert PAGE.count("```python") == 1
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(shorter(text))
        run(tmp_path, f"{name}.py")
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    headrace(tmp_path, *commands_of(shorter(commands)))
    assert (tmp_path / "runs/from-module/summary.json").exists()
    assert (tmp_path / "runs/comparison.html").exists()


def test_the_scripts_are_short():
    lines = {name: len(text.splitlines()) for name, text in SCRIPTS.items()}
    assert lines["reinforce"] <= 40
    assert lines["vmpo"] <= 75


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_solve_cartpole(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(SCRIPTS[name])
    run(tmp_path, f"{name}.py")
    policy = hr.load(tmp_path / "runs" / name)
    assert hr.evaluate(policy, "CartPole-v1", 20).mean > 300

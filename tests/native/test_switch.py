"""Without the compiled functions, torch computes gradients and a note is printed."""

from __future__ import annotations

import pytest
import torch

import headrace as hr
from headrace.native import library


@pytest.fixture
def reload():
    """Forgets the loaded library before and after the test."""

    def forget() -> None:
        library.built.cache_clear()
        library.functions.cache_clear()

    yield forget
    forget()


def test_the_environment_variable_switches_them_off(reload, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HEADRACE_NATIVE", "0")
    reload()
    assert library.functions(torch.float32) is None
    small = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
    small |= {"total_steps": 16, "eval_episodes": 0}
    hr.train("CartPole-v1", "ppo", run_dir=tmp_path, overwrite=True, **small)
    printed = capsys.readouterr().out
    assert "gradients of small networks are computed by torch" in printed
    assert "HEADRACE_NATIVE=0" in printed


def test_other_values_leave_them_on(reload, monkeypatch):
    monkeypatch.delenv("HEADRACE_NATIVE", raising=False)
    reload()
    before = library.functions(torch.float32)
    monkeypatch.setenv("HEADRACE_NATIVE", "1")
    reload()
    assert (library.functions(torch.float32) is None) == (before is None)

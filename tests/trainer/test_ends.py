"""All ways to end a run save its progress."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.errors import (
    ActorFailed,
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    HeadraceError,
    NonFinite,
)
from headrace.processes import stop_signals
from headrace.rundir import checkpoint, checkpoint_writer

FAULTY = "worlds:FaultyEnv"


def saved_updates(trainer: hr.Trainer) -> int:
    return checkpoint.load_trainer(checkpoint.find(trainer.run_dir))["updates"]


@pytest.fixture
def trainer(tiny):
    """A run that doesn't end by itself."""
    config = tiny(total_steps=10**9, transport="serial")
    with hr.Trainer(config, notify=lambda text: None) as trainer:
        yield trainer


@pytest.fixture
def signals():
    """Starts with default signal handlers, and restores them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "mode", "error"),
    [
        ("serial", "raise", Exception),
        ("serial", "nan", EnvironmentFault),
        ("shm", "raise", ActorFailed),
    ],
)
def test_an_environment_that_fails_leaves_a_checkpoint(tiny, transport, mode, error):
    settings = {"transport": transport, "max_restarts": 0, "envs_per_actor": 2}
    kwargs = {"mode": mode, "fail_at_step": 20}
    config = tiny(env=FAULTY, env_kwargs=kwargs, **settings)
    with pytest.raises(error), hr.Trainer(config, notify=str) as trainer:
        for _ in trainer:
            pass
    assert trainer.updates == saved_updates(trainer) == 2
    assert not (trainer.run_dir / "summary.json").exists()  # it did not come to its end


def test_what_a_callback_raises_goes_on_after_a_save(tiny):
    def break_down(result):
        if result.updates == 3:
            raise ZeroDivisionError("in a callback")

    config = tiny(transport="serial")
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        hr.train(config, callbacks=[break_down])
    assert checkpoint.load_trainer(checkpoint.find(config.run_dir))["updates"] == 3


def test_a_loop_that_is_left_is_saved_with_and_without_with(tiny, trainer):
    for result in trainer:
        if result.updates == 2:
            break
    assert saved_updates(trainer) == 2
    trainer.close()
    again = hr.Trainer(tiny(total_steps=10**9, transport="serial", overwrite=True), notify=str)
    steps = iter(again)
    next(steps)
    again.__exit__(None, None, None)
    assert saved_updates(again) == 1


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "with"])
def test_a_loop_that_ctrl_c_stops_says_how_to_continue(tiny, inside, monkeypatch):
    lines = []
    config = tiny(total_steps=10**9, transport="serial")
    monkeypatch.chdir(Path(config.run_dir).parent)
    trainer = hr.Trainer(config, notify=lines.append)
    with trainer if inside else contextlib.nullcontext():
        for result in trainer:
            if result.updates == 2:
                signal.raise_signal(signal.SIGINT)
    told = [line for line in lines if "stopped early" in line]
    assert told == ["stopped early; to continue: hr.resume('run')"]


def test_an_update_that_is_not_finite_leaves_what_was_saved(trainer, monkeypatch):
    paths = []

    def fail(*args):
        raise NonFinite("the gradient of update 5")

    with pytest.raises(NonFinite):
        for result in trainer:
            if result.updates == 2:
                paths.append(trainer.save())
            if result.updates == 4:
                monkeypatch.setattr(trainer.learner, "update", fail)
    trainer.close()
    assert [checkpoint.find(trainer.run_dir)] == paths
    assert saved_updates(trainer) == 2


def test_weights_that_are_not_finite_are_never_saved(trainer, capsys):
    with pytest.raises(NonFinite, match=r"policy_head.bias has values that are not finite"):
        for result in trainer:
            if result.updates == 2:
                good = trainer.save()
            if result.updates == 3:
                with torch.no_grad():
                    trainer.policy.policy_head.bias[0] = torch.inf
                trainer.save()
    assert checkpoint.find(trainer.run_dir) == good


def test_a_policy_is_saved_to_a_folder_of_choice_between_results(trainer, tmp_path, monkeypatch):
    (tmp_path / "best").mkdir()  # as scripts create it
    for result in trainer:
        if result.updates in (2, 3):
            assert trainer.save(tmp_path / "best") == tmp_path / "best"
            saved = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
            assert checkpoint.exists(trainer.run_dir)
        if result.updates == 4:
            break
    loaded = hr.load(tmp_path / "best").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in saved.items())
    with pytest.raises(CheckpointError, match="a policy without its training state: resume"):
        hr.resume(tmp_path / "best")
    with pytest.raises(CheckpointError, match="is not a saved policy"):
        trainer.save(trainer.run_dir)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trainer.save("~/home") == tmp_path / "home"
    trainer.close()


def test_an_error_is_not_replaced_by_a_save_that_fails(tiny, monkeypatch):
    said = []

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_writer, "save", fail)
    with (
        pytest.raises(ZeroDivisionError),
        hr.Trainer(tiny(transport="serial"), notify=said.append) as trainer,
    ):
        for _ in trainer:
            raise ZeroDivisionError
    assert "could not save" in said[-1]
    assert "No space left on device" in said[-1]


# -- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_ends_the_run_with_a_checkpoint(trainer, signals, name):
    for result in trainer:
        if result.updates == 2:
            signal.raise_signal(getattr(signal, name))
    assert trainer.interrupted
    assert trainer.updates == saved_updates(trainer)


@pytest.mark.parametrize("log_interval_s", [0.0, 1e9])
def test_a_run_that_stops_while_it_waits_reports_all_updates(tiny, log_interval_s):
    settings = {"total_steps": 10**9, "transport": "serial", "log_interval_s": log_interval_s}
    with hr.Trainer(tiny(**settings), notify=str) as trainer:
        update = trainer._loop._update
        trainer._loop._update = lambda *args: None if trainer.updates == 3 else update(*args)
        results = [result.updates for result in trainer]
    assert results == ([1, 2, 3] if log_interval_s == 0 else [1, 3])


def test_a_scheduler_may_send_sigterm_as_often_as_it_likes(trainer, signals):
    for result in trainer:
        if result.updates == 2:
            for _ in range(3):
                signal.raise_signal(signal.SIGTERM)
    assert trainer.interrupted
    assert trainer.updates == saved_updates(trainer)


@pytest.mark.parametrize(("name", "error"), [("SIGINT", KeyboardInterrupt), ("SIGHUP", SystemExit)])
def test_the_second_signal_saves_at_once(trainer, signals, name, error):
    with pytest.raises(error):
        for result in trainer:
            if result.updates == 2:
                for _ in range(2):
                    signal.raise_signal(getattr(signal, name))
    assert trainer.updates == saved_updates(trainer) == 2


def test_a_signal_does_not_cut_a_save_in_half(trainer, signals, monkeypatch):
    save, threads = torch.save, []

    def interrupted(*args):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        threads.append(threading.current_thread())
        save(*args)

    monkeypatch.setattr(torch, "save", interrupted)
    steps = iter(trainer)
    next(steps)
    with pytest.raises(KeyboardInterrupt):
        trainer.save()
    assert threads == [threading.main_thread()]
    assert saved_updates(trainer) == 1


def test_a_hangup_that_is_ignored_stays_ignored(signals):
    stopped = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with stop_signals(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGHUP)
    assert not stopped
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


# -- the loop -------------------------------------------------------------------------------------


@pytest.mark.draws
def test_a_trainers_loop_ends_as_the_command_line_does(tiny):
    with hr.Trainer(tiny(transport="serial", eval_episodes=2)) as trainer:
        *_, result = trainer
        assert not (trainer.run_dir / "summary.json").exists()
    summary = json.loads((trainer.run_dir / "summary.json").read_text())
    assert summary["env_steps"] == result.env_steps
    assert summary["evaluation"]["episodes"] == 2
    assert len(summary["evaluation"]["returns"]) == len(summary["evaluation"]["lengths"]) == 2
    assert (trainer.run_dir / "curve.png").stat().st_size > 1000
    assert json.loads(json.dumps(trainer.finish())) == summary  # once


def test_save_returns_a_checkpoint_that_can_be_loaded_and_needs_one_learner(trainer):
    steps = iter(trainer)
    next(steps)
    path = trainer.save()
    assert path == checkpoint.find(trainer.run_dir)
    weights = hr.load(path).state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in trainer.policy.state_dict().items())
    trainer.group.size = 2
    with pytest.raises(ConfigError, match="num_learners=1, not 2"):
        trainer.save()


def test_callbacks_get_the_trainer_if_they_take_it(tiny):
    seen = []

    class Counter:
        def __call__(self, result, trainer):
            seen.append(trainer.updates)
            return trainer.updates < 2

    def plain(result, verbose=True):
        assert verbose is True

    def named(result, *, trainer=None):
        assert trainer.updates == result.updates

    hr.train(tiny(transport="serial"), callbacks=[Counter(), plain, named, [].append, print])
    assert seen == [1, 2]


def test_a_run_that_is_stopped_before_its_first_update_names_no_checkpoint(tiny, capsys):
    callback = type("Stop", (), {"begin": lambda self, trainer: trainer.interrupt(),
                                 "__call__": lambda self, result, trainer: None,
                                 "end": lambda self, trainer, summary: None})()  # fmt: skip
    config = tiny(transport="serial")
    hr.train(config, callbacks=[callback])
    out = capsys.readouterr().out
    assert not checkpoint.exists(Path(config.run_dir))
    assert "stopped early; nothing was saved before the first update" in out
    assert "checkpoints/latest" not in out


def test_a_closed_trainer_does_not_train_on(tiny):
    trainer = hr.Trainer(tiny(total_steps=10**9, transport="serial"), notify=str)
    for _ in trainer:
        break
    trainer.close()
    updates = trainer.updates
    with pytest.raises(HeadraceError, match=r"this Trainer is closed: .*resume"):
        next(iter(trainer))
    assert trainer.updates == updates

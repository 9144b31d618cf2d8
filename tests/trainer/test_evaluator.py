"""Evaluations during training: failures are reported and don't stop the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal

import psutil
import pytest
from worlds import FaultyEnv

import headrace as hr
from headrace.envs.names import resolve
from headrace.evaluating.evaluator import Evaluator
from headrace.rundir.files import read_jsonl

FAULTY = "worlds:FaultyEnv"
CAUSES = {
    "raise": "RuntimeError: FaultyEnv failed at step 5, as asked",
    "exit": "its process exited with code 13",
    "hang": "it was killed because it took no step for 5 s",
    "nan": "ConfigError: the observation holds nan",
}


@pytest.fixture
def evaluator(tiny, tmp_path):
    """Creates an evaluator of FaultyEnv, and the list of its messages."""
    made = []

    def make(mode: str, once: bool = False, **settings) -> tuple[Evaluator, list[str]]:
        kwargs = {"mode": mode, "fail_at_step": 5, "evaluated": True}
        if once:
            kwargs["once"] = str(tmp_path / "happened")
        config = tiny(env=FAULTY, env_kwargs=kwargs, eval_episodes=2, **settings)
        said: list[str] = []
        made.append(Evaluator(config, resolve(FAULTY), said.append))
        return made[-1], said

    yield make
    for one in made:
        one.close()


@pytest.fixture
def policy():
    env = FaultyEnv()
    return hr.Policy(env.observation_space, env.action_space)


def play(evaluator: Evaluator, policy: hr.Policy):
    evaluator.begin(policy, 1000, 7.0)
    return evaluator.wait(lambda: False)


SLOW = [pytest.param(mode, marks=pytest.mark.full) for mode in ("hang", "nan")]


@pytest.mark.parametrize("mode", ["raise", "exit", *SLOW])
def test_what_breaks_once_is_told_in_a_line_and_played_once_more(evaluator, policy, mode):
    timeout_s = 5.0 if mode == "hang" else 60.0
    playing, said = evaluator(mode, once=True, actor_timeout_s=timeout_s)
    found = play(playing, policy)
    assert found.evaluation.returns == (20.0, 20.0)
    assert (found.env_steps, found.seconds) == (1000, 7.0)
    assert len(said) == 1
    assert "\n" not in said[0]
    assert CAUSES[mode] in said[0]
    assert "evaluation at 1,000 steps" in said[0]
    assert "restart 1/10" in said[0]
    assert playing.reason is None


@pytest.mark.parametrize("transport", ["shm", "serial"])
def test_after_two_tries_an_evaluation_is_left_out_and_after_max_restarts_all_are(
    evaluator, policy, transport
):
    playing, said = evaluator("raise", max_restarts=3, transport=transport)
    assert play(playing, policy) is None
    assert "left out after 2 tries" in said[-1] == playing.reason
    assert play(playing, policy) is None
    assert len(said) == 4
    assert "max_restarts=3 restarts are used up" in said[-1] == playing.reason
    assert play(playing, policy) is None
    assert len(said) == 4
    assert not playing.busy


def test_a_killed_evaluator_is_replaced_and_a_stopped_one_killed(evaluator, policy, gone):
    playing, said = evaluator("hang", actor_timeout_s=1.5)  # never ends, however fast it begins
    playing.begin(policy, 1000, 7.0)
    playing.take()
    (pid,) = playing.pids()
    os.kill(pid, signal.SIGKILL)
    while not (said and playing.pids()):
        playing.take(0.1)
    (pid,) = playing.pids()
    os.kill(pid, signal.SIGSTOP)
    assert playing.wait(lambda: False) is None
    assert "exited with code -9" in said[0]
    assert "took no step for 1.5 s" in said[1]
    assert gone([psutil.Process(pid)] if psutil.pid_exists(pid) else []) == []


def test_nothing_is_left_of_an_evaluator_that_is_closed(evaluator, policy, gone):
    playing, _ = evaluator("hang")
    playing.begin(policy, 1000, 7.0)
    playing.take(0.1)
    process = psutil.Process(*playing.pids())
    playing.close()
    assert gone([process]) == []
    assert not playing.busy


# -- in a run -------------------------------------------------------------------------------------


def test_training_goes_on_while_an_evaluation_is_played(tiny, tmp_path):
    hangs = tmp_path / "once"  # exists from the moment at which the first evaluator hangs
    kwargs = {"mode": "hang", "fail_at_step": 5, "evaluated": True, "once": str(hangs)}
    config = tiny(
        env=FAULTY, env_kwargs=kwargs, eval_episodes=2, eval_interval=128, total_steps=10**6
    )
    said: list[str] = []
    seen: dict[int, list[int]] = {}  # by evaluator: updates during which it played
    with hr.Trainer(config, notify=lambda line: "doctor" in line or said.append(line)) as trainer:
        for result in trainer:
            for pid in trainer._loop.evaluator.pids():
                seen.setdefault(pid, []).append(result.updates)
            hung = [pid for pid, updates in seen.items() if len(updates) > 20]
            if hung and hangs.exists() and not said:
                with contextlib.suppress(ProcessLookupError):  # it was missed already
                    os.kill(hung[0], signal.SIGKILL)
            if said and result.eval_return is not None:
                trainer.stop()
    assert len(next(iter(seen.values()))) > 20
    first, *_ = read_jsonl(trainer.run_dir / "evaluations.jsonl")
    assert first["env_steps"] == 128
    assert first["returns"] == [20.0, 20.0]
    assert first["lengths"] == [20, 20]
    assert trainer.env_steps > 1000  # of 20 updates at least


@pytest.mark.parametrize("transport", [pytest.param("shm", marks=pytest.mark.full), "serial"])
def test_a_run_whose_evaluations_fail_ends_with_a_checkpoint_and_says_why(tiny, transport, capsys):
    kwargs = {"mode": "raise", "fail_at_step": 5, "evaluated": True}
    settings = {"eval_episodes": 2, "eval_interval": 256, "max_restarts": 1, "transport": transport}
    policy = hr.train(tiny(env=FAULTY, env_kwargs=kwargs, **settings))
    assert isinstance(policy, hr.Policy)
    run_dir = tiny().run_dir
    with open(f"{run_dir}/summary.json") as file:
        summary = json.load(file)
    assert summary["env_steps"] >= 640
    assert "evaluation" not in summary
    assert CAUSES["raise"] in summary["no_evaluation"]
    assert hr.load(run_dir) is not None
    assert "evaluated return" in capsys.readouterr().out


@pytest.mark.full
def test_deterministic_runs_wait_for_every_evaluation(tiny, finish):
    settings = {"eval_episodes": 1, "eval_interval": 128, "deterministic": True}
    trainer, _ = finish(
        tiny(env=FAULTY, env_kwargs={"fail_at_step": -1}, total_steps=384, **settings)
    )
    lines = read_jsonl(trainer.run_dir / "evaluations.jsonl")
    steps = [line["env_steps"] for line in lines]
    assert [step // 128 for step in steps] == [1, 2, 3]
    assert all(step % 128 < 64 for step in steps)  # at the first update beyond

"""Failures are reported with their traceback, and recoverable ones don't stop the program."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import CountingEnv, FaultyEnv

from headrace.cluster_env import LocalConfig
from headrace.cluster_env.worker_pool import WorkerPool
from headrace.errors import AgentFault, ConfigError, WorkerFailed
from tests.cluster_env.parts import AsleepEnv, BrokenEnv, CountingAgent, Failing, Returning

ZEROS = np.zeros(2, int)


def faulty(make, tmp_path, mode: str, config=None, once: bool = True, fail_at_step: int = 3):
    """Two workers, one of which fails once, or always."""
    kwargs = {"fail_at_step": fail_at_step, "mode": mode}
    kwargs |= {"once": str(tmp_path / "broken")} if once else {}
    envs = make(FaultyEnv, config, env_kwargs=kwargs)
    envs.reset(seed=0)
    return envs


def give_up_once(pool: WorkerPool, broken: Path, monkeypatch) -> None:
    """Once one of two workers hangs, let its time be over when the other one has answered."""
    answer = pool._answer

    def answered(index: int) -> Any:
        found = answer(index)
        if broken.exists() and pool._deadlines:
            monkeypatch.undo()
            pool._deadlines = {i: (0.0, limit_s) for i, (_, limit_s) in pool._deadlines.items()}
        return found

    monkeypatch.setattr(pool, "_answer", answered)


# -- environments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "reason", "traceback"),
    [
        ("raise", "RuntimeError: FaultyEnv failed at step 3, as asked", "in step"),
        ("exit", r"died \(exit code 13\)", ""),
        ("hang", "gave no answer in 300 s", ""),
    ],
)
def test_a_fault_is_told_and_the_worker_replaced(
    make, tmp_path, monkeypatch, mode, reason, traceback
):
    envs = faulty(make, tmp_path, mode, LocalConfig(nodes=2, timeout_s=300.0))
    if mode == "hang":
        give_up_once(envs._head.pool, tmp_path / "broken", monkeypatch)
    assert envs.faults == {}
    for _ in range(2):
        assert "fault" not in envs.step(ZEROS)[-1]
    says = rf"(?s)^worker [01] \(process \d+\): {reason} \(restart 1/10\).*{traceback}"
    with pytest.warns(RuntimeWarning, match=says):
        _, reward, terminated, truncated, infos = envs.step(ZEROS)
    (worker,) = envs.faults
    assert infos["_fault"].tolist() == truncated.tolist() == [i == worker for i in range(2)]
    assert infos["fault"][1 - worker] is None
    assert infos["fault"][worker] == envs.faults[worker]
    assert infos["fault"][worker].startswith(f"worker {worker} (process")
    assert not terminated.any()
    assert reward.tolist() == [float(i != worker) for i in range(2)]
    _, reward, _, truncated, infos = envs.step(ZEROS)  # the filler
    assert reward.tolist() == [float(i != worker) for i in range(2)]
    assert not truncated.any()
    assert envs.faults == {}
    for _ in range(10):
        assert envs.step(ZEROS)[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("use", ["step", "collect"])
@pytest.mark.filterwarnings("ignore:worker")
def test_more_deaths_than_max_restarts_end_it(make, tmp_path, use):
    config = LocalConfig(nodes=2, max_restarts=3)
    envs = faulty(make, tmp_path, "raise", config, once=False)
    says = r"(?s)^worker [01] .*failed at step 3, as asked; max_restarts=3 .*Traceback.*in step"
    with pytest.raises(WorkerFailed, match=says) as first:
        for _ in range(30):
            envs.step(ZEROS) if use == "step" else envs.collect(CountingAgent(), 5)
    with pytest.raises(WorkerFailed) as second:
        envs.step(ZEROS)
    assert str(second.value) == str(first.value)
    envs.close()


@pytest.mark.filterwarnings("ignore:worker")
def test_a_message_that_nobody_reads_ends_in_time(make, tmp_path):
    config = LocalConfig(nodes=1, max_restarts=1)
    envs = make(AsleepEnv, config, env_kwargs={"once": str(tmp_path / "first")})
    envs.reset(seed=0)
    envs._head.pool._backend._send_timeout_s = 0.5  # for the next worker, which hangs
    assert not envs.step(ZEROS[:1])[3].any()
    assert envs.step(ZEROS[:1])[3].all()
    agent = CountingAgent()
    agent.ballast = np.zeros(2**20)  # more than the pipe holds
    says = r"^worker 0 \(process \d+\): read no message in time; max_restarts=1 "
    with pytest.raises(WorkerFailed, match=says):
        envs.step(agent)


def test_an_environment_that_cannot_be_made_is_told_at_once(make):
    says = r"(?s)^worker \d .*RuntimeError: BrokenEnv has no licence; it never came up.*Traceback"
    for _ in range(2):  # tries again
        with pytest.raises(WorkerFailed, match=says):
            make(BrokenEnv)


def test_what_hangs_while_it_is_made_is_told(make):
    config = LocalConfig(nodes=1, start_timeout_s=0.6)
    with pytest.raises(WorkerFailed, match=r"gave no answer in 0\.6 s; it never came up"):
        make(lambda: threading.Event().wait(), config).launch()


def test_any_time_limit_can_be_waited_for(make):
    envs = make(CountingEnv, LocalConfig(nodes=1, timeout_s=float("inf")))
    assert envs.reset(seed=3)[0][0, 0] == 3


def test_a_death_in_reset_is_made_good_within_it(make, warned):
    envs = make(CountingEnv, envs_per_node=2)
    envs.launch()
    envs._head.pool._nodes[1].child.process.kill()
    assert envs.reset(seed=7)[0][:, 0].tolist() == [7, 8, 9, 10]
    assert warned("restart 1/10")
    assert list(envs.faults) == [1]
    assert "fault" not in envs.step(np.zeros(4, int))[-1]


@pytest.mark.filterwarnings("ignore:worker")
def test_a_rollout_without_any_worker_has_the_extras_of_earlier_ones(make):
    envs = make(CountingEnv, LocalConfig(nodes=1), envs_per_node=2)
    envs.reset(seed=0)
    agent = Returning(lambda obs: {"action": obs[:, 0].long() * 0, "value": obs[:, :3]})
    envs.collect(agent, 3)
    envs._head.pool._nodes[0].child.process.kill()
    rollout = envs.collect(agent, 5)
    assert list(envs.faults) == [0]
    assert rollout.first.all()
    assert rollout.extras["value"].shape == (5, 2, 3)
    assert not rollout.extras["value"].any()


# -- agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "max_restarts"), [("step", 0), ("collect", 10), ("collect_async", 0)]
)
def test_an_agent_that_raises_is_told_and_a_good_one_goes_on(make, tmp_path, use, max_restarts):
    envs = make(CountingEnv, LocalConfig(nodes=2, max_restarts=max_restarts))
    envs.reset(seed=0)
    file = tmp_path / "there"
    file.touch()
    agent = Failing(file)
    acting = {
        "step": lambda: envs.step(agent),
        "collect": lambda: envs.collect(agent, 3),
        "collect_async": lambda: next(envs.collect_async(agent, 3)),
    }
    says = r"(?s)^the agent failed in worker [01] .*: ZeroDivisionError: Failing failed, as asked\n"
    for _ in range(3):
        with pytest.raises(AgentFault, match=says + r"\nIts traceback:.*in act\n.*ZeroDivision"):
            acting[use]()
        envs.reset()  # or the next step tells that all rows have ended
    file.unlink()
    acting[use]()  # the very same agent
    obs = envs.reset(seed=4)[0]
    assert obs[:, 0].tolist() == [4, 5]
    assert envs.step(CountingAgent())[0].tolist() == [[4, 0, 1, 1], [5, 0, 1, 2]]


@pytest.mark.filterwarnings("ignore:worker")
def test_a_dead_workers_copy_is_no_longer_told_of(make):
    envs = make(CountingEnv)
    envs.reset(seed=0)
    assert envs.step(CountingAgent())[-1]["policy_version"].tolist() == [0, 0]
    envs._head.pool._nodes[1].child.process.kill()
    infos = envs.step(CountingAgent())[-1]
    assert infos["_fault"].tolist() == [False, True]
    assert infos["policy_version"].tolist() == [1, -1]


@pytest.mark.parametrize("first", [0, 1])
def test_rows_whose_agent_failed_end_truncated(make, first):
    envs = make(CountingEnv)
    envs.reset(seed=0)

    def act(obs):
        if obs[0, 0] == first:
            raise ZeroDivisionError
        return obs[:, 0].long() * 0

    with pytest.raises(AgentFault, match=f"worker {first} .*ZeroDivisionError"):
        envs.step(Returning(act))
    _, _, _, truncated, infos = envs.step(ZEROS)
    assert truncated.tolist() == [i == first for i in range(2)]
    assert "ZeroDivisionError" in infos["fault"][first]
    assert envs.step(ZEROS)[0][first, 1:].tolist() == [0, 0, -1]


RETURNED = {
    "action": lambda obs: obs[:, 0].long() * 0 + 2,
    "pair": lambda obs: (obs[:, 0].long() * 0 + 2, obs[:, 0] - 1),
    "arrays": lambda obs: (np.full(len(obs), 2), np.full(len(obs), -1.0) + obs[:, 0].numpy()),
    "dict": lambda obs: {
        "action": obs[:, 0].long() * 0 + 2, "log_prob": obs[:, 0] - 1, "value": obs
    },
}  # fmt: skip


def test_act_may_return_any_of_these(make):
    envs = make(CountingEnv)
    for name, returned in RETURNED.items():
        envs.reset(seed=0)
        infos = envs.step(Returning(returned))[-1]
        assert infos["action"].tolist() == [2, 2], name
        assert ("log_prob" in infos) == (name != "action")
        if name != "action":
            assert infos["log_prob"].tolist() == [-1.0, 0.0], name
        if name == "dict":
            assert infos["value"].tolist() == [[0, 0, 0, -1], [1, 0, 0, -1]]


def test_three_values_are_refused_with_what_to_do(make):
    envs = make(CountingEnv)
    envs.reset(seed=0)
    with pytest.raises(AgentFault, match=r"act returned 3 values; return \(action, log_prob\), or"):
        envs.step(Returning(lambda obs: (obs, obs, obs)))


def test_what_is_no_agent_is_refused(make):
    envs = make(CountingEnv)
    half = type("Half", (), {"act": lambda self, obs: 0})()
    for agent, says in (
        (object(), r"step received actions for \[0\] environments"),
        (half, r"agent=Half has no .*get_parameters"),
    ):
        envs.reset(seed=0)
        with pytest.raises(ConfigError, match=says):
            envs.step(agent)
        with pytest.raises(ConfigError, match="agent="):
            envs.collect(agent, 2)
        assert envs.step(CountingAgent())[0].shape == (2, 4)


def test_what_cannot_be_sent_is_named(make):
    envs = make(CountingEnv)
    envs.reset(seed=0)
    agent = CountingAgent()
    agent.parts = {"inner": [1, Returning(threading.Lock())]}
    says = r"^agent\.parts\['inner'\]\[1\]\.function, a lock, can't be sent to workers"
    for _ in range(2):
        with pytest.raises(ConfigError, match=says):
            envs.step(agent)
    del agent.parts
    assert envs.step(agent)[0].shape == (2, 4)


# -- the head -------------------------------------------------------------------------------------

SCRIPT = """
import headrace as hr
from worlds import SlowEnv
class Mine(SlowEnv):  # and no main guard
    pass
envs = hr.ClusterEnv({"type": Mine, "envs_per_node": 1, "env_kwargs": {"step_seconds": 0.05}})
envs.reset()
print("ready", flush=True)
while True:
    try:
        envs.step(envs.action_space.sample())
    except KeyboardInterrupt:
        envs.step(envs.action_space.sample())
        print("continues", flush=True)"""


@pytest.mark.slow
def test_no_worker_outlives_a_head_that_is_killed_and_ctrl_c_ends_none(start, gone, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start("script.py")
    script.wait_for("ready")
    family = script.family()
    assert len(family) >= 4  # with the fork server
    os.killpg(script.process.pid, signal.SIGINT)  # as a terminal does
    script.wait_for("continues")
    assert gone(family, timeout_s=0.0) == family
    script.process.kill()
    script.wait()
    assert gone(family) == []

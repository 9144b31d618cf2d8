"""The engine with a process per environment: the same data, and every fault is reported."""

from __future__ import annotations

import os
import signal
import time
import warnings
from contextlib import contextmanager
from multiprocessing import connection

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.spaces import Box, Discrete
from worlds import CountingEnv, FaultyEnv, SpaceIdentityEnv

from headrace.envs import make_vec
from headrace.envs.bounds_warnings import bounds_warnings_ignored, ignore_bounds_warnings
from headrace.envs.processes import Processes
from headrace.errors import EnvironmentFault
from headrace.ops import tree
from tests.tries import few_of


@contextmanager
def opened(*args, **kwargs):
    envs = make_vec(*args, **kwargs)
    try:
        yield envs
    finally:
        envs.close()


def random_stream(envs, steps: int) -> list:
    """Return copies of all results of a run with random actions."""
    envs.action_space.seed(1)
    rows = [tree.map_leaves(np.array, envs.reset(seed=11))]
    for _ in range(steps):
        rows.append(tree.map_leaves(np.array, envs.step(envs.action_space.sample())))
    return rows


@pytest.fixture
def leaves_nothing(gone):
    """Asserts that no process of the test is left."""
    make_vec(CountingEnv, 1, "async").close()  # the fork server stays
    before = set(psutil.Process().children(recursive=True))
    yield
    assert gone(list(set(psutil.Process().children(recursive=True)) - before)) == []


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("CartPole-v1", {}),
        (CountingEnv, {}),
        (SpaceIdentityEnv, {"action_space": "tuple", "nested": True}),
        (SpaceIdentityEnv, {"action_space": "dict"}),
    ],
)
def test_it_gives_the_stream_of_the_sync_engine(env, kwargs):
    streams = []
    for engine in ("sync", "async"):
        with opened(env, 3, engine, kwargs) as envs:
            streams.append(random_stream(envs, 60))
    for a, b in zip(*streams, strict=True):
        assert [x.dtype for x in tree.leaves(a)] == [x.dtype for x in tree.leaves(b)]
        for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
            assert np.array_equal(x, y)


@pytest.mark.parametrize("engine", ["async", "threads"])
def test_infos_of_masks_match_those_of_the_sync_engine(engine):
    infos = []
    for each in ("sync", engine):
        with opened(SpaceIdentityEnv, 3, each, {"mask": "info"}) as envs:
            infos.append(envs.reset(seed=0)[1])
    assert infos[0].keys() == infos[1].keys() == {"action_mask", "_action_mask"}
    for key in infos[0]:
        assert np.array_equal(infos[0][key], infos[1][key])


class Ignoring(gymnasium.Env):
    """Observes whether its process ignores values outside their bounds."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array([bounds_warnings_ignored()], np.float32), {}


@pytest.mark.parametrize(("parent", "ignored"), [(False, [0, 1, 1]), (True, [1, 1, 1])])
def test_at_most_one_process_warns_about_bounds(parent, ignored):
    with warnings.catch_warnings():
        if parent:
            ignore_bounds_warnings()
        with opened(Ignoring, 3, "async") as envs:
            observations, _ = envs.reset(seed=0)
    assert observations[:, 0].tolist() == ignored


def test_auto_never_chooses_it():
    for env in (CountingEnv, "CartPole-v1", "Acrobot-v1"):
        with opened(env, 1) as envs:
            assert not isinstance(envs, Processes)


def test_it_runs_one_process_per_environment_and_close_ends_them_also_twice(gone):
    envs = make_vec(CountingEnv, 3, "async")
    processes = [psutil.Process(p.pid) for p in envs.processes]
    assert len({p.pid for p in processes} | {os.getpid()}) == 4
    envs.reset(seed=0)
    envs.close()
    envs.close()
    assert gone(processes) == []


def test_a_process_that_died_is_named_at_once(leaves_nothing):
    with opened(CountingEnv, 3, "async") as envs:
        envs.reset(seed=0)
        os.kill(envs.processes[1].pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match=r"CountingEnv: .* 1 \(exit code -9\) died"):
            envs.step(np.zeros(3, int))  # instead of a timeout


def test_an_environment_that_ends_its_process_inside_a_step_is_named(tmp_path, leaves_nothing):
    kwargs = {"fail_at_step": 2, "mode": "exit", "once": str(tmp_path / "done")}
    with opened(FaultyEnv, 3, "async", kwargs) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(3, int))
        with pytest.raises(EnvironmentFault, match=r"environment \d \(exit code 13\) died"):
            envs.step(np.zeros(3, int))


def test_an_environment_that_raises_is_named_with_its_traceback(leaves_nothing):
    class Failing(CountingEnv):
        def step(self, action):
            if self._env == 7:
                # Of a class that only this test has, and that can't be unpickled.
                raise type("Odd", (Exception,), {"__init__": lambda self, a, b: None})(1, 2)
            return super().step(action)

    with opened(Failing, 3, "async") as envs:
        envs.reset(seed=6)
        with pytest.raises(EnvironmentFault, match=r"Failing: environment 1 failed with .*Odd"):
            envs.step(np.zeros(3, int))


def test_an_environment_that_hangs_is_named_after_the_timeout_and_killed(gone, tmp_path):
    done = str(tmp_path / "done")
    envs = Processes(lambda: FaultyEnv(1, "hang", done), 2, "Hanging")
    processes = [psutil.Process(p.pid) for p in envs.processes]
    envs.reset(seed=0)
    envs._timeout_s = 3.0  # its processes have started, which may take longer
    with pytest.raises(EnvironmentFault, match=r"Hanging: no answer in 3 s from environment \d$"):
        envs.step(np.zeros(2, int))
    envs.close()
    assert gone(processes) == []


@pytest.mark.parametrize("patience_s", [0.0, 1.5])
def test_an_environment_that_cannot_be_made_in_its_process_is_named(
    patience_s, leaves_nothing, monkeypatch
):
    here, call = os.getpid(), Processes.call_async

    def late(self, *args, **kwargs) -> None:  # as on a machine where this process has to wait
        connection.wait([process.sentinel for process in self.processes], patience_s)
        call(self, *args, **kwargs)

    monkeypatch.setattr(Processes, "call_async", late)

    def make() -> gymnasium.Env:
        if os.getpid() != here:
            raise OSError("no display")
        return CountingEnv()

    with pytest.raises(EnvironmentFault, match="make: environment 0 failed with OSError: no disp"):
        make_vec(make, 2, "async")


def test_environments_of_different_spaces_are_refused(leaves_nothing):
    here = os.getpid()

    def make() -> gymnasium.Env:
        env = CountingEnv()
        if os.getpid() != here:
            env.action_space = Discrete(9)
        return env

    with pytest.raises(RuntimeError, match="action space different"):
        make_vec(make, 2, "async")


SCRIPT = """
import sys, time
import numpy as np
from headrace.envs import make_vec
from worlds import CountingEnv, FaultyEnv
print("the script runs", flush=True)
class Mine(CountingEnv):
    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs + np.float32([0, 0, 0, 8]), info
class Hanging(FaultyEnv):
    def __init__(self):
        super().__init__(1, "hang")
envs = make_vec(Hanging if "hang" in sys.argv else Mine, 2, "async")
print("obs", envs.reset(seed=4)[0].tolist(), flush=True)
"""


def test_an_environment_of_a_script_without_a_main_guard_works_and_needs_no_close(tmp_path, start):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start("script.py")
    assert script.wait() == 0, script.output
    assert "obs [[4.0, 0.0, 0.0, 7.0], [5.0, 0.0, 0.0, 7.0]]" in script.output
    assert script.output.count("the script runs") == 1
    assert "Traceback" not in script.output


@pytest.mark.parametrize("mode", few_of(["idle", "hang"], ["hang"]))
def test_processes_end_with_a_parent_that_is_killed_also_inside_a_step(tmp_path, start, gone, mode):
    body = "envs.step(np.zeros(2, int))" if mode == "hang" else "time.sleep(60)"
    (tmp_path / "script.py").write_text(SCRIPT + body)
    script = start("script.py", mode)
    script.wait_for("obs")
    time.sleep(0.3)
    family = script.family()
    assert len(family) >= 3
    family[0].kill()
    assert gone(family) == []


def test_processes_survive_ctrl_c_which_is_the_parents_to_handle():
    with opened(CountingEnv, 2, "async") as envs:
        envs.reset(seed=0)
        for process in envs.processes:
            os.kill(process.pid, signal.SIGINT)
        obs, *_ = envs.step(np.ones(2, int))
        assert obs[:, 2].tolist() == [1, 1]


def test_it_works_inside_a_daemonic_process(tmp_path, start):
    (tmp_path / "script.py").write_text("""
import multiprocessing
from headrace.envs import make_vec
from worlds import CountingEnv
def child():
    envs = make_vec(CountingEnv, 2, "async")
    print("MADE", envs.num_envs, flush=True)
    envs.close()
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join()
""")
    script = start("script.py")
    assert script.wait() == 0
    assert "MADE 2" in script.output

"""The engine with a thread per environment: the same data, and every fault is reported."""

from __future__ import annotations

import gc
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from patience import PATIENCE_S, wait_until
from worlds import CountingEnv, FaultyEnv, SpaceIdentityEnv

from headrace.envs import make_vec
from headrace.envs.threads import Threads
from headrace.errors import ConfigError, EnvironmentFault
from headrace.ops import tree
from tests.envs.test_async import opened, random_stream


def threads_of_environments() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("headrace-env-")]


@pytest.fixture
def leaves_nothing():
    """Asserts that no thread of the test is left."""
    before = set(threads_of_environments())
    yield
    gc.collect()
    for thread in set(threads_of_environments()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        (CountingEnv, {}),
        (SpaceIdentityEnv, {"action_space": "tuple", "nested": True}),
        (SpaceIdentityEnv, {"action_space": "dict"}),
    ],
)
def test_it_gives_the_stream_of_the_sync_engine(env, kwargs, leaves_nothing):
    streams = []
    for engine in ("sync", "threads"):
        with opened(env, 3, engine, kwargs) as envs:
            streams.append(random_stream(envs, 60))
            assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    for a, b in zip(*streams, strict=True):
        assert [x.dtype for x in tree.leaves(a)] == [x.dtype for x in tree.leaves(b)]
        for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
            assert np.array_equal(x, y)


def test_seeds_may_be_given_one_by_one_or_not_at_all():
    with opened(CountingEnv, 3, "threads") as envs:
        assert envs.reset(seed=[5, None, 9])[0][[0, 2], 0].tolist() == [5, 9]
        envs.reset()
        with pytest.raises(ValueError):
            envs.reset(seed=[5])


class Telling(CountingEnv):
    """Records the threads that create and use it, and reports them in its infos."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = [threading.current_thread()]

    def reset(self, **kwargs):
        self.threads.append(threading.current_thread())
        obs, _ = super().reset(**kwargs)
        return obs, {"threads": self.threads}

    def step(self, action):
        self.threads.append(threading.current_thread())
        *rest, _ = super().step(action)
        return *rest, {"threads": self.threads} if self._env == 1 else {}

    def close(self):
        self.threads.append(threading.current_thread())


def test_an_environment_is_made_reset_stepped_and_closed_in_its_own_thread(leaves_nothing):
    envs = make_vec(Telling, 3, "threads")
    lists = envs.reset(seed=0)[1]["threads"]
    infos = [envs.step(np.zeros(3, int))[4] for _ in range(3)]
    envs.close()
    envs.close()
    assert [len(one) for one in lists] == [6, 6, 6]
    assert [len(set(one)) for one in lists] == [1, 1, 1]
    assert len({one[0] for one in lists} | {threading.main_thread()}) == 4
    for info in infos:  # vectorised as Gymnasium does
        assert info["_threads"].tolist() == [False, True, False]
        assert info["threads"].tolist() == [None, lists[1], None]


def test_environments_are_stepped_alone_and_reported_when_they_are_ready():
    gates = [threading.Event() for _ in range(3)]

    class Gated(CountingEnv):
        def step(self, action):
            assert gates[self._env].wait(PATIENCE_S)
            return super().step(action)

    with opened(Gated, 3, "threads") as envs:
        envs.reset(seed=0)
        envs.send(np.arange(3), np.array([3, 2, 1]))
        for i in (2, 0):
            gates[i].set()
            assert envs.receive().tolist() == [i]
        assert envs.num_busy == 1
        obs, *_ = envs.results(np.array([2, 0]))
        assert obs[:, [0, 2, 3]].tolist() == [[2, 1, 1], [0, 1, 3]]
        envs.send(np.array([2]), np.array([0]))
        assert envs.receive().tolist() == [2]
        assert envs.results(np.array([2]))[0][0, 2] == 2
        obs = envs.results(np.array([0]))[0]
        gates[1].set()
        assert envs.receive(enough=3, linger_s=30.0).tolist() == [1]  # no other process is busy
        assert obs[0, 2] == 1


def test_auto_never_chooses_it():
    for env in (CountingEnv, "CartPole-v1", "Acrobot-v1"):
        with opened(env, 1) as envs:
            assert not isinstance(envs, Threads)


def test_threads_end_with_what_holds_them(leaves_nothing):
    make_vec(CountingEnv, 3, "threads").reset(seed=0)


# -- faults -------------------------------------------------------------------------------------


def test_an_environment_that_raises_is_named_with_its_traceback(leaves_nothing):
    class Failing(CountingEnv):
        def step(self, action):
            if self._env == 7:
                raise type("Odd", (Exception,), {})("here")
            return super().step(action)

    with opened(Failing, 3, "threads") as envs:
        envs.reset(seed=6)
        with pytest.raises(EnvironmentFault, match="Failing: environment 1 failed with .*Odd: here"
                           r"(.|\n)*in step\n") as raised:  # fmt: skip
            envs.step(np.zeros(3, int))
        assert type(raised.value.__cause__).__name__ == "Odd"
        with pytest.raises(EnvironmentFault, match="environment 1 failed"):
            envs.step(np.zeros(3, int))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_environment_that_ends_its_thread_is_a_fault_like_others(error, leaves_nothing):
    class Leaving(CountingEnv):
        def step(self, action):
            raise error

    with opened(Leaving, 2, "threads") as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvironmentFault, match=type(error).__name__):
            envs.step(np.zeros(2, int))


def test_an_environment_that_hangs_is_named_after_the_timeout_and_close_does_not_wait(tmp_path):
    done = str(tmp_path / "done")
    envs = Threads(lambda: FaultyEnv(1, "hang", done), 3, "Hanging", timeout_s=2.0)
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match=r"Hanging: no answer in 2 s from environment \d$"):
        envs.step(np.zeros(3, int))
    envs.close_extras(timeout=0.5)
    wait_until(lambda: sum(worker.thread.is_alive() for worker in envs._workers) == 1)


def test_one_that_hangs_is_named_also_while_others_go_on(tmp_path):
    stuck = threading.Event()

    class Stuck(CountingEnv):
        def step(self, action):
            if self._env == 1:
                stuck.wait(PATIENCE_S)
            return super().step(action)

    envs = Threads(Stuck, 3, "Stuck", timeout_s=2.0)
    envs.reset(seed=0)
    rows = np.arange(3)
    with pytest.raises(EnvironmentFault, match=r"no answer in 2 s from environment 1$"):
        for _ in range(10_000_000):
            envs.send(rows, np.zeros(len(rows), int))
            rows = envs.receive()
    stuck.set()
    envs.close()


def test_an_environment_that_cannot_be_made_is_named(leaves_nothing):
    def make() -> gymnasium.Env:
        raise OSError("no display")

    with pytest.raises(EnvironmentFault, match=r"make: environment \d failed with OSError: no d"):
        make_vec(make, 2, "threads")


def test_what_cannot_be_made_is_refused_in_a_sentence(leaves_nothing):
    for env, kwargs, reason in [
        (lambda: 3, {}, "it returned int, which isn't a gymnasium.Env"),
        (CountingEnv, {"wrong": 1}, "but no 'wrong'"),
        ("phys2d/CartPole-v0", {}, "."),
    ]:
        with pytest.raises(ConfigError, match=f"engine='threads' can't make .* {reason}"):
            make_vec(env, 2, "threads", kwargs)


def test_more_threads_than_there_may_be_are_refused_in_a_sentence(monkeypatch, leaves_nothing):
    start, started = threading.Thread.start, []

    def limited(self) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ConfigError, match=r"num_envs=5 with .*'threads'.*only 2 \(nearest: 2\)"):
        make_vec(CountingEnv, 5, "threads")


def test_environments_of_different_spaces_are_refused(leaves_nothing):
    made = []

    def make() -> gymnasium.Env:
        env = CountingEnv()
        made.append(env)
        if len(made) == 2:
            env.action_space = Discrete(9)
        return env

    with pytest.raises(EnvironmentFault, match=r"make: the action_space of environment \d, Disc"):
        make_vec(make, 2, "threads")


def test_an_environment_whose_close_fails_is_named_once_all_are_closed(leaves_nothing):
    closed = []

    class Bad(CountingEnv):
        def close(self):
            closed.append(self)
            if self._env == 1:
                raise RuntimeError("still open")

    envs = make_vec(Bad, 3, "threads")
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match=r"Bad: environment 1 failed with .*still open"):
        envs.close()
    assert len(closed) == 3


SCRIPT = """
import multiprocessing, os, signal, sys, threading, time
import numpy as np
from headrace.envs import make_vec
from worlds import CountingEnv
class Waiting(CountingEnv):
    def step(self, action):
        time.sleep(600)
def child():
    envs = make_vec(CountingEnv, 3, "threads")
    print("obs", envs.reset(seed=4)[0][:, 0].tolist(), flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join()
    envs = make_vec(Waiting, 3, "threads")
    envs.reset(seed=0)
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        envs.step(np.zeros(3, int))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_it_works_in_daemonic_processes_and_ctrl_c_ends_a_wait_and_exit_is_not_held_up(
    tmp_path, start
):
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start("script.py")
    assert script.wait() == 0, script.output
    assert "obs [4.0, 5.0, 6.0]" in script.output
    assert "interrupted" in script.output
    assert "Traceback" not in script.output


def test_a_wrong_number_of_seeds_or_actions_is_told_before_anything_is_begun():
    with opened(CountingEnv, 3, "threads") as envs:
        with pytest.raises(ValueError, match="2 seeds were given for 3 environments"):
            envs.reset(seed=[1, 2])
        envs.reset(seed=0)
        with pytest.raises(ValueError, match="2 actions were given for 3 environments"):
            envs.send(np.arange(3), np.zeros(2, int))
        assert envs.num_busy == 0
        envs.step(np.zeros(3, int))

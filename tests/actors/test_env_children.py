"""Environments can start processes, and runs can train inside a multiprocessing.Pool."""

from __future__ import annotations

import multiprocessing

import pytest

from headrace.processes import Child

SCRIPT = """
import multiprocessing, os, subprocess, sys, time
import gymnasium, numpy as np
import headrace as hr

def half(x):
    return x / 2

class Parent(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        queue = multiprocessing.Queue()
        child = multiprocessing.Process(target=queue.put, args=(1,))
        child.start()
        assert queue.get(timeout=30) == 1
        child.join()
        self.pool = multiprocessing.Pool(1)
        assert self.pool.map(half, [2]) == [1.0]
        self.inner = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="async")
        self.helper = multiprocessing.Process(target=time.sleep, args=(600,))
        self.helper.start()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.inner.reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.inner.step(np.array([0, 1]))
        return np.zeros(2, np.float32), 1.0, self.steps == 10, False, {}

    def close(self):
        self.helper.terminate()
        self.helper.join()
        self.pool.terminate()
        self.inner.close()

def train(transport, engine, env):
    sizes = {"num_actors": 1, "envs_per_actor": 1, "fragment_length": 16, "batch_size": 16}
    run_dir = f"{transport}-{engine}"
    hr.train(env, hr.A2C(), transport=transport, engine=engine, run_dir=run_dir, total_steps=32,
             eval_episodes=1, **sizes)
    return True
"""
ENVIRONMENT = """
if __name__ == "__main__":
    assert train("shm", "sync", Parent)
    assert train("serial", "async", Parent)
    print("TRAINED")
"""
FORMS = """
class Pooled(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        with multiprocessing.Pool(1) as pool:
            assert pool.map(half, [2]) == [1.0]

def vector(num_envs):
    with multiprocessing.Pool(1) as pool:
        assert pool.map(half, [2]) == [1.0]
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs)

gymnasium.register("Parent-v0", entry_point=Parent)

if __name__ == "__main__":
    forms = {"registered": "Parent-v0", "vector": vector, "CartPole-v1": "CartPole-v1",
             "file": "other.py:Parent"}
    for name, env in forms.items():
        wrappers = [Pooled] if name == "CartPole-v1" else []
        config = hr.Config(env, hr.A2C(), run_dir=name, num_actors=1, envs_per_actor=1,
                           fragment_length=16, batch_size=16, wrappers=wrappers,
                           actor_timeout_s=60.0)
        hr.Trainer(config).close()  # which probes the environment in another process
    print("PROBED")
"""
POOL = """
if __name__ == "__main__":
    assert train("shm", "auto", "CartPole-v1")  # starts a fork server here
    with multiprocessing.get_context("fork").Pool(1) as pool:
        jobs = [("serial", "auto", "CartPole-v1"), ("serial", "async", "CartPole-v1")]
        os.rename("shm-auto", "before")
        jobs.append(("shm", "auto", "CartPole-v1"))
        assert pool.starmap_async(train, jobs).get(90) == [True] * 3
    print("TRAINED")
"""


def test_environments_may_start_processes(tmp_path, start):
    (tmp_path / "script.py").write_text(SCRIPT + ENVIRONMENT)
    script = start("script.py")
    assert script.wait() == 0, script.output
    assert "TRAINED" in script.output


def test_functions_of_a_script_reach_the_children_in_every_form(tmp_path, start):
    (tmp_path / "script.py").write_text(SCRIPT + FORMS)
    (tmp_path / "other.py").write_text(SCRIPT)
    script = start("script.py")
    assert script.wait() == 0, script.output
    assert "PROBED" in script.output


@pytest.mark.full
def test_runs_may_be_the_jobs_of_a_pool(tmp_path, start):
    (tmp_path / "script.py").write_text(SCRIPT + POOL)
    script = start("script.py")
    assert script.wait() == 0, script.output
    assert "TRAINED" in script.output


def leave_a_pool_open(pipe):
    """Return once a worker waits for a task, which it does with a lock of the pool."""
    leave_a_pool_open.pool = multiprocessing.Pool(1)
    assert leave_a_pool_open.pool.map(abs, [-1]) == [1]


def test_a_process_whose_environment_leaves_a_pool_open_ends_by_itself():
    child = Child("headrace-actor", leave_a_pool_open)
    try:
        assert child.exit_code() == 0
    finally:
        child.kill()

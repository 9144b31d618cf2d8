"""Every open environment of a run has a unique index, which its factory can use."""

from __future__ import annotations

import contextlib
import os
import socket

import numpy as np
import pytest
from worlds.ports import Port, made_in

import headrace as hr
from headrace.envs.context import EnvContext, filled, making

QUICK = hr.PPO(epochs=1, minibatches=1)
SIZES = {"envs_per_actor": 2, "fragment_length": 20, "eval_episodes": 3}


@pytest.fixture
def base():
    """Return the first of ten free ports below those that connections are given."""
    for first in range(20_000 + os.getpid() % 1_000 * 10, 32_000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 10):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


def settings(tmp_path, base, **more):
    kwargs = {"folder": str(tmp_path), "base": base, **more.pop("env_kwargs", {})}
    return {"env_kwargs": kwargs, "run_dir": tmp_path / "run", **SIZES, **more}


@pytest.mark.parametrize(
    "how",
    [
        {"engine": "sync"},
        pytest.param({"engine": "threads"}, marks=pytest.mark.full),
        {"engine": "async", "transport": "serial"},
    ],
)
def test_indices_are_unique_in_every_engine(tmp_path, base, how):
    given = settings(tmp_path, base, **how, env_kwargs={"index": "{index}"}, num_actors=2)
    hr.train(Port, QUICK, total_steps=400, eval_interval=200, **given)
    made = made_in(tmp_path)
    assert {index for role, *_, index, _ in made if role == "train"} == {0, 1, 2, 3}
    assert {index for role, *_, index, _ in made if role == "eval"} == {4, 5, 6}
    assert {(actor, index // 2) for role, _, actor, index, _ in made if role == "train"} == {
        (0, 0),
        (1, 1),
    }


def test_environments_of_an_actor_that_is_replaced_keep_their_index(tmp_path, base):
    given = settings(tmp_path, base, env_kwargs={"dies": 3}, num_actors=2)
    hr.train(Port, QUICK, total_steps=800, **given)
    trained = [index for role, *_, index, _ in made_in(tmp_path) if role == "train"]
    assert (tmp_path / "died").exists()
    assert sorted(trained) == [0, 1, 2, 2, 3, 3]


def test_learners_share_no_index(tmp_path, base):
    given = settings(tmp_path, base, num_learners=2, num_actors=2, fragment_length=50)
    hr.train(Port, QUICK, total_steps=400, **given)
    trained = [(rank, actor, index) for role, rank, actor, index, _ in made_in(tmp_path)
               if role == "train"]  # fmt: skip
    assert sorted(trained) == [(0, 0, 0), (0, 0, 1), (1, 1, 2), (1, 1, 3)]
    assert {x[1:4] for x in made_in(tmp_path) if x[0] == "probe"} == {(0, 0, 0), (1, 0, 2)}


def test_trials_of_sizes_use_no_index_of_another_learners_probe(tmp_path, base):
    given = settings(tmp_path, base)
    del given["envs_per_actor"]
    hr.Trainer(hr.Config(Port, QUICK, num_actors=1, **given)).close()
    assert sorted({x[3] for x in made_in(tmp_path)})[:3] == [0, 2, 3]


def test_tasks_count_on(tmp_path, base):
    def Other(**kwargs):
        return Port(**kwargs)

    given = settings(tmp_path, base, num_actors=2)
    hr.train(tasks=[Port, Other], algo=QUICK, total_steps=400, **given)
    assert {x[3] for x in made_in(tmp_path) if x[0] == "train"} == {0, 1, 2, 3}


def test_a_vector_environment_gets_its_first_index_and_their_number(tmp_path, base):
    from worlds.reporting import ReportingVector

    seen = tmp_path / "seen"

    class Noting(ReportingVector):
        def __init__(self, num_envs=1, name=""):
            super().__init__(num_envs)
            with seen.open("a") as file:
                file.write(f"{hr.env_context().index} {hr.env_context().num_envs} {name}\n")

    given = {"env_kwargs": {"name": "{role}-{index}"}, "transport": "serial", "num_actors": 2}
    hr.train(
        Noting,
        QUICK,
        total_steps=200,
        run_dir=tmp_path / "run",
        **SIZES,
        **given,
    )
    made = list(dict.fromkeys(seen.read_text().splitlines()))  # the evaluation's twice
    assert made[-3:] == ["0 2 train-0", "2 2 train-2", "4 3 eval-4"]


def test_texts_are_filled_and_other_braces_left_alone():
    given = {"a": "{index}", "b": ["x{actor}y", ("{role}",)], "c": "{ {index}} {other}", "d": 3}
    with making(EnvContext(7, 2, 1, "train", 4)):
        assert filled(given) == {"a": 7, "b": ["x2y", ("train",)], "c": "{ 7} {other}", "d": 3}
    assert hr.env_context() == EnvContext()


def test_a_factory_works_outside_a_run(tmp_path, base):
    env = Port(str(tmp_path), base)
    assert env.reset()[0].dtype == np.float32
    env.close()


def test_wrappers_arguments_are_filled(tmp_path, base):
    envs = hr.make_vec(
        Port, 2, "sync", {"folder": str(tmp_path), "base": base},
        wrappers=['TimeLimit:{"max_episode_steps":"{num_envs}"}'],
    )  # fmt: skip
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, np.int64))[3].all()  # after one step
    envs.close()

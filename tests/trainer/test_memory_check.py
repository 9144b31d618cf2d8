"""Arrays that don't fit memory raise an error first, with the setting that helps."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import re
import resource
import threading
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.actors.rollout_source import RolloutSource
from headrace.algos.replay import ReplayBuffer
from headrace.errors import ConfigError, NoRoom
from headrace.learner.batches import gather
from headrace.nn import Policy
from headrace.nn.encoder import least_bytes
from headrace.ops import tree
from headrace.processes import control_groups, memory
from headrace.trainer import memory_check
from headrace.transport import slab
from headrace.transport.slab import views
from headrace.types import Rollout
from tests.distributed.threads import run_learners

ROW = Box(-1, 1, (5,))
SIZES = {"num_actors": 2, "envs_per_actor": 4, "fragment_length": 16}


def made(**settings):
    config = hr.Config(**SIZES | settings).settled
    return config, Policy(Box(-1, 1, (50,)), Discrete(2), config.network)


@pytest.mark.parametrize(
    ("algo", "held"),
    [
        (hr.APPO(max_lag=1), 16),
        (hr.IMPACT(buffer_size=3, max_lag=1), 3 * 16),
        (hr.IMPALA(replay_fraction=0.5, replay_capacity=100, max_lag=1), 16 + 32 + 100),
    ],
    ids=["appo", "impact", "impala"],
)
def test_an_estimate_is_what_slots_and_columns_take(algo, held):
    config, policy = made(algo=algo, batch_size=256)
    spec = config.actor_spec(None, policy)
    slot = memory_check.num_bytes(spec.layout())
    assert memory_check.needed(config, policy) == slot * spec.num_slots + held * slot // 4


def test_a_replay_buffer_takes_what_is_estimated():
    algo = hr.IMPALA(replay_fraction=0.5, replay_capacity=100)
    config, policy = made(algo=algo, batch_size=256)
    layout = config.actor_spec(None, policy).layout()
    buffer = torch.zeros(memory_check.num_bytes(layout), dtype=torch.uint8)
    replay = ReplayBuffer(100)
    replay.add(gather([Rollout(**views(buffer, layout))]))
    taken = sum(x.nbytes for x in tree.leaves(vars(replay._store)))
    assert taken == pytest.approx(100 * len(buffer) / 4, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"batch_size": 128 * 64}, "batch_size"),
        ({"algo": hr.A3C(max_lag=1_000_000)}, "max_lag"),
        ({"algo": hr.IMPACT(buffer_size=60), "batch_size": 256}, "buffer_size"),
        ({"algo": hr.IMPALA(replay_fraction=0.5, replay_capacity=9999)}, "replay_capacity"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_value_that_does(settings, name, monkeypatch):
    config, policy = made(**settings)
    free = memory_check.needed(config, policy) // 2
    monkeypatch.setattr(memory_check, "free_bytes", lambda: free)
    with pytest.raises(
        ConfigError, match=rf"^{name}=\d+ needs .* GB of memory .* GB are free"
    ) as told:
        memory_check.check_room(config, policy)
    nearest = int(re.search(r"nearest: (\d+)", str(told.value))[1])
    most = 1_000_000 // 128 if name == "max_lag" else 0  # updates of the run
    if name == "batch_size":
        settings = {"batch_size": nearest}
    else:
        settings["algo"] = type(config.algo)(**{**vars(config.algo), name: nearest})
    memory_check.check_room(*made(**settings))
    most = most or getattr(config, name, getattr(config.algo, name, 0))
    assert 0.6 * 0.9 * 0.5 * most < nearest < most


@dataclasses.dataclass(frozen=True)
class FixedLag(hr.APPO):
    max_lag: int = dataclasses.field(default=4, init=False)


def test_a_lag_that_an_algorithm_fixes_is_not_suggested(monkeypatch):
    config, policy = made(algo=FixedLag(), batch_size=128 * 64)
    free = memory_check.needed(config, policy) // 2
    monkeypatch.setattr(memory_check, "free_bytes", lambda: free)
    with pytest.raises(NoRoom, match=r"^batch_size=8192 .*nearest: \d+"):
        memory_check.check_room(config, policy)


def test_rollouts_too_long_for_memory_are_refused_with_a_length_that_fits(monkeypatch):
    settings = {"num_actors": 1, "fragment_length": 2**20, "batch_size": None, "algo": hr.PPO()}
    config, policy = made(**settings)
    free = memory_check.needed(config, policy) // 3
    monkeypatch.setattr(memory_check, "free_bytes", lambda: free)
    with pytest.raises(NoRoom, match=r"^fragment_length=1048576 needs .* GB of memory") as raised:
        memory_check.check_room(config, policy)
    nearest = str(raised.value).partition("nearest: ")[2]
    named = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", nearest)}
    memory_check.check_room(*made(**settings | named))
    assert named["fragment_length"] > 0.25 * 2**20


def test_a_lag_too_large_for_shared_memory_is_refused_with_one_that_fits(monkeypatch):
    config, policy = made(algo=hr.A3C(max_lag=1_000_000))
    free = memory_check.shared_needed(config, policy) // 2
    monkeypatch.setattr(memory_check, "free_shared_bytes", lambda: free)
    with pytest.raises(NoRoom, match=r"^max_lag=1000000 needs .* MB of shared memory") as raised:
        memory_check.check_shared_room(config, policy)
    nearest = int(re.search(r"nearest: max_lag=(\d+) or transport", str(raised.value))[1])
    memory_check.check_shared_room(*made(algo=hr.A3C(max_lag=nearest)))


def test_more_actors_than_memory_has_room_for_are_refused(monkeypatch):
    monkeypatch.setattr(memory_check, "free_bytes", lambda: 10**9)
    for settings in ({"transport": "serial"}, {"cluster": "ray"}, {"num_actors": 60}):
        memory_check.check_processes(made(**{"num_actors": 999, "algo": hr.A2C()} | settings)[0])
    with pytest.raises(NoRoom, match=r"^num_actors=999 needs .* 15.0 GB .* \(nearest: 60\)$"):
        memory_check.check_processes(made(num_actors=999, algo=hr.A2C())[0])


def test_a_batch_that_follows_from_other_sizes_is_refused_likewise(monkeypatch):
    config, policy = made(batch_size=None, num_actors=8)
    free = int(0.8 * memory_check.needed(config, policy) / 0.9)
    monkeypatch.setattr(memory_check, "free_bytes", lambda: free)
    with pytest.raises(ConfigError, match=r"^batch_size=512 needs .* memory .* are free"):
        memory_check.check_room(config, policy)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3])
def test_too_little_shared_memory_is_refused_with_a_batch_that_fits(share, monkeypatch):
    settings = {"algo": hr.PPO(), "envs_per_actor": 256, "batch_size": 2 * 256 * 16}
    config, policy = made(**settings)
    free = int(share * memory_check.shared_needed(config, policy))
    monkeypatch.setattr(memory_check, "free_shared_bytes", lambda: free)
    with pytest.raises(NoRoom, match=r"free in /dev/shm.*--shm-size") as caught:
        memory_check.check_shared_room(config, policy)
    nearest = str(caught.value).partition("nearest: ")[2]
    assert re.fullmatch(
        r"(fragment_length=\d+ with )?batch_size=\d+ or transport='serial'\)", nearest
    )
    named = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", nearest)}
    memory_check.check_shared_room(*made(**settings | named))
    assert named["batch_size"] > 0.4 * share * 2 * 256 * 16


def test_runs_without_shared_memory_need_none(monkeypatch):
    monkeypatch.setattr(memory_check, "free_shared_bytes", lambda: 0)
    memory_check.check_shared_room(*made(transport="serial"))
    with pytest.raises(NoRoom, match="nearest: transport='serial', which needs none"):
        memory_check.check_shared_room(*made())


def test_the_estimate_of_shared_memory_is_what_is_allocated(monkeypatch):
    config, policy = made(batch_size=256)
    allocated = []
    allocate = slab.allocate
    noted = lambda size, shared: allocated.append(size * shared) or allocate(size, False)  # noqa: E731
    monkeypatch.setattr(slab, "allocate", noted)
    RolloutSource(config.actor_spec(None, policy), print).close()
    assert memory_check.shared_needed(config, policy) == sum(allocated) > 0


def test_memory_that_can_not_be_shared_is_one_sentence(monkeypatch):
    def full(self):
        raise RuntimeError("unable to allocate: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(NoRoom, match=r"1.0 MB of shared .* No space left .*--shm-size"):
        slab.allocate(1_000_000, shared=True)


def test_the_shared_memory_of_a_folder_that_is_missing_is_none_at_all(tmp_path):
    assert memory.free_shared_bytes(str(tmp_path / "shm")) == 0
    assert memory.shared_problem(str(tmp_path / "shm")) == (
        "can't be used (No such file or directory)"
    )
    assert memory.free_shared_bytes(str(tmp_path)) > 0
    assert memory.shared_problem(str(tmp_path)) == ""


def test_a_read_only_folder_is_named_as_such(monkeypatch):
    status = types.SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=9, f_frsize=9, f_blocks=9)
    monkeypatch.setattr(os, "statvfs", lambda folder: status)
    words = "^transport='shm' needs shared memory, but /dev/shm is mounted read-only: mount it"
    with pytest.raises(NoRoom, match=words):
        memory_check.check_shared_room(*made())
    memory_check.check_shared_room(*made(transport="serial"))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"hidden": (60000, 60000)}, r"hidden=\(60000, 60000\) needs at least 57.6 GB"),
        ({"core": "lstm", "core_size": 60000}, r"hidden=.* with core_size=60000 needs .* 230.4 GB"),
        ({"core": "gru", "core_size": 60000, "torso": "a:b"}, "^core_size=60000 needs .* 172.8 GB"),
    ],
    ids=["hidden", "lstm", "gru"],
)
def test_a_huge_network_is_refused_with_widths_that_fit(network, words, monkeypatch):
    monkeypatch.setattr(memory_check, "free_bytes", lambda: 10**10)
    monkeypatch.setattr(hr.Policy, "__init__", None)  # it isn't built
    algo = hr.PPO(minibatches=1)
    config = hr.Config(**SIZES, network=hr.Network(**network), algo=algo).settled
    with pytest.raises(NoRoom, match=words) as raised:
        memory_check.check_network(config, ROW)
    nearest = str(raised.value).partition("nearest: ")[2].removesuffix(")")
    fields = dict(one.split("=") for one in nearest.split(" with "))
    near = dataclasses.replace(
        config.network, **{name: ast.literal_eval(value) for name, value in fields.items()}
    )
    memory_check.check_network(dataclasses.replace(config, network=near), ROW)
    assert 4 * least_bytes(near, ROW) > 0.9 * 9e9


def test_a_machine_without_free_memory_gets_an_answer(monkeypatch):
    monkeypatch.setattr(memory_check, "free_bytes", lambda: 0)
    config = hr.Config(**SIZES, network=hr.Network((60000, 60000))).settled
    with pytest.raises(NoRoom, match=r"only 0.0 GB are free \(nearest: hidden=\(1, 1\)\)"):
        memory_check.check_network(config, ROW)


def test_the_least_bytes_of_a_network_are_at_most_those_of_its_weights():
    images = Box(0, 255, (9, 9, 3), np.uint8)
    for space, network, share in (
        (ROW, hr.Network((256, 200)), 0.4),
        (ROW, hr.Network((8,)), 0.0),
        (ROW, hr.Network((99, 7), core="lstm"), 0.9),
        (images, hr.Network((999, 999)), 0.0),  # without numbers there are no such layers
        (spaces.Dict(i=images, r=ROW), hr.Network((999, 999)), 0.4),
        (Discrete(10_000), hr.Network((999, 999)), 0.0),
        (Box(0, 9, (5,), np.int64), hr.Network((99, 99), text=("obs",)), 0.0),
    ):
        policy = Policy(space, Discrete(2), network)
        size = sum(x.nbytes for x in policy.parameters())
        assert share * size <= least_bytes(network, space) < size


def test_a_run_is_refused_before_it_has_slots(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_check, "free_bytes", lambda: 1 << 12)
    with pytest.raises(ConfigError, match=r"memory, but only .* are free"):
        hr.Trainer(hr.Config(run_dir=str(tmp_path / "run"), transport="serial"), notify=print)


def test_learners_of_one_machine_need_together_what_one_would():
    alone, policy = made(num_actors=4, algo=hr.PPO())
    both, _ = made(num_actors=4, algo=hr.PPO(), num_learners=2)
    assert memory_check.needed(both, policy) == memory_check.needed(alone, policy)


def test_no_learner_takes_memory_before_the_others_have_seen_what_is_free(tmp_path, monkeypatch):
    taken, found = threading.Event(), []
    opened = RolloutSource.__init__

    def opening(*args):
        taken.set()
        opened(*args)

    monkeypatch.setattr(RolloutSource, "__init__", opening)
    config = hr.Config(
        **SIZES, algo=hr.A2C(), num_learners=2, transport="serial", total_steps=1, eval_episodes=0,
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip

    def work(group):
        with group.in_turn():
            trainer = hr.Trainer(config, notify=lambda text: None, group=group)
        if group.rank == 1:
            found.append(taken.wait(0.3))  # it is as late as this
        with contextlib.closing(trainer):
            list(trainer)

    run_learners(2, work)
    assert found == [False]


@pytest.fixture
def limits(monkeypatch):
    """Return soft and hard limits of open files, as this process finds and sets them."""
    found = [20_000, 20_000]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: found.__setitem__(slice(2), new))
    return found


CROWD = {"num_actors": 200, "inference": "shared", "envs_per_actor": 1}


def test_the_limit_of_open_files_is_raised_where_actors_need_it(limits):
    memory_check.check_files(made(**CROWD)[0])
    assert limits == [20_000, 20_000]
    limits[:] = 1024, 4096
    memory_check.check_files(made()[0])
    memory_check.check_files(made(**CROWD | {"transport": "serial", "inference": "actor"})[0])
    assert limits == [1024, 4096]
    memory_check.check_files(made(**CROWD)[0])
    assert limits == [6 * 200 + 128, 4096]


def test_more_actors_than_files_can_be_open_for_are_refused(limits):
    limits[:] = 256, 1024
    with pytest.raises(ConfigError, match=r"^num_actors=200 needs 1328 open files .*nearest: 149"):
        memory_check.check_files(made(**CROWD)[0])
    memory_check.check_files(made(**CROWD | {"num_actors": 149})[0])
    assert limits == [1024, 1024]


def test_a_limit_that_is_too_low_for_any_actor_suggests_no_number_of_actors(limits):
    limits[:] = 64, 64
    says = r"only 64 are allowed: raise the limit \(ulimit -n 132\), or set transport='serial'$"
    with pytest.raises(ConfigError, match=says):
        memory_check.check_files(made(num_actors=1)[0])


def test_limits_of_control_groups_count(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    before = memory.free_bytes()
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000\nactive_file 500\n")
    assert memory.free_bytes() == 301500 < before
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() > 301500


def test_files_of_groups_inside_count_as_their_usage_does(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("1000000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("700000\n")
    own, all_ = "inactive_file 10\nactive_file 5\n", "total_inactive_file 1000\n"
    (tmp_path / "memory/memory.stat").write_text(f"{own}{all_}total_active_file 500\n")
    assert memory.free_bytes() == 301500


def test_spaces_that_are_replaced_later_count_as_nothing():
    rows, words = Box(-1, 1, (7,)), spaces.Text(5)
    plain, with_words = (spaces.Dict(x) for x in ({"a": rows}, {"a": rows, "b": words}))
    network = hr.Network((256, 200))
    assert least_bytes(network, with_words) == least_bytes(network, plain) > 0

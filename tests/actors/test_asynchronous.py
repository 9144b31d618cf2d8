"""Asynchronous stepping gives the same rollouts as synchronous stepping, without waiting."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import fields

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from patience import PATIENCE_S
from worlds import CountingEnv, SpaceIdentityEnv

import headrace as hr
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector, rollout_spec
from headrace.algos.common import policy_outputs
from headrace.envs.make import make_vec
from headrace.errors import ConfigError, EnvironmentFault
from headrace.learner.batches import gather
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.transport.slab import Slab
from headrace.types import Rollout
from tests.actors.test_cut_rollouts import After, OneAction, transitions

T, B, GAMMA = 9, 4, 0.9


def jittery(env: Callable[..., gymnasium.Env]) -> Callable[..., gymnasium.Env]:
    """The same environment with random delays that no seed determines."""

    class Jittery(gymnasium.Wrapper):
        def __init__(self, **kwargs) -> None:
            super().__init__(env(**kwargs))

        def step(self, action):
            time.sleep(random.choice([0.0, 0.0005, 0.002]))
            return super().step(action)

    return Jittery


@pytest.fixture
def filler():
    """Return a function that fills a poisoned slot and returns a copy, and its policy."""
    opened = []

    def make(env, engine, network=None, num_steps=T, **env_kwargs):
        envs = make_vec(env, B, engine, env_kwargs)
        opened.append(envs)
        _, infos = envs.reset(seed=0)
        torch.manual_seed(1)
        spaces = envs.single_observation_space, envs.single_action_space
        policy = Policy(*spaces, network, "action_mask" in infos)
        with torch.no_grad():
            for p in policy.parameters():
                p.add_(0.2 * torch.randn_like(p))
        slab = Slab(rollout_spec(policy, num_steps, B, GAMMA), 1, 1)
        stepping = AsynchronousStepper(envs, policy, "TestEnv") if engine == "threads" else None
        collector = Collector(envs, policy, "TestEnv", GAMMA, stepping)
        collector.reset(3)

        def fill(cut: Callable[[], bool] | None = None) -> Rollout:
            slab.poison(0)
            slab.trees[0]["first"].fill_(False)  # or what is left out looks like padding
            valid_steps = collector.fill(Rollout(**slab.trees[0]), 7, cut)
            rollout = Rollout(**tree.map_leaves(torch.clone, slab.trees[0]))
            assert valid_steps == (~rollout.first[1:]).sum()
            return rollout

        return policy, fill

    yield make
    for envs in opened:
        envs.close()


def assert_same(ours: Rollout, theirs: Rollout, atol: float) -> None:
    for f in fields(Rollout):
        pairs = zip(*(tree.leaves(getattr(r, f.name)) for r in (ours, theirs)), strict=True)
        for x, y in pairs:
            torch.testing.assert_close(x, y, rtol=atol, atol=atol, equal_nan=True, msg=f.name)


NETWORKS = {
    "mlp": Network((16,)),
    "previous": Network((16,), previous_action_reward=True),
    "lstm": Network((16,), core="lstm", core_size=12, previous_action_reward=True),
    "gru": Network((16,), core="gru", core_size=12),
}
ENVS = [
    (CountingEnv, {}),
    (SpaceIdentityEnv, {"episode_length": 4}),
    (SpaceIdentityEnv, {"action_space": "box", "episode_length": 5}),
    (SpaceIdentityEnv, {"action_space": "dict", "mask": "obs"}),
    (SpaceIdentityEnv, {"action_space": "multidiscrete", "mask": "info", "nested": True}),
    (SpaceIdentityEnv, {"action_space": "tuple", "mask": "info"}),
]


def cases():
    """Return all pairs of environments and networks; `make test` runs some of them."""
    for number, (env, kwargs) in enumerate(ENVS):
        for network in NETWORKS:
            less = number > {"previous": len(ENVS), "lstm": 1}.get(network, 0)
            marks = [pytest.mark.slow] * less
            yield pytest.param(env, kwargs, network, id=f"{network}-{number}", marks=marks)


@pytest.mark.parametrize(("env", "kwargs", "network"), cases())
def test_it_is_the_rollout_of_the_sync_engine_to_float32_rounding(filler, env, kwargs, network):
    _, sync = filler(env, "sync", NETWORKS[network], **kwargs)
    _, own = filler(jittery(env), "threads", NETWORKS[network], **kwargs)
    for _ in range(4):
        assert_same(own(), sync(), 1e-4 if network == "lstm" else 1e-5)  # a state carries it on


def test_it_is_the_rollout_of_the_sync_engine_bit_for_bit_where_nothing_is_rounded(filler):
    _, sync = filler(OneAction, "sync")
    _, own = filler(jittery(OneAction), "threads")
    ended = False
    for _ in range(10):
        ours = own()
        assert_same(ours, sync(), 0.0)
        ended |= bool(ours.first[1:].any())
    assert ended


def test_noise_belongs_to_a_place_whoever_is_ready_first(filler):
    rollouts = []
    for _ in range(2):
        _, own = filler(jittery(CountingEnv), "threads")
        rollouts.append([own() for _ in range(3)])
    for ours, theirs in zip(*rollouts, strict=True):
        assert_same(ours, theirs, 1e-5)
    assert not torch.equal(rollouts[0][0].action, rollouts[0][1].action)


# -- its own pace -------------------------------------------------------------------------------


class Long(CountingEnv):
    """An environment with one action and no end within a test."""

    def __init__(self) -> None:
        super().__init__(episode_length=1000)
        self.action_space = Discrete(1)


class Gate:
    """Lets environment 0 continue only after this number of steps of the others."""

    def __init__(self, steps: int) -> None:
        self.open, self._left, self._lock = threading.Event(), steps, threading.Lock()

    def passed(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.open.set()


def behind(gate: Gate) -> type[gymnasium.Env]:
    class Behind(Long):
        def step(self, action):
            if self._env % B == 3:  # the seeds are 3, 4, 5 and 6
                assert gate.open.wait(PATIENCE_S), "it held up the others"
            else:
                gate.passed()
            return super().step(action)

    return Behind


def test_one_that_is_slower_than_the_rest_holds_up_only_its_own_column(filler):
    _, own = filler(behind(Gate((B - 1) * T)), "threads")
    _, sync = filler(Long, "sync")
    assert_same(own(), sync(), 0.0)


@pytest.mark.parametrize("n", [1, 4, T - 1])
def test_a_cut_waits_for_steps_that_have_begun_and_begins_no_others(filler, n):
    gate = Gate((B - 1) * n)
    _, own = filler(behind(gate), "threads")
    rollout = own(gate.open.is_set)
    counts = (~rollout.first[1:]).sum(0)
    assert counts[0] == 1
    assert n <= counts[1:].float().mean() < n + 3  # it is seen within 4 steps of all, and 1 each


def test_cut_anywhere_the_valid_steps_are_those_of_an_uncut_run(filler):
    rng = random.Random(1)
    _, fill = filler(jittery(OneAction), "threads")
    cut = [fill(After(rng.randint(1, T + 1))) for _ in range(40)]
    _, fill = filler(OneAction, "sync")
    uncut = [fill() for _ in range(40)]
    lengths = set()
    for b in range(B):
        ours, theirs = transitions(cut, b), transitions(uncut, b)
        count = len(ours["reward"])
        lengths.add(count)
        assert (~np.isnan(ours["episode_return"])).sum() > 3
        for name, values in ours.items():
            rtol = 0.0 if name != "discounted_return" else 1e-6  # summed up in another order
            np.testing.assert_allclose(values, theirs[name][:count], rtol=rtol, err_msg=name)
    assert len(lengths) > 1  # columns were cut at different steps


def test_what_a_column_did_not_do_is_padded_with_legal_fillers_and_is_gone_on_with(filler):
    network = NETWORKS["lstm"]
    kwargs = {"action_space": "dict", "mask": "info", "episode_length": 50}
    policy, fill = filler(jittery(SpaceIdentityEnv), "threads", network, **kwargs)
    uneven = False
    before = fill(After(5))
    for n in (2, 6, 3, 5, 4, 1):
        after = fill(After(n))
        steps = (~before.first[1:]).sum(0)  # episodes are long, so fillers are padding
        uneven |= bool(steps.min() < steps.max())
        for b, s in enumerate(steps.tolist()):
            assert before.first[s + 1 :, b].all()
            for leaf, new in zip(tree.leaves(before.obs), tree.leaves(after.obs), strict=True):
                assert torch.equal(leaf[s + 1 :, b], leaf[s, b].expand_as(leaf[s + 1 :, b]))
                assert torch.equal(leaf[s, b], new[0, b])
            for leaf in tree.leaves(before.action):
                assert torch.equal(leaf[s:, b], leaf[s - 1, b].expand_as(leaf[s:, b]))
            for rows in (before.log_prob, before.reward, before.terminated):
                assert not rows[s:, b].any()
            inputs = tree.map_leaves(lambda x, s=s: x[:s], before.obs)
            with torch.no_grad():
                _, _, core = policy(inputs, before.first[:s], before.core)
            for name, leaf in core.items():
                torch.testing.assert_close(after.core[name][b], leaf[b], atol=1e-5, rtol=0)
        before = after
    assert uneven


@pytest.mark.parametrize("mask", [None, "obs", "info"])
def test_log_probabilities_agree_with_the_learners_on_every_valid_step_also_if_cut(filler, mask):
    policy, fill = filler(jittery(SpaceIdentityEnv), "threads", NETWORKS["lstm"], mask=mask)
    for cut in (None, After(4), After(2), None, After(7)):
        batch = gather([fill(cut)])
        with torch.no_grad():
            log_prob = policy_outputs(policy, batch).log_prob
        assert (log_prob - batch.log_prob)[batch.valid].abs().max() <= 1e-5


def test_the_cut_is_asked_about_once_for_as_many_steps_as_there_are_environments(filler):
    turn, total = threading.Condition(), [0]

    class InTurn(Long):
        def step(self, action):
            with turn:
                assert turn.wait_for(lambda: total[0] == self._step * B + self._env - 3, PATIENCE_S)
                total[0] += 1
                turn.notify_all()
            return super().step(action)

    _, fill = filler(InTurn, "threads")
    asked = []
    fill(lambda: asked.append(1) is not None)
    assert T <= len(asked) < T + B  # a few times more once a column is full


# -- faults -------------------------------------------------------------------------------------


def test_a_fault_is_named(filler):
    class Failing(CountingEnv):
        def step(self, action):
            if self._env == 5 and self._step == 2:
                raise OSError("connection lost")
            return super().step(action)

    _, fill = filler(Failing, "threads")
    with pytest.raises(EnvironmentFault, match="environment 2 failed with OSError: connection lo"):
        fill()


def test_a_mask_that_allows_nothing_names_environment_and_row(filler):
    class Closing(CountingEnv):
        action_space = Discrete(3)

        def __init__(self) -> None:
            super().__init__(episode_length=50)
            self.action_space = Discrete(3)

        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {"action_mask": np.ones(3, np.int8)}

        def step(self, action):
            *rest, _ = super().step(action)
            closed = self._env == 4 and self._step == 3
            return *rest, {"action_mask": np.full(3, not closed, np.int8)}

    _, fill = filler(Closing, "threads")
    with pytest.raises(EnvironmentFault, match="none in environment 1 of this actor, row 3 of"):
        fill()


def test_a_mask_that_reset_does_not_show_is_an_error(filler):
    class Late(CountingEnv):
        def step(self, action):
            return *super().step(action)[:-1], {"action_mask": np.ones(2, np.int8)}

    _, fill = filler(Late, "threads")
    with pytest.raises(EnvironmentFault, match="info of a later step but not of its"):
        fill()


# -- whole runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_actors_step_at_their_own_pace_and_a_run_learns_evaluates_and_ends(tiny, finish, transport):
    config = tiny(algo=hr.APPO(), engine="threads", transport=transport, num_actors=2,
                  eval_episodes=2, max_rollout_seconds=30.0)  # fmt: skip
    _, results = finish(config)
    assert results[-1].env_steps >= 640


def test_a_run_that_must_repeat_exactly_is_refused(tiny):
    with pytest.raises(ConfigError, match="deterministic=True must be False with engine='threads'"):
        tiny(engine="threads", transport="serial", deterministic=True)


def test_an_actor_gives_the_threads_engine_its_own_pace(tiny, finish):
    """With synchronous stepping environment 0 would wait for the others for ever."""
    gate = Gate((B - 1) * T)
    config = tiny(env=behind_any(gate), engine="threads", transport="serial", envs_per_actor=B,
                  fragment_length=T, total_steps=T * B, algo=hr.APPO())  # fmt: skip
    finish(config, until=lambda result: True)
    assert gate.open.is_set()


def behind_any(gate: Gate) -> type[gymnasium.Env]:
    """The first environment that is stepped twice is the slow one."""
    first = []

    class Behind(Long):
        def step(self, action):
            if hasattr(self, "stepped"):  # once is a first look at the environment
                first.append(self)
            self.stepped = True
            if first and first[0] is self:
                assert gate.open.wait(PATIENCE_S), "it held up the others"
            else:
                gate.passed()
            return super().step(action)

    return Behind


# -- the benchmark ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_measures_all_cases_and_writes_its_files(monkeypatch, tmp_path, capsys):
    import csv
    import importlib
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(hr.__file__).parent.parent / "benchmarks"))
    waiting = importlib.import_module("waiting")
    args = waiting.Args(
        num_actors=1, envs_per_actor=4, fragment_length=4, step_s=0.002, seconds=0.2, repeats=1,
        output=tmp_path / "results",
    )  # fmt: skip
    waiting.main(args)
    with (tmp_path / "results" / "waiting.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [name for name, *_ in waiting.CASES]
    assert [float(row["ceiling"]) for row in rows] == pytest.approx([2000.0] * 3 + [1550.0] * 3)
    for row in rows:
        assert float(row["share"]) == pytest.approx(
            float(row["sps_median"]) / float(row["ceiling"])
        )
    assert (tmp_path / "results" / "waiting.png").stat().st_size > 1000
    assert "while training" in capsys.readouterr().out

"""Each step of each environment arrives exactly once in its row, despite deaths and interrupts."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest

from headrace.cluster_env import LocalConfig
from tests.cluster_env.parts import (
    CountingAgent,
    DelayedCountingEnv,
    check_rollout,
    follows,
)

NUM_ENVS, PER_NODE = 6, 2


@pytest.fixture
def deadly(make, place, tmp_path):
    """Three workers with environments of random speed, one of which kills its worker."""

    def create(kill_at: int = 9, **limits):
        kwargs = {"delay_s": 0.002, "kill_at": kill_at, "once": str(tmp_path / "killed")}
        config = place(nodes=3, **limits)
        envs = make(DelayedCountingEnv, config, envs_per_node=PER_NODE, env_kwargs=kwargs)
        return envs, envs.reset(seed=100)[0]

    return create


class Rows:
    """Expected next observation of each row."""

    def __init__(self, obs: np.ndarray) -> None:
        assert obs[:, 0].tolist() == list(range(100, 100 + len(obs)))
        self.obs, self.ended = obs, np.zeros(len(obs), bool)
        self.dead: list[int] = []  # rows of the worker that died

    def take(self, result, actions: np.ndarray) -> None:
        """Compare one step with the oracle."""
        obs, reward, terminated, truncated, infos = result
        faults = infos.get("fault", np.full(len(obs), None))
        for i in range(len(obs)):
            if faults[i] is not None:
                self.dead.append(i)
                assert (terminated[i], truncated[i], reward[i]) == (False, True, 0.0)
                assert obs[i].tolist() == self.obs[i].tolist()
                continue
            if obs[i][0] > 1000 > self.obs[i][0]:  # its replacement's reset
                assert i in self.dead
                assert self.ended[i]
                assert obs[i].tolist()[1:] == [0, 0, -1]
                expected = (obs[i].tolist(), 0.0, False, False)
            else:
                expected = follows(self.obs[i], int(actions[i]), bool(self.ended[i]))
            assert (obs[i].tolist(), reward[i], terminated[i], truncated[i]) == expected
        self.obs, self.ended = obs, terminated | truncated


def check_death(rows: Rows) -> None:
    """Record that one worker died, so that both of its rows have new seeds."""
    assert len(rows.dead) == PER_NODE
    assert len({row // PER_NODE for row in rows.dead}) == 1
    labels = rows.obs[:, 0].tolist()
    assert [label > 1000 for label in labels] == [i in rows.dead for i in range(NUM_ENVS)]
    assert len(set(labels)) == NUM_ENVS


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_steps_with_actions_arrive_once_and_in_their_rows(deadly, warned):
    envs, obs = deadly()
    rows, rng = Rows(obs), np.random.default_rng(0)
    for _ in range(40):
        actions = rng.integers(3, size=NUM_ENVS)
        rows.take(envs.step(actions), actions)
        if envs.faults:
            assert list(envs.faults) == [rows.dead[0] // PER_NODE]
            assert "died" in next(iter(envs.faults.values()))
    assert warned("died")
    check_death(rows)
    assert envs.faults == {}


@pytest.mark.slow
def test_steps_with_an_agent_arrive_once_and_in_their_rows(deadly, warned):
    envs, obs = deadly()
    rows = Rows(obs)
    agent = CountingAgent()
    for _ in range(40):
        before = rows.obs
        *result, infos = envs.step(agent)
        alive = [i for i in range(NUM_ENVS) if "fault" not in infos or not infos["_fault"][i]]
        fresh = [i for i in alive if not (rows.ended[i] and i in rows.dead)]
        chosen = before[:, :3].sum(1).astype(int) % 3
        assert infos["action"][fresh].tolist() == chosen[fresh].tolist()
        rows.take((*result, infos), infos["action"])
    assert warned("died")
    check_death(rows)


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_rollouts_arrive_once_and_the_dead_part_is_padding(deadly, warned):
    envs, obs = deadly(kill_at=14)
    last, dead = obs, []
    for _ in range(7):
        rollout = envs.collect(CountingAgent(), 5)
        new = [i for w in envs.faults for i in range(w * PER_NODE, (w + 1) * PER_NODE)]
        alive = [i for i in range(NUM_ENVS) if i not in new]
        check_rollout(rollout, alive)
        assert rollout.env_id.tolist() == list(range(NUM_ENVS))
        for i in new:
            assert rollout.first[:, i].all()
            assert rollout.version[i] == -1
            assert rollout.reward[:, i].abs().sum() == 0
        for i in set(alive) - {row for row in dead if last[row, 0] < 1000}:
            assert rollout.obs[0, i].tolist() == last[i].tolist()
        for i in set(dead) & set(alive):
            assert rollout.obs[0, i, 0] > 1000
        last, dead = rollout.obs[-1].numpy(), dead + new
    assert warned("died")
    assert len(dead) == PER_NODE


def test_all_of_a_rollout_is_padding_if_all_died(make, tmp_path):
    kwargs = {"kill_at": 3, "once": str(tmp_path / "killed")}
    config = LocalConfig(nodes=1)
    envs = make(DelayedCountingEnv, config, envs_per_node=2, env_kwargs=kwargs)
    envs.reset(seed=0)
    with pytest.warns(RuntimeWarning, match="died"):
        rollout = envs.collect(CountingAgent(), 5)
    assert rollout.first.all()
    assert rollout.action.shape == (5, 2)
    check_rollout(next_ := envs.collect(CountingAgent(), 5))
    assert next_.first[0].all()


@pytest.mark.slow
def test_an_iteration_delivers_every_fragment_of_a_worker_once(deadly, warned):
    envs, obs = deadly(kill_at=14)
    last = {worker: obs[worker * 2 : worker * 2 + 2].tolist() for worker in range(3)}
    counts, restarted = dict.fromkeys(range(3), 0), []
    for rollout in itertools.islice(envs.collect_async(CountingAgent(), 4), 10_000):
        worker = int(rollout.env_id[0]) // PER_NODE
        assert rollout.env_id.tolist() == [2 * worker, 2 * worker + 1]
        check_rollout(rollout)
        if rollout.obs[0].tolist() != last[worker]:
            restarted.append(worker)
            assert rollout.first[0].all()
            assert (rollout.obs[0, :, 0] > 1000).all()
        last[worker], counts[worker] = rollout.obs[-1].tolist(), counts[worker] + 1
        if restarted and min(counts.values()) > 4:
            break
    assert warned("died")
    assert len(restarted) == 1
    assert list(envs.faults) == restarted


# -- calls that are left --------------------------------------------------------------------------


class Stop(BaseException):  # as KeyboardInterrupt, which "except Exception" lets through
    """Simulate an interrupt."""


@pytest.fixture
def counting(make):
    """Two workers of two environments of random speed."""
    config = LocalConfig(nodes=2, max_restarts=1000)
    envs = make(DelayedCountingEnv, config, envs_per_node=2, env_kwargs={"delay_s": 0.001})
    envs.reset(seed=100)
    return envs


def test_stepping_works_after_an_iteration_was_left(counting):
    agent = CountingAgent()
    for kept in (True, False):
        iterator = counting.collect_async(agent, 3)
        rollouts = [next(iterator), next(iterator)]
        if not kept:
            del iterator
        for rollout in rollouts:
            check_rollout(rollout)
        actions = np.zeros(4, int)
        rows = None
        for _ in range(12):
            result = counting.step(actions)
            if rows is not None:
                rows.take(result, actions)
            else:
                rows = Rows(np.array([[100 + i, 0, 0, 0] for i in range(4)]))
                rows.obs, rows.ended = result[0], result[2] | result[3]
    assert counting.collect(agent, 3).env_id.tolist() == [0, 1, 2, 3]


def test_an_iteration_that_is_left_after_its_workers_needs_none(counting, monkeypatch):
    iterator = counting.collect_async(CountingAgent(), 3)
    next(iterator)
    for one in counting._head.pool._nodes:  # as the garbage collector may do first
        monkeypatch.setattr(one.pipe, "fileno", None)
    iterator.close()
    monkeypatch.undo()
    assert counting.collect(CountingAgent(), 3).env_id.tolist() == [0, 1, 2, 3]


def test_an_iteration_goes_on_after_other_calls(counting):
    agent = CountingAgent()
    iterator = counting.collect_async(agent, 3)
    check_rollout(next(iterator))
    counting.step(agent)
    check_rollout(counting.collect(agent, 4))
    seen = set()
    for rollout in itertools.islice(iterator, 8):
        check_rollout(rollout)
        seen.add(int(rollout.env_id[0]))
    assert seen == {0, 2}


@pytest.mark.filterwarnings("ignore:worker .* was interrupted")
@pytest.mark.parametrize("how", ["step", "agent", "collect"])
def test_an_interrupt_anywhere_in_a_call_leaves_the_rows_in_order(counting, how):
    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    rng, agent, interrupted = np.random.default_rng(0), CountingAgent(), 0
    try:
        for _ in range(20):
            try:  # begins before the clock, which may run out at once on a busy machine
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-4, 8e-3)))
                for _ in range(3):
                    counting.collect(agent, 4) if how == "collect" else counting.step(
                        agent if how == "agent" else np.zeros(4, int)
                    )
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                interrupted += 1
            rollout = counting.collect(agent, 6)
            assert rollout.env_id.tolist() == [0, 1, 2, 3]
            check_rollout(rollout, [i for i in range(4) if i // 2 not in counting.faults])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 2


@pytest.mark.parametrize("where", ["send", "receive"])
def test_an_interrupt_in_the_middle_of_a_message_costs_one_worker(counting, monkeypatch, where):
    node = counting._head.pool._nodes[1]

    def cut(*_):
        raise Stop

    monkeypatch.setattr(node, where, cut)
    with pytest.raises(Stop):
        counting.step(np.zeros(4, int))
    with pytest.warns(RuntimeWarning, match="interrupted"):
        _, _, _, truncated, infos = counting.step(np.zeros(4, int))
    assert truncated.tolist() == [False, False, True, True]
    assert "interrupted" in infos["fault"][2]
    obs = counting.step(np.zeros(4, int))[0]
    assert obs[2:, 1:].tolist() == [[0, 0, -1], [0, 0, -1]]
    check_rollout(counting.collect(CountingAgent(), 8))


def test_a_death_in_a_call_that_was_left_is_told_by_the_next(counting, monkeypatch, warned):
    counting.step(np.zeros(4, int))
    head = counting._head
    head.pool._nodes[0].child.process.kill()
    hear = head._next_answer

    def stop_after_the_death():
        worker, answer = hear()
        if worker == 0:
            raise Stop
        return worker, answer

    monkeypatch.setattr(head, "_next_answer", stop_after_the_death)
    with pytest.raises(Stop):
        counting.step(np.zeros(4, int))
    monkeypatch.undo()
    truncated = counting.step(np.zeros(4, int))[3]
    assert warned("died")
    assert truncated.tolist() == [True, True, False, False]
    assert list(counting.faults) == [0]
    obs = counting.step(np.zeros(4, int))[0]
    assert obs[:2, 1:].tolist() == [[0, 0, -1], [0, 0, -1]]

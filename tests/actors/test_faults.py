"""Failed actors are replaced, reported and counted, and incomplete rollouts are dropped."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import re
import signal
import threading
import time
import weakref
from collections import deque
from dataclasses import replace
from multiprocessing import forkserver

import cloudpickle
import numpy as np
import psutil
import pytest
import torch
from patience import PATIENCE_S
from worlds import counting_length, counting_reward, counting_truncates

import headrace as hr
from headrace.actors import rollout_source
from headrace.actors.actor import run_actor
from headrace.actors.inference_server import without_weights
from headrace.actors.rollout_source import RolloutSource, RunStopped
from headrace.actors.spec import ActorSpec
from headrace.envs.make import make_vec
from headrace.envs.names import resolve
from headrace.errors import ActorFailed, EnvironmentFault
from headrace.processes import Child, end_children

FAULTY = "worlds:FaultyEnv"
COUNTING = "worlds:CountingVectorEnv"
NUM_KILLS = int(os.environ.get("HEADRACE_KILLS", "10"))


@pytest.fixture
def faulty(tiny, tmp_path):
    """Trains on FaultyEnv; returns the trainer, its messages, and its final error."""

    def run(mode: str, once: bool = False, **settings):
        kwargs = {"mode": mode, "fail_at_step": 20}
        if once:
            kwargs["once"] = str(tmp_path / "happened")
        config = tiny(env=FAULTY, env_kwargs=kwargs, envs_per_actor=2, **settings)
        said: list[str] = []
        with contextlib.closing(hr.Trainer(config, notify=said.append)) as trainer:
            try:
                results = list(trainer)
            except (ActorFailed, EnvironmentFault) as error:
                return trainer, said, error
        said = [line for line in said if not line.startswith(("doctor: ", "waiting for"))]
        assert results[-1].restarts == len(said)
        return trainer, said, None

    return run


@pytest.fixture
def impatient_once(monkeypatch, tmp_path):
    """Sets a timeout of 1 s while the first actor hangs; starts may take as long as they need."""
    kill = RolloutSource.kill_hung

    def kill_first(source: RolloutSource) -> None:
        hangs = (tmp_path / "happened").exists() and source.num_restarts == 0
        source._timeout_s = 1.0 if hangs else PATIENCE_S
        kill(source)

    return lambda: monkeypatch.setattr(RolloutSource, "kill_hung", kill_first)


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("raise", "RuntimeError: FaultyEnv failed at step 20, as asked"),
        ("nan", "FaultyEnv returned nan in its observation"),
        ("exit", "exited with code 13"),
        ("hang", "killed because it delivered nothing for 1 s (actor_timeout_s)"),
    ],
)
def test_an_actor_that_breaks_once_is_replaced_and_the_run_goes_on(
    faulty, impatient_once, mode, cause
):
    if mode == "hang":
        impatient_once()
    trainer, said, error = faulty(mode, once=True, total_steps=320)
    assert error is None
    assert len(said) == 1
    assert "actor 0" in said[0]
    assert cause in said[0]
    assert trainer.env_steps >= 320
    assert trainer.progress.lost == 1


def test_an_environment_that_always_raises_ends_the_run_with_its_own_traceback(faulty):
    trainer, said, error = faulty("raise", max_restarts=10)
    text = str(error)
    assert "failed in the same way after 2 rollouts, so it isn't restarted" in text
    assert "Traceback" in text
    assert 'raise RuntimeError(f"FaultyEnv failed at step {self._life}, as asked")' in text
    assert len(said) == 1
    # Each of two lives delivered the two whole fragments before its twentieth step, no more.
    assert trainer.updates == 4
    assert trainer.env_steps == 4 * 2 * 8


def test_a_run_without_restarts_ends_with_the_first_failure(faulty):
    trainer, said, error = faulty("raise", max_restarts=0)
    assert "max_restarts=0 restarts are used up\n\nIts traceback" in str(error)
    assert (trainer.updates, said) == (2, [])


def test_what_breaks_the_contract_every_time_is_told_in_two_lines(faulty):
    _, said, error = faulty("nan", max_restarts=10)
    sentence = "FaultyEnv returned nan in its observation[0] at step 20"
    assert [line.count("\n") for line in [*said, str(error)]] == [0, 0]
    assert sentence in said[0]
    assert sentence in str(error)


def test_an_environment_that_always_hangs_uses_up_the_restarts(faulty):
    _, said, error = faulty("hang", max_restarts=1, actor_timeout_s=1.5)
    assert len(said) == 1
    assert "delivered nothing for 1.5 s" in str(error)
    assert "max_restarts=1" in str(error)


@pytest.mark.parametrize("transport", ["shm", "serial"])
def test_a_nan_is_never_trained_on_and_the_environment_is_named(faulty, transport):
    trainer, _, error = faulty("nan", max_restarts=0, transport=transport)
    assert "FaultyEnv returned nan in its observation[0]" in str(error)
    assert trainer.updates == 2
    assert all(torch.isfinite(p).all() for p in trainer.policy.parameters())


def test_an_actor_gone_at_startup_is_an_error_and_not_a_wait_for_ever(tiny):
    def broken():
        if multiprocessing.current_process().name.startswith("headrace-actor"):
            raise OSError("no licence for the simulator here")
        return resolve(FAULTY)()

    with pytest.raises(ActorFailed, match="no licence for the simulator here"):
        list(hr.Trainer(tiny(env=broken, max_restarts=1), notify=lambda text: None))


# -- SIGKILL of actors --------------------------------------------------------------------------


class Killer(threading.Thread):
    """Kills a random actor at random times, each time after the previous one was replaced."""

    def __init__(self, source: RolloutSource, count: int) -> None:
        super().__init__(daemon=True)
        self.source, self.count, self.done = source, count, 0
        self.stopped = threading.Event()
        self._random = random.Random(0)

    def run(self) -> None:
        while self.done < self.count and not self.stopped.is_set():
            time.sleep(self._random.uniform(0.0, 0.1))
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(self._random.choice(self.source.pids()), signal.SIGKILL)
                self.done += 1
            while self.source.num_restarts < self.done and not self.stopped.is_set():
                time.sleep(0.001)


def check_whole(rollout) -> None:
    """Check that every row of a CountingEnv's rollout follows from the previous row."""
    obs, first = rollout.obs.numpy(), rollout.first.numpy()
    valid = ~first[1:]
    env, episode, step, _ = np.moveaxis(obs[:-1], -1, 0)
    env_after, episode_after, step_after, action_seen = np.moveaxis(obs[1:], -1, 0)
    action, reward = rollout.action.numpy(), rollout.reward.numpy()
    ended = step >= counting_length(env, episode)
    assert (env_after == env).all()
    assert (valid == ~ended).all()  # the step after an end, and no other, is a filler
    assert (episode_after == episode + ~valid).all()
    assert (step_after == np.where(valid, step + 1, 0)).all()
    assert (action_seen == np.where(valid, action, -1)).all()
    assert (reward == np.where(valid, counting_reward(episode, step, action), 0)).all()
    ends_here = valid & (step_after >= counting_length(env, episode))
    terminated = ends_here & ~counting_truncates(env, episode)
    assert (rollout.terminated.numpy() == terminated).all()
    assert (~np.isnan(rollout.episode_return.numpy()) == ends_here).all()
    assert torch.isfinite(rollout.log_prob).all()


@pytest.fixture
def built(tiny):
    """Return a spec and its policy without other references."""

    def build(**settings) -> tuple[ActorSpec, hr.Policy]:
        config = tiny(env=COUNTING, algo=hr.APPO(), num_actors=2, **settings)
        envs = make_vec(config.env, 1)
        policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
        return config.actor_spec(resolve(config.env), policy), policy

    return build


def test_actors_that_start_slowly_are_reported_once(built, monkeypatch):
    (spec, policy), said = built(transport="shm"), []
    stops = iter([False, False, True])
    with contextlib.closing(RolloutSource(spec, said.append)) as source:
        monkeypatch.setattr(rollout_source, "_POLL_S", 0.0)
        monkeypatch.setattr(rollout_source, "_PATIENT_S", -1.0)
        monkeypatch.setattr(source, "_start", lambda: None)
        source.publish(policy, 0, 0)
        with pytest.raises(RunStopped):
            source.take(2, lambda: next(stops))
    assert said == ["waiting for actors: 0 of 2 have delivered a rollout so far"]


def test_actors_of_one_process_have_a_policy_each(built):
    spec, policy = built(transport="serial")
    with contextlib.closing(RolloutSource(spec, print)) as source:
        source.publish(policy, 0, 0)
        own = [actor._collector._policy for actor in source._actors]
        assert len({id(one) for one in (*own, policy)}) == 3


@pytest.mark.parametrize("asks", [False, True])
def test_actor_processes_are_sent_no_weights(built, asks):
    spec, small = built(transport="shm")
    spaces = small.observation_space, small.action_space
    spec = replace(spec, policy=hr.Policy(*spaces, hr.Network(hidden=(512, 512))))
    spec = without_weights(spec) if asks else spec
    with contextlib.closing(RolloutSource(spec, print)) as source:
        sent = cloudpickle.loads(source._fleet._spec).policy
        assert len(source._fleet._spec) < sum(p.numel() for p in spec.policy.parameters()) / 10
        assert [p.shape for p in sent.parameters()] == [p.shape for p in spec.policy.parameters()]


def test_what_starts_actor_processes_holds_their_policy_as_bytes_alone(built):
    spec, policy = built(transport="shm")
    held = weakref.ref(policy)
    with contextlib.closing(RolloutSource(spec, print)):
        del spec, policy
        gc.collect()
        assert held() is None


def test_an_actors_process_holds_no_bytes_of_the_policy_that_it_has(built, monkeypatch):
    monkeypatch.setattr(
        "headrace.actors.actor.use_batch_scheduling", lambda: None
    )  # it is this one
    spec, _ = built(transport="serial")
    with contextlib.closing(RolloutSource(spec, print)) as source:
        pickled = bytearray(cloudpickle.dumps(spec))
        ours, theirs = multiprocessing.Pipe()
        ours.close()
        run_actor(pickled, 0, 0, source._memory, theirs)  # which ends as the pipe is closed
        assert pickled == b""


def _tell(pipe) -> None:
    pipe.send(gc.get_freeze_count())


def test_no_collection_in_a_child_writes_to_what_it_shares_with_the_fork_server():
    child = Child("headrace-test", _tell)
    assert child.pipe.poll(PATIENCE_S)
    assert child.pipe.recv() > 10_000
    end_children([child])


def test_actors_killed_at_random_instants_lose_nothing_but_their_open_rollouts(tiny):
    config = tiny(env=COUNTING, algo=hr.APPO(), num_actors=2, max_restarts=NUM_KILLS)
    envs = make_vec(config.env, 1)
    policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
    spec = config.actor_spec(resolve(config.env), policy)
    source = RolloutSource(spec, lambda text: None)
    source.publish(policy, 0, 0)
    killer, version, lives, after = Killer(source, NUM_KILLS), 0, 0, 0
    latest: dict[int, tuple[int, np.ndarray]] = {}  # by actor: sequence, last observations
    seen: set[tuple[int, int]] = set()  # the first environment of a life, and the sequence
    held: deque = deque()  # slots that a slow learner would still be reading
    try:
        source.release([slot for slot, _, _ in source.take(1, lambda: False)])
        killer.start()
        while after < 20:  # rollouts after the last replacement
            after += source.num_restarts == NUM_KILLS
            [(slot, header, rollout)] = source.take(1, lambda: False)
            obs = rollout.obs.numpy()
            check_whole(rollout)
            assert (rollout.version == header.version).all()
            assert header.valid_steps == int((~rollout.first[1:]).sum())
            key = (int(obs[0, 0, 0]), header.sequence)
            assert key not in seen, "a rollout was delivered twice"
            seen.add(key)
            if header.sequence == 0:
                lives += 1
                assert rollout.first[0].all()
            elif header.actor in latest:
                assert header.sequence == latest[header.actor][0] + 1
                assert (obs[0] == latest[header.actor][1]).all()
            latest[header.actor] = (header.sequence, obs[-1].copy())
            held.append((slot, obs, obs.copy()))
            if len(held) == 4:
                slot, now, then = held.popleft()
                assert (now == then).all(), "a slot was written to while the learner held it"
                source.release([slot])
            version += 1
            source.publish(policy, version, 0)
        assert source.num_restarts == killer.done == NUM_KILLS
        assert lives >= 2
    finally:
        killer.stopped.set()
        killer.join(PATIENCE_S)
        source.close()


def test_an_actor_leaves_ctrl_c_to_the_trainer(tiny):
    with contextlib.closing(
        hr.Trainer(tiny(total_steps=10**9), notify=lambda text: None)
    ) as trainer:
        for result in trainer:
            if result.updates == 1:
                pids = trainer.source.pids()
                os.kill(pids[0], signal.SIGINT)
            if result.updates == 30:
                trainer.stop()
        assert trainer.source.num_restarts == 0


def test_training_survives_killed_actors_and_counts_them(tiny):
    with contextlib.closing(
        hr.Trainer(tiny(total_steps=10**9), notify=lambda text: None)
    ) as trainer:
        for result in trainer:
            if result.updates == 3 * (result.restarts + 1):
                if result.restarts == 3:
                    trainer.stop()
                else:
                    # Noticed before three more updates, as at most one rollout is in flight.
                    os.kill(trainer.source.pids()[0], signal.SIGKILL)
        assert result.restarts == 3
        pids = trainer.source.pids()
    assert result.updates >= 12
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_stopped_fork_server_is_replaced_when_an_actor_is_to_be(tiny):
    with contextlib.closing(
        hr.Trainer(tiny(total_steps=10**9), notify=lambda text: None)
    ) as trainer:
        for result in trainer:
            if result.updates == 2:
                os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
                os.kill(trainer.source.pids()[0], signal.SIGKILL)
            if result.restarts == 1:
                trainer.stop()
        assert result.restarts == 1


# -- SIGKILL of the trainer ---------------------------------------------------------------------

TRAINER = """
import headrace as hr

hr.train(
    "worlds:FaultyEnv", hr.A2C(), num_actors=2, envs_per_actor=1, fragment_length=8,
    env_kwargs={"mode": "hang", "fail_at_step": 12}, total_steps=10**9, run_dir="run",
    log_interval_s=0.0, callbacks=[lambda result: print("UPDATE", flush=True)],
)
"""


@pytest.mark.parametrize(
    ("moment", "num_processes", "stopped"),
    [
        pytest.param("results in", 2, slice(1, -1), id="start", marks=pytest.mark.slow),
        pytest.param("UPDATE", 4, slice(1, -1), id="one actor runs"),
        pytest.param("UPDATE", 4, slice(2, None), id="the fork server runs"),
    ],
)
def test_nothing_outlives_a_killed_trainer(start, stop, gone, moment, num_processes, stopped):
    script = start("-c", TRAINER)
    script.wait_for(moment)
    time.sleep(0.2)  # by now both actors hang in their environment
    family = script.family()
    assert len(family) >= num_processes  # itself, the fork server, and then two actors
    stop(family[stopped])  # one that runs is enough to end those that are stopped
    os.kill(script.process.pid, signal.SIGKILL)
    script.wait()
    assert gone(family) == []
    ours = re.compile("|".join(rf"_{p.pid}_" for p in family))
    assert [name for name in os.listdir("/dev/shm") if ours.search(name)] == []

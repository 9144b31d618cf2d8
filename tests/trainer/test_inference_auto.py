"""inference="auto" chooses by the cost of a step, and measures only what it needs."""

from __future__ import annotations

import pytest
from worlds import BrightQuarter

import headrace as hr
from headrace.envs.names import resolve
from headrace.envs.probe import probe
from headrace.trainer import auto_inference
from headrace.trainer.auto_inference import InferenceCosts, gain
from headrace.types import SingleLearner

LARGE = hr.Network((2048, 1024), conv="impala_deep")
CREW = {"num_actors": 8, "envs_per_actor": 1, "fragment_length": 16, "batch_size": 128}


@pytest.fixture
def settled(monkeypatch):
    """Return the choice, the messages, and the number of measurements."""

    def settle(
        costs: InferenceCosts | None, network=LARGE, group=None, env=BrightQuarter, **settings
    ):
        found = probe(resolve(env), "auto", {}, 0)
        told, asked = [], []

        def measure(*args):
            asked.append(args)
            return costs

        monkeypatch.setattr(auto_inference, "measure", measure)
        monkeypatch.setattr(auto_inference, "num_cores", lambda: 2)
        settings = CREW | {"algo": hr.APPO(), "network": network} | settings
        config = hr.Config(env, **settings)
        policy = hr.Policy(found.observation_space, found.action_space, network)
        done = auto_inference.settle(config, policy, found, group or SingleLearner(), told.append)
        return done.inference, told, len(asked)

    return settle


FASTER = InferenceCosts(own=3e-3, shared=0.8e-3, learning=2e-3, env=0.3e-3, busy=1.0)


def test_auto_takes_what_is_faster_and_says_so(settled):
    assert settled(FASTER) == (
        "shared",
        ["auto: shared inference (acting takes 3 ms per step in an actor, 0.8 ms in a shared "
         "inference server)"],
        1,
    )  # fmt: skip
    slower = FASTER._replace(shared=2.5e-3)
    chosen, [line], _ = settled(slower)
    assert chosen == "actor"
    assert line.startswith("auto: inference in each actor (acting takes 3 ms")
    assert settled(None)[:2] == ("actor", [])


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "CartPole-v1", "network": hr.Network((64, 64))},
        {"num_actors": 3, "batch_size": 3 * 16},
        {"transport": "serial"},
        {"transport": "serial", "deterministic": True},
        {"algo": hr.A3C()},
        {"num_actors": 256, "batch_size": 256 * 16},
        {"inference": "actor"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_nothing_is_measured_where_nothing_depends_on_it(settled, settings):
    assert settled(FASTER, **settings) == ("actor", [], 0)


def test_what_is_asked_for_is_taken_unmeasured(settled):
    assert settled(FASTER, inference="shared") == ("shared", [], 0)


def test_the_gain_is_that_of_what_bounds_either():
    # 2 cores do all the work: 3 + 0.3 + 2 ms a step and 0.3 for itself, or 0.8 + 0.25 + 0.3 + 2 + …
    # and then they wait for 0.6 ms each time that 4 of the 8 actors get their answers.
    assert gain(FASTER, 8, 1, cores=2) == pytest.approx((5.6 / 2) / (3.65 / 2 + 0.6 / 4))
    # With 16 cores one thread for all is busy: 1.05 ms + 0.6 / 8, against 8 actors / 3.6 ms.
    assert gain(FASTER, 8, 1, cores=16) == pytest.approx((3.6 / 8) / 1.125)
    # Environments that wait 50 ms bound both: 8 actors / 53.3 ms, and the pass once in 50.3 ms / 8.
    waiting = FASTER._replace(env=50e-3, busy=0.0)
    assert gain(waiting, 8, 1, cores=16) == pytest.approx((53.3 / 8) / (1.05 + 50.3 / 8))
    # Asking costs something: nothing is gained where batches save nothing.
    assert gain(FASTER._replace(shared=3e-3), 8, 1, cores=2) < 1
    # Actors with several environments ask once for all of them, and cores wait as seldom.
    several = (5.3 + 0.3 / 4) / 2, (3.1 + 0.55 / 4) / 2 + 0.6 / 16
    assert gain(FASTER, 8, 4, cores=2) == pytest.approx(several[0] / several[1])


def test_no_more_is_promised_than_the_processors_are_spared():
    # Few actors that wait for slow environments leave cores idle: one thread that is quicker for
    # all of them would give many more steps, if the processors had nothing else to do.
    slow = InferenceCosts(own=30e-3, shared=3e-3, learning=30e-3, env=1e-3, busy=1.0)
    assert gain(slow, 4, 1, cores=16) == pytest.approx(61.3 / 34.55)


# On two cores: actors of one environment, what a trial at the start measured, and how many times
# the steps per second in actors those with one process for all were.
SEEN = {
    "deep": (16, InferenceCosts(2.55e-3, 0.95e-3, 2.66e-3, 0.31e-3, 1.0), 413 / 313),
    "shallow in float32": (
        16,
        InferenceCosts(1.04e-3, 0.19e-3, 0.38e-3, 0.32e-3, 1.0),
        1431 / 1173,
    ),
    "the same with few actors": (
        4,
        InferenceCosts(1.0e-3, 0.51e-3, 0.37e-3, 0.31e-3, 1.0),
        1166 / 1388,
    ),
}


@pytest.mark.parametrize(("num_actors", "costs", "seen"), SEEN.values(), ids=SEEN)
def test_what_is_promised_is_about_what_was_seen(num_actors, costs, seen):
    assert 0.9 <= gain(costs, num_actors, 1, cores=2) / seen <= 1.1


def test_learning_has_the_pass_that_computes_targets(monkeypatch):
    monkeypatch.setattr(auto_inference, "act_s", lambda policy, num, precision: 1e-3 * num)
    monkeypatch.setattr(auto_inference, "learn_s", lambda policy, num, precision: 3e-3 * num)
    found = probe(BrightQuarter, "auto", {}, 0)
    policy = hr.Policy(found.observation_space, found.action_space, LARGE)
    for minibatches, learning in ((1, 3e-3), (4, 4e-3)):
        algo = hr.IMPALA(epochs=1, minibatches=minibatches)
        config = hr.Config(BrightQuarter, algo, network=LARGE, **CREW)
        assert auto_inference.measure(config, policy, found).learning == pytest.approx(learning)


def test_the_measurement_is_of_one_actor_and_of_half_of_all():
    network = hr.Network(conv="impala_deep", core="lstm", core_size=64)
    config = hr.Config(BrightQuarter, hr.IMPALA(epochs=1, minibatches=1), network=network, **CREW)
    found = probe(BrightQuarter, "auto", {}, 0)
    policy = hr.Policy(found.observation_space, found.action_space, network)
    costs = auto_inference.measure(config, policy, found)
    assert costs is not None
    assert 0 < costs.shared < costs.own  # 4 rows together cost less than 4 times one
    assert costs.learning > 0


def test_several_learners_take_what_rank_0_decides(settled):
    class Second(SingleLearner):
        size, rank = 2, 1

        def broadcast(self, value):
            assert value == "actor"  # it has measured nothing
            return "shared"

    assert settled(FASTER, group=Second(), num_learners=2) == ("shared", [], 0)


def test_a_run_keeps_its_choice_and_older_ones_acted_in_actors(tiny, finish, monkeypatch):
    monkeypatch.setattr(auto_inference, "_LARGE", 0)
    monkeypatch.setattr(auto_inference, "measure", lambda *args: FASTER)
    monkeypatch.setattr(auto_inference, "num_cores", lambda: 2)
    config = tiny(num_actors=4, envs_per_actor=2)
    trainer, _ = finish(config)
    assert trainer.config.inference == "shared"
    monkeypatch.setattr(auto_inference, "measure", None)  # any call fails
    again, _ = finish(tiny(num_actors=4, envs_per_actor=2, resume=True, total_steps=800))
    assert again.config.inference == "shared"
    alone = tiny(num_actors=4, envs_per_actor=2, resume=True, total_steps=1200, transport="serial")
    assert finish(alone)[0].config.inference == "actor"  # where nothing can be shared

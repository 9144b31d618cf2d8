"""headrace pbt: copying, changes of settings, and lineage."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import populations as stub
import pytest

from headrace.rundir import checkpoint, checkpoint_writer
from headrace.studies.pbt import report
from headrace.studies.pbt.member import Event, Member, _own_counts, _own_generator
from headrace.studies.pbt.scheduler import PopulationScheduler


def pair(tmp_path, mine: float, theirs: float, **settings):
    """Return a member and its only rival after the member's turn."""
    population = stub.population(str(tmp_path), members=2, **settings)
    members = [stub.member_of(population, 0, mine), stub.member_of(population, 1, theirs)]
    taken = PopulationScheduler(population, stub.train, lambda line: None)
    return members, taken._evolve(members[0], members[0].latest())


@pytest.mark.parametrize(
    ("lead", "burn_in", "kind"),
    [(0.5, 80, "kept"), (0.51, 80, "copied"), (-9.0, 80, "kept"), (9.0, 101, "trained")],
)
def test_another_is_copied_if_it_is_better_by_more_than_the_threshold(
    tmp_path, lead, burn_in, kind
):
    (own, rival), event = pair(tmp_path, 1.0, 1.0 + lead, burn_in=burn_in, probability=0.0)
    assert own.latest() == event
    assert event.kind == kind
    latest = checkpoint.find(own.run_dir)
    copied = kind == "copied"
    assert (event.source == 1) == copied
    assert event.score == (1.0 + lead if copied else 1.0)
    assert event.hyper == {k: v * (1 + copied) for k, v in stub.HYPER.items()}
    source = rival if copied else own
    whole = (checkpoint.find(source.run_dir) / "policy.safetensors").read_bytes()
    assert (latest / "policy.safetensors").read_bytes() == whole
    assert checkpoint.load_trainer(latest)["env_steps"] == 100


def test_a_copy_brings_optimiser_and_hyperparameters_and_keeps_steps_and_seed(tmp_path):
    population = stub.population(str(tmp_path), members=2)
    own, rival = (stub.member_of(population, i, i, 60 + 40 * i) for i in range(2))
    own.take_over(own.copy(rival, rival.latest()))
    state = checkpoint.load_trainer(checkpoint.find(own.run_dir))
    assert (state["env_steps"], state["lr_factor"]) == (60, 0.75)
    assert state["learner"]["marks"][-1] == [1, 100]
    assert state["learner"]["state"]["generator"] == 0  # or both would shuffle alike
    config = checkpoint.read_config(checkpoint.find(own.run_dir))["config"]
    assert (config["seed"], config["algo"]["learning_rate"]) == (0, 0.002)
    stub.train(population, own, own.latest().hyper, 80, None)
    marks = stub.check_whole(checkpoint.find(own.run_dir))
    assert marks[-2:] == [[1, 100], [0, 80]]


def test_what_a_member_did_itself_is_still_counted_after_a_copy():
    def saved(i):
        of_task = {"returns": [1.0 * i], "lengths": [2.0 * i], "count": 3 * i, "env_steps": 4 * i}
        return [of_task | {"by_task": {"a": of_task}}]

    (found,) = _own_counts(saved(5), saved(1))
    for one in (found, found["by_task"]["a"]):
        assert (one["returns"], one["lengths"]) == ([5.0], [10.0])
        assert (one["count"], one["env_steps"]) == (3, 4)


def test_each_of_several_policies_keeps_its_own_generator():
    def saved(i):
        return {"policies": {name: {"ages": i, "state": {"generator": i, "m": i}} for name in "ab"}}

    policies = _own_generator(saved(5), saved(1))["policies"]
    for name in "ab":
        assert policies[name]["state"] == {"generator": 1, "m": 5}
        assert policies[name]["ages"]["published"].numel() == 0


def test_a_copy_has_no_score_where_its_source_went_on_behind_it(tmp_path):
    population, said = stub.population(str(tmp_path), members=2), []
    own, rival = stub.member_of(population, 0, 1.0), stub.member_of(population, 1, 9.0)
    stub.train(population, rival, rival.latest().hyper, 140, None)  # and isn't scored yet
    event = PopulationScheduler(population, stub.train, said.append)._evolve(own, own.latest())
    assert (event.kind, event.score, event.source_steps) == ("copied", None, 140)
    assert said == ["member 0: copies member 1 (not scored yet, 140 steps)"]
    every = [own.history(), rival.history()]
    assert [row["score"] for row in report.rows_of(every)] == ["9", "none"]


@pytest.mark.parametrize("done", ["written", "noted", "pointed"])
def test_a_copy_that_was_cut_short_is_undone_or_finished(tmp_path, done):
    population = stub.population(str(tmp_path), members=2)
    own, rival = (stub.member_of(population, i, i) for i in range(2))
    before = checkpoint.find(own.run_dir)
    event = own.copy(rival, rival.latest())
    if done != "written":
        own.note(event)
    if done == "pointed":
        checkpoint_writer.point("latest", before.parent / event.checkpoint)
    with (own.folder / "history.jsonl").open("a") as file:
        file.write('{"kind": "kep')  # and so was a line
    again = Member(0, own.folder)
    again.recover()
    found = checkpoint.find(own.run_dir)
    assert found.name == (before.name if done == "written" else event.checkpoint)
    assert (before.parent / event.checkpoint).exists() == (done != "written")
    again.note(Event("kept", 100, stub.HYPER, 1.0))
    assert again.history()[-1].kind == "kept"


def test_settings_change_with_the_given_probability_and_factor():
    population = stub.population("x", factor=1.2)
    rng = np.random.default_rng(0)
    ratios = np.array([
        list(population.perturbed(stub.HYPER, rng).values()) for _ in range(500)
    ]) / list(stub.HYPER.values())  # fmt: skip
    logs = np.round(np.log(ratios) / math.log(1.2)).astype(int)
    assert np.allclose(ratios, 1.2**logs)
    assert set(np.unique(logs)) == {-1, 0, 1}
    for column in logs.T:
        assert 0.28 < (column != 0).mean() < 0.39
        assert 0.12 < (column == 1).mean() < 0.22
    assert 0.07 < ((logs[:, 0] != 0) & (logs[:, 1] != 0)).mean() < 0.155  # each by itself


def test_a_discount_is_changed_in_its_way_to_1_up_and_down_alike():
    population = stub.population("x", sample=("gamma=uniform:0.9,0.99",), probability=1.0)
    found = Counter(
        round(1 - population.perturbed({"gamma": 0.9}, np.random.default_rng(i))["gamma"], 6)
        for i in range(100)
    )
    assert set(found) == {round(0.1 / 1.2, 6), round(0.1 * 1.2, 6)}
    assert min(found.values()) > 30


def test_a_change_to_an_invalid_value_is_left_out():
    population = stub.population("x", sample=("c_bar=uniform:0.25,1.0",), probability=1.0)
    top = population.config.algo.rho_bar
    found = {population.perturbed({"c_bar": top}, np.random.default_rng(i))["c_bar"]
             for i in range(20)}  # fmt: skip
    assert found == {top, top / 1.2}


def test_settings_that_evolve_never_contradict_each_other():
    sample = ("rho_bar=uniform:0.5,4.0", "c_bar=uniform:0.25,2.0")
    population = stub.population("x", sample=sample, probability=1.0)
    rng = np.random.default_rng(0)
    for number in range(25):
        hyper = population.drawn(number)
        for _ in range(5):
            assert hyper["rho_bar"] >= hyper["c_bar"]
            hyper = population.perturbed(hyper, rng)


def test_a_score_of_0_has_its_place_among_others():
    hyper = {"learning_rate": 1.0}
    scores = [-3.0, 0.0, None, 0.5, -0.25]
    every = [[Event("born" if x is None else "trained", 10, hyper, x)] for x in scores]
    assert [row["member"] for row in report.rows_of(every)] == ["3", "1", "4", "0", "2"]


def test_lineage_goes_back_through_copies():
    hyper = {"learning_rate": 1.0}
    born = Event("born", 0, hyper)

    def trained(steps):
        return Event("trained", steps, hyper, 1.0, f"step_{steps}")

    def copied(steps, source, at, name):
        return Event("copied", steps, hyper, 1.0, f"copy_{steps}", None, source, at, name)

    every = [
        [born, trained(10), copied(10, 1, 20, "step_20"), trained(20)],
        [born, trained(10), trained(20), copied(20, 2, 15, "step_15"), trained(30)],
        [born, trained(10), trained(20), copied(20, 0, 10, "copy_10"), trained(40)],
    ]
    assert report.ancestors(every, 0) == [(1, 20), (0, 20)]
    assert report.ancestors(every, 1) == [(2, 15), (1, 30)]
    assert report.ancestors(every, 2) == [(1, 20), (0, 10), (2, 40)]
    assert report.founders(every) == [1, 2, 1]

"""headrace pbt: kills at any time, turns, and whole populations."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import populations as stub
import pytest
import torch
from patience import PATIENCE_S, wait_until
from warm import Program

import headrace as hr
from headrace.cli import main
from headrace.rundir import checkpoint
from headrace.rundir.files import read_jsonl
from headrace.rundir.lock import Lock
from headrace.studies.children import Children
from headrace.studies.machine import wide_console
from headrace.studies.pbt import report
from headrace.studies.pbt.command import run
from headrace.studies.pbt.member import Member
from headrace.studies.pbt.scheduler import PopulationScheduler
from headrace.studies.pbt.settings import Population

STUB = Path(stub.__file__)


def taking_part(folder: Path, **settings) -> Program:
    output = os.open(folder / "output.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        words = [sys.executable, str(STUB), str(folder), json.dumps(settings)]
        return Program(words, folder, output, shared=True)
    finally:
        os.close(output)


def merged(pairs) -> list[tuple[int, int]]:
    """Return (member, steps at the end), without members that did nothing."""
    found = []
    for member, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        found.append((member, list(group)[-1][1]))
    return found


def check(population: Population) -> int:
    """Check that every member is complete, with the weights of its history; return the copies."""
    every = stub.histories(population)
    for number, history in enumerate(every):
        member = Member(number, population.member_dir(number))
        assert history[0].kind == "born"
        assert history[-1].steps >= population.config.total_steps
        steps = [event.steps for event in history]
        assert steps == sorted(steps), "its own steps never go back"
        kinds = [event.kind for event in history]
        trained = [event.steps for event in history if event.kind == "trained"]
        assert trained == list(range(stub.TURN, stub.TOTAL + 1, stub.TURN)), "each turn once"
        early = [e for e in history if e.kind != "trained" and e.steps < population.burn_in]
        assert kinds.count("born") == 1
        assert len(early) == 1, "nothing changes before the burn-in"
        for folder in (member.run_dir / "checkpoints").glob("*_*"):
            if folder.suffix != ".tmp":
                stub.check_whole(folder)
        marks = stub.check_whole(checkpoint.find(member.run_dir))
        line = report.ancestors(every, number)
        own = [(who, until) for i, (who, until) in enumerate(line)
               if until > (arrived(every, line, i) if i else -1)]  # fmt: skip
        assert merged(marks) == merged(own), number
    return sum(event.kind == "copied" for history in every for event in history)


def arrived(every, line, i) -> int:
    """Return the steps at which a member of a lineage replaced the previous one."""
    who, until = line[i]
    before, left = line[i - 1]
    copies = [e for e in every[who] if e.kind == "copied" and e.source == before]
    found = [e.steps for e in copies if e.source_steps == left and e.steps <= until]
    earlier = [steps for steps in found if steps < until]
    if i + 1 < len(line) and earlier:  # it may have copied the same again, after it was copied
        taken = [e for e in every[line[i + 1][0]] if (e.source, e.source_steps) == line[i]]
        if not any(e.source_checkpoint.startswith("copy") for e in taken):
            return max(earlier)
    return max(found)


def killed(folder: Path, kills: int, seed: int) -> Population:
    """Run a population of which three processes are killed and replaced repeatedly."""
    population, rng = stub.population(str(folder), members=6), random.Random(seed)
    programs = [taking_part(folder, members=6) for _ in range(3)]
    while kills:
        time.sleep(rng.uniform(0.0, 0.08))
        number = rng.randrange(3)
        if programs[number].poll() is not None:
            break
        os.kill(programs[number].pid, signal.SIGKILL)
        programs[number].wait(PATIENCE_S)
        kills -= 1
        programs[number] = taking_part(folder, members=6)
    for program in programs:
        assert program.wait(PATIENCE_S) == 0, (folder / "output.txt").read_text()
    return population


def test_whatever_is_killed_no_copy_is_half_and_every_lineage_is_true(tmp_path):
    copies = check(killed(tmp_path, 5, seed=0))
    assert copies >= 3
    assert (tmp_path / "population.png").exists()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 11))
def test_200_kills_at_random_instants(tmp_path, seed):
    assert check(killed(tmp_path, 20, seed)) >= 5


def test_decisions_do_not_depend_on_who_takes_them(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(stub.population(str(tmp_path / name), members=3), wide_console(), stub.train)
    every = [
        stub.histories(stub.population(str(tmp_path / name), members=3)) for name in ("a", "b")
    ]
    assert every[0] == every[1]
    assert any(event.kind == "copied" for history in every[0] for event in history)


def test_more_members_than_jobs_take_turns_fairly(tmp_path):
    population = stub.population(str(tmp_path), members=5, jobs=2)
    order, lock = [], threading.Lock()

    def turns(number: int) -> int:
        return sum(event.kind == "trained" for event in stub.histories(population)[number])

    def train(population, member, hyper, until, children):
        with lock:
            begun = Counter(order)  # turns end in the order of their beginnings
            order.append(member.number)
        wait_until(lambda: all(turns(number) >= begun[number] for number in begun))
        return stub.train(population, member, hyper, until, children)

    run(population, wide_console(), train)
    assert len(order) == 5 * 10
    for end in range(len(order)):
        counts = [order[:end].count(number) for number in range(5)]
        assert max(counts) - min(counts) <= 2
    assert sorted(order[:2]) == [0, 1]  # of two threads either may be the first to say so


def test_a_member_that_somebody_trains_is_left_to_them(tmp_path):
    population = stub.population(str(tmp_path), members=2, burn_in=0)
    first = Member(0, population.member_dir(0))
    first.folder.mkdir(parents=True)
    lock = Lock(first.folder)
    taken = PopulationScheduler(population, stub.train, lambda line: None)
    for _ in range(3):
        assert taken.turn(Children())
    assert first.latest() is None
    assert Member(1, population.member_dir(1)).latest().steps == 120
    lock.release()
    taken.turn(Children())
    assert first.latest().steps == 40


@pytest.mark.draws
def test_a_whole_small_population(tmp_path, monkeypatch, capsys, forked_children):
    """Ordinary runs, of which one copies the other and continues."""
    monkeypatch.chdir(tmp_path)
    words = ["--transport", "serial", "--num-actors", "1", "--envs-per-actor", "8",
             "--fragment-length", "16", "--batch-size", "128", "--total-steps", "1024",
             "--eval-episodes", "2",
             "--members", "2", "--interval", "512", "--burn-in", "1", "--threshold", "0",
             "--sample", "learning-rate=loguniform:1e-4,1e-2", "--jobs", "2"]  # fmt: skip
    assert main(["pbt", "ppo", *words]) == 0
    assert "The best members" in capsys.readouterr().out
    for number in range(2):
        member = Member(number, Path(f"runs/pbt/members/00{number}"))
        first, second = (e.steps for e in member.history() if e.kind == "trained")
        assert 512 <= first < 768 <= 1024 <= second < 1280
        assert hr.load(member.run_dir) is not None
        config = json.loads((member.run_dir / "config.json").read_text())["config"]
        last = [event for event in member.history() if event.kind != "trained"][-1]
        assert config["algo"]["learning_rate"] == last.hyper["learning_rate"]
        assert config["seed"] == Population(output="runs/pbt").seed_of(number)
    assert Path("runs/pbt/population.md").read_text().startswith("# Population: ppo on CartPole-v1")
    own, other = (Member(i, Path(f"runs/pbt/members/00{i}")) for i in range(2))
    before = own.latest().steps
    own.take_over(own.copy(other, other.latest()))
    weights, copied = (hr.load(member.run_dir).state_dict() for member in (other, own))
    assert all(torch.equal(weights[name], copied[name]) for name in weights)
    hr.resume(own.run_dir, total_steps=before + 200, **own.latest().hyper)
    metrics = [line["env_steps"] for line in read_jsonl(own.run_dir / "metrics.jsonl")]
    assert metrics == sorted(metrics)
    assert before + 200 <= metrics[-1] < before + 500
    trained = hr.load(own.run_dir).state_dict()
    assert not all(torch.equal(trained[name], copied[name]) for name in copied)

"""Processes of the same population meet at its start and at its end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import populations
from patience import PATIENCE_S
from warm import Program

from headrace.studies.pbt.member import Event, Member

TOGETHER = """
import os, time
from pathlib import Path
import populations
from headrace.studies.machine import wide_console
from headrace.studies.pbt import command

def barrier(name):
    Path(f"{name}.{os.getpid()}").touch()
    until = time.monotonic() + 100.0
    while len(list(Path().glob(f"{name}.*"))) < 4:
        assert time.monotonic() < until

def take_part(output):
    command.run(populations.population(output, members=2), wide_console(), None)

os.fsync = lambda _: time.sleep(0.01)  # a disk's
command.report.draw = lambda *_: None
work, command.work = command.work, lambda *_: None
for i in range(4):
    barrier(f"begin{i}")
    take_part(f"new{i}")
command.work = work
for i in range(4):
    barrier(f"end{i}")
    take_part("done")
"""


def test_whoever_begins_or_ends_together_gets_in_nobodys_way(tmp_path):
    population = populations.population(str(tmp_path / "done"), members=2)
    for number in range(2):
        member = Member(number, population.member_dir(number))
        member.folder.mkdir(parents=True)
        member.note(Event("trained", populations.TOTAL, populations.HYPER, 1.0))
    output = os.open(tmp_path / "output.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    words = [sys.executable, "-c", TOGETHER]
    programs = [Program(words, tmp_path, output, shared=True) for _ in range(4)]
    os.close(output)
    try:
        status = [program.wait(PATIENCE_S) for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert status == [0] * 4, (tmp_path / "output.txt").read_text()[-3000:]
    assert not list(Path(tmp_path).glob("*/*.tmp"))

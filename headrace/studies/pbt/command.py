"""``headrace pbt``: population-based training.

All participating processes are equivalent: any number of them, on this or on other machines that
share the folder, may start, end or crash at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from headrace.config import Config
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.studies import flags
from headrace.studies.identity import alone, check_same
from headrace.studies.machine import head, wide_console
from headrace.studies.pbt import report
from headrace.studies.pbt.scheduler import PopulationScheduler, Train
from headrace.studies.pbt.settings import CONSTANT, NO_END, Population
from headrace.studies.pbt.training import train_member
from headrace.studies.workers import work


def main(argv: Sequence[str]) -> int:
    """``headrace pbt [ALGORITHM] [--recipe NAME] [flags]``; 1 if a member was given up.

    Raises:
        ConfigError: a flag is invalid; nothing was started.
    """
    fixed = {"lr_schedule": "constant", **NO_END}
    if not any(word.partition("=")[0] == "--sample" for word in argv):
        fixed["optimizer"] = "rmsprop"  # its epsilon evolves, as in the paper
    population = flags.parse(Population, "headrace pbt", argv, Config(**CONSTANT), **fixed)
    return run(population, wide_console())


def run(population: Population, console: Console, train: Train = train_member) -> int:
    """Participate until every member has all its steps, then write page and plot.

    Args:
        train: function that trains one turn.

    Raises:
        ConfigError: there is no such environment, the threshold is undefined, or the folder
            contains another population; nothing was started.
        CheckpointError: the folder's file system has no locks; nothing was started.
        HeadraceError: no member can be trained.
    """
    env = flags.named(population.config)
    flags.check_made(population.config)
    population.check()
    identity, folder = population.identity, Path(population.output)
    with checkpoint_errors(folder, "used as output"):
        folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        check_same(folder / "population.json", "a population", identity)
    drawn = ", ".join(one.name for one in population.parameters)
    what = f"{population.config.algo_name} on {env}: {population.members} members, {drawn}"
    head(Population.__doc__, what, console)
    turns = PopulationScheduler(population, train, lambda line: console.print(line, soft_wrap=True))
    work(population.jobs, turns.turn)
    with alone(folder):
        report.write(population, turns.members, console)
    return 1 if turns.given_up else 0

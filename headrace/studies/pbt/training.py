"""Trains one turn: an ordinary run that starts or resumes in a separate process."""

from __future__ import annotations

from typing import Any

from headrace.rundir import resolve_imports
from headrace.rundir.config_file import replaced
from headrace.studies.children import Children
from headrace.studies.pbt.member import Member
from headrace.studies.pbt.settings import Population
from headrace.studies.run import train_to_end


def train_member(
    population: Population, member: Member, hyper: dict[str, float], until: int, children: Children
) -> dict[str, Any]:
    """Train a member's run up to a number of steps with these hyperparameters."""
    changes = {"run_dir": str(member.run_dir), "seed": population.seed_of(member.number)}
    config = replaced(population.config, {**changes, "total_steps": until, **hyper})
    request = {"config": config.to_json(), "hyper": hyper}
    output = member.folder / "output.log"
    result: dict[str, Any] = children.call(train_run, request, population.timeout_s, output)
    return result


def train_run(request: dict[str, Any]) -> dict[str, Any]:
    """Train to the end in the child process; return why training broke down, or nothing.

    Raises:
        RuntimeError: the run was interrupted, for instance by a signal to all processes of a job.
    """
    config = resolve_imports.config(request["config"])
    why = train_to_end(config, total_steps=config.total_steps, **request["hyper"])
    return {} if why is None else {"error": why}

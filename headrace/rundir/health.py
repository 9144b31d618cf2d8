"""What the doctor says of a run directory: while its run goes on, at its end, and later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium.envs.registration import registry

from headrace.config import Config
from headrace.doctor.doctor import Doctor, Finding, examine, speaking
from headrace.errors import CheckpointError, on_one_line
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir.config_file import flat_settings
from headrace.rundir.curves import RunCurves, read_run
from headrace.rundir.files import append_jsonl, read_jsonl
from headrace.spaces.json import space_from_json

FILE = "warnings.jsonl"


class LoggedFinding(NamedTuple):
    """A finding."""

    finding: Finding
    env_steps: int  # after so many it was made
    earlier: bool = False  # the whole course shows it no more


def doctor_of(config: Config, policy: AnyPolicy, notify: Callable[[str], None]) -> Doctor | None:
    """Who looks at a run with these settings while it goes on; None, and a line, if that fails."""
    try:
        settings = known(flat_settings(config.to_json())) | {"resume": config.resume}
        return Doctor(settings, policy.inputs.action_space)
    except Exception as error:  # a mistake in what is said of a run, which ends no training
        notify(f"the doctor failed and doesn't look while this run goes on ({on_one_line(error)})")
        return None


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, and the ``max_episode_steps`` of an environment that Gymnasium knows."""
    spec = None if settings.get("tasks") else registry.get(str(settings.get("env")))
    theirs = spec and spec.max_episode_steps
    limit = (settings.get("env_kwargs") or {}).get("max_episode_steps", theirs)
    is_one = isinstance(limit, int) and limit > 0
    return {**settings, "max_episode_steps": limit if is_one else None}


def findings(run: RunCurves) -> list[LoggedFinding]:
    """What was told while the run went on, and what its whole course says, each once."""
    told = _told(run.path / FILE)
    names = {one.finding.name for one in told}
    space = run.described.get("action_space")
    course = run.results, known(run.settings), space and space_from_json(space)
    found, shown = examine(*course), speaking(*course)
    steps = int(run.results[-1]["env_steps"])
    told = [one._replace(earlier=one.finding.name not in shown) for one in told]
    return [*told, *(LoggedFinding(one, steps) for one in found if one.name not in names)]


def conclude(run_dir: Path, notify: Callable[[str], None]) -> list[dict[str, Any]]:
    """At the end of a run: tell and write what wasn't yet, and return all as values for JSON.

    Raises:
        CheckpointError: the directory holds no metrics, or takes no more.
    """
    run, before = read_run(run_dir), len(_told(run_dir / FILE))
    all_of_it = findings(run)
    for one in all_of_it[before:]:
        notify(f"doctor: {one.finding.line}")
    lines = [{"env_steps": one.env_steps, **one.finding._asdict()} for one in all_of_it]
    if lines[before:]:
        append_jsonl(run_dir / FILE, lines[before:])
    return [as_json(one) for one in all_of_it]


def as_json(told: LoggedFinding) -> dict[str, Any]:
    """Values for JSON; ``earlier`` only where it is."""
    values = {"env_steps": told.env_steps, **told.finding._asdict()}
    return values | ({"earlier": True} if told.earlier else {})


def _told(file: Path) -> list[LoggedFinding]:
    if not file.exists():
        return []
    try:
        lines = read_jsonl(file)
        return [
            LoggedFinding(
                Finding(*(str(line[name]) for name in Finding._fields)), int(line["env_steps"])
            )
            for line in lines
        ]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read: {error!r}") from error

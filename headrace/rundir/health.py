"""Runs the doctor on a run directory: during training, at the end, and later."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import registry

from headrace.config import Config
from headrace.doctor.doctor import Doctor, Finding, examine, triggered
from headrace.errors import CheckpointError, on_one_line
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir.atomic_files import foreign_values
from headrace.rundir.config_file import flat_settings
from headrace.rundir.curves import RunCurves, read_run, summary_of
from headrace.rundir.files import append_jsonl, read_jsonl
from headrace.spaces import walk
from headrace.spaces.images import image_shape, is_image
from headrace.spaces.json import space_from_json

FILE = "warnings.jsonl"
_SMALL_SIDE = 36  # pixels; conv="auto" chooses a small network below


class LoggedFinding(NamedTuple):
    """A finding with the number of steps at which it was made."""

    finding: Finding
    env_steps: int  # environment steps at which it was made
    earlier: bool = False  # no longer supported by the complete curves


def doctor_of(config: Config, policy: AnyPolicy, notify: Callable[[str], None]) -> Doctor | None:
    """Create the doctor of a run in progress; None, and a message, if that fails."""
    try:
        settings = with_episode_limit(flat_settings(config.to_json())) | {"resume": config.resume}
        settings |= {"images": small_images(settings, policy.inputs.observation_space)}
        return Doctor(settings, policy.inputs.action_space)
    except Exception as error:  # an error in the doctor must not stop training
        notify(f"the doctor failed and is disabled for this run ({on_one_line(error)})")
        return None


def with_episode_limit(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the known ``max_episode_steps`` of a run's environment or wrappers to the settings."""
    spec = None if settings.get("tasks") else registry.get(str(settings.get("env")))
    theirs = spec and spec.max_episode_steps
    limit = (settings.get("env_kwargs") or {}).get("max_episode_steps", theirs)
    limits = [limit, *map(_time_limit, settings.get("wrappers") or ())]
    valid = [one for one in limits if isinstance(one, int) and one > 0]
    return {**settings, "max_episode_steps": min(valid, default=None)}


def _time_limit(wrapper: Any) -> Any:
    """Return the ``max_episode_steps`` of Gymnasium's TimeLimit; None for other wrappers."""
    name, _, arguments = str(wrapper).partition(":")
    with contextlib.suppress(ValueError, AttributeError, RecursionError):  # of an untrusted file
        return json.loads(arguments).get("max_episode_steps") if name == "TimeLimit" else None


def small_images(settings: Mapping[str, Any], space: gymnasium.Space) -> list[list[int]]:
    """Return height and width of each image that is small for the convolutions of the run.

    The list is empty unless the run uses IMPALA's 15 convolutions (``impala_deep``).
    """
    if settings.get("conv") != "impala_deep" or settings.get("torso") is not None:
        return []
    images = [leaf for _, leaf in walk.leaves(space) if is_image(leaf)]
    layout = settings.get("image_layout", "auto")
    sides = [list(image_shape(image, layout)[1:]) for image in images]
    return [pair for pair in sides if max(pair) < _SMALL_SIDE]


def examined_settings(run: RunCurves) -> dict[str, Any]:
    """Return settings and facts of a run for the doctor's rules: images and final evaluation."""
    settings = with_episode_limit(run.settings)
    if space := run.described.get("observation_space"):
        settings["images"] = small_images(settings, space_from_json(space))
    with contextlib.suppress(CheckpointError):
        if summary := summary_of(run):
            settings["evaluation"] = summary.get("evaluation")
    return settings


def findings(run: RunCurves) -> list[LoggedFinding]:
    """Return findings logged during the run and those of its complete curves, each once."""
    logged = _read_findings(run.path / FILE)
    with foreign_values(run.path):
        return _all_findings(run, logged)


def _all_findings(run: RunCurves, logged: list[LoggedFinding]) -> list[LoggedFinding]:
    names = {one.finding.name for one in logged}
    space = run.described.get("action_space")
    course = run.results, examined_settings(run), space and space_from_json(space)
    new_findings, shown = examine(*course), triggered(*course)
    steps = int(run.results[-1]["env_steps"])
    logged = [one._replace(earlier=one.finding.name not in shown) for one in logged]
    return [*logged, *(LoggedFinding(one, steps) for one in new_findings if one.name not in names)]


def conclude(run_dir: Path, notify: Callable[[str], None]) -> list[dict[str, Any]]:
    """At the end of a run, report and write new findings, and return all as values for JSON.

    Raises:
        CheckpointError: the directory has no metrics, or can't be written.
    """
    run, before = read_run(run_dir), len(_read_findings(run_dir / FILE))
    all_of_it = findings(run)
    for one in all_of_it[before:]:
        notify(f"doctor: {one.finding.line}")
    lines = [{"env_steps": one.env_steps, **one.finding._asdict()} for one in all_of_it]
    if lines[before:]:
        append_jsonl(run_dir / FILE, lines[before:])
    return [as_json(one) for one in all_of_it]


def as_json(logged: LoggedFinding) -> dict[str, Any]:
    """Convert a finding to values for JSON; ``earlier`` is present only if True."""
    values = {"env_steps": logged.env_steps, **logged.finding._asdict()}
    return values | ({"earlier": True} if logged.earlier else {})


def _finding(line: Mapping[str, Any]) -> Finding:
    return Finding(str(line["name"]), str(line["text"]), str(line["remedy"]))


def _read_findings(file: Path) -> list[LoggedFinding]:
    if not os.path.lexists(file):
        return []
    try:
        lines = read_jsonl(file)
        return [LoggedFinding(_finding(line), int(line["env_steps"])) for line in lines]
    except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file} can't be read: {error!r}") from error

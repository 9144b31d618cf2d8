"""Runs a study's training in a separate process: starts it, or resumes an interrupted one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.api import resume_config
from headrace.api import run as train
from headrace.config import Config
from headrace.errors import ConfigError, NonFinite, NoRoom
from headrace.rundir import checkpoint, import_allowlist
from headrace.rundir.json_values import plain
from headrace.studies.scores.runs import check_ended


def train_to_end(config: Config, callbacks: Iterable[Any] = (), **settings: Any) -> str | None:
    """Train a run to its end; return the reason if its sampled settings made that impossible.

    Args:
        config: config with its run directory. settings: changes for a resumed run.

    Returns:
        the reason why training failed or a setting is invalid, which may depend on the
        environment; None if training ended normally.

    Raises:
        CheckpointError: the run directory belongs to another run, and names other code than
            ``config``.
        ConfigError: memory or files are short, or an existing run can't resume; both are problems
            of the machine.
        RuntimeError: the run was interrupted, for instance by a signal to all processes of a job.
    """
    run_dir = Path(config.run_dir or "")
    begun = checkpoint.exists(run_dir)
    if begun:
        config = resume_config(run_dir, trust=_names_the_same(config), **settings)
    else:
        config = config.again(saved=False)
    try:
        train(config, callbacks, draw=False)
    except NonFinite as error:
        return str(error)
    except ConfigError as error:
        if begun or isinstance(error, NoRoom):
            raise
        return str(error)
    check_ended(run_dir)
    return None


def _names_the_same(config: Config) -> bool:
    """Return whether a run directory refers only to code that the study's command has named."""
    saved = checkpoint.read_config(checkpoint.find(config.run_dir or ""))["config"]
    return _code(saved) == _code(config.to_json())


def _code(config: dict[str, Any]) -> Any:
    return json.loads(json.dumps(plain(import_allowlist.code_in(config))))

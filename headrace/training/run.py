"""What a run is to whoever starts it, however many learners train; and how each begins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.acting.fleet import start_fork_server
from headrace.config import Config, default_run_dir
from headrace.envs.names import resolve
from headrace.envs.probe import Probe, probe
from headrace.nn.policy import Policy
from headrace.records.result import Result


class Run(Protocol):
    """Iterate over it to train; a context manager that ends what it started.

    ``config`` and ``env`` (resolved) are what is trained on, ``run_dir`` is where files are, and
    ``interrupted`` says whether a signal ended it.
    """

    config: Config
    env: Any
    run_dir: Path
    interrupted: bool

    @property
    def policy(self) -> Policy:
        """As far as it is trained."""

    def __enter__(self) -> Run: ...

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[Result]:
        """Train; a result about every second."""

    def stop(self) -> None:
        """End training after the update in progress; a checkpoint is written."""

    def close(self) -> None:
        """End all processes and threads; safe to call twice."""

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds, once training has ended."""


@dataclass(frozen=True)
class Begun:
    """What a run begins with."""

    found: Probe  # its environment
    run_dir: Path
    started: float  # when it counts as started, on the clock of ``time.monotonic()``


def begin(config: Config, started: float | None, needs_processes: bool) -> Begun:
    """Look at the environment while the fork server, if it is needed, gets ready.

    Args:
        started: see :class:`Begun`; None: now.

    Raises:
        ConfigError: there is no such environment (nothing was started), or it can't be made.
    """
    started = time.monotonic() if started is None else started
    resolve(config.env)  # complains before anything is started
    if needs_processes:
        start_fork_server()
    found = probe(config.env, config.engine, config.env_kwargs, config.seed)
    run_dir = config.run_dir or default_run_dir(config, time.strftime("%Y%m%d-%H%M%S"))
    return Begun(found, Path(run_dir), started)

"""``headrace bench scaling``: measures the speed-up of training with several learners.

Runs are measured in separate processes, one at a time: all world sizes with the first seed, then
with the next. Measurements are kept, so an interrupted study can resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.api import load
from headrace.api import run as train
from headrace.config import Config
from headrace.envs.names import resolve
from headrace.errors import ConfigError
from headrace.processes import num_cores
from headrace.rundir import resolve_imports
from headrace.rundir.atomic_files import write_json
from headrace.studies import flags
from headrace.studies.children import Children
from headrace.studies.machine import head, wide_console
from headrace.studies.run_table import Case, Study
from headrace.studies.scaling import allreduce, figures, report
from headrace.studies.scaling.settings import DEFAULT, ONE_CORE, Scaling, case_config, cases_of

COLUMNS = ("mode", "world_size", "seed", "settings", *figures.RUN_FIGURES, "gradient_bytes")
_SHOWN = ("fps", "t_iter", "rho_comm", "rho_sync", "final_return")  # columns of a finished run


def main(argv: Sequence[str]) -> int:
    """``headrace bench scaling [ALGORITHM] [--recipe NAME] [flags]``; 1 if runs failed.

    Raises:
        ConfigError: a flag is invalid; nothing was started.
    """
    scaling = flags.parse(Scaling, "headrace bench scaling", argv, DEFAULT, **ONE_CORE)
    return run(scaling, wide_console())


# -- the runs --------------------------------------------------------------------------------------


def train_apart(config: Config, children: Children, timeout_s: float) -> None:
    """Train one run in a separate session, with settings and output next to its folder."""
    folder = Path(config.run_dir or "")
    folder.parent.mkdir(parents=True, exist_ok=True)
    request, output = (folder.with_name(folder.name + end) for end in (".json", ".log"))
    write_json(request, config.to_json())
    children.call(_train, config.to_json(), timeout_s, output)


def _train(config: dict[str, Any]) -> None:
    train(resolve_imports.config(config))


def gradient_bytes(config: Config) -> int:
    """Return the size in bytes of the gradient of a finished run's policy."""
    policy = load(config.run_dir or "", network=config.network)
    return sum(p.numel() * p.element_size() for p in policy.parameters())


def run(scaling: Scaling, console: Console) -> int:
    """Measure missing runs, then print and write all results; return 1 if runs failed.

    Raises:
        ConfigError: there is no such environment, a world size doesn't fit the settings, or the
            output folder holds a study with other settings; nothing was started.
    """
    resolve(scaling.config.env)
    cases = cases_of(scaling)
    for case in cases:  # raises before anything starts
        case_config(scaling, case["world_size"], case["seed"])
    study = Study(Path(scaling.output), COLUMNS, "per_run.csv")
    if any(row["settings"] != scaling.fingerprint for row in study.rows):
        raise ConfigError(
            f"{study.folder} holds a study with other settings; choose another --output"
        )

    def measure(case: Case, children: Children) -> Mapping[str, Any]:
        config = case_config(scaling, case["world_size"], case["seed"])
        train_apart(config, children, scaling.timeout_s)
        folder, target = Path(config.run_dir or ""), config.target_return
        results = figures.run_figures(folder, config.num_learners, scaling.warmup_iters, target)
        return results | {"gradient_bytes": gradient_bytes(config)}

    head(Scaling.__doc__, scaling.title, console)
    study.run(cases, measure, console, shown=_SHOWN)
    if rows := study.done(cases):
        sizes, num_bytes = {row["world_size"] for row in rows}, rows[0]["gradient_bytes"]
        timings = allreduce.measure(
            Study(study.folder, allreduce.COLUMNS, "allreduce.csv"),
            sorted(sizes | ({2} if num_cores() >= 2 else set())),
            sorted({*allreduce.MESSAGE_BYTES, num_bytes}),
            console,
        )
        report.write(scaling, rows, timings, console)
    return study.status(console, "world_size", "seed")

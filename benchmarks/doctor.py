"""Accuracy of the doctor: does it find planted problems, and stay silent in healthy runs?

    python benchmarks/doctor.py --seeds 212 --output runs/doctor

Every case of ``doctor_cases.py`` is trained with a result every 0.1 s and evaluated every tenth of
its steps. The doctor examines the run at every result. A problem counts as found if it is reported
at any time, and any report on a healthy run is a false alarm. Finished runs aren't repeated.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import tyro
from doctor_cases import HEALTHY, ILL, config_of

import headrace as hr
from headrace.doctor.doctor import Doctor, examine
from headrace.rundir.curves import RunCurves, read_run
from headrace.rundir.health import examined_settings
from headrace.spaces.json import space_from_json
from headrace.studies.machine import markdown, wide_console


@dataclass(frozen=True)
class Args:
    """Run the doctor on all cases; see the module's docstring."""

    seeds: tuple[int, ...] = (212,)
    output: Path = Path("runs/doctor")
    cases: tuple[str, ...] = ()
    """Names of cases; all by default."""
    train: bool = True
    """Train missing runs; otherwise only examine existing ones."""


def main(args: Args) -> None:
    """Train, examine and print the table."""
    console, rows, right = wide_console(), [], {"ill": 0, "healthy": 0}
    cases = {name: (one.illness, one.settings) for name, one in ILL.items()}
    cases |= {name: ("", settings) for name, settings in HEALTHY.items()}
    for name, (illness, settings) in cases.items():
        if args.cases and name not in args.cases:
            continue
        for seed in args.seeds:
            folder = args.output / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
            seconds = trained(folder, settings, seed) if args.train else 0.0
            if not is_done(folder):
                continue
            run = read_run(folder)
            told = replayed(run)
            others = [one for one in told if one != illness]
            named = illness in told if illness else not told
            right["ill" if illness else "healthy"] += named
            row = {"case": name, "seed": seed, "illness": illness or "none"}
            row |= {"right": "yes" if named else "NO", "other reports": ", ".join(others)}
            rows.append(row)
            last = run.results[-1].get("charts/episodic_return")
            console.print(f"{name} ({seed}): {told} return {last} in {seconds:.0f} s")
    console.print(markdown([{k: str(v) for k, v in row.items()} for row in rows]))
    for kind, count in right.items():
        of = sum((row["illness"] == "none") == (kind == "healthy") for row in rows)
        console.print(f"{kind}: right in {count} of {of}")


def is_done(folder: Path) -> bool:
    """Return whether a case was trained to its end."""
    summary = folder / "summary.json"
    return summary.exists() and not json.loads(summary.read_text()).get("interrupted")


def replayed(run: RunCurves) -> list[str]:
    """Return the reports of the current rules on a run: during training, then at its end."""
    values = run.described.get("action_space")
    space = values and space_from_json(values)
    settings = examined_settings(run)
    doctor = Doctor(settings, space)
    told = [one.name for row in run.results for one in doctor.note(row)]
    found = [one.name for one in examine(run.results, settings, space)]
    return list(dict.fromkeys(told + found))


def trained(folder: Path, settings: dict, seed: int) -> float:
    """Train a case if it is missing. Return the duration."""
    if is_done(folder):
        return 0.0
    config = config_of(
        settings, seed=seed, run_dir=str(folder), overwrite=folder.exists(), log_interval_s=0.1
    )
    config = dataclasses.replace(
        config, eval_interval=config.eval_interval or config.total_steps // 10
    )
    began = time.monotonic()
    with warnings.catch_warnings(), hr.Trainer(config, notify=lambda text: None) as trainer:
        warnings.simplefilter("ignore")
        for _ in trainer:
            pass
    if trainer.interrupted:
        raise KeyboardInterrupt
    return time.monotonic() - began


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))

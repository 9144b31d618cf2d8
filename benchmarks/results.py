"""Runs the experiments of the results book, and writes its pages of claims and verdicts.

    python benchmarks/results.py                     # all pages; takes days
    python benchmarks/results.py --medium            # shorter runs; takes hours
    python benchmarks/results.py impala --quick      # one page, fewest seeds; takes minutes
    python benchmarks/results.py --report            # rewrite the pages, run nothing
    python benchmarks/results.py --medium --output docs/results   # the documentation and README

Runs stored in OUTPUT/data are reused, unless they failed or a setting that they depend on has
changed since, for example because of a new default. --first-seed runs all with other seeds.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from book.experiment import Form, Scale
from book.index import write_index
from book.page import Page, counts, findings, render
from book.readme import page_named
from book.readme import write as write_readme
from book.running import run_missing
from rich.console import Console

from headrace.errors import ConfigError
from headrace.rundir.atomic_files import replace_text
from headrace.studies.machine import head, wide_console

Name = Literal["impala", "impact", "ddppo", "clusterenv", "lesson", "peers"]
DOCS = Path(__file__).parents[1].resolve() / "docs"
NAMES: tuple[Name, ...] = ("impala", "impact", "ddppo", "clusterenv", "lesson", "peers")


@dataclass(frozen=True)
class Args:
    """Run missing experiments and write the pages; see the module's docstring."""

    pages: Annotated[tuple[Name, ...], tyro.conf.Positional] = NAMES
    """Pages to write."""
    quick: bool = False
    """Run the quick form: shorter runs, and at most two seeds."""
    medium: bool = False
    """Run the medium form: shorter runs."""
    first_seed: int = 0
    """First seed of all experiments."""
    report: bool = False
    """Write the pages from stored runs, without running anything."""
    replace: bool = False
    """Drop stored runs of other cases, such as another form or other seeds."""
    experiments: tuple[str, ...] = ()
    """Run only these experiments; empty: all experiments of the pages."""
    output: Path = Path("runs/results")
    """Folder of the pages. Runs are stored in its folder data."""


def write(page: Page, args: Args, form: Form, console: Console) -> int:
    """Run missing cases and write a page. Return the number of failed runs."""
    data = page.data(args.output / "data")
    for name, one in data.items():
        if not args.report and (not args.experiments or name in args.experiments):
            run_missing(page.name, one, form, console, args.replace)
    replace_text(args.output / f"{page.name}.md", render(page, data))
    found = findings(page, data)
    told = ", ".join(f"{n} {verdict}" for verdict, n in counts(found).items() if n)
    stale = sum(bool(one.stale) for one in found)
    console.print(f"{args.output / page.name}.md: {told}" + f"; {stale} stale" * bool(stale))
    return sum(len(one.failed) for one in data.values())


def main(args: Args) -> int:
    """Write the pages. Return 1 if runs failed."""
    if args.quick and args.medium:
        raise ConfigError("--quick and --medium exclude each other")
    scale: Scale = "quick" if args.quick else "medium" if args.medium else "full"
    console, form, begin = wide_console(), Form(scale, args.first_seed), time.monotonic()
    head(__doc__, f"pages: {', '.join(args.pages)}; form: {form.scale}", console)
    args.output.mkdir(parents=True, exist_ok=True)
    failed = sum(write(page_named(name), args, form, console) for name in args.pages)
    write_index([page_named(name) for name in NAMES], args.output)
    if args.output.resolve() == DOCS / "results":
        write_readme(DOCS.parent / "README.md", args.output / "data")
    console.print(f"{(time.monotonic() - begin) / 60:.1f} minutes; {failed} failed runs")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args, description=__doc__)))
    except ConfigError as error:
        sys.exit(f"results.py: {error}")

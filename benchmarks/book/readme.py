"""Writes README's table of results from the stored runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from book.page import Finding, Page, findings
from headrace.errors import ConfigError
from headrace.rundir.atomic_files import replace_text
from headrace.studies.machine import markdown

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
MOST_ROWS = 10


@dataclass(frozen=True)
class Quote:
    """A row of a page that README repeats, found by its place in the document and its claim."""

    page: str
    where: str
    claim: str
    text: str
    """Description of the measurement, for readers without the document."""


QUOTES = (
    Quote("peers", "All tasks, APPO", "APPO's score is above SB3 PPO's",
          "Default settings on four tasks, after the same time (0: random, 1: reference)"),
    Quote("peers", "Speed, APPO", "APPO is faster than SB3's PPO on every task",
          "APPO's speed"),
    Quote("peers", "CartPole to 475, APPO", "APPO solves CartPole sooner than SB3's PPO",
          "CartPole, from process start to a return of 475"),
    Quote("peers", "MountainCarContinuous, APPO", "APPO solves it: 90 or more",
          "MountainCarContinuous with APPO's defaults"),
    Quote("impala", "Abstract", "one learner trains on 250,000 frames/s",
          "IMPALA on CartPole"),
    Quote("lesson", "Straggler problem", "one slow actor slows a synchronous loop",
          "One of eight actors is ten times as slow"),
    Quote("impact", "Fig. 5a", "IMPACT's return is above PPO's at equal time",
          "IMPACT and PPO on Pendulum after the same time"),
    Quote("clusterenv", "Abstract",
          "adaptive, with V-trace: less than half of the fetches, equal return",
          "ClusterEnv: adaptive weight fetches"),
    Quote("impala", "Table 1, task 2", "IMPALA is faster than A3C and A2C",
          "Environments that wait, with uneven episodes"),
)  # fmt: skip


def page_named(name: str) -> Page:
    """Return a page.

    Raises:
        ConfigError: a row reads an experiment that the page lacks.
    """
    page: Page = importlib.import_module(f"book.{name}").PAGE
    known = {experiment.name for experiment in page.experiments}
    for row in page.rows:
        for missing in set(row.experiments) - known:
            raise ConfigError(f"row {row.where!r} of {name} needs {missing!r}, which is unknown")
    return page


def quoted(
    folder: Path, quotes: Sequence[Quote] = QUOTES, pages: Callable[[str], Page] = page_named
) -> list[tuple[Quote, Finding]]:
    """Return the quoted rows with what was found.

    Args:
        folder: folder of the data.

    Raises:
        ConfigError: a quoted row is missing or stale.
    """
    found: dict[str, list[Finding]] = {}
    rows = []
    for quote in quotes:
        if quote.page not in found:
            page = pages(quote.page)
            found[quote.page] = findings(page, page.data(folder))
        key = quote.where, quote.claim
        own = [one for one in found[quote.page] if (one.row.where, one.row.claim) == key]
        if len(own) != 1:
            raise ConfigError(f"{quote.page} has {len(own)} rows {key}; README needs one")
        if own[0].stale:
            raise ConfigError(
                f"README quotes {quote.where!r} of {quote.page}, which is stale: "
                f"{', '.join(own[0].stale)} changed. Run benchmarks/results.py {quote.page}"
            )
        rows.append((quote, own[0]))
    return rows


def table(folder: Path) -> str:
    """Return the table."""
    rows = [
        {"measured": f"[{quote.text}](docs/results/{quote.page}.md)", "result": one.result}
        for quote, one in quoted(folder)
    ]
    return markdown(rows) if rows else ""


def between(text: str) -> str:
    """Return the text between the markers."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def write(readme: Path, folder: Path) -> None:
    """Replace the table between the markers of README.

    Raises:
        ConfigError: README lacks the markers, or quotes a stale row.
    """
    text = readme.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ConfigError(f"{readme} lacks the lines {BEGIN} and {END}")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    replace_text(readme, f"{head}{BEGIN}\n\n{table(folder)}\n\n{END}{tail}")

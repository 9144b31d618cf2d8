"""Writes a page of the results book from stored runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from book.data import Data
from book.experiment import Experiment
from book.rows import Judgement, Row, Verdict
from headrace.studies.machine import markdown


@dataclass(frozen=True)
class Page:
    """Rows of one source document.

    Attributes:
        name: name of the file and of the command's argument.
        title: heading.
        source: the document, as one sentence without its full stop.
        rows: claims in the order of the document.
        experiments: all experiments that the rows read, in the order of execution.
        intro: text below the source.
    """

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    experiments: tuple[Experiment, ...]
    intro: str = ""

    def data(self, folder: Path) -> dict[str, Data]:
        """Read the data of all experiments, by name."""
        return {e.name: Data(e, folder) for e in self.experiments}


@dataclass(frozen=True)
class Finding:
    """A row with its judgement.

    Attributes:
        stale: names of settings whose values have changed since the runs.
        failed: number of failed runs.
        missing: number of runs that the form has and the data lack.
    """

    row: Row
    judgement: Judgement
    stale: tuple[str, ...] = ()
    failed: int = 0
    missing: int = 0

    @property
    def verdict(self) -> str:
        """Return the cell of the verdict."""
        stale = f", stale ({', '.join(self.stale)} changed)" if self.stale else ""
        return f"**{self.judgement.verdict.value}**{stale}"

    @property
    def result(self) -> str:
        """Return the cell of the result."""
        failed = f" ({self.failed} runs failed)" if self.failed else ""
        missing = f" ({self.missing} runs are missing)" if self.missing else ""
        return self.judgement.result + failed + missing


def findings(page: Page, data: Mapping[str, Data]) -> list[Finding]:
    """Return a verdict and a result for each row of a page."""
    runs = {name: one.runs for name, one in data.items()}
    found = []
    for row in page.rows:
        own = [data[name] for name in row.experiments]
        stale = dict.fromkeys(name for one in own if one.stale() for name in changed(one))
        failed = sum(len(one.failed) for one in own)
        missing = sum(one.num_missing() for one in own if one.lines)
        found.append(Finding(row, row.judged(runs), tuple(stale), failed, missing))
    return found


def changed(data: Data) -> list[str]:
    """Return names of changed settings, at most three."""
    names = data.changed() or ["settings"]
    return names[:3] if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"]


def counts(found: Sequence[Finding]) -> dict[str, int]:
    """Return the number of rows by verdict, in the order of the verdicts."""
    number = Counter(one.judgement.verdict for one in found)
    return {verdict.value: number[verdict] for verdict in Verdict}


def render(page: Page, data: Mapping[str, Data]) -> str:
    """Return the page as Markdown."""
    found = findings(page, data)
    tested = [one for one in found if one.judgement.verdict is not Verdict.NOT_RUN]
    parts = [f"# {page.title}", f"{page.source}. {page.intro}".strip(), how(page, data)]
    if tested:
        parts += ["## Tested claims", markdown([_tested(one) for one in tested])]
    if len(tested) < len(found):
        untested = [
            {"where": o.row.where, "claim": o.row.claim, "why": o.result}
            for o in found
            if o not in tested
        ]
        parts += ["## Claims that were not tested", markdown(untested)]
    return "\n\n".join(parts) + "\n"


def _tested(one: Finding) -> dict[str, str]:
    return {
        "where": one.row.where,
        "claim": one.row.claim,
        "runs": one.row.ran,
        "result": one.result,
        "verdict": one.verdict,
    }


def how(page: Page, data: Mapping[str, Data]) -> str:
    """Return the paragraph on command, machine, commit and data."""
    lines = [line for one in data.values() for line in one.lines]
    if not lines:
        return f"`python benchmarks/results.py {page.name}`: no runs yet."
    forms = " and ".join(dict.fromkeys(one.form for one in data.values() if one.lines))
    flag = f" --{forms}" if forms in ("quick", "medium") else ""
    minutes = sum(line["seconds"] for line in lines) / 60
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines if line["commit"]))
    machines = "; ".join(dict.fromkeys(line["machine"] for line in lines))
    links = ", ".join(f"[{name}](data/{name}.json)" for name, one in data.items() if one.lines)
    return (
        f"`python benchmarks/results.py {page.name}{flag}`: {len(lines)} runs, "
        f"{minutes:.0f} minutes in all, at {commits}, on {machines}. Spreads (±) are standard "
        f"errors over seeds. Data: {links}. [Verdicts](index.md#verdicts)."
    )

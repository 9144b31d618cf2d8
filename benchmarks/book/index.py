"""Writes the first page of the results book."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from book.page import Page, counts, findings
from headrace.rundir.atomic_files import replace_text
from headrace.studies.machine import markdown

_TEXT = """# Results

Each page lists the claims of one paper or course document, including its tables and plots. For
each claim, it states the runs that test it, the result and a verdict. Pages are generated from
stored runs. The command, machine and commits are at the top of each page. The last page compares
headrace's defaults with Stable-Baselines3.

{pages}

This command runs all pages in the quick form (less than an hour on two cores), and writes them to
`runs/results-quick`:

```bash
make results-quick
```

The pages in `docs/results` are in the medium form (`python benchmarks/results.py --medium`), with
more seeds. Without a flag, the full form runs, which takes days. `--experiments NAME` runs one of a
page's experiments. All forms resume if interrupted.

## Verdicts

The table counts the claims by verdict. Verdicts are computed from the runs:

- *reproduced*: the claim holds at the paper's own setting, or is a property that doesn't depend on
  scale, such as a formula
- *in kind*: in smaller runs, the difference has the claimed direction and exceeds two standard
  errors
- *not reproduced*: the difference is within two standard errors, or the claim holds only in part
- *refuted*: the difference has the opposite direction and exceeds two standard errors, or a
  property does not hold
- *not run*: the claim was not tested, for the stated reason

A single row is weak evidence: with three seeds per setting, chance alone exceeds two standard
errors in about one of eight comparisons. Repeat it with `--first-seed 1000`, or in the full form.

A row is *stale* if a setting that its runs depend on has changed since, for example because of a
new default.

## Other measurements

- [Learning](learning.md): eight tasks, compared with Stable-Baselines3 and CleanRL; Atari,
  self-play, run diagnosis
- [Speed](speed.md): throughput, compared with other programs and between settings
- [Studies](studies.md): an ablation of APPO, cooperative games, satellite environments, several
  tasks
- [Environments](../environments.md#tested-environments) of other packages that were tested
"""


def write_index(pages: Sequence[Page], folder: Path) -> None:
    """Write ``index.md`` with the number of verdicts of each page."""
    rows = []
    for page in pages:
        found = counts(findings(page, page.data(folder / "data")))
        link = {"page": f"[{page.title}]({page.name}.md)"}
        rows.append(link | {verdict: str(number) for verdict, number in found.items()})
    replace_text(folder / "index.md", _TEXT.format(pages=markdown(rows)))

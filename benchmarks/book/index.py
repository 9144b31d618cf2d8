"""Writes the first page of the results book."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from book.page import Page, counts, findings
from headrace.rundir.atomic_files import replace_text
from headrace.studies.machine import markdown

_TEXT = """# Results

Each page lists the tables, plots and claims of one source document, what was run to test them,
and the verdict. Pages are generated from stored runs; every command is at the top of its page.

{pages}

All of them at once, in the reduced form (about 45 minutes on two cores), written to
`runs/results-quick`:

```bash
make results-quick
```

Without `--quick`, `python benchmarks/results.py` runs the full form for hours. Both continue after
an interruption.

## Verdicts

Verdicts are computed from the runs.

- *reproduced*: at the paper's own setting, or a property that doesn't depend on scale
- *in kind*: at a smaller scale, in the same direction, by more than two standard errors
- *not reproduced*: no difference of more than two standard errors
- *refuted*: the opposite, by more than two standard errors
- *not run*: with the reason

A row is *stale* if a setting that its runs depend on has another value today, for instance because
a default changed.

## Other measurements

- [Learning](learning.md): eight tasks, compared with Stable-Baselines3 and CleanRL; Atari,
  self-play, the doctor
- [Speed](speed.md): throughput, compared with other programs and between settings
- [Studies](studies.md): an ablation of APPO, cooperative games, satellite environments, several
  tasks
- [Environments](../environments.md#tested-environments) of other packages that run
"""


def write_index(pages: Sequence[Page], folder: Path) -> None:
    """Write ``index.md`` with the number of verdicts of each page."""
    rows = []
    for page in pages:
        found = counts(findings(page, page.data(folder / "data")))
        link = {"page": f"[{page.title}]({page.name}.md)"}
        rows.append(link | {verdict: str(number) for verdict, number in found.items()})
    replace_text(folder / "index.md", _TEXT.format(pages=markdown(rows)))

"""The commands on the pages on sweeps and populations have valid settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from headrace.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"sweeps": 5, "populations": 1}


@pytest.mark.parametrize(("page", "count"), PAGES.items())
def test_every_command_of_a_page_is_understood(monkeypatch, page, count):
    given: list = []

    def taken(*args, **kwargs):
        given.append(args)
        return 0

    for place in (
        "sweep.command.run", "pbt.command.run", "scores.command.score",
        "scores.command.measure_references",
    ):  # fmt: skip
        monkeypatch.setattr(f"headrace.studies.{place}", taken)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("headrace")]
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
    assert len(given) == len(lines) == count
    for study, *_ in given:
        if hasattr(study, "check"):
            study.check()

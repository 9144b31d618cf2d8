"""The snippets of the page on self-play run."""

from __future__ import annotations

import re

import pytest
from warm import headrace, run

from tests.docs.test_docs import ROOT, commands_of, shorter

pytest.importorskip("pyspiel")  # it has no wheels for Python 3.10


def test_the_page_on_self_play_runs_from_top_to_bottom(tmp_path):
    page = (ROOT / "docs/selfplay.md").read_text(encoding="utf-8")
    page = re.sub(r"(--episodes )\d+", r"\g<1>10", shorter(page))
    blocks = re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL)
    commands = commands_of("".join(text for kind, text in blocks if kind == "bash"))
    assert len(commands) == 3
    headrace(tmp_path, *commands)
    assert (tmp_path / "runs/kuhn/league/league.png").exists()
    (snippet,) = [text for kind, text in blocks if kind == "python"]
    (tmp_path / "snippet.py").write_text(snippet)
    run(tmp_path, "snippet.py")
    assert (tmp_path / "runs/kuhn-python/league/league.json").exists()

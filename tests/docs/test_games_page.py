"""The snippets of the page on games run in order in an empty folder."""

from __future__ import annotations

import re

import pytest
from warm import headrace, run

from tests.docs.test_docs import ROOT, commands_of, shorter


@pytest.mark.full
def test_the_page_on_games_runs_from_top_to_bottom(tmp_path):
    page = (ROOT / "docs/games.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|bash)\n(.*?)```", page, re.DOTALL)
    assert [language for language, _ in blocks] == ["bash", "python", "python"]
    headrace(tmp_path, *commands_of(shorter(blocks[0][1])))
    assert (tmp_path / "runs/tictactoe/episode.mp4").exists()
    (tmp_path / "script.py").write_text("\n".join(shorter(text) for _, text in blocks[1:]))
    run(tmp_path, "script.py")
    assert (tmp_path / "runs/matching/summary.json").exists()
    assert (tmp_path / "runs/two-policies/summary.json").exists()

"""The code cells of the example notebook, and of the page on notebooks, run in order."""

from __future__ import annotations

import json
import re
from pathlib import Path

from warm import run

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples/quickstart.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "code"]


def test_the_cells_of_the_notebook_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    code = "\n".join(CELLS) + "\nprint(plt.get_fignums())"
    output = run(tmp_path, "-c", code.replace("100_000", "20_000"))
    assert re.search(r"^return \d+\.\d ± \d+\.\d$", output, re.MULTILINE)
    assert (tmp_path / "runs/notebook/summary.json").exists()


def test_the_notebook_is_saved_without_outputs():
    assert (NOTEBOOK["nbformat"], len(CELLS)) == (4, 4)
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


def test_the_loop_on_the_page_about_notebooks_runs(tmp_path):
    page = (ROOT / "docs/notebook.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (resume,) = re.findall(r"`(hr\.resume\(.*?\))`", page)
    code = f"{code}\n{resume}\n".replace("50_000", "2_000").replace("100_000", "4_000")
    assert re.search(r"^\d+ [\d.]+$", run(tmp_path, "-c", code), re.MULTILINE)
    assert (tmp_path / "runs/loop/summary.json").exists()

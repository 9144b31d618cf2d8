"""The page on schedules runs from top to bottom."""

from __future__ import annotations

import json
import re

from warm import headrace, run

from tests.docs.test_docs import ROOT, commands_of, shorter

PAGE = (ROOT / "docs/schedules.md").read_text(encoding="utf-8")


def test_the_page_on_schedules_runs(tmp_path):
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    (tmp_path / "script.py").write_text(shorter(script))
    run(tmp_path, "script.py")
    (command,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    headrace(tmp_path, *commands_of(shorter(command)))
    algo = json.loads((tmp_path / "runs/text/config.json").read_text())["config"]["algo"]
    assert algo["clip"] == "0:0.2,1:0.1"
    for name in ("warmup", "points", "functions", "plateau"):
        assert (tmp_path / "runs" / name / "summary.json").exists()

"""What a user called something is shown as it is: no markup, no emoji, no colours of its own."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.records.terminal import Report
from headrace.studies import machine

NAMES = ("__main__:Snake", ":snake:", "runs/[x]", "[bold]a[/bold]", "[/nothing]", "a:b:c", "1e-5")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_line_of_a_report_is_what_was_said(kind, tiny):
    for name in NAMES:
        file = kind()
        Report(tiny(), Console(file=file, width=200, color_system="truecolor")).say(name)
        assert file.getvalue() == name + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_closing_screen_and_tables_of_studies_show_names_as_they_are(
    name, tiny, tmp_path, monkeypatch
):
    console = Console(file=io.StringIO(), width=200)
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "metrics.jsonl").touch()
    report = Report(tiny(), console)
    report.begin(tiny(env=name), tmp_path / name)
    report.end(tmp_path / name, SUMMARY)
    shown = console.file.getvalue()
    assert f"ppo on {name} (engine auto): 1 actor(s)" in shown
    assert f"results in {tmp_path / name}" in shown
    assert f"{tmp_path / name / 'metrics.jsonl'}" in shown

    assert "lost rollouts" not in shown
    report.end(tmp_path / name, SUMMARY | {"lost": 3})
    assert "lost rollouts      3, which actors had begun" in console.file.getvalue()

    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    wide = machine.wide_console()
    wide.print(f"measuring {name}")
    machine.show([{"of": name, name: "1"}], name, wide)
    assert file.getvalue().count(name) == 4


SUMMARY = {
    "episodic_return": 1.0,
    "seconds_to_first_update": 0.1,
    "utilisation": {"actor": None, "learner": None},
    "lag": {"mean": None},
    "sync": {"pulls": 1, "bytes": 1},
    "time": dict.fromkeys(("learn", "wait", "publish", "comm", "sync")),
    "env_steps": 1,
    "seconds_total": 1.0,
    "sps": 1.0,
    "dropped": 0,
}

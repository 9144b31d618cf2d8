"""User-defined names are printed literally, without markup, emoji and colours."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

import headrace as hr
from headrace.cli import main
from headrace.processes.terminal_text import PrintableStream
from headrace.rundir import terminal
from headrace.rundir.closing_table import shown
from headrace.rundir.result import Result
from headrace.rundir.terminal import Report
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


def result_at(env_steps: int) -> Result:
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Result))
    known = {"env_steps": env_steps, "sps": 100.0, "episode_return": 12.5, "lag_mean": 0.5}
    known |= {"utilisation_actor": 0.5, "utilisation_learner": 0.5}
    return Result(**(nothing | known))


def test_progress_has_a_percentage_and_the_time_left_in_80_columns_and_in_a_pipe(tiny, monkeypatch):
    config = tiny(total_steps=10_000)
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    pipe = io.StringIO()
    report = Report(config, Console(file=pipe, width=80))
    report.update(result_at(1_500))  # its speed includes start-up
    now[0] += 10.0
    report.update(result_at(2_500))
    first, second = pipe.getvalue().splitlines()
    assert first.startswith(" 15% 0:00:00 · return 12.5 · 100 steps/s · 1,500 steps")
    assert second.startswith(" 25% 0:00:10, 0:01:15 left · return 12.5 · 100 steps/s · 2,500 steps")
    screen = Terminal()
    console = Console(file=screen, width=80, force_terminal=True, color_system=None)
    with Report(config, console) as report:
        report.update(result_at(2_500))
        report._live.refresh()
    lines = [line for line in screen.getvalue().replace("\r", "\n").splitlines() if "25%" in line]
    assert lines
    assert all(len(line) <= 100 for line in lines)  # escape sequences included


def test_a_line_has_the_speed_of_a_second_however_often_there_are_results(tiny, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(terminal, "_PLAIN_INTERVAL_S", 0.0)
    pipe = io.StringIO()
    report = Report(tiny(total_steps=10**6), Console(file=pipe, width=80))
    for i, sps in enumerate((100.0, 9_999.0, 1.0, 9_999.0)):
        now[0] = 100.0 + 0.5 * i
        report.update(dataclasses.replace(result_at(1_000 * (i + 1)), sps=sps))
    speeds = re.findall(r"([\d,]+) steps/s", pipe.getvalue())
    assert speeds == ["100", "9,999", "2,000", "2,000"]


def test_a_quiet_run_prints_nothing(tmp_path, capsys):
    sizes = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
    hr.train("CartPole-v1", "ppo", quiet=True, total_steps=64, run_dir=tmp_path / "run", **sizes)
    hr.resume(tmp_path / "run", quiet=True, total_steps=128)
    flags = ["--quiet", "--total-steps", "192"]
    assert main(["resume", str(tmp_path / "run"), *flags]) == 0
    assert capsys.readouterr() == ("", "")


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
    assert f"ppo on {name} (engine auto): 1 actor ×" in shown
    assert f"results in {tmp_path / name}" in shown
    assert f"{tmp_path / name / 'metrics.jsonl'}" in shown

    assert "lost rollouts" not in shown
    report.end(tmp_path / name, SUMMARY | {"lost": 3})
    assert "lost rollouts      3, unfinished in actors" in console.file.getvalue()

    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    wide = machine.wide_console()
    wide.print(f"measuring {name}")
    machine.show([{"of": name, name: "1"}], name, wide)
    assert file.getvalue().count(name) == 4


def test_the_closing_screen_has_results_first_and_whole_paths_last(tiny, tmp_path):
    run_dir = tmp_path / "a-long-name-of-a-folder" / ("of-a-run" * 10)
    (run_dir / "checkpoints" / "latest").mkdir(parents=True)
    (run_dir / "report.html").touch()
    console = Console(file=io.StringIO(), width=80)
    Report(tiny(), console).end(run_dir, SUMMARY | {"warnings": [{"name": "kl-high"}]})
    lines = console.file.getvalue().splitlines()
    order = [
        "training return",
        "doctor",
        "environment steps",
        "speed",
        "plan",
        "checkpoint",
        "report",
    ]
    there = [name for line in lines for name in order if line.lstrip("│ ").startswith(name)]
    assert there == [name for name in order if name != "plan"]
    assert lines[-1] == f"report      {run_dir / 'report.html'}"
    assert f"checkpoint  {run_dir / 'checkpoints' / 'latest'}" in lines
    assert not any("plot" in line for line in lines)  # it wasn't written


def test_a_run_of_one_update_shows_no_speed(tiny, tmp_path):
    console = Console(file=io.StringIO(), width=80)
    Report(tiny(), console).end(tmp_path, SUMMARY | {"sps": 0.0})
    assert "speed" not in console.file.getvalue()
    assert "environment steps" in console.file.getvalue()


def test_a_resumed_run_shows_the_seconds_of_all_its_training(tiny, tmp_path):
    console = Console(file=io.StringIO(), width=80)
    Report(tiny(), console).end(tmp_path, SUMMARY | {"env_steps": 150_920})
    assert "150,920 in 31.2 s of training" in console.file.getvalue()
    assert "6.6 s with start-up" in console.file.getvalue()


SUMMARY = {
    "episodic_return": 1.0,
    "seconds_to_first_update": 0.1,
    "utilisation": {"actor": None, "learner": None},
    "lag": {"mean": None},
    "sync": {"pulls": 1, "bytes": 1},
    "time": dict.fromkeys(("learn", "wait", "publish", "comm", "sync")),
    "env_steps": 1,
    "seconds_total": 6.6,
    "seconds_training": 31.2,
    "sps": 1.0,
    "dropped": 0,
}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_letters_that_an_encoding_lacks_are_replaced(encoding, tiny, monkeypatch):
    file = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(file, encoding, write_through=True))
    Report(tiny()).say("steps × 2 … → ▁█")
    assert file.getvalue().startswith(b"steps ")


@pytest.mark.parametrize(
    ("value", "text"), [(0.946, "0.95"), (-0.034, "-0.03"), (0.0, "0.0"), (217.04, "217.0")]
)
def test_small_returns_have_two_decimals(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\r50%|", "\r50%|"),
        ("done\r\n", "done\r\n"),
        ("50%|\r", "50%|\r"),
        ("rm -rf\rls", r"rm -rf\rls"),
        ("\r\x1b[2J", "\r" + r"\x1b[2J"),
    ],
    ids=["progress", "line end", "end", "inside", "escape"],
)
def test_progress_bars_keep_carriage_returns_in_logs(text, written, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    log = io.StringIO()
    PrintableStream(log).write(text)
    assert log.getvalue() == written

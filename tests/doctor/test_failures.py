"""A failing doctor, plot or report costs a run only a line of output."""

from __future__ import annotations

import json
import sys

import pytest
from reporting.runs import write_run

import headrace as hr
from headrace.doctor import doctor as live
from headrace.doctor.doctor import Doctor
from headrace.doctor.rules import Rule
from headrace.evaluating import run_end
from headrace.reporting import page
from headrace.rundir import files, health
from headrace.rundir.curves import read_run
from headrace.rundir.files import RunLog, append_jsonl, read_jsonl, truncate_jsonl
from headrace.rundir.health import conclude, findings, with_episode_limit


def wrong(*_):
    raise ZeroDivisionError("division by zero,\nin a rule")


def trained(config) -> list[str]:
    told: list[str] = []
    with hr.Trainer(config, notify=told.append) as trainer:
        results = list(trainer)
    assert results[-1].env_steps >= config.total_steps
    return told


def test_a_rule_that_fails_ends_neither_training_nor_its_ending(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "RULES", (Rule("bad", wrong, "nothing"),))
    told = [text for text in trained(tiny(transport="serial", total_steps=900)) if "doctor" in text]
    assert len(told) == 2  # once while it went on, once at its end
    assert all("ZeroDivisionError: division by zero, in a rule" in text for text in told)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env_steps"] >= 900
    assert "warnings" not in summary
    assert len(read_jsonl(tmp_path / "run" / "metrics.jsonl")) > 10


@pytest.mark.draws
def test_a_template_that_fails_leaves_the_summary_and_is_one_line(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(run_end, "plot", wrong)
    text = page._file
    monkeypatch.setattr(
        page, "_file", lambda name: text(name) + "{{ 1 / 0 }}" * (name[5:] == "html")
    )
    monkeypatch.setattr(page, "panels", lambda groups, interval: ([], []))
    told = trained(tiny(transport="serial"))
    assert [line.split(" of ")[0] for line in told if "failed" in line] == [
        "the plot", "the report"]  # fmt: skip
    assert not any("\n" in line for line in told)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "warnings" in summary


@pytest.mark.draws
def test_without_jinja_or_with_a_path_of_odd_bytes_a_run_ends_well(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    told: list[str] = []
    run = write_run(tmp_path / "run")
    assert not run_end._attempt(run, told.append, "the report", lambda: run_end._report(run))
    assert "jinja2" in told[0]
    odd = tmp_path / "b\udcff"
    assert not run_end._attempt(odd, told.append, "the doctor", wrong)
    told[1].encode()


def test_a_doctor_that_fails_is_told_once_and_heard_no_more(tmp_path):
    asked, told = [], []

    class Broken(Doctor):
        def note(self, row):
            asked.append(row)
            raise KeyError("a column")

    log = RunLog(tmp_path, 0, notify=told.append, doctor=Broken({}))
    for _ in range(3):
        assert log._findings({"env_steps": 1}) == []
    assert len(asked) == len(told) == 1


ODD = """{"env_steps": 64, "text": "nobody"}
{"name": ["a"]}
3
{"env_steps": 64, "name": "kl-high"}
"""


def test_odd_warnings_keep_no_run_from_going_on(tmp_path):
    (tmp_path / "warnings.jsonl").write_text(ODD)
    doctor = Doctor({})
    RunLog(tmp_path, 0, keep_until=(640, 10), doctor=doctor)
    assert doctor.reported == {"kl-high"}
    truncate_jsonl(tmp_path / "warnings.jsonl", 640, 10)
    assert read_jsonl(tmp_path / "warnings.jsonl")[-1]["name"] == "kl-high"


def test_what_the_whole_course_shows_no_more_is_earlier(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    was = {"env_steps": 10_000, "name": "kl-high", "text": "the policy moved", "remedy": "rest"}
    append_jsonl(run / "warnings.jsonl", [was])
    (one,) = findings(read_run(run))
    assert (one.finding.name, one.earlier) == ("kl-high", True)
    assert conclude(run, print) == [was | {"earlier": True}]
    assert capsys.readouterr().out == ""
    lines = [line | {"losses/approx_kl": 0.4} for line in read_jsonl(run / "metrics.jsonl")]
    (run / "metrics.jsonl").unlink()
    append_jsonl(run / "metrics.jsonl", lines)
    assert conclude(run, print) == [was]


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"env": "CartPole-v1"}, 500),
        ({"env": "CartPole-v1", "env_kwargs": {"max_episode_steps": 90}}, 90),
        ({"env": "CartPole-v1", "env_kwargs": {"max_episode_steps": -1}}, None),
        ({"env": "a:b", "wrappers": ['TimeLimit:{"max_episode_steps":9000}', "TimeLimit"]}, 9000),
        ({"env": "CartPole-v1", "wrappers": ['TimeLimit:{"max_episode_steps":90}']}, 90),
        ({"env": "a:b", "wrappers": ["TimeLimit:[", 'TimeAware:{"max_episode_steps":9}']}, None),
        ({"env": "somebody:theirs"}, None),
        ({}, None),
    ],
)
def test_how_long_an_episode_may_be(settings, limit):
    assert with_episode_limit(settings)["max_episode_steps"] == limit


def test_settings_that_a_doctor_can_not_read_end_no_run(tiny, monkeypatch):
    monkeypatch.setattr(health, "flat_settings", wrong)
    told = [text for text in trained(tiny(transport="serial")) if "doctor" in text]
    assert told[0].startswith("the doctor failed and is disabled")
    assert "ZeroDivisionError: division by zero, in a rule" in told[0]


def test_warnings_that_can_not_be_read_are_a_line_and_the_run_goes_on(tmp_path, monkeypatch):
    (tmp_path / "warnings.jsonl").write_text(ODD)
    monkeypatch.setattr(files, "read_jsonl", wrong)
    told: list[str] = []
    log = RunLog(tmp_path, 0, keep_until=(640, 10), notify=told.append, doctor=Doctor({}))
    assert log._findings({"env_steps": 1}) == []
    assert ["ZeroDivisionError" in text for text in told] == [True]

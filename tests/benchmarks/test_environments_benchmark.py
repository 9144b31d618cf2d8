"""benchmarks/environments.py: classification of results as ok, error message or failure."""

from __future__ import annotations

import importlib
import shlex

import pytest

import headrace as hr
from headrace.studies.children import ProcessResult

TRACE = "Traceback (most recent call last):\nValueError: no"


@pytest.fixture
def environments():
    return importlib.import_module("environments")


class Said:
    """Replaces child processes: every command prints this and exits with this code."""

    def __init__(self, text: str, code: int, timed_out: bool = False) -> None:
        self.commands: list[str] = []
        self._end = text, code, timed_out

    def run(self, command, output, timeout_s, grace_s):
        text, code, timed_out = self._end
        self.commands.append(command[3])
        output.write_text(text)
        return ProcessResult(output, code, 1.0, timed_out)


@pytest.mark.parametrize(
    ("child", "said"),
    [
        (Said("fine", 0), {"ok": True, "said": ""}),
        (Said("headrace: env='x' is unknown", 2), {"ok": False, "said": "env='x' is unknown"}),
        (Said(TRACE, 1), {"ok": False, "failed": "code 1: ValueError: no"}),
        (Said(f"headrace: late\n{TRACE}", 1), {"ok": False, "failed": "code 1: ValueError: no"}),
        (Said(TRACE, 0), {"ok": False, "failed": "code 0: ValueError: no"}),
        (Said("", 1, True), {"ok": False, "failed": "took more than 9 s"}),
    ],
)
def test_a_step_works_or_says_why_not_or_fails(child, said, environments, tmp_path):
    case = environments.Case("gymnasium", "Some-v0")
    assert environments.Trial(case, tmp_path, 9.0, child).train() == said


def test_a_refused_training_ends_its_case_and_what_is_known_is_not_run_again(
    environments, tmp_path
):
    case = environments.Case("gymnasium", "Some-v0", flags="--core lstm")
    settings = environments.Settings(tmp_path)
    child = Said("headrace: no", 2)
    first = list(environments.try_case(case, settings, child, {}))
    assert [list(record["steps"]) for record in first] == [["train"]]
    list(environments.try_case(case, settings, child, first[-1]))
    assert child.commands == ["train"]
    other = environments.Case("gymnasium", "Some-v0", flags="--core gru")
    list(environments.try_case(other, settings, child, first[-1]))
    assert child.commands == ["train", "train"]


def test_failures_are_numbered_notes_below_the_table(environments, tmp_path):
    import environments_report as report

    case = report.CASES[0]
    steps = {
        "train": {"ok": True, "said": ""},
        "evaluate": {"ok": True, "said": "-21"},
        "video": {"ok": False, "said": "there is no video of it (a detail)"},
        "resume": {"ok": False, "failed": "code 1: KeyError"},
    }
    record = {"package": case.package, "version": "1.0", "steps": steps}
    (tmp_path / report.PAGE).write_text(f"Before\n{report.BEGIN}old{report.END}\nAfter\n")
    report.write_page(tmp_path, {case.env_id: record}, list(environments.STEPS))
    page = (tmp_path / report.PAGE).read_text()
    assert page.startswith("Before\n")
    assert page.endswith("\nAfter\n")
    assert "old" not in page.partition(report.BEGIN)[2].partition("|")[0]
    assert "| train, evaluate [1] [2] |" in page
    assert f"1. `{case.env_id}`, video: there is no video of it\n" in page
    assert f"2. `{case.env_id}`, resume: **failed**: code 1: KeyError" in page
    record["steps"] = {step: {"ok": True} for step in environments.STEPS}
    assert "| all |" in report.table({case.env_id: record}, list(environments.STEPS))


def test_every_case_is_a_command_line_with_a_package(environments):
    cases = environments.CASES
    assert len(cases) >= 24
    assert len({case.package.partition("[")[0] for case in cases}) >= 12
    for case in cases:
        words = shlex.split(case.flags)
        assert not words or (words[0].startswith("--") and case.package and case.env_id)


@pytest.mark.full
def test_an_exported_policy_acts_like_the_policy(environments, tiny, finish, tmp_path):
    config = tiny(env="Blackjack-v1", transport="serial", total_steps=64)
    finish(config)
    assert hr.load(config.run_dir).inputs.plain
    request = {"run": config.run_dir, "path": str(tmp_path / "policy.onnx")}
    assert environments.export(request) == {}

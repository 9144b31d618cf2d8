"""Hundreds of malformed command lines in one process, without training.

Each is accepted, or exits with status 2 and a reason, without a traceback and at once.
``pytest -s`` prints counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.algos import ALGORITHMS
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.studies.aaps.run import Aaps
from headrace.studies.pbt.settings import Population
from headrace.studies.plan.settings import Plan
from headrace.studies.scaling.settings import Scaling
from headrace.studies.sweep.settings import Sweep

VALUES = [
    "abc", "", "-1", "0", "1.5", "nan", "inf", "-inf", "1e99", "1e18", "1000000000000000000",
    "9" * 5000, "None", "null", "true", "auto", "{", "[]", "3", '{"a": NaN}', "[" * 100_000, "--",
    "-", " ", "a=b", "a,b", "\udcff", "🐍:x", "../../x:y", "--help-me",
]  # fmt: skip
RUNS = {  # by command: flags, in addition to required ones
    "resume": ["--total-steps", "--stop-return", "--num-learners", "--nonsense"],
    "evaluate": ["--episodes", "--seed", "--which", "--video", "--nonsense"],
    "plot": ["--output", "--nonsense"],
    "score": ["--suite", "--nonsense"],
    "references": ["--expert", "--episodes", "--seed", "--env-kwargs", "--nonsense"],
}
STUDIES = {
    ("plan",): Plan, ("bench", "scaling"): Scaling, ("bench", "aaps"): Aaps,
    ("sweep",): Sweep, ("pbt",): Population,
}  # fmt: skip
WHOLE = [
    [], [""], ["nonsense"], ["train"], ["train", ""], ["train", "--gamma"], ["train", "ppo", "ppo"],
    ["train", "PPO"], ["resume"], ["resume", ""], ["resume", "\udcff"], ["resume", "a", "b"],
    ["evaluate"], ["evaluate", ""], ["evaluate", "/dev/null"], ["plot"], ["plot", ""],
    ["plot", "/dev/null"], ["plan", "x" * 5000], ["bench"], ["bench", "nonsense"], ["bench", ""],
    ["train", "ppo", "--recipe"], ["train", "ppo", "--recipe", ""],
    ["train", "a3c", "--epochs", "2"],
    ["train", "ppo", "--recipe", "cartpole", "--recipe", "cartpole"], ["train", "\udcff"],
    ["train", "ppo", "--cores-per-learner", "1000000000000000000"],
    ["train", "ppo", "--hidden"], ["train", "ppo", "--hidden", *["64"] * 1000],
    ["plan", "--simulate", "--updates", "1000000"], ["bench", "aaps", "--preset"],
]  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A short run, read-only."""
    path = tmp_path_factory.mktemp("trained") / "run"
    config = hr.Config(
        algo=hr.PPO(), run_dir=str(path), num_actors=1, envs_per_actor=8, fragment_length=8,
        transport="serial", total_steps=64, learner_threads=1,
    )  # fmt: skip
    with hr.Trainer(config, notify=str) as trainer:
        list(trainer)
    return str(path)


@pytest.fixture
def nothing_runs(monkeypatch, tmp_path):
    """Stops accepted commands before anything starts."""

    def refuse(*args, **kwargs):
        raise ConfigError("accepted, and nothing is started here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.actors.fleet.start_fork_server", lambda: None)
    monkeypatch.setattr("headrace.envs.names.in_envpool", lambda name: False)
    for place in (
        "cli.training.run", "evaluation.opened", "studies.plan.command.measure",
        "studies.plan.command.simulate", "studies.scaling.command.run", "studies.aaps.command.run",
        "studies.scores.references.opened", "studies.sweep.command.run", "studies.pbt.command.run",
    ):  # fmt: skip
        monkeypatch.setattr(f"headrace.{place}", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def ended(line: list[str]) -> tuple[int | str | None, str]:
    """Return a command's status, and its output to an error stream like Python's."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: int | str | None = main(line)
        except SystemExit as end:  # of tyro
            status = end.code
    err.seek(0)
    return status, err.read()


def tried(lines: Iterator[list[str]], capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        before = time.process_time()
        status, shown = ended(line)
        told = [part[:60] for part in line]
        assert status in (0, 2), (told, status)
        assert "Traceback" not in shown, told
        accepted = status == 0 or "accepted" in shown
        assert accepted or shown.strip(), told
        counts["tried"] += 1
        counts["accepted" if accepted else "sentences"] += 1
        assert time.process_time() - before < 10.0, told  # they take 0.1 s
    with capsys.disabled():
        print("", ", ".join(f"{count:,} {word}" for word, count in counts.items()), "0 others")
    return counts


def flags(kind: type) -> list[str]:
    return [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)]


def of_training(name: str) -> list[list[str]]:
    """Yield every flag of ``headrace train NAME`` with every value."""
    names = flags(ALGORITHMS[name]) + flags(hr.Config) + flags(hr.Network)
    names = [flag for flag in names if flag not in ("--algo", "--network", "--env")]
    names += ["--env-id", "--recipe", "--nonsense"]
    return [["train", name, flag, value] for flag in names for value in VALUES]


def of_studies() -> list[list[str]]:
    lines = []
    for command, kind in STUDIES.items():
        names = [flag for flag in flags(kind) if flag != "--config"]
        lines += [[*command, flag, value] for flag in names for value in VALUES]
    return lines


def of_runs(run_dir: str) -> list[list[str]]:
    return [
        [command, run_dir, flag, value]
        for command, names in RUNS.items()
        for flag in names
        for value in VALUES
    ]


def test_a_malformed_command_line_ends_with_status_2(nothing_runs, run_dir, capsys):
    lines = [*of_training("appo")[::757], *of_studies()[::757], *of_runs(run_dir)[::61], *WHOLE]
    lines.append(["evaluate", run_dir, "--which", "[" * 100_000])  # no pattern of names
    counts = tried(iter(lines), capsys)
    assert counts["sentences"] > counts["accepted"] > 0


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_flag_of_an_algorithm_takes_a_value_or_refuses_it(nothing_runs, capsys, name):
    tried(iter(of_training(name)[::7]), capsys)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_each_flag_of_other_commands_takes_a_value_or_refuses_it(nothing_runs, run_dir, capsys):
    tried(iter([*of_studies()[::7], *of_runs(run_dir)[::3], *WHOLE]), capsys)

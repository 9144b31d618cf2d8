"""Commands on untrusted run directories change nothing outside them, and fail with a message."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import zipfile

import pytest
import torch
from rundir.writes import recorded

import headrace as hr
from headrace.cli import main
from headrace.errors import CheckpointError, HeadraceError
from headrace.rundir import checkpoint, checkpoint_writer, checksums, league_writer
from headrace.rundir.lock import locked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc as Linux has it")
PRECIOUS = "precious\n" * 20
SIZES = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
RESUME = ["--total-steps", "48", "--eval-episodes", "0", "--quiet"]
COMMANDS = {
    "report": [],
    "plot": [],
    "score": [],
    "evaluate": ["--episodes", "1"],
    "play": ["--episodes", "1", "--video", "video"],
    "resume": RESUME,
}
OUTPUTS = ["report.html.tmp", "curve.png", "curve.png.tmp", "summary.json.tmp", "config.json.tmp",
           "machine.json.tmp", "metrics.jsonl.tmp", "report.html", "checkpoints/latest.tmp",
           "checkpoints/step_64.tmp", "checkpoints/best.tmp"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    hr.train(
        "CartPole-v1", "ppo", total_steps=32, run_dir=run, quiet=True, eval_episodes=1, **SIZES
    )
    return run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text(PRECIOUS)
    return folder


def tree(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def check_inside(command, run, outside):
    """Run a command, and check by the real paths of all writes that they are in the run."""
    before = tree(outside)
    with recorded() as paths:
        status = main([command, str(run), *COMMANDS[command]])
    assert tree(outside) == before
    base = str(run.parent)
    allowed = str(run), f"{base}/video"
    assert [p for p in paths if p.startswith(base) and not p.startswith(allowed)] == []
    return status, paths


def link(run, name, target):
    file = run / name
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    file.symlink_to(target)


@pytest.mark.parametrize("command", COMMANDS)
def test_outputs_that_are_links_are_replaced(command, run, outside, capsys):
    for name in OUTPUTS:
        link(run, name, outside / "victim")
    _, paths = check_inside(command, run, outside)
    if command in ("report", "plot", "resume"):
        assert any(path.startswith(str(run)) for path in paths)  # the recorder sees writes


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock", "evaluations.jsonl", "checkpoints",
                                  "iterations", "checkpoints/latest", "returns.jsonl",
                                  "warnings.jsonl", "env_changes.jsonl"])  # fmt: skip
def test_a_run_with_a_linked_part_is_not_continued_there(name, run, outside, capsys):
    target = outside / "target"
    if (run / name).is_dir():
        shutil.copytree(run / name, target)
    elif (run / name).exists():
        shutil.copy(run / name, target)
    link(run, name, target if name != "checkpoints/latest" else outside)
    status, _ = check_inside("resume", run, outside)
    out = "".join(capsys.readouterr())
    assert "Traceback" not in out
    if name in ("metrics.jsonl", "lock", "checkpoints"):
        assert status == 2
        assert len(out.strip().splitlines()) == 1


def test_a_link_above_the_run_is_followed(run, tmp_path, capsys):
    (tmp_path / "link").symlink_to(run)
    assert main(["report", str(tmp_path / "link")]) == 0
    assert main(["resume", str(tmp_path / "link"), *RESUME]) == 0


@pytest.mark.parametrize("command", ["report", "doctor"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "summary.json",
                                  "config.json", "warnings.jsonl", "returns.jsonl"])  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse"])
def test_files_that_block_or_have_no_end_give_a_one_line_error(command, name, kind, run, capsys):
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    elif kind == "device":
        (run / name).symlink_to("/dev/zero")
    else:
        with (run / name).open("wb") as file:
            file.truncate(1 << 40)
    status, out = main([command, str(run)]), capsys.readouterr()
    assert status in (0, 2)
    if status:
        assert str(run / name) in out.err


LINES = ["7", "[1, 2]", "null", '"text"', '{"env_steps": null}', '{"env_steps": 1e999}',
         '{"env_steps": "a", "charts/SPS": []}', '{"env_steps": 1' + 400 * "0" + "}",
         '{"env_steps": 1, "seconds": {}}', "[" * 10_000]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "returns.jsonl"])
def test_json_that_is_not_a_result_gives_a_one_line_error(name, line, run, capsys):
    (run / name).write_text(line + "\n")
    for command in ("report", "doctor"):
        assert main([command, str(run)]) == 2
        assert f"{run / name} can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("values", [7, [], {"evaluation": 7}, {"time": [1]}, {"env_steps": {}},
                                    {"plan": {"planned_sps": "x"}}], ids=range(6))  # fmt: skip
def test_a_summary_with_unexpected_values_prints_no_traceback(values, run, capsys):
    (run / "summary.json").write_text(json.dumps(values))
    for command in ("report", "doctor", "score", "resume"):
        assert main([command, str(run), *(RESUME if command == "resume" else [])]) in (0, 2)


# -- checkpoints -----------------------------------------------------------------------------------


def summed(folder):
    """Update the checksums of a checkpoint, as an attacker would."""
    lines = (folder / checksums.NAME).read_text().splitlines()
    hashes = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in (line.split()[1] for line in lines)
    }
    (folder / checksums.NAME).write_text(checksums.text(hashes))


def test_training_state_that_would_unpack_to_more_is_refused(run, monkeypatch):
    folder = checkpoint.find(run)
    with zipfile.ZipFile(folder / "trainer.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    summed(folder)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(CheckpointError, match="unpack to more than its size"):
        checkpoint.load_trainer(folder)


def test_weights_that_are_not_finite_are_not_played(run, capsys):
    folder = checkpoint.find(run)
    policy = checkpoint.load_policy(folder)
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    values = checkpoint.read_config(folder)
    (folder / "policy.safetensors").unlink()
    with (folder / "policy.safetensors").open("wb") as file:
        checkpoint_writer.policy_files(values, policy)["policy.safetensors"](file)
    summed(folder)
    assert main(["evaluate", str(run), "--episodes", "1"]) == 2
    assert "not finite" in capsys.readouterr().err


def nested(levels):
    space = {"type": "Discrete", "n": 2, "start": 0}
    for _ in range(levels):
        space = {"type": "Tuple", "spaces": [space]}
    return space


@pytest.mark.parametrize("space", [
    {"type": "Box", "shape": [10**5, 10**5], "dtype": "float32", "low": ["0"], "high": ["1"]},
    nested(300),
    {"type": "Tuple", "spaces": [nested(3)] * 3 + [{"type": "MultiBinary", "shape": [10**10]}]},
    {"type": "Discrete", "n": -1, "start": 0},
    {"type": "Box", "shape": [2], "dtype": "O", "low": ["0"], "high": ["1"]},
], ids=["huge", "nested", "huge part", "negative", "objects"])  # fmt: skip
def test_invalid_spaces_are_rejected_before_memory_is_allocated(space, run, capsys):
    folder = checkpoint.find(run)
    values = json.loads((folder / "config.json").read_text()) | {"observation_space": space}
    (folder / "config.json").write_text(json.dumps(values))
    summed(folder)
    assert main(["evaluate", str(run)]) == 2
    assert f"{folder / 'config.json'} is corrupt" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize(
    "widths",
    [{"hidden": [65536] * 9}, {"core": "lstm", "core_size": 65536}],
    ids=["hidden", "core"],
)
def test_networks_larger_than_their_files_are_rejected_before_they_are_built(
    command, widths, run, capsys, monkeypatch
):
    folder = checkpoint.find(run)
    values = json.loads((folder / "config.json").read_text())
    values["config"]["network"] |= widths
    (folder / "config.json").write_text(json.dumps(values))
    summed(folder)
    monkeypatch.setattr(hr.Policy, "__init__", None)
    assert main([command, str(run)]) == 2
    err = capsys.readouterr().err
    assert "bytes of weights or more, but policy.safetensors has" in err
    assert len(err.splitlines()) == 1


def altered(state, path, value):
    """Return a copy of nested dicts and lists with one value replaced."""
    if not path:
        return value
    changed = state.copy()
    changed[path[0]] = altered(state[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("env_steps",), "x"),
        (("updates",), torch.zeros(3)),
        (("env_steps",), float("nan")),
        (("best_return",), "x"),
        (("best_return",), [[1]]),
        (("dropped",), 10**30),
        (("learner",), 7),
        (("learner", "optimizer"), {}),
        (("learner", "targets", "weight"), -1),
        (("learner", "targets", "second"), -1),
        (("own",), None),
        (("episodes",), "x"),
        (("episodes", 0, "returns"), ["x"]),
        (("episodes", 0, "returns"), [1.0, float("inf")]),
        (("episodes", 0, "lengths"), [None]),
        (("episodes", 0, "lengths"), {"a": 1.0}),
        (("env_changes",), [7]),
        (("env_changes",), ["{}"]),
    ],
    ids=range(18),
)
def test_training_state_of_another_type_gives_a_one_line_error(path, value, run, capsys):
    folder = checkpoint.find(run)
    torch.save(altered(checkpoint.load_trainer(folder), path, value), folder / "trainer.pt")
    summed(folder)
    assert main(["resume", str(run), *RESUME]) == 2
    assert f"{folder}/trainer.pt doesn't fit this run" in capsys.readouterr().err


# -- studies and leagues ---------------------------------------------------------------------------


def test_a_study_does_not_train_in_a_link(tmp_path, outside):
    member = tmp_path / "study" / "members" / "000"
    member.mkdir(parents=True)
    (member / "run").symlink_to(outside)
    with pytest.raises(CheckpointError, match="run is a symbolic link"):
        locked(member, tmp_path / "study")
    shutil.rmtree(member)
    member.symlink_to(outside)
    with pytest.raises(CheckpointError, match="a symbolic link"):
        locked(member, tmp_path / "study")
    assert [p.name for p in outside.iterdir()] == ["victim"]


@pytest.mark.parametrize("name", ["snapshots", "runs", "matches", "league.json"])
def test_a_league_with_a_linked_part_is_not_written_there(name, tmp_path, outside):
    league = tmp_path / "league"
    league_writer.create(league, {"env": "x"})
    link(league, name, outside if name != "league.json" else outside / "victim")
    before = tree(outside)
    write = lambda file: file.write(b"x")  # noqa: E731
    for change in (
        lambda: league_writer.create(league, {"env": "y"}),
        lambda: league_writer.join(league, "one"),
        lambda: league_writer.add(league, "one", 1, {"config.json": write}),
        lambda: league_writer.write_match(league, {"games": 1}),
        lambda: league_writer.write_standings(league, "one", {}),
    ):
        with contextlib.suppress(HeadraceError):
            change()
    assert tree(outside) == before


@pytest.mark.parametrize("kind", ["missing", "file", "link", "pipe"])
def test_a_league_without_a_folder_of_snapshots_gives_a_one_line_error(kind, tmp_path, capsys):
    league_writer.create(tmp_path / "league", {"env": "x"})
    folder = tmp_path / "league" / "snapshots"
    folder.rmdir()
    if kind == "file":
        folder.touch()
    elif kind == "link":
        folder.symlink_to(tmp_path)
    elif kind == "pipe":
        os.mkfifo(folder)
    assert main(["league", str(tmp_path / "league"), "--episodes", "2"]) in (0, 2)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert (f"{folder} can't be read" in err) == (kind != "missing")


@pytest.mark.parametrize("line", [b"7", b'{"a": 1}', b'{"a": [-1, 0]}', b'{"a": [1, 1e999]}'])
def test_invalid_games_give_a_one_line_error(line, tmp_path):
    league_writer.create(tmp_path / "league", {"env": "x"})
    run = league_writer.join(tmp_path / "league", "one")
    (tmp_path / "league" / "runs" / run / "games-x.jsonl").write_bytes(line + b"\n")
    with pytest.raises(CheckpointError, match="lines that are not games"):
        league_writer.new_games(tmp_path / "league", run, {})

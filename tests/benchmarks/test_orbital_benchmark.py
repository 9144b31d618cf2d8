"""The benchmark of the wargame, made small."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace import Network
from headrace.errors import ConfigError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def orbital(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("orbital")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_trained_policies_meet_every_scripted_player(orbital, tmp_path, monkeypatch):
    pursuit = orbital.PLAYERS["pursuit"]
    monkeypatch.setattr(orbital, "PLAYERS", {"hold": orbital.PLAYERS["hold"], "pursuit": pursuit})
    monkeypatch.setattr(orbital, "policy_player", lambda folder: pursuit())
    monkeypatch.setattr(
        orbital, "train_command", lambda *args, **flags: type("Run", (), {"wall_s": 1.0})
    )
    args = orbital.Args(studies="trained", seeds=1, pairs=6, output=tmp_path)
    orbital.main(args)
    rows = rows_of(tmp_path / "trained.csv")
    assert [row["second"] for row in rows] == ["hold", "pursuit"]
    # The policy that stands in for the trained one is a scripted player itself.
    assert float(rows[1]["return"]) == 0.0
    points = float(rows[0]["points of first"]) - float(rows[0]["points of second"])
    assert float(rows[0]["return"]) == pytest.approx(points)
    assert float(rows[0]["return"]) > 3 * float(rows[0]["se"]) > 0


def test_any_two_meet_and_speed_is_counted(orbital, tmp_path, monkeypatch):
    few = {name: orbital.PLAYERS[name] for name in ("hold", "random", "tracker")}
    monkeypatch.setattr(orbital, "PLAYERS", few)
    args = orbital.Args(
        studies="match,scripted,speed", first="tracker", second="hold", pairs=3, num_envs=4,
        seconds=0.05, output=tmp_path,
    )  # fmt: skip
    orbital.main(args)
    (one,) = rows_of(tmp_path / "match.csv")
    assert (one["first"], one["second"]) == ("tracker", "hold")
    assert len(rows_of(tmp_path / "scripted.csv")) == 3
    assert float(rows_of(tmp_path / "speed.csv")[0]["steps per s of a core"]) > 0
    with pytest.raises(ConfigError, match=r"player='trakcer' is unknown.*'tracker'"):
        orbital.player("trakcer")


@pytest.mark.parametrize("network", [Network(core="gru"), Network(previous_action_reward=True)])
def test_policies_that_remember_are_refused(orbital, monkeypatch, network):
    monkeypatch.setattr(orbital.hr, "load", lambda folder: SimpleNamespace(network=network))
    with pytest.raises(ConfigError, match=r"run_dir='runs/x' must be .* the present alone"):
        orbital.policy_player("runs/x")

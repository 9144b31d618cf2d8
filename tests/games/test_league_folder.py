"""League folders that are full, created twice at once, or changed by others."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patience import PATIENCE_S
from worlds.pennies import Pennies

import headrace as hr
from headrace.errors import CheckpointError, ConfigError
from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.league_folder import Games, Snapshot, newest, snapshots, standings
from headrace.games.opponent_mix import OpponentMix
from headrace.games.opponent_sampling import OpponentSampler, SeatAssignment
from headrace.rundir import league_writer
from headrace.rundir.league_run import LeagueRun, league_metrics
from headrace.spaces.json import space_to_json
from headrace.types import SingleLearner

FILES: dict[str, Any] = {"policy.safetensors": lambda file: file.write(b"x")}


class Member:
    """The league run of a training run, without the training run."""

    def __init__(self, path: Path, **settings: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        games = Pennies()
        spaces = games.single_observation_space, games.single_action_space
        probe = SimpleNamespace(env=Pennies, agents=games.agents, info_mask=False,
                                observation_space=spaces[0], action_space=spaces[1])  # fmt: skip
        config = hr.Config(Pennies, hr.PPO(), opponents="pfsp", run_dir=str(path),
                           snapshot_every_steps=100, **settings)  # fmt: skip
        self.progress, self.told = SimpleNamespace(env_steps=0), list[str]()
        self.description = {
            "format": 1, "config": config.to_json(), "info_mask": False,
            "observation_space": space_to_json(spaces[0]),
            "action_space": space_to_json(spaces[1]),
        }  # fmt: skip
        torch.manual_seed(0)
        known: Any = SingleLearner(), hr.Policy(*spaces), self.progress, self.told.append
        self.league = LeagueRun(config, path, probe, *known)  # type: ignore[arg-type]

    def begin(self, saved: dict[str, Any] | None = None) -> SeatAssignment:
        if saved is not None:
            self.league.load_state_dict(saved)
        return self.league.begin(self.description)

    def at(self, steps: int) -> None:
        self.progress.env_steps = steps
        self.league.after_update()


def names(folder: Path) -> list[str]:
    return [one.name for one in snapshots(folder)]


def test_runs_that_begin_together_share_one_league(tmp_path: Path) -> None:
    together, where = Barrier(4), tmp_path / "shared"

    def begin(i: int) -> str:
        member = Member(tmp_path / str(i) / "x", league=str(where))
        together.wait(PATIENCE_S)
        return member.begin().run

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(begin, range(4))) == ["x", "x-2", "x-3", "x-4"]
    assert len(names(where)) == 4
    assert not list(where.glob("*.tmp"))


def test_a_league_that_another_run_is_about_to_begin_is_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "league.json.0a1b.tmp").write_text("{")
    league_writer.check(tmp_path, {"env": "x"})
    league_writer.create(tmp_path, {"env": "x"})
    with pytest.raises(ConfigError, match="another game"):
        league_writer.check(tmp_path, {"env": "y"})
    for other in ("notes.txt", "runs/mine/notes.txt"):
        folder = tmp_path / other.replace("/", "_")
        (folder / other).parent.mkdir(parents=True)
        (folder / other).write_text("mine")
        with pytest.raises(ConfigError, match="not a league"):
            league_writer.check(folder, {"env": "x"})


def test_a_full_disk_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, full = Member(tmp_path / "x"), True
    folder = tmp_path / "x" / "league"
    member.begin()

    def refused(write: Any) -> Any:
        def instead(*given: Any) -> Any:
            if full:
                raise CheckpointError("No space left on device")
            return write(*given)

        return instead

    for name in ("add", "write_standings", "new_games"):
        monkeypatch.setattr(league_writer, name, refused(getattr(league_writer, name)))
    (folder / "runs/x/games-w.jsonl").write_text('{"x-0": [256, 200.0]}\n')
    for steps in (100, 110, 120):
        member.at(steps)
    assert len(member.told) == len(set(member.told)) == 3
    assert names(folder) == ["x-0"]
    full = False
    member.at(130)
    assert names(folder) == ["x-0", "x-130"]
    assert standings(folder, "x").records["x-0"].games == 256
    assert len(member.told) == 6


def test_a_league_run_tells_how_it_does(tmp_path: Path) -> None:
    member = Member(tmp_path / "x")
    member.begin()
    folder = tmp_path / "x" / "league"
    games = Games(folder, "x", "1")
    fields = ("league_win_rate", "league_least_win_rate", "league_snapshots")

    def told() -> tuple[Any, ...]:
        found = league_metrics(member.league)
        assert tuple(found) == fields
        return tuple(found.values())

    assert told() == (None, None, 1)
    for _ in range(50):
        games.add("x-0", 1.0), games.add("x-0", 0.0)
    games.flush()
    member.at(100)
    assert told() == (None, pytest.approx(0.5), 2)  # the second one has no games yet
    for _ in range(100):
        games.add("x-100", 1.0)
    games.flush()
    member.at(150)
    assert told() == (pytest.approx(1.0), pytest.approx(0.5), 2)
    games.add("other-7", 0.0)
    games.flush()
    member.at(160)
    assert told()[1] == pytest.approx(0.5), "one game isn't enough for a rate"
    assert league_metrics(None) == dict.fromkeys(fields)


def test_what_cannot_be_read_of_games_moves_no_offset(tmp_path: Path) -> None:
    league_writer.create(tmp_path, {"env": "x"})
    league_writer.join(tmp_path, "r")
    run = tmp_path / "runs/r"
    (run / "games-a.jsonl").write_text('{"s-0": [1, 1.0]}\n')
    (run / "games-b.jsonl").mkdir()
    (run / "games-b.jsonl" / "x").write_text("x")
    offsets: dict[str, int] = {}
    with pytest.raises(CheckpointError, match="games-b"):
        league_writer.new_games(tmp_path, "r", offsets)
    assert offsets == {}


def test_games_that_a_disk_refuses_are_kept_and_no_line_is_cut(tmp_path: Path) -> None:
    games = Games(tmp_path, "r", "w")  # whose folder isn't there
    for _ in range(16):
        games.add("s-0", 1.0)
    games.path.parent.mkdir(parents=True)
    for _ in range(16):
        games.add("s-0", 0.5)
    assert json.loads(games.path.read_text()) == {"s-0": [32, 24.0]}
    games.add("s-1", 0.0)
    games.flush()
    games.flush()
    assert league_writer.new_games(tmp_path, "r", {}) == {"s-0": (32, 24.0), "s-1": (1, 0.0)}


def test_offsets_are_those_of_whole_lines(tmp_path: Path) -> None:
    """Check byte by byte that no game is counted twice or left out."""
    path = tmp_path / "runs/r/games-w.jsonl"
    path.parent.mkdir(parents=True)
    text = b"".join(b'{"s-%d": [%d, 1.0]}\n' % (i % 2, i + 1) for i in range(12))
    offsets, counted = dict[str, int](), {"s-0": 0, "s-1": 0}
    for end in range(0, len(text) + 1, 5):
        path.write_bytes(text[:end])
        for name, (count, _) in league_writer.new_games(tmp_path, "r", offsets).items():
            counted[name] += count
        assert offsets.get(path.name, 0) == text[:end].rfind(b"\n") + 1
    path.write_bytes(text)
    for name, (count, _) in league_writer.new_games(tmp_path, "r", offsets).items():
        counted[name] += count
    assert counted == {"s-0": 36, "s-1": 42}
    assert offsets[path.name] == len(text)


def _went_on(tmp_path: Path, **settings: Any) -> tuple[Path, dict[str, Any], Member]:
    """Return a run with a checkpoint after 200 steps that crashed after 400 and is resumed."""
    first = Member(tmp_path / "x", **settings)
    folder = Path(settings.get("league", tmp_path / "x" / "league"))
    first.begin()
    games = folder / "runs/x/games-w.jsonl"
    games.write_text('{"x-0": [300, 200.0]}\n')
    first.at(100)
    first.at(200)
    saved = json.loads(json.dumps(first.league.state_dict()))
    with games.open("a") as file:
        file.write('{"x-0": [300, 0.0]}\n')
    first.at(300)
    first.at(400)
    assert standings(folder, "x").records["x-0"].games == 600
    again = Member(tmp_path / "x", **settings)
    again.progress.env_steps = 200
    again.begin(saved)
    return folder, saved, again


def test_a_run_that_goes_on_takes_back_what_is_behind_its_checkpoint(tmp_path: Path) -> None:
    folder, saved, again = _went_on(tmp_path)
    assert names(folder) == ["x-0", "x-100", "x-200"]
    assert saved["offsets"] == {"games-w.jsonl": 22}
    assert (folder / "runs/x/games-w.jsonl").read_text() == '{"x-0": [300, 200.0]}\n'
    assert standings(folder, "x").records["x-0"].games == 300
    assert again.league.state_dict() == saved
    again.at(300)
    assert names(folder)[-1] == "x-300"
    values = json.loads((folder / "snapshots/x-300/config.json").read_text())
    assert values["snapshot"]["parents"] == ["x-200"]
    assert standings(folder, "x").records["x-0"].games == 300


def test_a_run_that_goes_on_leaves_snapshots_that_others_play(tmp_path: Path) -> None:
    folder, saved, again = _went_on(tmp_path, league=str(tmp_path / "shared"))
    before = ["x-0", "x-100", "x-200", "x-300", "x-400"]
    assert set(names(folder)) == {*before, "x~1-200"}
    again.at(300)
    assert set(names(folder)) == {*before, "x~1-200", "x~1-300"}
    about = json.loads((folder / "snapshots/x~1-300/config.json").read_text())["snapshot"]
    assert about == {"run": "x", "step": 300, "parents": ["x~1-200"]}
    assert newest(snapshots(folder)).name == "x~1-300"
    assert {one.run for one in snapshots(folder)} == {"x"}
    assert standings(folder, "x").records["x-0"].games == 300
    last = Member(tmp_path / "x", league=str(folder))
    last.progress.env_steps = 200
    last.begin(saved)
    assert newest(snapshots(folder)).name == "x~2-200"


@pytest.mark.parametrize("name", ["-x", ".-x", "-", "(1)", "a b"])
def test_snapshots_of_a_run_of_any_name_are_found(tmp_path: Path, name: str) -> None:
    league_writer.create(tmp_path, {"env": "x"})
    run = league_writer.join(tmp_path, name)
    league_writer.add(tmp_path, run, 10, FILES)
    assert [(one.run, one.step) for one in snapshots(tmp_path)] == [(run, 10)]


def test_an_opponent_that_cannot_be_read_is_drawn_no_more(tmp_path: Path) -> None:
    league_writer.create(tmp_path, {"env": "x"})
    league_writer.join(tmp_path, "r")
    for step in (0, 10):
        league_writer.add(tmp_path, "r", step, FILES)
    draw = OpponentSampler(
        SeatAssignment(OpponentMix.of("naive"), lambda path: None, tmp_path, "r"), "w"
    )  # type: ignore[arg-type, return-value]
    draw.seed(0)
    (one,) = draw.opponents(1)
    assert one.name == "r-10"
    error = CheckpointError("gone")
    other = draw.another(one, error)
    assert [other.name, draw.opponents(1)[0].name] == ["r-0", "r-0"]
    with pytest.raises(CheckpointError, match="gone"):
        draw.another(other, error)
    draw.note(other, 1.0)
    draw.close()
    assert league_writer.new_games(tmp_path, "r", {}) == {"r-0": (1, 1.0)}


def test_policies_that_play_are_never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return also columns that wait for their turn, with their state."""
    from headrace.games import frozen_opponents as module

    monkeypatch.setattr(module, "_LOADED", 2)
    games, read = Pennies(8), list[str]()
    spaces = games.single_observation_space, games.single_action_space

    def load(path: Path) -> hr.Policy:
        read.append(path.name)
        return hr.Policy(*spaces)

    frozen = FrozenOpponents(load, spaces, 8)
    frozen.seed(0)
    every = [Snapshot(name, Path(name), "r", 0) for name in "abcd"]
    for one in every:
        frozen.policy(one)
    frozen.keep({"a", "b", "c"})
    obs, _ = games.reset(seed=0)
    shown: Any = obs, None, torch.zeros(8).numpy(), torch.ones(8, dtype=torch.bool).numpy()
    for i in (0, 1, 2, 0):
        frozen.act([every[i]], torch.tensor([i]).numpy(), shown)
    assert read == list("abcd")
    assert set(frozen._players) == set("abc")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponents": "pfsp", "league": "x", "deterministic": True}, ["deterministic=True"]),
        ({"opponents": "pfsp", "cluster": "ray", "transport": "shm"}, ["cluster='ray'", "machine"]),
        ({"exploit": "x", "snapshot_win_rate": 0.7}, ["snapshot_win_rate=0.7", "exploit"]),
    ],
)
def test_what_a_league_cannot_do_is_one_sentence(
    settings: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        hr.Config(Pennies, hr.PPO(), **settings)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_nearest_mixture_is_one() -> None:
    for text in ("latest:1,pfsp:1,naive:1", "latest:0.7,pfsp:0.7,naive:0.7,uniform:0.000001"):
        with pytest.raises(ConfigError) as caught:
            OpponentMix.of(text)
        near = str(caught.value).partition("nearest: ")[2].rstrip(")")
        shares = dict(OpponentMix.of(near).shares)
        assert max(shares.values()) - 1 / 3 < 0.002

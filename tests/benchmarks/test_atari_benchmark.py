"""benchmarks/atari.py and precision.py: player, measures, and small runs."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from patience import PATIENCE_S

import headrace as hr
from headrace.errors import ConfigError
from headrace.ops.returns import gae
from headrace.processes import torch_threads
from headrace.rundir.curves import read_run
from headrace.studies.children import Children


@pytest.fixture
def ppo():
    pytest.importorskip("envpool")
    return importlib.import_module("atari_ppo")


def test_scores_are_of_whole_games_and_of_their_own_rewards(ppo):
    scores = ppo.Scores(2)

    def told(reward, terminated, elapsed=(1, 1)):
        infos = {"reward": np.array(reward), "terminated": np.array(terminated)}
        return scores.ended(infos | {"elapsed_step": np.array(elapsed)})

    assert told([3.0, -1.0], [0, 0]) == []
    assert told([4.0, 0.0], [1, 0]) == [7.0]
    assert told([1.0, 5.0], [0, 0], elapsed=(1, 27_000)) == [4.0]
    assert told([0.0, 2.0], [1, 1]) == [1.0, 2.0]


def test_the_player_s_advantages_are_generalised_ones(ppo):
    training = ppo.Training("Pong", ppo.Recipe(num_envs=2, num_steps=6), 0, 100)
    generator = torch.Generator().manual_seed(1)
    value, reward = (torch.randn(6, 2, generator=generator) for _ in range(2))
    done = torch.rand(6, 2, generator=generator) < 0.3
    with torch.no_grad():
        last = training.agent(training.obs)[1]
    ended = torch.cat([done, training.done[None].bool()])[1:]
    found = training._advantages(value, reward, done.float())
    first = torch.zeros(7, 2, dtype=torch.bool)
    wanted, _ = gae(reward, torch.cat([value, last[None]]), ended, first, gamma=0.99, lam=0.95)
    assert torch.allclose(found, wanted, atol=1e-5)


def curve_of(*points, steps=40):
    processor = [(0.0, 1.0), (4.0, 5.0)]
    return {
        "curve": list(points),
        "env_steps": steps,
        "evaluation": {"mean": 19},
        "processor": processor,
    }


def test_a_run_s_figures_are_those_of_its_curve():
    atari = importlib.import_module("atari")
    run = curve_of((1.0, 10, -20.0), (2.0, 30, 18.0))
    assert atari.to_target(run, 18.0) == (True, 2.0, 3.0)
    assert atari.to_target(run, -20.0) == (True, 1.0, 2.0)
    row = atari.row("headrace", [run, run | {"env_steps": 60}], 18.0)
    assert row["seconds to 18"] == "2 (2; 2)"
    assert row["CPU seconds"] == "3 (3; 3)"
    assert row["evaluated"] == "19.0 (19.0; 19.0)"
    assert row["steps"] == "50 (40; 60)"


def test_a_run_that_missed_the_target_took_more_than_its_whole_time():
    atari = importlib.import_module("atari")
    short = curve_of((1.0, 10, 18.5))
    run = curve_of((1.0, 10, -20.0), (2.0, 30, 18.0))
    assert atari.to_target(run, 18.5) == (False, 2.0, 3.0)
    row = atari.row("headrace", [run, short], 18.5)
    assert row["seconds to 18.5"] == "> 2 (> 2; 1)"
    assert row["steps"] == "40 (40; 40)"
    told = atari.compared(short, run, 18.5)
    assert "less than 0.50 of the other program's seconds, less than 0.67 of its CPU" in told
    assert "takes 0.50 of" in atari.compared(short, run, 18.0)
    assert "did not reach" in atari.compared(run, short, 18.5)


@pytest.mark.parametrize("lives", [False, True])
def test_a_curve_is_of_training_games_or_of_evaluations_where_a_game_has_lives(lives, tmp_path):
    hr.train(
        "CartPole-v1", hr.A2C(), total_steps=400, batch_size=100, fragment_length=10, num_actors=1,
        envs_per_actor=2, transport="serial", eval_interval=200, eval_episodes=2, log_interval_s=0,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    curve = importlib.import_module("atari").learning_curve(tmp_path / "run", lives)
    run = read_run(tmp_path / "run")
    lines = run.evaluations if lives else run.results[-1:]
    scores = [line["return_mean" if lives else "charts/episodic_return"] for line in lines]
    assert len(curve) >= 2
    assert curve[-len(lines) :] == [
        (line["seconds"], line["env_steps"], score)
        for line, score in zip(lines, scores, strict=True)
    ]


@pytest.mark.parametrize(
    "why",
    [
        pytest.param("interrupted", marks=pytest.mark.full),
        "its process ended with exit code 1",
    ],
)
def test_a_run_that_its_seconds_ended_is_evaluated_all_the_same(why, monkeypatch):
    atari, asked = importlib.import_module("atari"), {}

    def interrupted(algorithm, run_dir, *args, **flags):
        asked.update(flags)
        hr.train(
            "CartPole-v1", hr.A2C(), total_steps=200, batch_size=100, fragment_length=10,
            num_actors=1, envs_per_actor=2, transport="serial", eval_episodes=0, log_interval_s=0,
            run_dir=run_dir,
        )  # fmt: skip
        summary = json.loads((run_dir / "summary.json").read_text())
        told = json.dumps(summary | {"no_evaluation": why})
        (run_dir / "summary.json").write_text(told)

    monkeypatch.setattr(atari, "train_command", interrupted)
    args = atari.Args(episodes=3)
    if why != "interrupted":
        with pytest.raises(RuntimeError, match="seed 1 was not evaluated: its process ended"):
            atari.run_headrace("headrace", 1, args, Children())
        return
    found = atari.run_headrace("headrace", 1, args, Children())
    assert found["evaluation"]["episodes"] == asked["eval_episodes"] == 3
    assert asked["stop_return"] == args.target + args.beyond > args.target
    assert found["evaluation"]["mean"] == np.mean(found["evaluation"]["returns"])
    assert found["curve"][-1][1] == found["env_steps"]


def test_the_other_program_ends_as_far_above_the_target():
    atari, asked = importlib.import_module("atari"), []
    children = types.SimpleNamespace(
        call=lambda program, request, *_, **__: asked.append(request) or {}
    )
    atari.run_peer(1, atari.Args(target=18.0, beyond=0.25), children)
    assert asked[0]["target"] == 18.25
    with pytest.raises(ConfigError, match="beyond=-1"):
        atari.Args(beyond=-1)


def test_processor_seconds_are_those_of_all_descendants_also_of_ended_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wait = "from pathlib import Path\nwhile not Path('{}').exists(): time.sleep(0.02)\n"
    busy = "import time\nwhile time.process_time() < 0.6: pass\n" + wait.format("seen")
    two = "import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', sys.argv[1]])\n"
    two += "open('ended', 'w').close()\n" + wait.format("seen again")
    processor = importlib.import_module("processor").Processor(0.0)

    def watch(pid: int) -> None:
        has_ended = Path("ended").exists()
        processor(pid)
        if processor.points[-1][1] >= 0.6:
            Path("seen").touch()
        if has_ended:
            Path("seen again").touch()

    command = [sys.executable, "-c", two, busy]
    ended = Children().run(command, tmp_path / "log", PATIENCE_S, watch=watch)
    times, work = zip(*processor.points, strict=True)
    assert ended.code == 0
    assert list(work) == sorted(work)
    assert 0.6 <= work[-1] < 2.0
    assert times[0] == 0.0


@pytest.mark.parametrize("name", ["atari", "precision"])
def test_a_run_of_other_settings_is_refused_before_any_is_made(name, tmp_path, monkeypatch):
    module, made = importlib.import_module(name), []
    monkeypatch.setattr(module, "report", lambda found, *rest: made.append(found))
    one = {"env_steps": 1, "evaluation": {"mean": 1.0}, "curve": [(1.0, 1, 1.0)], "area": 0.0}
    one |= {} if name == "atari" else {"evaluated": 0.0}

    def run(*args):
        made.append("run")
        return one

    monkeypatch.setattr(module, "run_headrace" if name == "atari" else "run", run)
    args = module.Args(seeds=1, steps=100, output=tmp_path)
    args = dataclasses.replace(args, programs="headrace") if name == "atari" else args
    assert module.main(args) == 0
    num_runs = made.count("run")
    found = made.pop()
    made.clear()
    assert module.main(dataclasses.replace(args, seeds=2, first_seed=0)) == 0
    assert made.count("run") == num_runs  # the first one's
    assert all(runs[1] == found[program][0] for program, runs in made.pop().items())
    made.clear()
    other = dataclasses.replace(args, seeds=3, first_seed=0, steps=200)
    with pytest.raises(ConfigError, match=r"0\.json was made with steps=100 instead of 200: move"):
        module.main(other)
    assert made == []


@pytest.mark.parametrize("pixels", [7, 1])
def test_who_catches_every_ball_gets_the_most_and_who_stands_still_gets_what_chance_gives(pixels):
    env = importlib.import_module("learning_envs").CatchEnv(pixels)

    def play(act, seed):
        obs, total, ended = env.reset(seed=seed)[0], 0.0, False
        while not ended:
            cells = obs[::pixels, ::pixels]
            assert obs in env.observation_space
            assert (cells.repeat(pixels, 0).repeat(pixels, 1) == obs).all()
            balls = cells[:-1].nonzero()[1]
            obs, reward, ended, _, _ = env.step(act(balls, cells[-1].nonzero()[0]))
            total += reward
        return total

    def follow(balls, paddle):
        return 1 + np.sign(balls[0] - paddle[0]) if len(balls) else 1

    assert all(play(follow, seed) == 5 for seed in range(20))
    still = np.mean([play(lambda *_: 1, seed) for seed in range(300)])
    assert abs(still - 5 * (2 / 12 - 1)) < 0.3


def test_precisions_are_compared_by_the_share_of_pairs_in_which_one_is_better():
    precision = importlib.import_module("precision")
    assert precision.compared([3.0, 4.0, 5.0], [0.0, 1.0, 2.0]).startswith("1.00 (1.00–1.00)")
    assert precision.compared([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]).startswith("0.50 (")
    assert precision.compared([0.0, 2.0], [1.0, 3.0]).startswith("0.25 (")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_evaluated_that_its_seconds_ended_while_it_trained(ppo):
    atari = importlib.import_module("atari")
    args = atari.Args(steps=10**8, episodes=2, target=100.0, seconds=60.0)
    found = atari.run_headrace("headrace float32", 1, args, Children())
    assert 0 < found["env_steps"] < 10**7
    assert len(found["evaluation"]["returns"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["headrace", "headrace float32", "CleanRL-style"])
def test_each_program_trains_and_is_evaluated(ppo, program):
    atari = importlib.import_module("atari")
    args = atari.Args(steps=8192, peer_steps=8192, episodes=2, target=100.0, seconds=300.0)
    run = atari.run_headrace
    given = [program, 1, args, Children()]
    if program == "CleanRL-style":
        run, given = atari.run_peer, given[1:]
    with torch_threads(2):
        found = run(*given)
    assert found["env_steps"] >= 8192
    assert found["evaluation"]["episodes"] == 2
    assert 0 < atari.to_target(found, 100.0)[2] <= found["processor"][-1][1]
    assert -21 <= found["evaluation"]["mean"] < 0
    assert all(-21 <= score < 0 for _, _, score in found["curve"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_precision_learns_on_pixels_of_the_size_that_was_asked_for(monkeypatch, tmp_path):
    precision = importlib.import_module("precision")
    monkeypatch.setenv("PYTHONPATH", str(Path(precision.__file__).parent))
    args = precision.Args(steps=2000, pixels=1, output=tmp_path)
    found = precision.run("float32", 1, args, Children())
    assert -5 <= found["evaluated"] <= 5
    assert found["curve"][-1][0] >= 2000
    assert found["settings"]["precision"] == "float32"
    assert found["settings"]["env_kwargs"] == {"pixels": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_player_stops_at_its_target(ppo):
    request = {"game": "Pong", "seed": 1, "steps": 10**6, "seconds": 300.0, "target": -21.5}
    request |= {"episodes": 1, "threads": 1, "interval_s": 0.1, "started": time.monotonic()}
    assert ppo.train(request)["env_steps"] < 30_000

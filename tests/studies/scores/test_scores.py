"""Normalised scores: the paper's table, suites by name, references that are measured."""

from __future__ import annotations

import json
import math
import statistics

import gymnasium
import numpy as np
import pytest

import headrace as hr
from headrace.actors.episodes import Limits
from headrace.algos import ALGORITHMS
from headrace.cli import main
from headrace.envs.atari_scores import Players
from headrace.envs.suites import SUITES, Suite, suite
from headrace.errors import CheckpointError, ConfigError
from headrace.rundir.config_file import replaced
from headrace.studies.pbt import training
from headrace.studies.scores import references
from headrace.studies.scores.command import measure_references, score
from headrace.studies.scores.references import random_returns
from headrace.studies.sweep import trials

# IMPALA, Table B.1: what its experts and its one agent returned, in the order of the table.
EXPERTS = (
    "9.0 15.6 7.3 26.9 28.0 324.6 189.0 -49.9 219.4 -0.2 -0.1 -0.1 19.1 34.7 20.7 36.1 13.6 45.1 "
    "16.4 29.9 0.0 0.0 57.8 37.0 135.2 39.5 209.4 83.1 39.8 58.7"
)
ONE_AGENT = (
    "5.8 11.0 26.1 31.1 24.3 593.1 301.7 66.8 264.0 0.3 4.1 2.5 11.3 12.2 15.9 29.0 30.0 53.6 14.3 "
    "29.9 0.0 0.0 62.6 51.1 188.8 71.0 252.5 125.3 43.2 62.6"
)


@pytest.mark.parametrize(("column", "printed"), [(EXPERTS, 44.4), (ONE_AGENT, 49.3)])
def test_the_means_of_the_papers_table_come_out_of_its_columns(column, printed):
    dmlab = SUITES["dmlab-30"]
    returns = dict(zip(dmlab.tasks, ([float(x)] for x in column.split()), strict=True))
    assert round(100 * dmlab.scores(returns).mean, 1) == printed


def test_episodes_are_averaged_before_the_cap_and_nothing_is_floored():
    pair = Suite("pair", {"a": Players(0.0, 10.0), "b": Players(10.0, 20.0)})
    found = pair.scores({"a": [0.0, 30.0], "b": [0.0]})
    assert found.normalized == {"a": 1.5, "b": -1.0}
    assert found.capped == {"a": 1.0, "b": -1.0}
    assert (found.mean, found.median) == (0.0, 0.0)
    uneven = pair.scores({"a": [0.0, 12.0]})  # a cap on episodes would make it 0.5
    assert (uneven.mean, uneven.missing) == (0.6, ["b"])


def literally(references, returns):
    """Compute Table B.1 literally, one task after the other."""
    total = 0.0
    for task, episodes in returns.items():
        mean = sum(episodes) / len(episodes)
        score = (mean - references[task].random) / (
            references[task].human - references[task].random
        )
        total += 1.0 if score > 1.0 else score
    return total / len(returns)


def test_random_suites_agree_with_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(50):
        low, gap = rng.normal(size=7), rng.uniform(0.1, 5.0, 7)
        names = [f"task-{i}" for i in range(7)]
        own = Suite("own", {n: Players(a, a + g) for n, a, g in zip(names, low, gap, strict=True)})
        returns = {n: rng.normal(0.0, 4.0, rng.integers(1, 9)).tolist() for n in names}
        found = own.scores(returns)
        assert found.mean == pytest.approx(literally(own.references, returns), abs=1e-12)
        assert found.median == statistics.median(found.capped.values())


def test_suites_hold_the_papers_tasks():
    assert [len(SUITES[name].tasks) for name in ("atari-57", "atari-5", "dmlab-30")] == [57, 5, 30]
    games = set(SUITES["atari-57"].tasks)
    assert set(SUITES["atari-5"].tasks) < games
    assert {SUITES["atari-5"].references[t] for t in SUITES["atari-5"].tasks} <= {
        SUITES["atari-57"].references[t] for t in games
    }
    dmlab = SUITES["dmlab-30"].references
    assert dmlab["rooms_collect_good_objects_test"] == Players(0.1, 10.0)
    assert dmlab["lasertag_one_opponent_large"] == Players(-0.2, 12.7)


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "Pong-v5", "ALE/Pong-v5", "Pong-v4"])
def test_a_game_is_known_by_any_of_its_ids(name):
    assert SUITES["atari-57"].task(name) == "ALE/Pong-v5"


def test_a_level_is_known_by_its_path_and_by_the_one_that_is_trained_on():
    name = "contributed/dmlab30/rooms_watermaze"
    assert SUITES["dmlab-30"].task(name) == "rooms_watermaze"
    found = [SUITES["dmlab-30"].task(env) for env in SUITES["dmlab-30"].ids]
    assert found == SUITES["dmlab-30"].tasks


def test_an_own_reference_is_known_by_an_id_with_or_without_its_module():
    players = Players(0.0, 1.0)
    own = Suite("own", {"mine:Own-v0": players, "Pong": players, "Other-v1": players})
    names = ("Own-v0", "mine:Own-v0", "ALE/Pong-v5", "theirs:Other-v1")
    assert [own.task(name) for name in names] == ["mine:Own-v0", "mine:Own-v0", "Pong", "Other-v1"]
    for name in ("Other-v0", "levels/Other-v1"):
        with pytest.raises(ConfigError, match="no reference score"):
            own.task(name)


def test_the_median_of_57_games_is_estimated_from_five():
    five = SUITES["atari-5"]
    human = {task: [players.human] for task, players in five.references.items()}
    total = (0.3820 + 0.0679 + 0.3108 + 0.1241 + 0.0805) * math.log10(101)
    found = five.scores(human).atari_57_median
    assert found == pytest.approx((10**total - 1) / 100)
    assert 0.8 < found < 0.9  # the weights sum to 0.97
    lost = human | {"ALE/Qbert-v5": [-1e6]}
    assert five.scores(lost).atari_57_median == pytest.approx(
        (10 ** ((total / math.log10(101) - 0.0805) * math.log10(101)) - 1) / 100
    )
    del human["ALE/Qbert-v5"]
    assert five.scores(human).atari_57_median is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: suite("atari-75"), "suite='atari-75' is unknown.*'atari-57'"),
        (lambda: SUITES["atari-5"].task("ALE/Phenix-v5"), "no reference score.*'ALE/Phoenix-v5'"),
        (lambda: SUITES["atari-5"].scores({"Qbert-v5": []}), "without an episode"),
        (lambda: SUITES["atari-5"].scores({"Qbert-v5": [1], "ALE/Qbert-v5": [1]}), "twice"),
        (lambda: SUITES["atari-5"].scores({"Qbert-v5": [1, math.nan]}), "has a return of nan"),
        (lambda: references.read("no.json"), "no.json holds no reference scores"),
        (lambda: references.read("atari"), "suite='atari' is unknown"),
    ],
)
def test_what_is_missing_is_named(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


class Masked(gymnasium.Env):
    """Three actions, of which one is valid at a time; any other ends the episode with -100."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def _info(self):
        return {"action_mask": np.eye(3, dtype=np.int8)[self.steps % 3]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), self._info()

    def step(self, action):
        wrong = action != 5 + self.steps % 3
        self.steps += 1
        reward = -100.0 if wrong else 1.0
        return np.zeros(1, np.float32), reward, wrong or self.steps == 4, False, self._info()


def test_random_actions_are_uniform_repeat_and_keep_to_masks():
    returns = random_returns("CartPole-v1", episodes=60, seed=3)
    assert len(returns) == 60
    assert 18 < statistics.fmean(returns) < 27  # about 22, of 500
    assert returns == random_returns("CartPole-v1", episodes=60, seed=3)
    gymnasium.register("Masked-v0", Masked)
    try:
        assert random_returns("Masked-v0", episodes=5) == [4.0] * 5
    finally:
        del gymnasium.registry["Masked-v0"]


def test_random_actions_that_end_no_episode_raise_an_error():
    says = r"^CliffWalking-v1: the episode did not end within 50 steps, but .*wrappers="
    with pytest.raises(ConfigError, match=says):
        random_returns("CliffWalking-v1", episodes=1, limits=Limits(max_steps=50))
    limit = ['TimeLimit:{"max_episode_steps":5}']
    assert len(random_returns("CliffWalking-v1", episodes=2, wrappers=limit)) == 2


def finished(path, env="CartPole-v1", mean=250.0, seed=0, algo="ppo", whole=0.5, **settings):
    """Write a run directory with the files that scores read.

    Args:
        whole: the human-normalised score; None: returns aren't of whole games.
    """
    path.mkdir()
    played = {"mean": mean, "returns": [mean], "human_normalized": whole}
    summary = {"env_steps": 10, "evaluation": played}
    (path / "summary.json").write_text(json.dumps(summary))
    config = replaced(hr.Config(env=env, algo=ALGORITHMS[algo](), seed=seed), settings).to_json()
    (path / "config.json").write_text(json.dumps({"config": config}))
    return path


def test_references_are_measured_and_scores_are_normalised_by_them(tmp_path, capsys):
    expert, file = finished(tmp_path / "expert", mean=500.0), tmp_path / "own.json"
    known = ["references", "CartPole-v1", "--episodes", "5", "--output", str(file)]
    assert main(known) == 0
    assert "reference missing" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"score of CartPole-v1 in .* is missing.*--expert RUN"):
        references.read(str(file))
    assert main([*known, "--expert", str(expert)]) == 0
    written = json.loads(file.read_text())["tasks"]["CartPole-v1"]
    assert written["reference"] == 500.0
    assert str(expert) in written["reference_source"]
    low = written["random"]
    runs = [finished(tmp_path / f"run-{i}", mean=100.0 + 200 * i, seed=i) for i in range(2)]
    found = score(runs, str(file))["ppo"]
    assert found.mean == pytest.approx((200.0 - low) / (500.0 - low))
    assert "mean" in capsys.readouterr().out


def of_tasks(path, seed=0, **means):
    """Write a finished run of several games."""
    names = tuple(f"ALE/{game}-v5" for game in means)
    finished(path, hr.Config.env, 1e6, seed, tasks=names)
    tasks = {f"ALE/{game}-v5": {"mean": mean} for game, mean in means.items()}
    summary = {"env_steps": 10, "evaluation": {"mean": 1e6, "tasks": tasks}}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def test_a_run_of_several_tasks_scores_in_each(tmp_path, capsys):
    runs = [of_tasks(tmp_path / f"{i}", i, Pong=-20.7, Breakout=30.5) for i in range(2)]
    found = score(runs, "atari-57")["ppo"]
    assert list(found.normalized) == ["ALE/Breakout-v5", "ALE/Pong-v5"]
    assert found.mean == pytest.approx(0.5)
    (runs[0] / "summary.json").write_text(json.dumps({
        "env_steps": 10, "episodic_return": 7.0,
        "tasks": {"Pong-v5": {"episode_return": 14.6}, "Freeway-v5": {"episode_return": 0.0}},
    }))  # fmt: skip
    assert score(runs[:1], "atari-57")["ppo"].mean == pytest.approx(0.5)  # without an evaluation
    experts = references.expert_runs(["ALE/Pong-v5", "ALE/Breakout-v5"], runs[1:])
    assert experts == {"ALE/Pong-v5": -20.7, "ALE/Breakout-v5": 30.5}
    with pytest.raises(ConfigError, match="trained on ALE/Pong-v5, which is named twice"):
        references.expert_runs(["ALE/Pong-v5", "ALE/Breakout-v5"], runs[1:] * 2)


def test_runs_of_other_settings_on_the_same_task_are_no_seeds(tmp_path):
    runs = [
        finished(tmp_path / f"{rate}-{seed}", "ALE/Pong-v5", mean, seed, learning_rate=rate)
        for rate, mean in ((1e-3, 14.6), (1e-4, -20.7))
        for seed in (0, 1)
    ]
    found = score(runs, "atari-57")
    assert {name: one.mean for name, one in found.items()} == pytest.approx(
        {"learning_rate=0.001": 1.0, "learning_rate=0.0001": 0.0}
    )
    other = finished(tmp_path / "other", "ALE/Boxing-v5", 12.1, learning_rate=1e-2)
    assert list(score([runs[0], other], "atari-57")) == ["ppo"]  # experts may differ
    with pytest.raises(ConfigError, match=r"runs=.* must be each run once"):
        score([runs[0], runs[0]], "atari-57")


def test_an_agent_of_several_tasks_is_no_seed_of_experts(tmp_path):
    expert = finished(tmp_path / "expert", "ALE/Pong-v5", 14.6)
    agent = of_tasks(tmp_path / "agent", Pong=-20.7, Breakout=30.5)
    found = score([expert, agent], "atari-57")
    assert {len(one.normalized) for one in found.values()} == {1, 2}
    assert found["tasks=2"].normalized["ALE/Pong-v5"] == pytest.approx(0.0)


def test_returns_that_are_not_of_whole_games_have_no_score(tmp_path):
    run = finished(tmp_path / "clipped", "ALE/Pong-v5", whole=None)
    with pytest.raises(ConfigError, match="clipped was evaluated in ALE/Pong-v5 with clipped"):
        score([run], "atari-5")


@pytest.mark.parametrize("suite", ["atari-57", "levels-10"])
def test_a_run_of_another_environment_isnt_blamed_for_its_rewards(tmp_path, suite):
    run = finished(tmp_path / "cartpole", "CartPole-v1", whole=None)
    with pytest.raises(ConfigError, match=f"{suite} has no reference score for 'CartPole-v1'"):
        score([run], suite)


def test_what_was_measured_before_an_interruption_stays(tmp_path, monkeypatch):
    def returns(env, *_):
        if env == "Acrobot-v1":
            raise KeyboardInterrupt
        return [1.0]

    monkeypatch.setattr(references, "random_returns", returns)
    file = tmp_path / "own.json"
    with pytest.raises(KeyboardInterrupt):
        measure_references(["CartPole-v1", "Acrobot-v1"], [], 1, 0, {}, [], file)
    assert list(references.before(file)) == ["CartPole-v1"]


def test_a_suites_name_stands_for_its_tasks(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(references, "random_returns", lambda env, *_: seen.append(env) or [1.0])
    assert main(["references", "atari-5", "--output", str(tmp_path / "own.json")]) == 0
    assert seen == SUITES["atari-5"].ids


def test_returns_may_come_from_a_file(tmp_path, capsys):
    file = tmp_path / "returns.json"
    file.write_text(json.dumps({"Breakout-v5": [30.5, 30.5], "Boxing-v5": 6.1}))
    assert main(["score", str(file), "--suite", "atari-57"]) == 0
    out = capsys.readouterr().out
    assert "capped, 2 of 57 tasks: mean 75.0%, median 75.0%" in out
    for wrong in ("[1]", "{}", '{"Breakout-v5": ["x"]}'):
        file.write_text(wrong)
        assert main(["score", str(file), "--suite", "atari-57"]) == 2
        assert "returns of episodes by task" in capsys.readouterr().err
    file.write_text('{"tasks": []}')
    assert main(["score", str(file), "--suite", str(file)]) == 2
    assert "holds no reference scores" in capsys.readouterr().err


def test_a_return_that_is_no_number_is_no_score(tmp_path):
    run = finished(tmp_path / "nan", "ALE/Pong-v5", math.nan)
    with pytest.raises(CheckpointError, match=r"nan has no score: .* its return isn't a number"):
        score([run], "atari-5")


def test_a_run_that_has_not_ended_and_an_expert_of_another_task_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="isn't a finished run"):
        score([tmp_path], "atari-5")
    other = finished(tmp_path / "other", env="CartPole-v0")
    with pytest.raises(ConfigError, match=r"trained on CartPole-v0.*'CartPole-v1'"):
        references.expert_runs(["CartPole-v1"], [other])


def test_algorithms_are_compared_with_intervals_where_they_have_the_same_runs(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("headrace.studies.statistics.REPEATS", 50)
    games = SUITES["atari-5"].tasks
    runs = []
    for algo, low in (("appo", 0.6), ("ppo", 0.1)):
        for i, game in enumerate(games):
            players = SUITES["atari-5"].references[game]
            for seed in range(4):
                share = low + 0.1 * seed + 0.02 * i
                mean = players.random + share * (players.human - players.random)
                runs.append(finished(tmp_path / f"{algo}-{i}-{seed}", game, mean, seed, algo))
    picture = tmp_path / "profiles.png"
    found = score(runs, "atari-5", picture)
    out = capsys.readouterr().out
    assert "4 seeds of each task, 95% intervals" in out
    assert "1.00 (1.00–1.00)" in out  # appo beats ppo always
    assert "0.79" in out  # the middle half of 0.6 … 0.9 and 0 … 0.08 on top
    assert found["appo"].mean == pytest.approx(0.6 + 0.15 + 0.04)
    assert picture.stat().st_size > 5000
    assert score(runs[1:], "atari-5").keys() == found.keys()
    assert "not compared with intervals" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="equal numbers of seeds of the same tasks"):
        score(runs[1:], "atari-5", picture)


def test_one_seed_has_no_intervals(tmp_path, capsys):
    game = SUITES["atari-5"].tasks[0]
    runs = [finished(tmp_path / algo, game, 1.0, 0, algo) for algo in ("appo", "ppo")]
    score(runs, "atari-5")
    out = capsys.readouterr().out
    assert "one seed: no intervals" in out
    assert "0.50" in out  # a tie
    assert "–" not in out
    file = tmp_path / "returns.json"
    file.write_text(json.dumps({game: [30.5, 31.5, 32.5]}))
    for of in (runs, [file]):
        with pytest.raises(ConfigError, match="one seed has no intervals"):
            score(of, "atari-5", tmp_path / "profiles.png")
    assert not (tmp_path / "profiles.png").exists()


def test_an_experts_score_stays_when_random_actions_are_measured_again(tmp_path, capsys):
    expert, file = finished(tmp_path / "expert", mean=500.0), tmp_path / "own.json"
    known = ["references", "CartPole-v1", "--episodes", "5", "--output", str(file)]
    assert main([*known, "--expert", str(expert)]) == 0
    capsys.readouterr()
    assert main(known) == 0
    assert "reference 500" in capsys.readouterr().out
    written = json.loads(file.read_text())["tasks"]["CartPole-v1"]
    assert written["reference"] == 500.0
    assert str(expert) in written["reference_source"]


@pytest.mark.parametrize("random", [None, "x"])
def test_a_random_score_that_is_no_number_is_named(tmp_path, random):
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"tasks": {"CartPole-v1": {"random": random, "reference": 1.0}}}))
    with pytest.raises(
        ConfigError, match=r"random score of CartPole-v1 in .* isn't a number.*again"
    ):
        references.read(str(file))


@pytest.mark.parametrize(
    ("high", "words"),
    [(None, "missing"), (-5.0, "-5.0, not above random's 0"), ("x", "'x', not above random's 0"),
     (math.nan, "nan, not above"), (0.0, "0.0, not above")],
)  # fmt: skip
def test_a_reference_score_is_above_the_random_one(tmp_path, high, words):
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"tasks": {"CartPole-v1": {"random": 0.0, "reference": high}}}))
    with pytest.raises(ConfigError, match=f"reference score of CartPole-v1 in .* is {words}"):
        references.read(str(file))


@pytest.mark.parametrize("study", [trials, training])
def test_a_child_that_was_interrupted_has_not_ended(tmp_path, monkeypatch, study):
    config = hr.Config(
        run_dir=str(tmp_path / "run"), total_steps=10, num_actors=1, envs_per_actor=1
    )

    def interrupted(*_, **__):
        finished(tmp_path / "run")
        summary = {"env_steps": 10, "episodic_return": 9.0, "interrupted": True}
        (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr("headrace.studies.run.train", interrupted)
    with pytest.raises(RuntimeError, match="run was interrupted at 10 steps"):
        study.train_run({"config": config.to_json(), "prune": "none", "hyper": {}, "suite": None})
    assert trials._ended(config) is None
    (tmp_path / "run" / "summary.json").write_text('{"env_steps": 10, "episodic_return": 9.0}')
    assert trials._ended(config).value == 9.0


def test_a_run_says_whether_it_was_interrupted(tiny):
    with hr.Trainer(tiny(transport="serial"), notify=lambda text: None) as trainer:
        next(iter(trainer))
        trainer.interrupt()
        assert trainer.finish()["interrupted"]
    assert json.loads((trainer.run_dir / "summary.json").read_text())["interrupted"]

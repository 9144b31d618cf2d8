"""Atari's protocol, compared with a literal version frame by frame on a single emulator."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import headrace as hr
from headrace.envs import atari
from headrace.envs.atari_scores import SCORES
from headrace.envs.make import make_vec
from headrace.envs.names import Prepared, resolve
from headrace.envs.probe import probe
from headrace.envs.wrappers import as_wrap
from headrace.errors import ConfigError
from headrace.recipes.atari import PROTOCOL, WHOLE_GAMES
from tests.envs.atari_oracle import SlowGame
from tests.tries import few_of

GAMES = {"Breakout": "breakout", "SpaceInvaders": "space_invaders"}
SMALL = {"img_height": 210, "img_width": 160}  # the emulator's own: nothing is rounded


@contextlib.contextmanager
def played(game, num_envs=1, **kwargs):
    """Return ale-py's environments of the recipe with some settings replaced."""
    settings = PROTOCOL | kwargs
    with contextlib.closing(make_vec(game, num_envs, "native", settings)) as envs:
        yield envs


def num_noops(game, num_envs, seed, **kwargs):
    """Return the lengths of the first episodes, as the emulators count frames."""
    with played(game, num_envs, **kwargs) as envs:
        return envs.reset(seed=seed)[1]["episode_frame_number"].tolist()


@pytest.mark.parametrize(
    ("size", "sticky"),
    [
        ((84, 84), 0.0),
        pytest.param((42, 42), 0.0, marks=pytest.mark.slow),
        ((210, 160), 0.25),
    ],
    ids=str,
)
def test_a_step_is_the_brightest_of_the_last_two_of_four_frames(size, sticky):
    (height, width), name = size, "SpaceInvaders"
    kwargs = {"img_height": height, "img_width": width, "repeat_action_probability": sticky}
    slow, actions = SlowGame(GAMES[name], 5, sticky=sticky, side=size), np.random.default_rng(1)
    with played(name, **kwargs, **WHOLE_GAMES) as envs:
        obs, infos = envs.reset(seed=5)
        expected = slow.reset(int(infos["episode_frame_number"][0]))
        assert np.abs(obs[0] - expected).max() <= 1.0
        for _ in range(80):
            action = int(actions.integers(envs.single_action_space.n))
            obs, reward, terminated, truncated, infos = envs.step(np.array([action]))
            seen = slow.step(action)
            assert np.abs(obs[0] - seen.obs).max() <= (1.0 if height != 210 else 0.0)
            assert (reward[0], terminated[0], truncated[0]) == (seen.reward, False, False)
            assert infos["episode_frame_number"][0] == slow.ale.getEpisodeFrameNumber()
    assert slow.frames == 4 * 80


def test_rewards_are_the_games_own():
    """Clipping is off, so that the learner does it; the first invaders are worth 5 to 30."""
    clipped = {}
    for clips in (False, True):
        with played("SpaceInvaders", reward_clipping=clips) as envs:
            envs.reset(seed=0)
            actions = np.random.default_rng(0).integers(6, size=(200, 1))
            clipped[clips] = {float(envs.step(action)[1][0]) for action in actions}
    assert max(clipped[False]) >= 10
    assert clipped[True] == {0.0, 1.0}


def test_a_game_begins_with_up_to_30_noops():
    with played("Breakout") as envs:
        begun = [envs.reset(seed=0), *(envs.reset() for _ in range(100))]
    counts = [int(infos["episode_frame_number"][0]) for _, infos in begun]
    assert (min(counts), max(counts)) == (0, 30)
    assert len(set(counts)) > 25
    assert num_noops("Breakout", 2, 0, noop_max=0) == [0, 0]


def test_an_episode_ends_with_each_life_and_the_game_goes_on():
    """After a lost life a reset step is a no-op in the same game; after the last one it resets."""
    slow, actions = SlowGame("breakout", 3, side=(210, 160)), np.random.default_rng(2)
    lives, games, wait_for = 0, 0, None
    with played("Breakout", **SMALL) as envs:
        obs, infos = envs.reset(seed=3)
        slow.reset(int(infos["episode_frame_number"][0]))
        for _ in range(700):
            action = int(actions.integers(4))
            obs, reward, terminated, truncated, infos = envs.step(np.array([action]))
            if wait_for == "reset":
                assert infos["lives"][0] == 5
                assert infos["episode_frame_number"][0] <= 30
                break
            seen = slow.step(0 if wait_for == "life" else action)
            assert infos["episode_frame_number"][0] == slow.ale.getEpisodeFrameNumber()
            if wait_for == "life":
                assert (reward[0], terminated[0], truncated[0]) == (0.0, False, False)
                wait_for = None
            else:
                assert reward[0] == seen.reward
                assert terminated[0] == (seen.life_lost or seen.over)
                wait_for = "reset" if seen.over else "life" if seen.life_lost else None
            if not seen.over:  # whose image isn't needed
                np.testing.assert_array_equal(obs[0], seen.obs)
            lives, games = lives + seen.life_lost, games + seen.over
    assert (lives, games, wait_for) == (4, 1, "reset")


class TwiceDead(VectorEnv):
    """Flags every step of two games, and reports which were reset."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space, single_action_space = Box(0, 9, (1,)), Discrete(2)
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)

    def __init__(self, cut):
        self.actions, self.resets, self.cut = [], [], cut

    def reset(self, *, seed=None, options=None):
        self.resets.append((options or {}).get("reset_mask"))
        return np.full((2, 1), 7.0, np.float32), {}

    def step(self, actions):
        self.actions.append(actions.tolist())
        flags = np.array([True, len(self.actions) == 1])
        ends = flags & (not self.cut), flags & self.cut
        return np.zeros((2, 1), np.float32), np.ones(2), *ends, {}


@pytest.mark.parametrize("cut", [False, True])
def test_a_game_that_ends_while_nobody_plays_is_reset(cut):
    below = TwiceDead(cut)
    envs = atari.LivesAsEpisodes(below)
    envs.reset()
    assert envs.step(np.array([1, 1]))[2 + cut].tolist() == [True, True]
    obs, reward, terminated, truncated, _ = envs.step(np.array([1, 1]))
    assert below.actions[-1] == [0, 0]
    assert [mask.tolist() for mask in below.resets[1:]] == [[True, False]]
    assert obs[0] == 7.0
    assert not np.any([reward, terminated, truncated])
    assert envs.step(np.array([1, 1]))[1].tolist() == [1.0, 1.0]
    assert below.actions[-1] == [1, 1]


@pytest.mark.parametrize("registered", [False, True])
def test_lives_are_episodes_also_by_the_settings_of_a_registered_id(registered):
    spec = gymnasium.spec("ALE/Breakout-v5")
    own = dataclasses.replace(spec, kwargs={**spec.kwargs, "life_loss_info": registered})
    with contextlib.closing(make_vec(own, 1, "native", {"num_threads": 1})) as envs:
        assert isinstance(envs, atari.LivesAsEpisodes) == registered


# -- evaluation -----------------------------------------------------------------------------------


class Scripted(hr.Policy):
    """Plays fixed actions, whatever it observes."""

    def predict(self, obs, state=None, *args, **kwargs):
        state = 0 if state is None else state
        choices = np.random.default_rng(state).integers(self.action_space.n, size=len(obs))
        return choices, state + 1


PROTOCOLS = {
    "no-ops": {},  # Mnih et al. (2015)
    "sticky": {  # Machado et al. (2018)
        "noop_max": 0, "repeat_action_probability": 0.25, "full_action_space": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("protocol", few_of(list(PROTOCOLS), ["sticky"]))
def test_an_evaluation_plays_whole_games_and_adds_up_their_own_rewards(protocol):
    own, num_envs, seed = PROTOCOLS[protocol], 2, 11
    small = {"max_num_frames_per_episode": 2_500}  # which truncates one of them
    kwargs = PROTOCOL | WHOLE_GAMES | own | small
    with played("SpaceInvaders", 1, **kwargs) as envs:
        policy = Scripted(envs.single_observation_space, envs.single_action_space)
    found = hr.evaluate(policy, "SpaceInvaders", num_envs, seed, "native", env_kwargs=kwargs)
    expected = []
    for i, noops in enumerate(num_noops("SpaceInvaders", num_envs, seed, **kwargs)):
        slow = SlowGame(
            "space_invaders", seed + i, side=(2, 2), most_frames=2_500,
            sticky=own.get("repeat_action_probability", 0.0),
            full=own.get("full_action_space", False),
        )  # fmt: skip
        slow.reset(noops)
        total, length, seen = 0.0, 0, None
        while seen is None or not (seen.over or seen.truncated):
            n = len(slow.actions)
            seen = slow.step(np.random.default_rng(length).integers(n, size=num_envs)[i])
            total, length = total + seen.reward, length + 1
        expected.append((total, length))
    assert sum(total for total, _ in expected) > 100
    assert sorted(zip(found.returns, found.lengths, strict=True)) == sorted(expected)
    assert found.human_normalized == pytest.approx((found.mean - 148.0) / (1668.7 - 148.0))


def test_a_run_reports_frames_and_evaluates_by_its_own_settings(tiny, finish, tmp_path, capsys):
    cut = {"img_height": 42, "img_width": 42, "max_num_frames_per_episode": 240}
    recipe = hr.recipe("atari", "impact")
    config = tiny(
        env="Breakout", algo=hr.A2C(reward_transform="abs_one"), network=hr.Network(conv="small"),
        engine="native", env_kwargs=recipe.env_kwargs | cut, eval_env_kwargs=WHOLE_GAMES,
        eval_episodes=1, transport="serial", envs_per_actor=2, total_steps=32,
    )  # fmt: skip
    trainer, results = finish(config)
    assert all(result.frames == 4 * result.env_steps for result in results)
    summary = trainer.finish()
    assert summary["frames"] == 4 * summary["env_steps"]
    evaluation = summary["evaluation"]
    assert evaluation["lengths"] == (60,)
    assert evaluation["human_normalized"] is not None
    found = hr.evaluate(
        trainer.policy, "Breakout", 1, engine="native", env_kwargs=config.env_kwargs
    )
    assert found.human_normalized is None  # lives are no games
    from headrace.cli import main

    assert main(["evaluate", str(trainer.run_dir), "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["returns"] == list(evaluation["returns"])


# -- frames and scores ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "kwargs", "wrappers", "frames"),
    [
        ("ALE/Pong-v5", {}, (), 4),
        ("ALE/Pong-v5", {"frameskip": 2}, (), 2),
        ("ALE/Pong-v5", {"frameskip": 1}, ("AtariPreprocessing",), 4),
        ("PongNoFrameskip-v4", {}, (), 1),
        ("PongNoFrameskip-v4", {}, ("AtariPreprocessing",), 4),
        ("PongNoFrameskip-v4", {}, ('AtariPreprocessing:{"frame_skip":3}',), 3),
        ("PongNoFrameskip-v4", {}, ('MaxAndSkipObservation:{"skip":2}',), 2),
        ("ALE/Pong-v5", {}, ('AtariPreprocessing:{"frame_skip":1}',), 4),
        ("Pong-v4", {}, (), 1),  # draws how often an action is repeated
        ("CartPole-v1", {}, (), 1),
        (Scripted, {}, (), 1),
    ],
)
def test_frames_of_a_step_are_known_where_a_game_repeats_actions(env_id, kwargs, wrappers, frames):
    target, wraps = Prepared.split(resolve(env_id, wrappers))
    assert atari.frames_per_step(target, kwargs, wraps) == frames


@pytest.mark.parametrize(
    ("env_id", "kwargs", "frames"),
    [("Pong-v5", {}, 4), ("Pong-v5", {"frame_skip": 2}, 2), ("CartPole-v1", {}, 1)],
)
def test_frames_of_envpool_s_games_are_known_too(env_id, kwargs, frames):
    pytest.importorskip("envpool")
    assert probe(env_id, "envpool", kwargs, 0).frames_per_step == frames


def test_scores_are_normalised_between_a_random_and_a_human_player():
    assert len(SCORES) == 57
    assert SCORES["Breakout"].normalized(30.5) == 1.0
    assert SCORES["Pong"].normalized(-20.7) == 0.0
    assert SCORES["Qbert"].normalized(2 * 13455.0 - 163.9) == pytest.approx(2.0)
    for name in SCORES:
        assert isinstance(resolve(name), gymnasium.envs.registration.EnvSpec)


def test_only_scores_of_whole_games_are_normalised():
    pong, whole = resolve("ALE/Pong-v5"), {"reward_clipping": False}

    def normalized(engine="native", wrappers=(), **kwargs):
        return atari.human_normalized(pong, engine, kwargs, map(as_wrap, wrappers), 14.6)

    assert normalized(**whole) == 1.0
    assert normalized("sync", ["AtariPreprocessing"]) == 1.0
    assert normalized() is None  # ale-py clips by default
    assert normalized(**whole, life_loss_info=True) is None
    assert normalized(**whole, episodic_life=True) is None
    assert normalized("sync", ['AtariPreprocessing:{"terminal_on_life_loss":true}']) is None
    assert normalized("sync", ["ClipReward"]) is None
    others = resolve("ALE/Tetris-v5"), resolve("CartPole-v1"), Scripted
    assert [atari.human_normalized(x, "sync", {}, (), 1.0) for x in others] == [None] * 3


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "kwargs", "wrappers", "words"),
    [
        ("ALE/Pong-v5", {"noop_maxx": 3}, (), "'noop_maxx' is unknown .*'noop_max'"),
        ("ALE/Pong-v5", {"noop_max": -3}, (), "env_kwargs.noop_max=-3 must be 0 .*nearest: 0"),
        ("ALE/Pong-v5", {"frameskip": 0}, (), "env_kwargs.frameskip=0 must be 1 or more"),
        ("ALE/Pong-v5", {"repeat_action_probability": 2}, (), "at most 1 .*nearest: 1"),
        ("ALE/Pong-v5", {"life_loss_info": 1}, (), "env_kwargs.life_loss_info=1 must be"),
        ("Breakot", {}, (), "env='Breakot' is unknown; .* Did you mean 'Breakout'"),
        ("ALE/Breakot-v5", {}, (), "unknown; .* Did you mean 'ALE/Breakout-v5'"),
        ("PongNoFrameskip-v4", {}, (), "no vector entry point: ale-py's own is ALE/Pong-v5"),
        ("ALE/Pong-v5", {}, ("AtariPreprocessing",), "4 times, and ALE/Pong-v5 does so 4 times"),
        ("Pong-v4", {}, ("MaxAndSkipObservation",), "Pong-v4 does so a random number of times"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(env_id, kwargs, wrappers, words, recwarn):
    with pytest.raises(ConfigError, match=words) as error:
        make_vec(env_id, 1, "native", kwargs, wrappers=wrappers)
    assert "\n" not in str(error.value)
    assert not [w for w in recwarn if "Overriding" in str(w.message)]


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "Breakout"])
def test_a_game_without_the_package_names_the_install_line(name, monkeypatch):
    monkeypatch.setattr("headrace.envs.names.is_installed", lambda package: False)
    monkeypatch.setattr("headrace.envs.packages.is_installed", lambda package: False)
    monkeypatch.setattr("headrace.envs.names.in_envpool", lambda name: False)
    monkeypatch.setattr(gymnasium, "registry", {})
    with pytest.raises(ConfigError, match=r"needs a package .*: pip install ale-py$"):
        resolve(name)


def test_a_look_at_a_game_loads_it_once(monkeypatch):
    from ale_py.vector_env import AtariVectorEnv

    seeds, reset = [], AtariVectorEnv.reset

    def noted(envs, *, seed=None, **kwargs):
        seeds.append(seed)
        return reset(envs, seed=seed, **kwargs)

    monkeypatch.setattr(AtariVectorEnv, "reset", noted)
    assert probe("ALE/Pong-v5", "native", PROTOCOL, seed=3).stacks
    assert seeds == [None]  # a seed reloads it
    assert not probe("ALE/Pong-v5", "native", PROTOCOL | {"stack_num": 1}, seed=3).stacks

"""Unified spaces of tasks: observations, actions, and incompatible tasks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple

from headrace.envs.make import make_vec, opened
from headrace.envs.names import Tasks, env_of, envs_of, resolve
from headrace.envs.probe import probe
from headrace.envs.tasks import named_in
from headrace.envs.unified_tasks import UnifiedTask, UnifiedTaskVector, join
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError
from headrace.nn.inputs import info_mask
from headrace.spaces import unified_spaces
from headrace.spaces.masks import MASK


class Told(gymnasium.Env):
    """Observes the middle of its space, and records actions."""

    def __init__(self, observation_space: Any, action_space: Any, info: dict | None = None) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.info, self.actions = info or {}, []

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(0)
        return self.observation_space.sample(), dict(self.info)

    def step(self, action):
        self.actions.append(action)
        return self.observation_space.sample(), 1.0, False, False, dict(self.info)


def joined(
    *spaces: tuple[Any, Any], shown: bool = False, infos: dict | None = None
) -> list[UnifiedTask]:
    """Return the unified environments of these spaces."""
    made = [Told(*each, info=infos) for each in spaces]
    names = [f"Task{i}" for i in range(len(made))]
    creators = []
    for name, env in zip(names, made, strict=True):

        def create(env: Any = env) -> Any:
            return env

        create.__name__ = name
        creators.append(create)
    tasks = join(Tasks(tuple(creators), shown), spaces)
    envs = []
    for one, env in zip(tasks.envs, made, strict=True):
        for wrap in getattr(one, "wrappers", ()):
            env = wrap(env)
        envs.append(env)
    return envs


def vector(size: int, low: float = -1.0, high: float = 1.0) -> Box:
    return Box(low, high, (size,), np.float32)


def test_vectors_that_differ_have_columns_of_their_own():
    long, short, bounds, alike = envs = joined(
        (vector(3, 1.0, 9.0), Discrete(2)),
        (vector(2, -7.0, 1.0), Discrete(2)),
        (vector(2, 1.0, 3.0), Discrete(2)),
        (vector(2, -7.0, 1.0), Discrete(2)),
    )
    space = short.observation_space
    assert space.low.tolist() == [-7.0] * 2 + [0.0] * 5
    assert space.high.tolist() == [1.0] * 2 + [3.0] * 2 + [9.0] * 3
    columns = {short: slice(0, 2), alike: slice(0, 2), bounds: slice(2, 4), long: slice(4, 7)}
    for env in envs:
        assert env.observation_space == space
        obs, own = env.reset()[0], env.env.reset()[0]
        expected = np.zeros(7, np.float32)
        expected[columns[env]] = own
        assert obs.tolist() == expected.tolist()
        assert space.contains(obs)


def test_discretes_that_differ_have_values_of_their_own():
    five, two, alike = joined(*((Discrete(n, start=3), Discrete(2)) for n in (5, 2, 5)))
    for env, begin in ((five, 2), (two, 0), (alike, 2)):
        assert env.observation_space == Discrete(2 + 5, start=3)
        obs, own = env.reset()[0], env.env.reset()[0]
        assert obs == own + begin
        assert env.observation_space.contains(obs)
    same = joined(*[(Discrete(4), Discrete(2))] * 2)
    assert same[0].observation_space == Discrete(4)


def test_masks_that_are_observed_stand_together_as_choices_do():
    def shown(size, choices):
        mask = Box(0, 1, (choices,), np.int8)
        return Dict(observation=vector(size), action_mask=mask), Discrete(choices)

    envs = joined(shown(2, 2), shown(4, 3), shown(6, 4))
    assert envs[0].observation_space["observation"].shape == (12,)
    assert envs[0].observation_space["action_mask"].shape == (4,)
    for env, count in zip(envs, (2, 3, 4), strict=True):
        obs, own = env.reset()[0], env.env.reset()[0]
        assert obs["action_mask"].tolist() == [*own["action_mask"].tolist(), 0, 0][:4]
        assert np.count_nonzero(obs["observation"]) == 2 * count - 2


def test_columns_dont_depend_on_the_order_of_tasks():
    both = (vector(4), Discrete(2)), (vector(2, 0.0, 3.0), Discrete(2))
    one, other = joined(*both), joined(*both[::-1])[::-1]
    for a, b in zip(one, other, strict=True):
        assert a.observation_space == b.observation_space
        assert a.reset()[0].tolist() == b.reset()[0].tolist()


def test_a_task_whose_spaces_are_the_joined_ones_is_left_as_it_is():
    two, three = joined((vector(4), Discrete(2)), (vector(4), Discrete(3)))
    assert isinstance(two, UnifiedTask)
    assert isinstance(three, Told)


def test_choices_that_a_task_lacks_are_masked_in_reset_and_step():
    two, three = joined((vector(1), Discrete(2)), (vector(1), Discrete(3)))
    assert two.action_space == Discrete(3)
    for info in (two.reset()[1], two.step(1)[4]):
        assert info["action_mask"].tolist() == [1, 1, 0]
    assert "action_mask" not in three.reset()[1]


def test_a_tasks_own_mask_is_kept():
    two, _ = joined(
        (vector(1), Discrete(2)),
        (vector(1), Discrete(3)),
        infos={"action_mask": np.array([0, 1], np.int8)},
    )
    assert two.reset()[1]["action_mask"].tolist() == [0, 1, 0]


def test_a_row_without_a_mask_is_allowed_the_choices_of_its_task_alone():
    infos = {"action_mask": np.array([[0, 1], [0, 0]]), "_action_mask": np.array([True, False])}
    shown = info_mask(unified_spaces.masked(infos, Discrete(2), Discrete(3), (2,)))
    assert shown.tolist() == [[0, 1, 0], [1, 1, 0]]


def test_choices_are_counted_from_0_and_arrive_from_their_own_start():
    from_five, _ = joined((vector(1), Discrete(2, start=5)), (vector(1), Discrete(3)))
    from_five.reset()
    for action in (0, 1, 2):  # the last of which no mask allows
        from_five.step(np.int64(action))
    assert from_five.env.actions == [5, 6, 6]


def test_vectors_of_actions_are_scaled_to_a_tasks_bounds_and_cut():
    one, two = joined((vector(1), Box(-2.0, 4.0, (1,))), (vector(1), vector(2)))
    assert one.action_space == vector(2)
    one.reset()
    for action, own in (((-1.0, 0.5), -2.0), ((0.0, -1.0), 1.0), ((1.0, 0.0), 4.0), ((9, 0), 4.0)):
        one.step(np.array(action, np.float32))
        assert one.env.actions[-1].tolist() == [own]
        assert one.env.action_space.contains(one.env.actions[-1])
    assert isinstance(two, Told)


def test_parts_texts_and_codes_are_joined_one_by_one():
    a = Dict(x=vector(1), y=Tuple([Discrete(2), Text(3, charset="ab")]))
    b = Dict(x=vector(3), y=Tuple([Discrete(5), Text(8, charset="bc")]))
    first, second = joined((a, Discrete(2)), (b, Discrete(2)))
    space = first.observation_space
    assert space["x"].shape == (4,)
    assert space["y"][0] == Discrete(2 + 5)
    assert space["y"][1].max_length == 8
    assert set(space["y"][1].characters) == set("abc")
    for env, columns in ((first, slice(0, 1)), (second, slice(1, 4))):
        obs, own = env.reset()[0], env.env.reset()[0]
        assert space.contains(obs)
        assert obs["x"][columns].tolist() == own["x"].tolist()
        assert obs["y"][0] == own["y"][0] + (0 if env is first else 2)
        assert np.count_nonzero(obs["x"]) == len(own["x"])


def test_the_tasks_number_is_a_part_of_the_observation_where_it_is_shown():
    plain, parted = joined((vector(2), Discrete(2)), (vector(2), Discrete(2)), shown=True)
    assert plain.observation_space == Dict(observation=vector(2), task=Discrete(2))
    for number, env in enumerate((plain, parted)):
        obs = env.step(0)[0]
        assert obs["task"] == number
        assert env.observation_space.contains(obs)
    one, two = joined((vector(2), Discrete(2)), (vector(3), Discrete(2)), shown=True)
    assert one.reset()[0]["observation"][2:].tolist() == [0.0] * 3
    assert two.reset()[0]["observation"][:2].tolist() == [0.0] * 2
    assert np.count_nonzero(two.reset()[0]["observation"][2:]) == 3
    space = Dict(a=vector(1))
    one, _ = joined((space, Discrete(2)), (space, Discrete(2)), shown=True)
    assert one.observation_space == Dict(a=vector(1), task=Discrete(2))


IMAGE = Box(0, 255, (84, 84, 3), np.uint8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((IMAGE, Discrete(2)), (Box(0, 255, (64, 64, 3), np.uint8), Discrete(2))),
        ((vector(2), Discrete(2)), (IMAGE, Discrete(2))),
        ((vector(2), Discrete(2)), (Discrete(2), Discrete(2))),
        ((vector(2), Discrete(2)), (Box(-9, 9, (2,), np.int64), Discrete(2))),
        ((Dict(a=vector(2)), Discrete(2)), (Dict(b=vector(2)), Discrete(2))),
        ((Tuple([vector(2)]), Discrete(2)), (Tuple([vector(2)] * 2), Discrete(2))),
        ((Discrete(2), Discrete(2)), (Discrete(2, start=1), Discrete(2))),
        ((vector(2), Discrete(2)), (vector(2), vector(2))),
        ((vector(2), Discrete(2)), (vector(2), MultiDiscrete([2, 2]))),
        ((vector(2), vector(2)), (vector(2), Box(-np.inf, np.inf, (2,)))),
        ((vector(2), vector(2)), (vector(2), Box(-1, 1, (2, 2)))),
    ],
)
def test_what_cant_be_joined_is_refused_with_both_names(one, other):
    words = r"^tasks 'Task0' and 'Task2' can't be joined: the (observation|action) space"
    with pytest.raises(ConfigError, match=words) as error:
        joined(one, one, other)
    assert "\n" not in str(error.value)


def test_the_two_that_differ_are_named():
    boxes = [(vector(1), vector(1)), (vector(1), vector(2))]
    with pytest.raises(ConfigError, match=r"tasks 'Task0' and 'Task2' .* Box\(.* Discrete\(2\)"):
        joined(*boxes, (vector(1), Discrete(2)))


def test_a_part_of_the_name_of_the_tasks_number_is_refused():
    space = Dict(task=vector(1))
    with pytest.raises(ConfigError, match="already have a part 'task'"):
        joined((space, Discrete(2)), (space, Discrete(2)), shown=True)


def test_real_environments_are_joined_by_the_first_look_and_step():
    tasks = Tasks(("CartPole-v1", "Acrobot-v1", "MountainCar-v0"))
    found = probe(tasks, "auto", {}, 0)
    assert found.engine == "sync"
    assert found.info_mask
    assert found.observation_space.shape == (2 + 4 + 6,)
    assert found.action_space == Discrete(3)
    assert found.env.names == tasks.names
    again = probe(found.env, "auto", {}, 0)  # joined already
    assert again.env.envs == found.env.envs
    assert again.observation_space == found.observation_space


def test_tasks_of_the_same_spaces_keep_their_engine():
    found = probe(Tasks(("CartPole-v1", "CartPole-v0")), "auto", {}, 0)
    alone = probe("CartPole-v1", "auto", {}, 0)
    assert found.engine == alone.engine != "sync"


def test_actors_take_turns_at_tasks():
    tasks = resolve(Tasks(("CartPole-v1", "Acrobot-v1")))
    assert [env_of(tasks, actor).id for actor in range(3)] == [
        "CartPole-v1", "Acrobot-v1", "CartPole-v1",
    ]  # fmt: skip
    alone = resolve("CartPole-v1")
    assert env_of(alone, 5) is alone
    assert envs_of(alone) == (alone,)


def test_a_suite_stands_for_its_tasks():
    tasks = named_in(["atari-5", "CartPole-v1"])
    assert tasks[:2] == ("ALE/BattleZone-v5", "ALE/DoubleDunk-v5")
    assert len(tasks) == 6
    assert tasks[-1] == "CartPole-v1"


@pytest.mark.parametrize("task", [None, 1])
@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [
        ("CartPole-v1", Box(-np.inf, np.inf, (6,), np.float32), Discrete(5)),
        ("Pendulum-v1", Box(-9.0, 9.0, (3,), np.float32), Box(-1.0, 1.0, (2,), np.float32)),
        ("FrozenLake-v1", Discrete(18), Discrete(4)),
    ],
)
def test_environments_stepped_together_are_joined_as_single_ones(name, observation, action, task):
    parts = {"observation": observation, "task": Discrete(2)}
    spaces = observation if task is None else Dict(parts), action
    known = {"observation_space": spaces[0], "action_space": spaces[1], "task": task, "place": 2}
    singles = make_vec(name, 3, "sync", wrappers=[Wrap(UnifiedTask, "joined", known)])
    together = UnifiedTaskVector(make_vec(name, 3, "sync"), **known)
    assert singles.action_space == together.action_space
    assert singles.observation_space == together.observation_space
    one, other = (envs.reset(seed=4) for envs in (singles, together))
    singles.action_space.seed(0)
    for _ in range(40):
        assert_same(one[0], other[0])
        assert np.array_equal(np.stack(one[-1].get(MASK, [0])), other[-1].get(MASK, [0]))
        allowed = np.stack(one[-1].get(MASK, np.ones((3, 1))))
        actions = singles.action_space.sample()
        if allowed.shape[1] > 1:  # also a choice that the task doesn't have
            assert allowed.tolist() == [[1, 1, 0, 0, 0]] * 3
        one, other = singles.step(actions), together.step(actions)
        for x, y in zip(one[1:4], other[1:4], strict=True):
            assert np.array_equal(x, y)
    singles.close()
    together.close()


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[key], b[key]) for key in a)
    else:
        assert np.array_equal(a, b)


def test_an_engine_that_steps_many_at_once_still_does_when_they_are_joined():
    known = {"observation_space": Box(-np.inf, np.inf, (6,)), "action_space": Discrete(5)}
    wraps = [Wrap(UnifiedTask, "joined", known, UnifiedTaskVector)]
    for engine, name in (("native", "native"), ("auto", "native"), ("sync", "sync")):
        taken, envs = opened("CartPole-v1", 2, engine, wrappers=wraps)
        assert taken == name
        assert isinstance(envs, UnifiedTaskVector) == (name == "native")
        assert envs.reset(seed=0)[0].shape == (2, 6)
        envs.close()

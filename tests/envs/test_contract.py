"""Values of an environment are checked against its spaces, with one sentence before the start."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from worlds import CountingEnv, CountingVectorEnv

import headrace as hr
import headrace.trainer.learner_actors
from headrace.actors.actor import warn_once_per_run
from headrace.envs.contract import check_first_steps
from headrace.envs.make import make_vec, opened
from headrace.envs.probe import probe
from headrace.errors import EnvironmentFault

GOOD = (np.zeros(3, np.float32), 1.0, False, False, {})
VECTOR, PARTS = Box(-1, 1, (3,)), Dict(a=Box(-1, 1, (2,)), b=Tuple([Discrete(3)]))


class Odd(gymnasium.Env):
    """Returns given values; valid steps come before the invalid one."""

    action_space = Discrete(2)

    def __init__(self, step=GOOD, start=None, space=VECTOR, after=0):
        self.observation_space, self.start, self.after = space, start, after
        self.returned = step if isinstance(step, tuple) else (step, *GOOD[1:])
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        good = self.observation_space.sample()
        return (good, {}) if self.start is None else self.start

    def step(self, action):
        self.steps += 1
        good = (self.observation_space.sample(), *GOOD[1:])
        return self.returned if self.steps > self.after else good


def changed(at: int, value: object) -> tuple:
    return (*GOOD[:at], value, *GOOD[at + 1 :])


ODD_STEPS = {
    "observation is None": (VECTOR, None, ["None as its observation", "Box(-1.0, 1.0, (3,)"]),
    "shape": (VECTOR, np.zeros((3, 1), np.float32), ["shape (3, 1)", "return the shape (3,)"]),
    "text": (VECTOR, "up", ["'up' as its observation", "return an array of float32"]),
    "ragged": (VECTOR, [[1.0], 2.0], ["as its observation", "of shape (3,)"]),
    "nan": (VECTOR, np.full(3, np.nan), ["returned nan in its observation[0] at step 1"]),
    "fractions": (Box(0, 9, (3,), np.uint8), np.zeros(3), ["float64 of shape (3,)", "astype('ui"]),
    "beyond": (Discrete(3), 3, ["3 as its observation", "Discrete(3)", "keep within"]),
    "negative": (MultiDiscrete([2, 2]), np.array([0, -1]), ["MultiDiscrete([2 2])", "keep within"]),
    "not a dict": (PARTS, np.zeros(2), ["as its observation", "a dict with the keys ['a', 'b']"]),
    "missing key": (PARTS, {"a": np.zeros(2, np.float32)}, ["a dict without 'b'"]),
    "part": (PARTS, {"a": np.zeros(2), "b": (5,)}, ["5 as its observation at 'b'/0"]),
    "short tuple": (PARTS, {"a": np.zeros(2), "b": ()}, ["at 'b'", "return a tuple of 1"]),
    "vector reward": (
        VECTOR,
        changed(1, np.ones(2)),
        ["a reward of shape (2,)", "TransformReward"],
    ),
    "no reward": (VECTOR, changed(1, None), ["None as its reward"]),
    "infinite reward": (VECTOR, changed(1, np.inf), ["inf as its reward", "a finite number"]),
    "terminated": (VECTOR, changed(2, "no"), ["'no' as its terminated", "return True or False"]),
    "truncated": (VECTOR, changed(3, None), ["None as its truncated"]),
    "info": (VECTOR, changed(4, None), ["None as its info", "return a dict"]),
    "old Gym": (VECTOR, GOOD[:4], ["4 values instead of 5", "old Gym's done"]),
}


def one_sentence(error: Exception, words: list[str]) -> None:
    assert "\n" not in str(error)
    for word in ["Odd", *words]:
        assert word in str(error)


@pytest.mark.parametrize(("space", "step", "words"), ODD_STEPS.values(), ids=ODD_STEPS)
def test_an_odd_first_step_ends_a_run_before_any_process(monkeypatch, tmp_path, space, step, words):
    def start(*args, **kwargs):
        raise AssertionError("something was started")

    monkeypatch.setattr(headrace.trainer.learner_actors, "RolloutSource", start)
    sizes = {"num_actors": 1, "envs_per_actor": 1, "fragment_length": 8, "transport": "serial"}
    with pytest.raises(EnvironmentFault) as error:
        hr.train(functools.partial(Odd, step, space=space), run_dir=str(tmp_path / "run"), **sizes)
    one_sentence(error.value, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (np.zeros(3, np.float32), ["from reset", ": return (observation, info)"]),
        ((np.zeros(2), {}), ["shape (2,)", "from reset"]),
        ((np.zeros(3), None), ["None as its info", "from reset"]),
    ],
)
def test_an_odd_reset_is_a_sentence(start, words):
    with pytest.raises(EnvironmentFault) as error:
        probe(Odd, "auto", {"start": start}, 0)
    one_sentence(error.value, words)


def test_a_reset_of_the_old_gym_is_told_how_it_should_look():
    class Odd(CountingEnv):
        def reset(self):
            return super().reset()

    with pytest.raises(EnvironmentFault) as error:
        probe(Odd, "auto", {}, 0)
    one_sentence(error.value, ["reset(self, *, seed=None, options=None)", "'seed'"])


@pytest.mark.parametrize("engine", ["sync", "threads", "async"])
def test_later_odd_steps_are_the_same_sentence_with_every_engine(engine):
    envs = make_vec(Odd, 2, engine, {"step": np.zeros(2), "after": 3})
    try:
        envs.reset(seed=0)
        with pytest.raises(EnvironmentFault) as error:
            for _ in range(4):
                envs.step(np.zeros(2, int))
        one_sentence(error.value, ["shape (2,)", "at step 4", "Box(-1.0, 1.0, (3,), float32)"])
    finally:
        envs.close()


def test_a_vector_environment_is_held_to_its_spaces_too():
    class Odd(CountingVectorEnv):
        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            return obs, reward[:1], *rest

    envs = make_vec(Odd, 3)
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault) as error:
        envs.step(np.zeros(3, int))
    one_sentence(error.value, ["shape (1,) as its reward", "for each of 3 environments"])


def test_only_the_first_steps_are_checked_and_the_rest_runs_the_environment_s_own():
    for env in (CountingEnv, CountingVectorEnv):
        _, envs = opened(env, 1, checked_steps=3)
        one = envs.envs[0] if env is CountingEnv else envs
        envs.reset(seed=0)
        assert {"step", "reset"} <= vars(one).keys()
        for _ in range(3):
            envs.step(np.zeros(1, int))
        assert not {"step", "reset"} & vars(one).keys()
        envs.close()


def test_bounds_that_do_not_hold_are_told_once_and_survived():
    with pytest.warns(UserWarning, match=r"Odd returns observations beyond .*Box\(-1.0") as said:
        found = probe(Odd, "auto", {"step": np.full(3, 7.0, np.float32)}, 0)
    assert len(said) == 1
    assert found.fault is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe(Odd, "auto", {"step": np.full(3, 1.00001)}, 0)


def test_a_run_warns_here_about_bounds_that_do_not_hold(tiny):
    kwargs = {"step": np.full(3, 7.0, np.float32).tolist()}
    evaluated = {"eval_episodes": 1, "eval_max_steps": 9}
    config = tiny(env=Odd, env_kwargs=kwargs, algo=hr.A2C(), num_actors=2, **evaluated)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hr.Trainer(config) as trainer:
            list(trainer)
            trainer.finish(draw=False)
    here = [one for one in caught if "beyond the bounds" in str(one.message)]
    assert len(here) == 1


def test_one_actor_of_each_task_warns_about_bounds():
    def warns(actor: int, generation: int = 0) -> bool:
        spec = SimpleNamespace(first_actor=1, num_tasks=2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_once_per_run(spec, actor - spec.first_actor, generation)
            warnings.warn("Odd returns observations beyond the bounds of their space", stacklevel=1)
        return bool(caught)

    assert [warns(actor) for actor in range(1, 4)] == [True, False, False]
    assert not warns(1, generation=1)


def test_the_first_step_takes_an_action_that_the_mask_allows():
    class Strict(gymnasium.Env):
        observation_space = Box(-1, 1, (3,))
        action_space = Dict(a=MultiDiscrete([3, 4]), b=Discrete(5, start=2))
        mask = {"a": (np.eye(3)[1], np.eye(4)[2]), "b": np.eye(5)[4]}  # noqa: RUF012

        def reset(self, *, seed=None, options=None):
            return np.zeros(3, np.float32), {"action_mask": self.mask}

        def step(self, action):
            assert (action["a"].tolist(), int(action["b"])) == ([1, 2], 6)
            return *GOOD[:4], {"action_mask": self.mask}

    probe(Strict, "sync", {}, 0).check_step()


def test_what_the_environment_raises_comes_with_its_traceback_once():
    class Broken(CountingEnv):
        def step(self, action):
            raise RuntimeError("no fuel")

    found = probe(Broken, "auto", {}, 0)
    with pytest.raises(EnvironmentFault) as error:
        found.check_step()
    first, _, trace = str(error.value).partition("\n")
    assert first == "Broken fails at its first step: RuntimeError: no fuel"
    assert trace.count("raise RuntimeError") == 1


class Fast(CountingEnv):
    """Its step is an attribute of the instance."""

    def __init__(self):
        super().__init__()
        self.step = self._fast

    def _fast(self, action):
        return CountingEnv.step(self, action)


@pytest.mark.parametrize("kind", [CountingEnv, Fast])
def test_an_environment_is_as_it_was_after_its_first_steps_and_copies_are_at_once(kind):
    env = kind()
    before = dict(vars(env))
    for _ in range(2):  # the second finds it checked already
        check_first_steps(env, "Counting", 2)
    env.reset(seed=0)
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert copied.step.__self__ is copied
        copied.step(0)
    assert env.step(0)[0][2] == 1  # so theirs did not step this one
    env.step(0)
    assert vars(env).keys() & {"reset", "step"} == before.keys() & {"reset", "step"}
    assert env.step.__self__ is env
    env.step(0)


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_arrays_of_one_number_are_numbers_for_good(engine):
    step = (*GOOD[:1], np.array([0.5]), np.array([False]), np.array([False]), {})
    _, envs = opened(Odd, 2, engine, {"step": step}, checked_steps=2)
    envs.reset(seed=0)
    for _ in range(4):
        _, reward, terminated, _, _ = envs.step(np.zeros(2, int))
        assert reward.tolist() == [0.5, 0.5]
        assert terminated.shape == (2,)
    envs.close()


class Many(Odd):
    """Returns rewards with two components."""

    reward_space = Box(-1, 1, (2,))


def many_together(num_envs):
    envs = CountingVectorEnv(num_envs)
    step = envs.step

    def paid(actions):
        obs, reward, *rest = step(actions)
        return obs, np.stack([reward, reward], 1), *rest

    envs.step = paid
    return envs


@pytest.mark.parametrize("reward", [np.ones(2), [1.0, 2.0], (1, 2), np.ones((2, 1))])
@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_a_reward_of_several_parts_is_told_with_its_shape_its_space_and_a_wrapper(reward, engine):
    envs = make_vec(Many, 2, engine, {"step": changed(1, reward)})
    envs.reset(seed=0)
    shape = str(np.shape(reward))
    with pytest.raises(EnvironmentFault) as error:
        envs.step(np.zeros(2, np.int64))
    for words in (f"reward of shape {shape}", "Box(-1.0, 1.0, (2,)", "TransformReward"):
        assert words in str(error.value)
    envs.close()


def test_the_rewards_of_a_vector_environment_are_told_likewise():
    envs = make_vec(many_together, 3)
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match=r"reward of shape \(3, 2\).*vector.TransformRew"):
        envs.step(np.zeros(3, np.int64))
    envs.close()


def test_the_wrapper_that_is_named_makes_it_scalar():
    def made():
        env = Many(changed(1, np.array([0.25, 0.5])))
        return gymnasium.wrappers.TransformReward(env, lambda r: float(r.sum()))

    envs = make_vec(made, 2)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, np.int64))[1].tolist() == [0.75, 0.75]
    envs.close()

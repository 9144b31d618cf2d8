"""Environments of a run with different spaces raise a one-sentence error in every engine."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.errors import ActorFailed, EnvironmentFault

OBSERVATION, ACTION = Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,))
OTHERS = {
    "size": ("observation_space", Box(-1.0, 1.0, (4,))),
    "dtype": ("observation_space", Box(-1.0, 1.0, (3,), np.float64)),
    "choices": ("action_space", Discrete(3)),
    "bounds": ("action_space", Box(-1.0, 5.0, (2,))),
}


class Drawn(gymnasium.Env):
    """An environment whose spaces are those of ``OTHERS`` from instance ``at`` on, or at a reset.

    Args:
        what: key of ``OTHERS``. index: of this environment. at: of the first that differs.
        resets: number of resets before it replaces the space; 0: never.
    """

    def __init__(self, what, index=0, at=1, resets=0):
        self.observation_space, self.action_space = OBSERVATION, ACTION
        self.what, self.resets = what, resets
        if index >= at:
            setattr(self, *OTHERS[what])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets -= 1
        if self.resets == 0:
            setattr(self, *OTHERS[self.what])
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


@pytest.mark.parametrize(("engine", "what"), itertools.product(["sync", "threads"], OTHERS))
def test_environments_that_are_stepped_together(engine, what):
    kwargs = {"what": what, "index": "{index}", "at": 2}
    with pytest.raises(EnvironmentFault) as caught:
        hr.make_vec(Drawn, 3, engine, kwargs)
    kind, space = OTHERS[what]
    first = {"observation_space": OBSERVATION, "action_space": ACTION}[kind]
    sentence = f"Drawn: the {kind} of environment 2, {space}, differs from that of environment 0, "
    assert str(caught.value).startswith(f"{sentence}{first}: all environments")


def test_environments_in_processes():
    with pytest.raises(EnvironmentFault, match=r"^Drawn: all environments of a run need the same"):
        hr.make_vec(Drawn, 2, "async", {"what": "bounds", "index": "{index}"})


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_an_actor_whose_environments_differ_from_the_first_look(transport, tmp_path):
    config = hr.Config(
        Drawn,
        hr.A2C(),
        env_kwargs={"what": "bounds", "index": "{index}", "at": 2},
        num_actors=2,
        envs_per_actor=2,
        fragment_length=4,
        total_steps=64,
        eval_episodes=0,
        transport=transport,
        max_restarts=0,
        run_dir=str(tmp_path / "run"),
    )
    words = "need the same spaces, but in an actor's environments its action space is .*5.0"
    with (
        pytest.raises((EnvironmentFault, ActorFailed), match=words),
        hr.Trainer(config, notify=lambda text: None) as trainer,
    ):
        list(trainer)


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_a_space_that_changes_at_a_reset(engine):
    envs = hr.make_vec(Drawn, 1, engine, {"what": "bounds", "resets": 2})
    envs.reset(seed=0)
    words = r"Drawn changed its action_space in reset from Box\(-1.0, 1.0.* to Box\(-1.0, 5.0"
    with pytest.raises(EnvironmentFault, match=words):
        envs.reset()
    envs.close()

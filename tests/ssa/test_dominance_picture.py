"""Contents of rendered images of OrbitalDominance."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_ssa import OrbitalDominanceVectorEnv
from headrace_ssa.dominance import picture, rules

ACTIONS = rules.Actions(2)
FORWARDS, LEFT = 3, 5  # burns of the asset


@pytest.fixture
def envs():
    envs = OrbitalDominanceVectorEnv(2, render_mode="rgb_array")
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    return envs


def changed(one, other):
    """Return where two frames differ: above, below, and in the text of describe_action."""
    differs = (one != other).any(axis=2)
    wide, high = 565, 200
    return differs[:high, :wide].any(), differs[high:, :wide].any(), differs[:, wide:].any()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (0, "holds"),
        (FORWARDS, "asset burns forwards"),
        (7 + 1, "inspector burns down"),
        (ACTIONS.first_point + 2, "inspector points at asset"),
        (ACTIONS.first_jam + 1, "inspector jams"),
    ],
)
def test_actions_are_told_in_words(action, words):
    assert picture.describe_action(action, 2) == words


def test_of_several_inspectors_it_is_told_which_one_acts():
    actions = rules.Actions(3)
    assert picture.describe_action(actions.count - 1, 3) == "inspector 2 jams"
    assert (
        picture.describe_action(actions.first_point + 4, 3) == "inspector 1 points at inspector 1"
    )
    assert (
        len({picture.describe_action(action, 3) for action in range(actions.count)})
        == actions.count
    )


def test_words_of_burns_are_those_of_their_directions():
    words = [
        picture.describe_action(1 + way, 2).split()[-1] for way in range(len(rules.DIRECTIONS))
    ]
    along = {"up": (0, 1), "down": (0, -1), "forwards": (1, 1), "back": (1, -1)}
    for word, push in zip(words[:4], rules.DIRECTIONS[:4], strict=True):
        axis, sign = along[word]
        assert push[axis] == sign


def test_a_burn_and_a_jam_are_drawn_in_both_panels_and_told(envs):
    def frame(blue):
        return picture.frame(envs.scene, 0, np.array([blue, 0]))

    still, burn, left, jam = (frame(a) for a in (0, FORWARDS, LEFT, ACTIONS.first_jam))
    assert changed(still, burn) == changed(still, jam) == changed(burn, left) == (True,) * 3


def test_the_frame_of_a_step_shows_what_was_done_in_it_and_a_reset_shows_nothing_done(envs):
    chosen = []
    held, picture_frame = envs.render()[0], picture.frame
    envs.step(np.array([FORWARDS, ACTIONS.first_jam]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, "frame", lambda at, game, done: chosen.append(done.tolist()))
        envs.render()
        while envs.scene.jams[0, 1, 0]:  # until nothing is left: what is forbidden isn't done
            envs.step(np.array([0, ACTIONS.first_jam]))
        envs.step(np.array([0, ACTIONS.first_jam]))
        envs.render()
        envs.step(np.array([FORWARDS, 0]))
        envs.reset(seed=0)
        envs.render()
    assert chosen == [[FORWARDS, ACTIONS.first_jam], [0, 0], [0, 0]]
    assert held.shape == picture_frame(envs.scene, 0, np.zeros(2, int)).shape


def test_all_satellites_are_inside_however_far_they_went(envs):
    envs.scene.sun[:] = 0.0
    near = picture.frame(envs.scene, 0, np.zeros(2, int))
    envs.scene.state[0, 0, 1, :3] = 9_000.0, 30_000.0, 0.0  # far up and along
    far = picture.frame(envs.scene, 0, np.zeros(2, int))
    blue = np.array([31, 119, 180])
    panel = far[15:185, 45:564]
    marks = (np.abs(panel.astype(int) - blue).max(axis=2) < 3).nonzero()
    assert np.abs(near[:, :564].astype(int) - far[:, :564]).any()
    assert marks[0].min() < 85  # above the middle of the panel

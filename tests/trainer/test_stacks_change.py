"""Images that look like frame stacks only at first are stored whole afterwards."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tries import few_of
from worlds import Stacks

import headrace as hr
from headrace.errors import EnvironmentFault
from headrace.rundir import checkpoint

SIZES = {
    "num_actors": 2, "envs_per_actor": 2, "fragment_length": 20, "eval_episodes": 0,
    "network": hr.Network(conv="impala_shallow"),
}  # fmt: skip


class Later(Stacks):
    """From the 90th step on, every frame of an observation is new."""

    steps = 0

    def _push(self, new):
        super()._push(new)
        self.steps += 1
        if self.steps > 90:
            self._stack = self.np_random.integers(0, 256, self._stack.shape, np.uint8)


HOW = [{}, {"transport": "serial"}, {"num_learners": 2}]


@pytest.mark.parametrize("how", few_of(HOW, HOW[1:]), ids=str)
def test_a_run_goes_on_with_whole_stacks(tmp_path, capsys, how):
    given = {**SIZES, "total_steps": 640, "run_dir": tmp_path / "run", **how}
    hr.train(Later, hr.A2C(), env_kwargs={"begins": "black"}, **given)
    told = capsys.readouterr().out
    assert "store whole stacks from now on" in told
    assert json.loads((tmp_path / "run/summary.json").read_text())["env_steps"] >= 640
    saved = checkpoint.read_config(checkpoint.find(tmp_path / "run"))
    assert saved["config"]["stacked_frames"] == "whole"


@pytest.mark.parametrize(("algo", "held"), [
    (hr.A2C(), "once"), (hr.IMPALA(replay_fraction=0.5), "auto"),
])  # fmt: skip
def test_pictures_that_have_to_be_held_once_are_an_error(tmp_path, algo, held):
    given = {**SIZES, "total_steps": 640, "run_dir": tmp_path / "run", "stacked_frames": held}
    with pytest.raises(EnvironmentFault, match="stacked_frames='whole'"):
        hr.train(Later, algo, env_kwargs={"begins": "black"}, transport="serial", **given)

"""Grids of symbols are recognised at the start of a run, and their settings are kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torch import nn
from tries import few_of
from worlds.images import BrightQuarter
from worlds.symbols import Symbols

import headrace as hr
from headrace.errors import ConfigError


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(50, 8)

    def forward(self, obs):
        return self.layer(obs.flatten(1).float())


SIZES = {"num_actors": 2, "envs_per_actor": 2, "fragment_length": 16, "eval_episodes": 0}


def network_of(run_dir):
    return json.loads((run_dir / "config.json").read_text())["config"]["network"]


def train(run_dir, total_steps=512, **given):
    given = {"transport": "serial", **SIZES, **given}
    return hr.train(Symbols, hr.A2C(), total_steps=total_steps, run_dir=run_dir, **given)


HOW = [{}, {"transport": "shm", "num_learners": 2}, {"transport": "shm", "inference": "shared"}]


@pytest.mark.parametrize("how", few_of(HOW, HOW[1:]), ids=str)
def test_values_that_appear_later_are_clipped_everywhere(tmp_path, capsys, how):
    policy = train(tmp_path / "run", 1024, env_kwargs={"late": 200}, **how)
    out = capsys.readouterr().out
    assert out.count("auto: one-hot encoding of 'obs' with 16 symbols") == 1
    assert "(one_hot='none' turns it off)" in out
    network = network_of(tmp_path / "run")
    assert (network["one_hot"], network["num_symbols"]) == (["obs"], 16)
    assert network["clip_symbols"] is True
    obs = np.full((2, 5, 5, 2), 200, np.uint8)
    action = hr.load(tmp_path / "run").predict(obs)[0]
    assert (action == policy.predict(obs)[0]).all()
    assert hr.evaluate(policy, Symbols, 8, env_kwargs={"late": 200}).episodes == 8


def test_resumed_and_derived_runs_keep_their_symbols(tmp_path, capsys):
    train(tmp_path / "run", network=hr.Network(num_symbols=9))
    bright = {"env_kwargs": {"late": 40}}
    hr.resume(tmp_path / "run", total_steps=1024)
    train(tmp_path / "run", 1536, resume=True, **bright)
    assert network_of(tmp_path / "run")["num_symbols"] == 9
    train(tmp_path / "new", init_from=tmp_path / "run", **bright)
    assert network_of(tmp_path / "new")["num_symbols"] == 9
    with pytest.raises(ConfigError, match=r"one_hot=\(\) must be \('obs',\) to resume"):
        train(tmp_path / "run", 2048, resume=True, network=hr.Network(one_hot=()))
    loaded = hr.load(tmp_path / "run", network=hr.Network())
    assert loaded.network.num_symbols == 9


@pytest.mark.parametrize(
    ("network", "kwargs", "one_hot"),
    [
        ({"one_hot": ()}, {}, []),
        ({"one_hot": ("none",)}, {}, []),
        ({"one_hot": "none"}, {}, []),
        ({}, {"high": 9}, ["obs"]),
        ({"one_hot": ("obs",), "num_symbols": 8}, {}, ["obs"]),
        ({"torso": lambda space: Features()}, {}, []),
    ],
    ids=["images", "no part", "none", "bounds", "named", "own torso"],
)
def test_settings_and_bounds_decide_first(tmp_path, network, kwargs, one_hot):
    train(tmp_path / "run", 128, network=hr.Network(**network), env_kwargs=kwargs)
    found = network_of(tmp_path / "run")
    assert found["one_hot"] == one_hot
    assert found["clip_symbols"] is ("high" in kwargs)


def test_an_image_is_not_recognised(tmp_path, capsys):
    given = {**SIZES, "transport": "serial", "total_steps": 128}
    hr.train(BrightQuarter, hr.A2C(), run_dir=tmp_path / "run", **given)
    assert network_of(tmp_path / "run")["one_hot"] == []
    assert "one-hot" not in capsys.readouterr().out

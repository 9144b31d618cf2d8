"""The settings that actors get are those of the run's Config, by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields

import pytest

from headrace.actors import spec
from headrace.actors.spec import ActorSettings, ActorSpec
from headrace.config import run


def test_actors_get_every_setting_of_the_config_that_they_use(tiny):
    config = tiny(num_actors=3, envs_per_actor=2, fragment_length=5, seed=7, max_restarts=4)
    view = config.actor_spec(None, None, agents=("a",)).settings
    assert all(getattr(view, f.name) == getattr(config, f.name) for f in fields(view))
    assert (view.num_actors, view.seed, view.actor_restarts) == (3, 7, 4)


def test_no_setting_of_actors_has_a_default_that_could_stand_in_for_a_renamed_one():
    without = (dataclasses.MISSING, dataclasses.MISSING)
    assert {(f.default, f.default_factory) for f in fields(ActorSettings)} == {without}
    assert not {f.name for f in fields(ActorSettings)} & {f.name for f in fields(ActorSpec)}


def test_a_setting_that_actors_call_by_another_name_than_the_config_is_an_error(tiny, monkeypatch):
    @dataclass(frozen=True)
    class Renamed(spec.ActorSettings):
        random_seed: int

    monkeypatch.setattr(run, "ActorSettings", Renamed)
    with pytest.raises(AttributeError, match="random_seed"):
        tiny().actor_spec(None, None)

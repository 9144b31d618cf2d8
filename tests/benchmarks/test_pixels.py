"""The benchmark of pixels: requests of each program, and the rows of its table."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import headrace as hr
from headrace.cli.flags import named
from headrace.recipes import recipe
from headrace.rundir.config_file import replaced


@pytest.fixture
def pixels(monkeypatch) -> Any:
    return importlib.import_module("pixels")


def test_every_program_has_the_same_environments_network_and_minibatches(pixels):
    names = ("headrace", "headrace float32", "headrace PPO", *pixels.PEERS)
    asked = pixels.requests(pixels.Args(programs=names, actors=2))
    assert len(asked) == len(names)
    for name, request in asked.items():
        if name in pixels.PEERS:
            assert (request["num_envs"], request["minibatch"]) == (16, 512)
            continue
        asked_for = {f"--{k.replace('_', '-')}": v for k, v in pixels.flags(request).items()}
        given = [name if v is True else f"{name}={v}" for name, v in asked_for.items()]
        default = recipe("atari", request["algo"])
        settings = named("", given, default, recipes=("atari",))
        assert settings.pop("recipe") == "atari"
        config = replaced(default, settings)
        assert config.algo.epochs == 1
        assert config.network.conv == "nature"
        assert not config.network.normalize_images
        assert config.num_actors * config.envs_per_actor == 16
        assert config.resolved_batch_size / request["minibatches"] == 512


def test_a_program_that_is_not_known_is_refused_before_anything_runs(pixels):
    with pytest.raises(hr.ConfigError, match="CleanRL-style"):
        pixels.requests(pixels.Args(programs=("CleanRL",)))


def test_ratios_are_medians_of_the_ratios_within_a_repeat(pixels):
    def runs(*speeds: float) -> list[dict[str, Any]]:
        return [{"sps": sps, "pss_gb": 0.5, "first_update_s": 3.0} for sps in speeds]

    own, peer, ceiling = runs(100.0, 900.0, 300.0), runs(50.0, 300.0, 300.0), runs(200.0, 1e3, 400)
    rows = pixels.summarise({"headrace": own, "CleanRL-style": peer, "ceiling": ceiling})
    assert [row["headrace_is"] for row in rows] == [None, 2.0, 0.75]
    assert [row["of_ceiling"] for row in rows] == [0.75, 0.3, None]
    assert rows[0]["sps_median"] == 300.0
    text = pixels.markdown(pixels.table(rows)).splitlines()
    assert text[1].count("---") == text[0].count("|") - 1
    assert "| CleanRL-style | 300 | 50–300 | 2.00 × | 30% |" in text[3]


def test_only_steps_after_the_first_update_count_for_a_peers_speed(monkeypatch):
    peers = importlib.import_module("pixels_peers")
    now = iter([105.0, 109.0, 110.0, 120.0])
    monkeypatch.setattr(peers.time, "monotonic", lambda: next(now))
    clock = peers.Clock({"started": 100.0})
    for steps in (0, 1000, 2000, 4000):
        clock.update(steps)
    assert clock.result() == {"sps": 3000 / 11, "first_update_s": 9.0}

"""Findings in shortened files of real runs: the first results, and some of the later ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymnasium.spaces import Box, Dict, Discrete

from headrace.rundir.curves import read_run
from headrace.rundir.health import findings, small_images

RUNS = Path(__file__).parent / "kept"


@pytest.mark.parametrize(
    ("run", "name", "words"),
    [
        ("deep_doorkey", "small-image", "images of 7 × 7 pixels pass through 15 convolutions"),
        ("taxi_loops", "greedy-far", "they return -13.3 in the final evaluation, and sampled "),
        ("swimmer_falls", "below-start", "11.7 at best in the last quarter, compared with 25.4"),
        ("swimmer_lost", "return-lost", "it fell from 32.9 to 24.3"),
        ("repeat_certain", "entropy-collapsed", "while returns stay at -0.50"),
        ("pendulum_flat", "flat", "after 736 episodes they are still at -1,179.9"),
    ],
)
def test_failures_are_named(run, name, words):
    (one,) = findings(read_run(RUNS / run))
    assert one.finding.name == name
    assert words in one.finding.text


@pytest.mark.parametrize("run", ["blackjack", "doorkey", "mountaincar_pink", "swimmer"])
def test_a_run_that_learned_has_no_finding(run):
    assert findings(read_run(RUNS / run)) == []


def test_the_load_of_other_programs_is_not_a_slow_environment(tmp_path):
    assert findings(read_run(RUNS / "busy_machine")) == []
    for file in (RUNS / "busy_machine").iterdir():
        text = file.read_text().replace('"cores/', '"unused/')
        (tmp_path / file.name).write_text(text)
    (one,) = findings(read_run(tmp_path))
    assert one.finding.name == "environment-slow"


def test_an_evaluation_from_before_the_last_results_does_not_count(tmp_path):
    for file in (RUNS / "taxi_loops").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 900000, "seconds": 99.0}\n')
    assert findings(read_run(tmp_path)) == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"conv": "impala_deep"}, [[7, 9]]),
        ({"conv": "auto"}, []),
        ({"conv": "impala_shallow"}, []),
        ({"conv": "impala_deep", "torso": "file:Torso"}, []),
    ],
)
def test_images_are_small_for_many_convolutions(settings, found):
    images = {"map": Box(0, 255, (7, 9, 3), "uint8"), "view": Box(0, 255, (36, 20, 3), "uint8")}
    assert small_images(settings, Dict({**images, "x": Discrete(3)})) == found

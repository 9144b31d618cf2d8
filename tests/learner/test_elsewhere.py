"""Learner, memories, inference and checkpoints on a simulated accelerator.

See ``tests/elsewhere.py``. It needs a separate process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from warm import popen

RUNS = Path(__file__).with_name("elsewhere_runs.py")
CASES = ["ppo-lstm", "appo-dense", "impact-lstm", "impala-scene"]
OTHER_CASES = ["a2c-dense", "a2c-lstm", "ppo-dense", "ppo-gru", "impala-dense", "impala-lstm",
               "appo-lstm", "appo-images", "impact-dense"]  # fmt: skip
LEFT_BEHIND = ["replay", "returns", "target", "statistics", "image statistics"]


def errors_of(folder: Path, names: list[str]) -> dict[str, str | None]:
    """Return the failures of each case, from one program."""
    output, trouble = folder / "errors.json", folder / "stderr.txt"
    with output.open("wb") as out, trouble.open("wb") as err:
        program = popen([sys.executable, str(RUNS), *names], stdout=out, stderr=err)
        assert program.wait(100) == 0, trouble.read_text()
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    return errors_of(tmp_path_factory.mktemp("elsewhere"), ["rules", *CASES, *LEFT_BEHIND])


@pytest.mark.parametrize("case", CASES)
def test_learning_elsewhere_mixes_no_devices_and_is_that_of_the_processor(case, errors):
    assert errors[case] is None, errors[case]


@pytest.mark.slow
def test_so_it_does_with_each_algorithm_with_and_without_a_core(tmp_path):
    errors = errors_of(tmp_path, OTHER_CASES)
    assert not any(errors.values()), errors


@pytest.mark.parametrize("part", LEFT_BEHIND)
def test_a_part_that_stays_on_the_processor_is_refused(part, errors):
    assert errors[part] is None, errors[part]


def test_the_rules_are_those_of_cuda(errors):
    assert errors["rules"] is None, errors["rules"]

"""Learner, memories, inference and checkpoints on an accelerator, without one.

See ``tests/elsewhere.py``. It needs a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from warm import popen

RUNS = Path(__file__).with_name("elsewhere_runs.py")
CASES = [
    *(f"{algo}-{core}" for algo in ("a2c", "ppo", "impala", "appo", "impact")
      for core in ("dense", "lstm")),
    "ppo-gru",
    "impala-scene",
]  # fmt: skip
LEFT_BEHIND = ["replay", "returns", "target", "statistics"]


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    output, trouble = folder / "errors.json", folder / "stderr.txt"
    with output.open("wb") as out, trouble.open("wb") as err:
        program = popen(
            [sys.executable, str(RUNS), "rules", *CASES, *LEFT_BEHIND], stdout=out, stderr=err
        )
        assert program.wait(100) == 0, trouble.read_text()
    return json.loads(output.read_text())


@pytest.mark.parametrize("case", CASES)
def test_learning_elsewhere_mixes_no_devices_and_is_that_of_the_processor(case, errors):
    assert errors[case] is None, errors[case]


@pytest.mark.parametrize("part", LEFT_BEHIND)
def test_a_part_that_stays_on_the_processor_is_refused(part, errors):
    assert errors[part] is None, errors[part]


def test_the_rules_are_those_of_cuda(errors):
    assert errors["rules"] is None, errors["rules"]

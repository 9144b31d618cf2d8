"""No file of a run contains NaN or infinity, which aren't valid JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import headrace as hr
from headrace.rundir.atomic_files import write_json
from headrace.rundir.config_file import from_json
from headrace.rundir.files import RunLog, append_jsonl, read_jsonl
from tests.rundir.test_result import make_result


def strict(text: str):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} isn't valid JSON"))


def test_undefined_numbers_are_null(tmp_path):
    lines = [{"env_steps": 8, "losses/approx_kl": math.inf, "x": [math.nan, 1.0]}]
    append_jsonl(tmp_path / "lines.jsonl", lines)
    wanted = {"env_steps": 8, "losses/approx_kl": None, "x": [None, 1.0]}
    assert strict((tmp_path / "lines.jsonl").read_text()) == wanted
    assert read_jsonl(tmp_path / "lines.jsonl") == [wanted]
    write_json(tmp_path / "summary.json", {"evaluation": {"std": math.nan, "returns": (1, 2)}})
    found = strict((tmp_path / "summary.json").read_text())
    assert found == {"evaluation": {"std": None, "returns": [1, 2]}}


def test_a_result_with_an_infinite_divergence_is_written_and_drawn(tmp_path):
    result = make_result(env_steps=10, updates=1)
    log = RunLog(tmp_path, 0)
    log.result(replace(result, approx_kl=math.inf, episode_return=math.nan))
    log.close()
    line = strict((tmp_path / "metrics.jsonl").read_text())
    assert line["losses/approx_kl"] is None
    from headrace.rundir.plot import plot

    assert plot([tmp_path]).exists()


@pytest.mark.parametrize(
    "algo", [hr.IMPALA(c_bar=math.inf, rho_bar=math.inf), hr.A2C(max_grad_norm=math.inf)]
)
def test_infinite_settings_come_back_from_json(algo, tiny):
    config = tiny(algo=algo)
    text = json.dumps(config.to_json(), allow_nan=False)
    assert from_json(strict(text)) == config

"""``headrace doctor``."""

from __future__ import annotations

import json

from reporting.runs import write_run

from headrace.cli import main
from headrace.rundir.files import read_jsonl


def test_it_says_what_is_wrong_of_each_run(tmp_path, capsys):
    well, ill = write_run(tmp_path / "well"), write_run(tmp_path / "ill")
    lines = read_jsonl(ill / "metrics.jsonl")
    text = "\n".join(json.dumps(line | {"losses/approx_kl": 0.4}) for line in lines) + "\n"
    (ill / "metrics.jsonl").write_text(text)
    assert main(["doctor", str(well), str(ill)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"{well}: No problems found."
    assert second == f"{ill}:"
    assert third.startswith("  kl-high: the policy moves too far in an update: KL 0.4 nats")
    assert third.endswith("(after 40,000 steps)")
    assert main(["doctor", str(ill), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["name"], finding["env_steps"]) == ("kl-high", 40_000)
    assert not (ill / "warnings.jsonl").exists()  # a look changes nothing


def test_a_run_has_to_be_named(capsys):
    assert main(["doctor"]) == 2
    assert "doctor needs one or more run directories" in capsys.readouterr().err


def test_a_run_with_few_results_is_not_called_healthy(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert main(["doctor", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: too few results to examine (2 of 3)\n"


def test_a_run_too_short_to_judge_its_returns_is_not_called_healthy(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    lines = read_jsonl(run / "metrics.jsonl")

    def said_with(*returns: float) -> str:
        new = [{"charts/episodic_return": x, "charts/episodes": 100 + i, "charts/updates": 1}
               for i, x in enumerate(returns, 1)]  # fmt: skip
        text = "".join(f"{json.dumps(x | y)}\n" for x, y in zip(lines, new, strict=False))
        (run / "metrics.jsonl").write_text(text)
        assert main(["doctor", str(run)]) == 0
        return capsys.readouterr().out

    said = said_with(0.1, 0.7, -0.6, 1.1)
    assert said.startswith(f"{run}: No problems found, but the run is too short to judge")
    assert "4 of 8 results with a return" in said
    assert "of 500 optimiser steps" in said
    assert "104 of 200 episodes" in said
    assert said_with(0.1, 0.2, 0.7, 1.1) == f"{run}: No problems found.\n"


def test_what_is_no_run_is_one_sentence(tmp_path, capsys):
    assert main(["doctor", str(tmp_path)]) == 2
    assert "no metrics" in capsys.readouterr().err
    run = write_run(tmp_path / "run")
    (run / "warnings.jsonl").write_text('{"name": 1}\n')
    assert main(["doctor", str(run)]) == 2
    assert "warnings.jsonl can't be read" in capsys.readouterr().err

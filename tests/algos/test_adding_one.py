"""A new algorithm is one new file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import walks

import headrace as hr
from headrace.algos import ALGORITHMS, NAMES

REINFORCE = walks.files()["headrace/algos/reinforce.py"]
USE = """
import sys
import headrace as hr
assert "torch" not in sys.modules and {"REINFORCE", "PPO"} <= set(hr.__all__) & set(dir(hr))
from headrace.cli import main
from headrace.evaluating import run_end
run_end.plot = run_end._report = lambda *_: None  # which takes longer than to train
run = sys.argv[1]
flags = "--bonus 0.25 --transport serial --num-actors 2 --envs-per-actor 4 --fragment-length 8"
one = "--env-id CartPole-v1 --total-steps 64 --eval-episodes 0"
one += " --weight-sync adaptive --kl-threshold 0.0"
if __name__ == "__main__":
    assert main(["train", "reinforce", *flags.split(), *one.split(), "--run-dir", run]) == 0
    trainer = hr.Trainer(hr.Config(algo=hr.REINFORCE(), transport="serial", total_steps=64))
    list(trainer)
    assert trainer.updates == 1
    main(["train"])
    hr.resume(run, total_steps=128)
    print(type(hr.load(run)).__name__)
"""


def test_a_file_in_its_folder_is_a_command_a_public_name_and_a_setting_of_runs(tmp_path):
    shutil.copytree(Path(hr.__file__).parent, tmp_path / "headrace", symlinks=True)
    (tmp_path / "headrace/algos/reinforce.py").write_text(REINFORCE)
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "use.py", "run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Policy"
    assert "impala, ppo, reinforce (headrace train --help says more)" in done.stderr
    algo = json.loads((tmp_path / "run/config.json").read_text())["config"]["algo"]
    assert (algo["name"], algo["bonus"]) == ("reinforce", 0.25)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["sync"]["divergence"] is not None  # measured, though its loss knows of no drift


def test_every_algorithm_is_found_under_its_files_name_and_is_public():
    assert list(ALGORITHMS) == NAMES
    assert {"a2c", "a3c", "appo", "impact", "impala", "ppo"} == set(NAMES)
    for name, cls in ALGORITHMS.items():
        assert cls.__module__ == f"headrace.algos.{name}"
        assert getattr(hr, name.upper()) is cls
        assert name.upper() in hr.__all__

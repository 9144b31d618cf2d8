"""Compatibility of unmodified third-party environments with the command line.

    xvfb-run -a python benchmarks/environments.py --docs docs
    python benchmarks/environments.py --only MiniGrid,Fetch --again

Each environment of environments_cases.py is trained for a few thousand steps, evaluated, recorded
as a video, resumed and exported to ONNX, each in a separate process with a time limit. A step is
*ok*, gives a one-sentence error, or fails with a traceback, a timeout or a missing file. Install
the packages to test; others are skipped. Some environments draw with OpenGL and need a display,
such as ``xvfb-run``.

Results of the same command are kept, except failures with ``--again``. A few thousand steps show
that training works, not how well it learns.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tyro
from environments_cases import CASES, Case
from environments_report import Said, brief, cell, write_page

from headrace.rundir import checkpoint
from headrace.spaces.json import space_from_json
from headrace.studies.children import Children

HEADRACE = (sys.executable, "-m", "headrace")
EPISODES, MORE_STEPS = 2, 500


@dataclass(frozen=True)
class Settings:
    """Command-line arguments."""

    output: Path = Path("runs/environments")
    """Folder of runs, logs and results.json."""
    only: str = ""
    """Comma-separated prefixes or parts of ids; empty: all."""
    again: bool = False
    """Repeat failures."""
    timeout_s: float = 300.0
    """Time limit of each of the five steps in seconds."""
    docs: Path | None = None
    """Folder whose environments.md is updated with the table."""


class Trial:
    """Tests one environment in five steps."""

    def __init__(self, case: Case, folder: Path, timeout_s: float, children: Children) -> None:
        self._case, self._folder, self._timeout_s = case, folder, timeout_s
        self._children, self._run = children, folder / "run"
        folder.mkdir(parents=True, exist_ok=True)

    def train(self) -> Said:
        return self._command("train", *train_flags(self._case), "--overwrite", run_last=True)

    def evaluate(self) -> Said:
        said = self._command("evaluate", "--episodes", str(EPISODES), "--json")
        if said["ok"]:
            said["said"] = f"{json.loads(self._last_line('evaluate', '{'))['mean']:.4g}"
        return said

    def video(self) -> Said:
        folder = self._folder / "video"
        for old in folder.glob("episode.*"):
            old.unlink()
        said = self._command("evaluate", "--episodes", "1", "--video", str(folder), log="video")
        return _needs(said, folder, "episode.*")

    def resume(self) -> Said:
        before = _latest(self._run)
        total = int(before.removeprefix("step_")) + MORE_STEPS
        said = self._command("resume", "--total-steps", str(total))
        if said["ok"] and _latest(self._run) == before:
            said = {"ok": False, "failed": "no new checkpoint"}
        return said

    def onnx(self) -> Said:
        log = self._folder / "onnx.log"
        request = {"run": str(self._run), "path": str(self._folder / "policy.onnx")}
        try:
            said = self._children.call(export, request, self._timeout_s, log)
        except RuntimeError as error:
            return {"ok": False, "failed": str(error).splitlines()[-1]}
        return {"ok": "said" not in said, **said}

    def _command(self, name: str, *flags: str, log: str = "", run_last: bool = False) -> Said:
        """Run a subcommand of headrace."""
        output, run = self._folder / f"{log or name}.log", str(self._run)
        words = [*flags, "--run-dir", run] if run_last else [run, *flags]
        ended = self._children.run([*HEADRACE, name, *words], output, self._timeout_s, 20.0)
        text = output.read_text(encoding="utf-8", errors="replace")
        if ended.timed_out:
            return {"ok": False, "failed": f"took more than {self._timeout_s:.0f} s"}
        if ended.code == 0 and "Traceback" not in text:
            return {"ok": True, "said": ""}
        sentences = [line for line in text.splitlines() if line.startswith("headrace: ")]
        if sentences and "Traceback" not in text:
            return {"ok": False, "said": sentences[-1].removeprefix("headrace: ")}
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        return {"ok": False, "failed": f"code {ended.code}: {last}"}

    def _last_line(self, log: str, start: str) -> str:
        lines = (self._folder / f"{log}.log").read_text(encoding="utf-8").splitlines()
        return next(line for line in reversed(lines) if line.startswith(start))


STEPS: dict[str, Callable[[Trial], Said]] = {
    "train": Trial.train,
    "evaluate": Trial.evaluate,
    "video": Trial.video,
    "resume": Trial.resume,
    "onnx": Trial.onnx,
}


def train_flags(case: Case) -> list[str]:
    """Return the arguments after ``headrace train``, without the directory."""
    sizes = ["--total-steps", str(case.steps), "--eval-episodes", "0"]
    return ["appo", "--env-id", case.env_id, *shlex.split(case.flags), *sizes]


def command_of(case: Case) -> str:
    """Return the shell command, without the directory."""
    return shlex.join(["headrace", "train", *train_flags(case)])


def export(request: dict[str, str]) -> Said:
    """Export a run's policy to ONNX and compare its actions with those of the policy."""
    import numpy as np
    import onnxruntime
    from gymnasium.vector.utils import batch_space

    import headrace as hr
    from headrace.errors import HeadraceError
    from headrace.nn.onnx import named
    from headrace.ops import tree

    policy = hr.load(request["run"])
    try:
        path = policy.export_onnx(request["path"])
    except HeadraceError as error:
        return {"said": str(error)}
    session = onnxruntime.InferenceSession(path)
    space = batch_space(policy.observation_space, 3)
    space.seed(0)
    obs = space.sample()
    features = {k: v for k, v in obs.items() if k != "action_mask"} if _masked(policy) else obs
    feed = {name: np.asarray(value) for name, value in named({"obs": features}).items()}
    kinds = {"tensor(bool)": np.bool_, "tensor(float)": np.float32, "tensor(int64)": np.int64}
    for wanted in session.get_inputs():
        if wanted.name not in feed:
            shape = (3, *wanted.shape[1:])
            feed[wanted.name] = np.ones(shape, kinds.get(wanted.type, np.float32))
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feed), strict=True))
    action, _ = policy.predict(obs, None, np.ones(3, bool), **_additions(policy))
    for name, value in named({"action": tree.map_leaves(np.asarray, action)}).items():
        if not np.allclose(outputs[name], value, rtol=1e-3, atol=1e-3):
            return {"failed": f"{name} differs by {np.abs(outputs[name] - value).max():.3g}"}
    return {}


def _masked(policy: Any) -> bool:
    return bool(policy.inputs.mask == "observation")


def _additions(policy: Any) -> dict[str, Any]:
    import numpy as np

    given: dict[str, Any] = {}
    if policy.inputs.mask == "info":
        given["action_mask"] = np.ones((3, policy.distribution.num_mask), bool)
    if policy.inputs.previous:
        given["reward"] = np.zeros(3)
    return given


def _needs(said: Said, folder: Path, pattern: str) -> Said:
    found = [path.name for path in folder.glob(pattern) if path.stat().st_size]
    if said["ok"] and not found:
        return {"ok": False, "failed": f"no {pattern} was written"}
    return said


def _latest(run: Path) -> str:
    return checkpoint.find(run).resolve().name


def _package_version(case: Case) -> str | None:
    try:
        return version(case.package.partition("[")[0])
    except PackageNotFoundError:
        return None


def try_case(case: Case, settings: Settings, children: Children, old: Said) -> Iterator[Said]:
    """Yield the record of one environment after each of its steps.

    Steps in ``old`` that are still valid are kept.
    """
    record: Said = {"package": case.package, "version": _package_version(case)}
    record["command"], steps = command_of(case), dict[str, Said]()
    record["steps"] = steps
    kept = old.get("steps", {}) if old.get("command") == record["command"] else {}
    folder = settings.output / case.env_id.rpartition(":")[2].replace("/", "_")
    trial = Trial(case, folder, settings.timeout_s, children)
    for name, run in STEPS.items():
        known = kept.get(name)
        if known and not (settings.again and "failed" in known):
            steps[name] = known
        else:
            steps[name] = run(trial)
            print(f"{case.env_id} {name}: {cell(steps[name])}", flush=True)
            kept = {} if name == "train" else kept  # only valid for this run
        if name == "train" and steps[name]["ok"]:
            values = checkpoint.read_config(checkpoint.find(folder / "run"))
            for kind in ("observation_space", "action_space"):
                record[kind] = brief(space_from_json(values[kind]))
        yield record
        if not steps["train"]["ok"]:
            return


def main(settings: Settings) -> int:
    """Run missing cases one after the other. Return 1 if something failed."""
    settings.output.mkdir(parents=True, exist_ok=True)
    path, children = settings.output / "results.json", Children()
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    commands = {case.env_id: command_of(case) for case in CASES}
    results = {name: r for name, r in known.items() if r["command"] == commands.get(name)}
    wanted = [word for word in settings.only.split(",") if word]
    for case in CASES:
        if wanted and not any(word in case.env_id for word in wanted):
            continue
        if _package_version(case) is None:
            print(f"{case.env_id} is skipped: pip install '{case.package}'")
            continue
        for record in try_case(case, settings, children, results.get(case.env_id, {})):
            results[case.env_id] = record
            path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if settings.docs is not None:
        write_page(settings.docs, results, list(STEPS))
    failed = [name for name, record in results.items() if _failed(record)]
    print(f"{len(results)} environments, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return bool(failed)


def _failed(record: Said) -> bool:
    return any("failed" in said for said in record["steps"].values())


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Settings)))

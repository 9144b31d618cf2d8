"""Run directories and atomic checkpoints.

    runs/x/config.json              resolved settings and the two spaces
    runs/x/metrics.jsonl            a line per result; TensorBoard events beside it
    runs/x/summary.json             at the end of a run
    runs/x/checkpoints/step_<n>/    policy.safetensors, trainer.pt, config.json
    runs/x/checkpoints/{latest,best}  links to two of them

A checkpoint is written to a temporary name, flushed to disk and renamed, so that at any instant
``latest`` points to a whole one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from headrace.errors import CheckpointError
from headrace.nn.network import Network, network_from_json
from headrace.nn.policy import Policy
from headrace.spaces.json import space_from_json

FORMAT = 3


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` atomically."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    _sync(temporary)
    os.replace(temporary, path)


def save(run_dir: Path, config: dict[str, Any], policy: Policy, trainer: dict[str, Any]) -> Path:
    """Write ``checkpoints/step_<n>`` and point ``latest`` to it; returns its path.

    Args:
        config: what ``config.json`` holds. trainer: state with an ``env_steps`` entry.
    """
    target = run_dir / "checkpoints" / f"step_{trainer['env_steps']}"
    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    weights = {name: value.detach().cpu().clone() for name, value in policy.state_dict().items()}
    save_file(weights, temporary / "policy.safetensors")
    torch.save({"format": FORMAT, **trainer}, temporary / "trainer.pt")
    write_json(temporary / "config.json", config)
    for path in (*temporary.iterdir(), temporary):
        _sync(path)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(temporary, target)
    _sync(target.parent)
    point("latest", target)
    return target


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(name: str, target: Path) -> None:
    """Make the link ``name`` beside ``target`` point to it, atomically."""
    temporary = target.parent / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.name)
    os.replace(temporary, target.parent / name)


def rotate(run_dir: Path, keep: int) -> None:
    """Delete all but the ``keep`` latest checkpoints and those that are linked to."""
    folder = run_dir / "checkpoints"
    linked = {(folder / name).resolve() for name in ("latest", "best")}
    steps = [p for p in folder.glob("step_*") if p.suffix != ".tmp"]
    for path in sorted(steps, key=lambda p: int(p.name[5:]))[:-keep]:
        if path.resolve() not in linked:
            shutil.rmtree(path)


def find(path: str | Path, which: str = "latest") -> Path:
    """The checkpoint folder of a run directory, or ``path`` itself if it is one.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if (path / "policy.safetensors").exists():
        return path
    found = path / "checkpoints" / which
    if not (found / "policy.safetensors").exists():
        reason = "does not exist" if not path.exists() else f"holds no {which} checkpoint"
        raise CheckpointError(f"run directory {path} {reason}")
    return found.resolve()


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint folder.

    Raises:
        CheckpointError: it is missing, unreadable or not headrace's.
    """
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {values['format']}, this version reads {FORMAT}"
            )
        network_from_json(values["config"]["network"])
        bool(values["info_mask"])
        for name in ("observation_space", "action_space"):
            space_from_json(values[name])
        return dict(values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder}/config.json is corrupt or not headrace's: {error!r}"
        ) from error


def load_policy(folder: Path, network: Network | None = None) -> Policy:
    """The policy of a checkpoint folder, on the CPU, in evaluation mode.

    Args:
        network: what it was trained with; None: as written in its ``config.json``.

    Raises:
        CheckpointError: a file is missing, corrupt or of another network.
        ConfigError: its own torso can't be imported.
    """
    values = read_config(folder)
    saved = values["config"]["network"]
    if network is None:
        network = network_from_json(saved)
    else:  # what the run's scale_free decided
        names = ("normalize_observations", "normalize_values")
        left = [name for name in names if getattr(network, name) is None]
        network = replace(network, **{name: saved.get(name) for name in left})
    policy = Policy(
        space_from_json(values["observation_space"]),
        space_from_json(values["action_space"]),
        network,
        values["info_mask"],
    )
    load_weights(folder, policy)
    return policy.eval()


def load_weights(folder: Path, policy: Policy) -> None:
    """Copy a checkpoint's weights into ``policy``, in place.

    Raises:
        CheckpointError: the file is missing, corrupt or of another network.
    """
    file = folder / "policy.safetensors"
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is corrupt: {error}") from error
    ours = {name: list(value.shape) for name, value in policy.state_dict().items()}
    theirs = {name: list(value.shape) for name, value in weights.items()}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise CheckpointError(
                f"{file} belongs to another network: its {name} is {theirs.get(name, 'missing')}, "
                f"this run's is {ours.get(name, 'missing')}"
            )
    policy.load_state_dict(weights)


def load_trainer(folder: Path) -> dict[str, Any]:
    """``trainer.pt`` of a checkpoint folder; only tensors and plain values are read.

    Raises:
        CheckpointError: it is missing or corrupt.
    """
    file = folder / "trainer.pt"
    try:
        return dict(torch.load(file, weights_only=True, map_location="cpu"))
    except Exception as error:
        raise CheckpointError(f"{file} is corrupt or not headrace's: {error}") from error


def prepare(run_dir: Path, resume: bool, overwrite: bool) -> None:
    """Create a run directory, refusing to mix two runs.

    Raises:
        CheckpointError: it holds something already and neither resume nor overwrite was asked for,
            or there is nothing to resume.
    """
    if resume:
        find(run_dir)
    elif run_dir.exists() and any(run_dir.iterdir()):
        if not overwrite:
            raise CheckpointError(
                f"run_dir={str(run_dir)!r} exists already: continue it with --resume, replace it "
                "with --overwrite, or choose another"
            )
        if not ((run_dir / "config.json").exists() or (run_dir / "checkpoints").exists()):
            raise CheckpointError(
                f"run_dir={str(run_dir)!r} is not a run directory, so --overwrite won't delete it"
            )
        shutil.rmtree(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)


def default_run_dir(env_name: str, algo_name: str) -> Path:
    """``runs/<environment>-<algorithm>-<time>``."""
    name = env_name.replace("/", "-").replace(":", "-")
    return Path("runs") / f"{name}-{algo_name}-{time.strftime('%Y%m%d-%H%M%S')}"

"""Writes checkpoints and policies atomically; ``checkpoint.py`` describes their files.

A checkpoint is written to a temporary name, flushed to disk and renamed; then ``latest`` is
replaced. If the process dies at any time, this checkpoint or the previous one is whole and found,
and the next checkpoint deletes leftover temporary files. A second checkpoint of the same step is
``step_<n>-2``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from headrace.errors import CheckpointError
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import safe_files
from headrace.rundir import checksums
from headrace.rundir.atomic_files import (
    checkpoint_errors,
    json_text,
    remove_folder,
    replace_text,
    write_hashed,
)
from headrace.rundir.folders import Files, absolute, pointed, saved, write

FORMAT = 3


def save(run_dir: Path, config: dict[str, Any], policy: AnyPolicy, trainer: dict[str, Any]) -> Path:
    """Write ``checkpoints/step_<n>``, point ``latest`` to it and return its path.

    Args:
        config: contents of ``config.json``.
        policy: policy to save.
        trainer: training state with an ``env_steps`` entry.

    Raises:
        CheckpointError: the checkpoint can't be written; earlier ones are unchanged.
    """
    state = {"format": FORMAT, **trainer}
    files = policy_files(config, policy) | {"trainer.pt": lambda file: torch.save(state, file)}
    target = write(run_dir / "checkpoints", f"step_{trainer['env_steps']}", files)
    point("latest", target)
    return target


def save_policy(
    run_dir: Path, config: dict[str, Any], policy: AnyPolicy, env_steps: int, name: str = "best"
) -> Path:
    """Write the policy alone as ``checkpoints/<name>_<n>`` and point ``name`` to it.

    Earlier ones of that name are deleted. See :func:`save` for arguments and errors.
    """
    folder = run_dir / "checkpoints"
    target = write(folder, f"{name}_{env_steps}", policy_files(config, policy))
    point(name, target)
    with checkpoint_errors(folder):
        for path in saved(folder, name):
            if path != target:
                remove_folder(path, run_dir)
    return target


def policy_files(config: dict[str, Any], policy: AnyPolicy) -> Files:
    """Return the files of a saved policy; ``config`` is the contents of ``config.json``."""
    weights = {name: value.detach().cpu().clone() for name, value in policy.state_dict().items()}
    return {
        "config.json": lambda file: file.write(json_text(config).encode()),
        "policy.safetensors": lambda file: file.write(safetensors.torch.save(weights)),
    }


def make_savable(policy: AnyPolicy, config: dict[str, Any]) -> None:
    """Enable ``policy.save``, which writes a folder that :func:`load_policy` reads.

    Args:
        config: the contents of ``config.json``.
    """
    policy.saver = functools.partial(export, config)


def export(config: dict[str, Any], policy: AnyPolicy, path: Path) -> Path:
    """Write the policy alone to a folder, replacing a policy saved there before.

    Raises:
        CheckpointError: the path contains something else, or can't be written.
    """
    path, ours = path.expanduser(), {*checksums.POLICY_FILES, checksums.NAME}
    with checkpoint_errors(path):
        if path.exists() and (not path.is_dir() or {x.name for x in path.iterdir()} - ours):
            raise CheckpointError(f"{path} exists and is not a saved policy: choose another path")
        path.mkdir(parents=True, exist_ok=True)
        hashes = {}
        for name, write_it in policy_files(config, policy).items():
            hashes[name] = write_hashed(path / f"{name}.tmp", write_it)
            safe_files.replace(path / f"{name}.tmp", path / name)
        replace_text(path / checksums.NAME, checksums.text(hashes))
    return path


def point(name: str, target: Path) -> None:
    """Point ``name`` in the folder of ``target`` to it, atomically.

    Raises:
        CheckpointError: the disk can't be written.
    """
    pointer, root = target.parent / name, checksums.root_of(target)
    with checkpoint_errors(pointer):
        if safe_files.is_folder(pointer, root):
            remove_folder(pointer, root)  # made by a copy that followed links
        replace_text(pointer, target.name + "\n", root)


def rotate(run_dir: Path, keep: int) -> None:
    """Delete old checkpoints: keep the ``keep`` latest, one per step, and those pointed to.

    Raises:
        CheckpointError: the disk can't be written.
    """
    folder = run_dir / "checkpoints"
    with checkpoint_errors(folder, "cleared of old checkpoints"):
        every = saved(folder)
        by_step = {path.name.partition("-")[0]: path for path in every}  # the newest of each
        retained = {absolute(path) for path in list(by_step.values())[-keep:]}
        retained |= {path for name in ("latest", "best") if (path := pointed(folder, name))}
        for path in every:
            if absolute(path) not in retained:
                remove_folder(path, run_dir)

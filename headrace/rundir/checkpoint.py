"""Atomic checkpoints.

    runs/x/checkpoints/step_<n>/      policy.safetensors, trainer.pt, config.json, SHA256SUMS
    runs/x/checkpoints/best_<n>/      the same without trainer.pt: nothing goes on from it
    runs/x/checkpoints/rival_0/       likewise, of an exploiter: a copy of what it plays
    runs/x/checkpoints/{latest,best}  files that hold the name of one of them

A checkpoint is written to a temporary name, flushed to disk and renamed; then ``latest`` is
replaced. So whenever a process dies, the checkpoint before or this one is whole and found, and
what it left under a temporary name goes with the next one. A second checkpoint of the same step
is ``step_<n>-2``.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from headrace.errors import CheckpointError, shown
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.network import LEFT_TO_THE_RUN, Network, network_from_json
from headrace.nn.policy import Policy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.rundir import checksums, import_allowlist, resolve_imports
from headrace.rundir.atomic_files import json_text, remove_folder, replace_text, told, write_hashed
from headrace.rundir.folders import Files, newest_whole, pointed, saved, write
from headrace.spaces.json import space_from_json
from headrace.spaces.unified_spaces import Spaces

FORMAT = 3


def save(run_dir: Path, config: dict[str, Any], policy: AnyPolicy, trainer: dict[str, Any]) -> Path:
    """Write ``checkpoints/step_<n>`` and point ``latest`` to it; returns its path.

    Args:
        config: what ``config.json`` holds. trainer: state with an ``env_steps`` entry.

    Raises:
        CheckpointError: the disk refuses; what was saved before is as it was.
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

    Earlier ones of that name are deleted. Arguments and errors as for :func:`save`.
    """
    folder = run_dir / "checkpoints"
    target = write(folder, f"{name}_{env_steps}", policy_files(config, policy))
    point(name, target)
    with told(folder):
        for path in saved(folder, name):
            if path != target:
                remove_folder(path)
    return target


def policy_files(config: dict[str, Any], policy: AnyPolicy) -> Files:
    """What a folder that holds a policy consists of; ``config`` is what ``config.json`` holds."""
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
    """Write the policy alone to a folder, replacing a policy that was saved there before.

    Raises:
        CheckpointError: the path holds something else, or can't be written.
    """
    ours = {*checksums.POLICY_FILES, checksums.NAME}
    with told(path):
        if path.exists() and (not path.is_dir() or {x.name for x in path.iterdir()} - ours):
            raise CheckpointError(f"{path} exists and isn't a saved policy: choose another path")
        path.mkdir(parents=True, exist_ok=True)
        hashes = {}
        for name, write_it in policy_files(config, policy).items():
            hashes[name] = write_hashed(path / f"{name}.tmp", write_it)
            os.replace(path / f"{name}.tmp", path / name)
        replace_text(path / checksums.NAME, checksums.text(hashes))
    return path


def point(name: str, target: Path) -> None:
    """Make ``name`` beside ``target`` stand for it, atomically.

    Raises:
        CheckpointError: the disk refuses.
    """
    pointer = target.parent / name
    with told(pointer):
        if pointer.is_dir() and not pointer.is_symlink():
            remove_folder(pointer)  # where links were followed by what copied the run
        replace_text(pointer, target.name + "\n")


def rotate(run_dir: Path, keep: int) -> None:
    """Delete all but the ``keep`` latest checkpoints, one of a step, and those pointed to.

    Raises:
        CheckpointError: the disk refuses.
    """
    folder = run_dir / "checkpoints"
    with told(folder, "cleared of old checkpoints"):
        every = saved(folder)
        by_step = {path.name.partition("-")[0]: path for path in every}  # the newest of each
        kept = {path.resolve() for path in list(by_step.values())[-keep:]}
        kept |= {path for name in ("latest", "best") if (path := pointed(folder, name))}
        for path in every:
            if path.resolve() not in kept:
                remove_folder(path)


def exists(run_dir: Path) -> bool:
    """Whether a run directory holds a checkpoint to go on from."""
    folder = run_dir / "checkpoints"
    return pointed(folder, "latest") is not None or newest_whole(folder) is not None


def find(path: str | Path, which: str = "latest") -> Path:
    """The checkpoint folder of a run directory, or ``path`` itself if it is one.

    Where ``latest`` or ``best`` is missing or stands for nothing, the newest whole checkpoint of
    its kind takes its place, with a warning.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if not os.path.exists(path):  # nor what can be no path, as it is too long
        raise CheckpointError(f"run directory {shown(str(path))} does not exist")
    if (path / "policy.safetensors").exists():
        return path
    if path.is_file() and path.parent.name == "checkpoints":
        path, which = path.parent.parent, path.name
    folder = path / "checkpoints"
    found = pointed(folder, which)
    if found is not None:
        return found
    newest = newest_whole(folder, "step" if which == "latest" else which)
    if newest is None:
        raise CheckpointError(f"run directory {path} holds no {which[:60]} checkpoint")
    warnings.warn(
        f"{folder / which} names no checkpoint that is there: the newest whole one is taken, "
        f"{newest.name}",
        stacklevel=2,
    )
    return newest.resolve()


def _corrupt(file: Path, reason: object) -> CheckpointError:
    """What is said of a file that can't be read, and which checkpoint to take instead."""
    folder = file.parent
    whole = newest_whole(folder.parent, beside=folder)
    remedy = "no checkpoint beside it is whole"
    if whole is not None:
        remedy = f"{whole.name} beside it is whole: load that, or delete {folder.name} to go on "
        remedy += "from there"
    return CheckpointError(f"{file} is corrupt or not headrace's ({reason}); {remedy}")


def _verify(folder: Path, *names: str) -> None:
    if fault := checksums.fault(folder, *names):
        raise _corrupt(*fault)


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint folder.

    Raises:
        CheckpointError: it is missing, unreadable or not headrace's.
    """
    _verify(folder, "config.json")
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {values['format']}, this version reads {FORMAT}"
            )
        network_from_json(values["config"]["network"])
        bool(values["info_mask"])
        roster_in(values)
        _own_spaces_in(values, "agent"), _own_spaces_in(values, "task")
        for name in ("observation_space", "action_space"):
            space_from_json(values[name])
        return dict(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(folder / "config.json", repr(error)) from error


def roster_in(values: dict[str, Any]) -> PolicyMapping | None:
    """Who plays whom, by a ``config.json``; None: there is one policy."""
    return PolicyMapping.from_json(values["policies"]) if values.get("policies") else None


def _own_spaces_in(values: dict[str, Any], kind: str) -> tuple[Spaces, ...]:
    """The spaces of each agent, where they differ, or of each task."""
    each = values.get(f"{kind}_spaces", ())
    return tuple((space_from_json(observed), space_from_json(acted)) for observed, acted in each)


def load_one(folder: Path, network: Network | None = None, trusted: bool = False) -> Policy:
    """The only policy of a checkpoint folder; arguments and errors as for :func:`load_policy`.

    Raises:
        CheckpointError: there are several.
    """
    check_one(folder, read_config(folder))
    policy = load_policy(folder, network, trusted)
    assert isinstance(policy, Policy)
    return policy


def check_one(folder: Path, values: dict[str, Any]) -> None:
    """Raise CheckpointError where a folder with this ``config.json`` holds several policies."""
    if (who := roster_in(values)) is not None:
        raise CheckpointError(
            f"{folder} holds several policies ({', '.join(who.policies)}), and only a checkpoint "
            "of one will do here"
        )


def load_policy(folder: Path, network: Network | None = None, trusted: bool = False) -> AnyPolicy:
    """The policy of a checkpoint folder, on the CPU, in evaluation mode; of several the team.

    Args:
        network: what it was trained with; None: as written in its ``config.json``.
        trusted: import an own torso that it names, whoever wrote it.

    Raises:
        CheckpointError: a file is missing, corrupt or of another network, or names an own torso
            and isn't this user's.
        ConfigError: its own torso can't be imported.
    """
    values = read_config(folder)
    written = values["config"]["network"]
    if network is None:
        import_allowlist.check(folder, values, trusted, ("torso",))
        network = network_from_json(resolve_imports.network(values["config"]))
    else:  # what the run decided
        left = [name for name in LEFT_TO_THE_RUN if getattr(network, name) is None]
        network = replace(network, **{name: written.get(name) for name in left})
    observed, acted = (
        space_from_json(values[f"{kind}_space"]) for kind in ("observation", "action")
    )
    made, who = (observed, acted, network, values["info_mask"]), roster_in(values)
    policy = (
        Policy(*made)
        if who is None
        else MultiPolicy.of(who, *made, _own_spaces_in(values, "agent"))
    )
    if isinstance(policy, Policy):
        named = values["config"].get("tasks") or ()
        policy.tasks = tuple(name.rpartition(":")[2] for name in named)
        policy.task_spaces = _own_spaces_in(values, "task")
    load_weights(folder, policy)
    make_savable(policy, values)
    return policy.eval()


def load_weights(folder: Path, policy: AnyPolicy) -> None:
    """Copy a checkpoint's weights into ``policy``, in place.

    Raises:
        CheckpointError: the file is missing, corrupt or of another network.
    """
    file = folder / "policy.safetensors"
    _verify(folder, "policy.safetensors")
    try:
        weights = safetensors.torch.load_file(file)
    except (OSError, SafetensorError) as error:
        raise _corrupt(file, error) from error
    ours = {name: list(value.shape) for name, value in policy.state_dict().items()}
    theirs = {name: list(value.shape) for name, value in weights.items()}
    recurrent = policy.network.core is not None
    if recurrent and any(name.startswith("torso.join.") for name in theirs):
        raise CheckpointError(
            f"{file} was written by an older version, whose recurrent policies of several inputs "
            "had a layer that joined them before the core: train it anew"
        )
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise CheckpointError(
                f"{file} belongs to another network: its {name} is {theirs.get(name, 'missing')}, "
                f"this run's is {ours.get(name, 'missing')}"
            )
    policy.load_state_dict(weights)


def env_changes(folder: Path) -> list[str]:
    """Changes that callbacks made to the environments, as JSON; none for a policy saved alone.

    Raises:
        CheckpointError: the training state is missing or corrupt.
    """
    if not (folder / "trainer.pt").exists():
        return []
    return list(load_trainer(folder).get("env_changes", []))


def load_trainer(folder: Path) -> dict[str, Any]:
    """``trainer.pt`` of a checkpoint folder; only tensors and plain values are read.

    Raises:
        CheckpointError: it is missing or corrupt.
    """
    file = folder / "trainer.pt"
    _verify(folder, "trainer.pt")
    try:
        return dict(torch.load(file, weights_only=True, map_location="cpu"))
    except Exception as error:
        raise _corrupt(file, str(error).partition("\n")[0]) from error

"""Finds checkpoints in a run directory and loads them; ``checkpoint_writer.py`` writes them.

runs/x/checkpoints/step_<n>/      policy.safetensors, trainer.pt, config.json, SHA256SUMS
runs/x/checkpoints/best_<n>/      the same without trainer.pt: can't be resumed
runs/x/checkpoints/rival_0/       likewise, in an exploiter's run: a copy of its opponent
runs/x/checkpoints/{latest,best}  files that contain the name of one of them
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import safetensors.torch
from safetensors import SafetensorError

from headrace.envs.changes import EnvChange
from headrace.errors import CheckpointError, HeadraceError, setting, shown
from headrace.nn.encoder import least_bytes
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.network import LEFT_TO_THE_RUN, Network
from headrace.nn.policy import Policy
from headrace.nn.policy_mapping import PolicyMapping
from headrace.processes import safe_files
from headrace.rundir import checksums, import_allowlist, resolve_imports, training_state
from headrace.rundir.atomic_files import (
    FOREIGN,
)
from headrace.rundir.checkpoint_writer import FORMAT, make_savable
from headrace.rundir.folders import (
    absolute,
    nested_runs,
    newest_whole,
    pointed,
)
from headrace.spaces.json import space_from_json
from headrace.spaces.unified_spaces import Spaces

_LARGE = 1 << 26  # bytes of weights; smaller networks aren't checked before they are built


def exists(run_dir: Path) -> bool:
    """Return True if a run directory has a checkpoint to resume from."""
    folder = run_dir / "checkpoints"
    return pointed(folder, "latest") is not None or newest_whole(folder) is not None


def find(path: str | Path, which: str = "latest") -> Path:
    """Return the checkpoint folder of a run directory, or ``path`` itself if it is one.

    If ``latest`` or ``best`` is missing or points to nothing, warns and returns the newest whole
    checkpoint of its kind.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    path = Path(path).expanduser()
    if not os.path.exists(path):  # also False for names that are too long
        raise CheckpointError(f"run directory {shown(str(path))} does not exist")
    if os.path.exists(path / "policy.safetensors"):
        return path
    if os.path.isfile(path) and path.parent.name == "checkpoints":
        path, which = path.parent.parent, path.name
    folder = path / "checkpoints"
    target = pointed(folder, which)
    if target is not None:
        return target
    newest = newest_whole(folder, "step" if which == "latest" else which)
    if newest is None:
        is_run = os.path.exists(path / "config.json")
        if not is_run and (hint := nested_runs(path)):
            raise CheckpointError(f"{path} is not a run directory{hint}")
        missing = f"{which[:60]} checkpoint" if which != "latest" else _first_checkpoint(path)
        raise CheckpointError(f"run directory {path} has no {missing}")
    warnings.warn(
        f"{folder / which} names no existing checkpoint: using the newest whole one, {newest.name}",
        stacklevel=2,
    )
    return absolute(newest)


def _first_checkpoint(run_dir: Path) -> str:
    """Describe when a run saves its first checkpoint, as part of a message."""
    try:
        config = safe_files.read_json(run_dir / "config.json")["config"]
        steps, seconds = int(config["checkpoint_interval"]), float(config["checkpoint_interval_s"])
        interval = f"{steps:,} steps (checkpoint_interval) or {seconds:g} s (checkpoint_interval_s)"
    except (OSError, ValueError, KeyError, TypeError):
        interval = "checkpoint_interval steps"
    return (
        f"checkpoint yet: a run saves one every {interval} and when it stops; to start this run "
        f"again, use {setting('overwrite')}"
    )


def _corrupt(file: Path, reason: object) -> CheckpointError:
    """Build the error for an unreadable file, with the checkpoint to use instead."""
    folder = file.parent
    whole = newest_whole(folder.parent, beside=folder)
    remedy = "no other checkpoint of this run is whole"
    if whole is not None:
        remedy = f"{whole.name} is whole: load that, or delete {folder.name} to resume from it"
    return CheckpointError(f"{file} is corrupt or not from headrace ({reason}); {remedy}")


def _verify(folder: Path, *names: str) -> None:
    if fault := checksums.fault(folder, *names):
        raise _corrupt(*fault)


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        CheckpointError: it is missing, unreadable or not from headrace.
    """
    _verify(folder, "config.json")
    try:
        values = safe_files.read_json(folder / "config.json", checksums.root_of(folder))
        if values["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {values['format']}, this version reads {FORMAT}"
            )
        network = Network(**values["config"]["network"])
        bool(values["info_mask"])
        mapping_in(values)
        _own_spaces_in(values, "agent"), _own_spaces_in(values, "task")
        list(map(EnvChange.from_json, values.get("env_changes", ())))
        space_from_json(values["action_space"])
        _check_size(folder, network, space_from_json(values["observation_space"]))
        return dict(values)
    except FOREIGN as error:
        raise _corrupt(folder / "config.json", shown(error)) from error


def mapping_in(values: dict[str, Any]) -> PolicyMapping | None:
    """Return the policy mapping of a ``config.json``; None for a single policy."""
    return PolicyMapping.from_json(values["policies"]) if values.get("policies") else None


def _own_spaces_in(values: dict[str, Any], kind: str) -> tuple[Spaces, ...]:
    """Return the spaces of each agent, if they differ, or of each task."""
    each = values.get(f"{kind}_spaces", ())
    return tuple((space_from_json(observed), space_from_json(acted)) for observed, acted in each)


def load_one(folder: Path, network: Network | None = None, trusted: bool = False) -> Policy:
    """Load the only policy of a checkpoint folder; see :func:`load_policy`.

    Raises:
        CheckpointError: there are several policies.
    """
    check_one(folder, read_config(folder))
    policy = load_policy(folder, network, trusted)
    assert isinstance(policy, Policy)
    return policy


def check_one(folder: Path, values: dict[str, Any]) -> None:
    """Raise CheckpointError if a folder with this ``config.json`` has several policies."""
    if (mapping := mapping_in(values)) is not None:
        raise CheckpointError(
            f"{folder} has several policies ({', '.join(mapping.policies)}), but a checkpoint with "
            "a single policy is needed here"
        )


def load_policy(folder: Path, network: Network | None = None, trusted: bool = False) -> AnyPolicy:
    """Load the policy, or MultiPolicy, of a checkpoint folder on the CPU, in evaluation mode.

    Args:
        network: network that it was trained with; None: read from its ``config.json``.
        trusted: import a custom torso even if another user wrote the checkpoint.

    Raises:
        CheckpointError: a file is missing, corrupt or from another network, or names a custom
            torso and is not trusted.
        ConfigError: its custom torso can't be imported.
    """
    values = read_config(folder)
    written = values["config"]["network"]
    if network is None:
        import_allowlist.check(folder, values, trusted, ("torso",))
        network = Network(**resolve_imports.network(values["config"]))
    else:  # take over settings that the run decided
        unset = [name for name in LEFT_TO_THE_RUN if getattr(network, name) is None]
        network = replace(network, **{name: written.get(name) for name in unset})
    observed, acted = (
        space_from_json(values[f"{kind}_space"]) for kind in ("observation", "action")
    )
    made, mapping = (observed, acted, network, values["info_mask"]), mapping_in(values)
    try:
        policy = (
            Policy(*made)
            if mapping is None
            else MultiPolicy.of(mapping, *made, _own_spaces_in(values, "agent"))
        )
    except HeadraceError:
        raise
    except (*FOREIGN, RuntimeError) as error:  # for example, too large for the memory
        raise _corrupt(folder / "config.json", shown(error)) from error
    if isinstance(policy, Policy):
        named = values["config"].get("tasks") or ()
        policy.tasks = tuple(name.rpartition(":")[2] for name in named)
        policy.task_spaces = _own_spaces_in(values, "task")
    load_weights(folder, policy)
    make_savable(policy, values)
    return policy.eval()


def _check_size(folder: Path, network: Network, observation_space: gymnasium.Space) -> None:
    """Raise CheckpointError if a large network needs more bytes than its file of weights has."""
    status = safe_files.status(folder / "policy.safetensors", checksums.root_of(folder))
    required = least_bytes(network, observation_space)
    if status is not None and required > max(_LARGE, status.st_size):
        raise _corrupt(
            folder / "config.json",
            f"hidden={shown(network.units)} and core_size={network.core_size} need {required:,} "
            f"bytes of weights or more, but policy.safetensors has {status.st_size:,}",
        )


def load_weights(folder: Path, policy: AnyPolicy) -> None:
    """Copy a checkpoint's weights into ``policy``, in place.

    Raises:
        CheckpointError: the file is missing, corrupt or from another network.
    """
    file = folder / "policy.safetensors"
    _verify(folder, "policy.safetensors")
    try:
        root, most = checksums.root_of(folder), safe_files.machine_bytes()
        weights = safetensors.torch.load(safe_files.read_bytes(file, most, root))
    except (OSError, SafetensorError) as error:
        raise _corrupt(file, error) from error
    trained = {name for name, _ in policy.named_parameters()}  # buffers may be infinite
    for name, value in weights.items():
        if name in trained and not value.isfinite().all():
            raise _corrupt(file, f"its {name} has values that are not finite")
    ours = {name: list(value.shape) for name, value in policy.state_dict().items()}
    theirs = {name: list(value.shape) for name, value in weights.items()}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise CheckpointError(
                f"{file} is from another network: its {name} is {theirs.get(name, 'missing')}, "
                f"this run's is {ours.get(name, 'missing')}"
            )
    policy.load_state_dict(weights)


def eval_env_changes(folder: Path, trusted: bool = False) -> list[EnvChange]:
    """Return changes that callbacks made to evaluation environments before the checkpoint.

    Args:
        trusted: allow calls of a package's environment, regardless of the author.

    Raises:
        CheckpointError: the folder is corrupt, or names such calls and is not trusted.
    """
    values = read_config(folder)
    import_allowlist.check_changes(folder, values, trusted)
    changes = map(EnvChange.from_json, values.get("env_changes", []))
    return [change for change in changes if change.evaluation]


def load_trainer(folder: Path) -> dict[str, Any]:
    """Load ``trainer.pt`` of a checkpoint folder; only tensors and plain values are read.

    Raises:
        CheckpointError: it is missing or corrupt, or the folder holds a policy alone.
    """
    file = folder / "trainer.pt"
    if not os.path.lexists(file) and checksums.is_policy_alone(folder):
        raise CheckpointError(
            f"{folder} is a policy without its training state: resume its run's directory, or "
            f"start another run from it with {setting('init_from', repr(str(folder)))}"
        )
    _verify(folder, "trainer.pt")
    try:
        return training_state.read(file, checksums.root_of(folder))
    except Exception as error:
        raise _corrupt(file, str(error).partition("\n")[0]) from error

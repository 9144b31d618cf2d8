"""Initializes a run with the policy of another run (``init_from``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.names import env_name
from headrace.envs.probe import Probe
from headrace.errors import ConfigError
from headrace.nn.multi_policy import AnyPolicy
from headrace.nn.network import LEFT_TO_THE_RUN, Network
from headrace.rundir import checkpoint
from headrace.spaces.actions import ActionTransform
from headrace.spaces.json import alike, space_from_json
from headrace.types import Group

_FREE = ("log_std_init",)  # settings that only matter for new weights


def check_init(config: Config, probe: Probe, run_dir: Path) -> None:
    """Check that the policy of ``init_from``, if set, fits this run.

    Raises:
        ConfigError: its observation space, action space or a network setting differs, or it is in
        the directory of this run.
        CheckpointError: the policy doesn't exist.
    """
    if config.init_from is None:
        return
    folder, name = checkpoint.find(config.init_from), f"init_from={config.init_from!r}"
    if folder.resolve().is_relative_to(run_dir.resolve()):
        raise ConfigError(f"{name} lies in run_dir={str(run_dir)!r}: choose another run_dir")
    values = checkpoint.read_config(folder)
    checkpoint.check_one(folder, values)
    spaces = probe.observation_space, probe.action_space
    for kind, ours in zip(("observation_space", "action_space"), spaces, strict=True):
        theirs = space_from_json(values[kind])
        if not alike(theirs, ours, bounds=kind == "action_space"):
            raise ConfigError(
                f"{name} was trained with the {kind.replace('_', ' ')} {theirs}, but that of "
                f"{env_name(probe.env)} is {ours}: both must be the same"
            )
    before = _settings(Network(**values["config"]["network"]))
    free: tuple[str, ...] = _FREE
    if not ActionTransform(probe.action_space, scale=True).is_scaled:
        free = (*_FREE, "scale_actions")  # scaling changes nothing for this space
    for setting, value in _settings(config.network).items():
        if value != before[setting] and setting not in free:
            raise ConfigError(
                f"{name} was trained with {setting}={before[setting]!r}, but this run has "
                f"{setting}={value!r}: set the same value"
            )


def _settings(network: Network) -> dict[str, Any]:
    """Return the network settings, with those left to the run resolved to False."""
    values = network.to_json()
    values["one_hot"] = tuple(values["one_hot"] or ())
    flags = [name for name in LEFT_TO_THE_RUN if name not in ("hidden", "one_hot", "num_symbols")]
    return values | {name: bool(values[name]) for name in flags}


def take_over(config: Config, policy: AnyPolicy, group: Group) -> None:
    """Copy the weights of ``init_from``, if set, into the policy of each learner.

    Raises:
        CheckpointError: the file is missing, corrupt or from another network.
    """
    if config.init_from is None:
        return
    if group.rank == 0:
        checkpoint.load_weights(checkpoint.find(config.init_from), policy)
    policy.load_state_dict(group.broadcast(policy.state_dict()))

"""Resolves the settings of grids of symbols, and prints which images are encoded as symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.probe import Probe
from headrace.envs.symbol_grids import num_symbols_of
from headrace.errors import setting
from headrace.nn.network import SYMBOLS, Network
from headrace.rundir import checkpoint
from headrace.types import Group


def settle(config: Config, probe: Probe, group: Group, notify: Callable[[str], None]) -> Config:
    """Return the config with ``one_hot``, ``num_symbols`` and ``clip_symbols`` resolved.

    Rank 0 decides. Runs that resume, or start from the weights of another run, keep its values.

    Args:
        notify: called with one line if grids are recognised.
    """
    values: dict[str, Any] = {}
    if group.rank == 0:
        values = _saved(config) or _recognised(config, probe, notify)
    if group.size > 1:
        values = group.broadcast(values)
    return replace(config, network=replace(config.network, **values))


def _saved(config: Config) -> dict[str, Any]:
    """Return the settings of saved weights that this run doesn't set; {} without saved weights."""
    source = config.run_dir if config.resume else config.init_from
    if source is None:
        return {}
    values = checkpoint.read_config(checkpoint.find(Path(source)))["config"]["network"]
    saved, ours = (
        {name: getattr(network, name) for name in SYMBOLS}
        for network in (Network(**values), config.network)
    )
    return {name: saved[name] if ours[name] is None else ours[name] for name in SYMBOLS}


def _recognised(config: Config, probe: Probe, notify: Callable[[str], None]) -> dict[str, Any]:
    """Return the settings for the grids that the environment shows."""
    network, grids = config.network, {}
    if network.one_hot is None and network.torso is None and not probe.own_spaces:
        grids = num_symbols_of(probe.observation_space, probe.largest_values)
        grids = {name: count for name, count in grids.items() if name not in network.text}
    if not grids:
        return {"one_hot": network.one_hot or (), "clip_symbols": bool(network.clip_symbols)}
    count = network.num_symbols or max(grids.values())
    names, refused = " and ".join(map(repr, grids)), setting("one_hot", "'none'")
    notify(
        f"auto: one-hot encoding of {names} with {count} symbols, because all values are small "
        f"({refused} turns it off)"
    )
    clips = network.clip_symbols is not False
    return {"one_hot": tuple(grids), "num_symbols": count, "clip_symbols": clips}

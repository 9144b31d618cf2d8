"""The settings in a run's ``config.json``, also as older versions wrote them."""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.algos import ALGORITHMS
from headrace.config import Config, unknown_setting
from headrace.nn.network import network_from_json

# What settings that older versions didn't write meant then.
_BEFORE: dict[str, Any] = {"scale_free": False}
_BEFORE_ALGO: dict[str, Any] = {"fused": False}
_BEFORE_OF: dict[str, dict[str, Any]] = {"impala": {"minibatches": 1}}


def from_json(values: dict[str, Any], **overrides: Any) -> Config:
    """The config that :meth:`Config.to_json` wrote, with some settings replaced.

    Raises:
        ConfigError: a setting is unknown to this version.
    """
    values = {**_BEFORE, **values, **overrides}
    known = {f.name for f in dataclasses.fields(Config)}
    for name in values:
        if name not in known:
            raise unknown_setting(name)
    algo, network = values["algo"], values["network"]
    if isinstance(algo, dict):
        name, algo = algo["name"], {k: v for k, v in algo.items() if k != "name"}
        values["algo"] = ALGORITHMS[name](**_BEFORE_ALGO | _BEFORE_OF.get(name, {}) | algo)
    if isinstance(network, dict):
        values["network"] = network_from_json(network)
    return Config(**values)

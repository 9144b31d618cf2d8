"""Annotated types of settings with constrained values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

import tyro
from gymnasium.envs.registration import EnvSpec

from headrace.validation import ranges

ENV = ranges.Constraint(
    "a Gymnasium id, an EnvSpec, an environment class or a callable that returns an environment",
    lambda env: (
        0 < len(env) <= 4096 if isinstance(env, str) else callable(env) or isinstance(env, EnvSpec)
    ),
)

WRAPPER = ranges.Constraint(
    "a wrapper's name (a str) or a callable from Env to Env",
    lambda wrapper: isinstance(wrapper, str) or callable(wrapper),
)

if TYPE_CHECKING:
    PlayedBy: TypeAlias = str | Mapping[str, str]  # kept as the text
else:
    PlayedBy = Annotated[
        str, tyro.conf.arg(metavar="shared|per-agent|AGENT:POLICY,…"), ranges.NOT_EMPTY
    ]

if TYPE_CHECKING:
    from headrace.envs.info_metrics import InfoNames as InfoNames  # kept as the text
else:
    InfoNames = Annotated[str | None, tyro.conf.arg(metavar="NAME[:REDUCTION],…"), ranges.NOT_EMPTY]

KINDS = tyro.conf.arg(metavar="KIND:SHARE,…")

CLUSTER = ranges.Constraint(
    "'ray', or 'ray:' and the address of a cluster, as in 'ray:auto' or 'ray:10.0.0.1:6379'",
    lambda text: re.fullmatch("ray(:[^:/\\s]{1,200}(:[0-9]{1,5})?)?", text) is not None,
)

"""Trained policies that come with headrace: small ones, of recipes that are quick to train.

Each is a folder as a checkpoint is, with `report.json` beside it: the command that trained it, and
what that measured. `benchmarks/zoo.py` trains them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import require_choice

if TYPE_CHECKING:
    from headrace.nn.policy import Policy

POLICIES = Path(__file__).parent / "policies"
NAMES = sorted(path.parent.name for path in POLICIES.glob("*/report.json"))


def folder(name: str) -> Path:
    """Where a policy is, for ``hr.load``, ``init_from`` and ``headrace evaluate``.

    Raises:
        ConfigError: there is none of this name; the message names the nearest.
    """
    require_choice("name", name, NAMES)
    return POLICIES / name


def load(name: str) -> Policy:
    """The policy of this name, ready for ``predict``; errors as :func:`folder`."""
    from headrace.rundir.checkpoint import load_one

    return load_one(folder(name))


def report(name: str) -> dict[str, Any]:
    """What is known of a policy: ``command``, ``seed``, ``env_steps``, ``seconds``, its
    ``evaluation`` (episodes, mean, std) and the versions it was trained with; errors as
    :func:`folder`.
    """
    return dict(json.loads((folder(name) / "report.json").read_text(encoding="utf-8")))

"""Small trained policies that come with headrace, from recipes that train quickly.

Each is a checkpoint folder with a `report.json` that holds the training command and its results.
`benchmarks/zoo.py` trains them again.
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
    """Return a policy's folder, for ``hr.load``, ``init_from`` and ``headrace evaluate``.

    Raises:
        ConfigError: there is no policy of this name; the message has the nearest name.
    """
    require_choice("name", name, NAMES)
    return POLICIES / name


def load(name: str) -> Policy:
    """Load a policy by name, ready for ``predict``; raises the errors of :func:`folder`."""
    from headrace.rundir.checkpoint import load_one

    return load_one(folder(name))


def report(name: str) -> dict[str, Any]:
    """Return a policy's report: ``command``, ``seed``, ``env_steps``, ``seconds``, its
    ``evaluation`` (episodes, mean, std) and the versions it was trained with; raises the errors of
    :func:`folder`.
    """
    return dict(json.loads((folder(name) / "report.json").read_text(encoding="utf-8")))

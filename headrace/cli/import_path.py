"""Makes modules in the working directory importable, as in ``my_module:MyEnv-v0``.

In another user's run directory, files must not be imported by accident. Imports are therefore
allowed only if the user names the code, or trusts a run that names it. Installed packages come
first.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def import_from_here() -> None:
    """Let modules in the working directory be imported."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def import_from_here_if_named(config: dict[str, Any]) -> None:
    """Call :func:`import_from_here` if the run's settings name code; they must be trusted.

    Args:
        config: result of ``Config.to_json``.
    """
    from headrace.rundir import import_allowlist

    if import_allowlist.code_in(config):
        import_from_here()

"""Whether modules in the working directory can be imported: ``my_module:MyEnv-v0`` beside the user.

Who works in a run directory of somebody else's must not import what lies there. So this is allowed
only where the user names the code, or a run names it that the user has named or trusts; and what
is installed is found first.
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
    """The same for a run, of settings that are known to be the user's or trusted.

    Args:
        config: as ``Config.to_json`` made it.
    """
    from headrace.rundir import import_allowlist

    if import_allowlist.code_in(config):
        import_from_here()

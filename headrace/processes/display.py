"""Whether there is a display."""

from __future__ import annotations

import os
import sys


def has_display() -> bool:
    """Whether a window can be opened, as far as the surroundings tell."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

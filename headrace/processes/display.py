"""Detects a display."""

from __future__ import annotations

import os
import sys


def has_display() -> bool:
    """Return True if a window can probably be opened, judging by the environment variables."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

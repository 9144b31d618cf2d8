"""Records the real paths of the files that this process writes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.processes import safe_files

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events of Python that change names, with the positions of paths and descriptors.
CHANGES = {
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.utime": ((0, 3),),
}
_recorders: list[list[str]] = []  # audit hooks can't be removed, so one serves all tests


def _note(path: object, folder: int | None = None, names: bool = True) -> None:
    base = os.getcwd() if folder in (None, -1) else os.readlink(f"/proc/self/fd/{folder}")
    where = Path(base, os.fsdecode(path))
    real = Path(os.path.realpath(where.parent), where.name) if names else where.resolve()
    for one in _recorders:
        one.append(str(real))


def _audit(event: str, args: tuple) -> None:
    if not _recorders:
        return
    if event in CHANGES:
        for path, folder in CHANGES[event]:
            if not isinstance(args[path], int):
                _note(args[path], None if folder is None else args[folder])
    elif event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        ours = sys._getframe(1).f_globals.get("__name__") in (safe_files.__name__, __name__)
        if (args[2] or 0) & WRITES and not ours:  # those are recorded once they are open
            _note(args[0], names=False)


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """Yield the list of real paths that this process writes inside the block."""
    if not getattr(sys, "_records_writes", False):
        sys.addaudithook(_audit)
        sys._records_writes = True  # type: ignore[attr-defined]
    opened = os.open

    def recording(path, flags, *args, **kwargs):
        descriptor = opened(path, flags, *args, **kwargs)
        if flags & WRITES:
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return descriptor

    paths: list[str] = []
    _recorders.append(paths)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", recording)
            yield paths
    finally:
        _recorders.remove(paths)

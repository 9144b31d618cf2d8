"""Writes files atomically, and turns disk errors into clear messages."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import CheckpointError, HeadraceError, shown
from headrace.processes import safe_files
from headrace.rundir.json_values import plain

_REMEDIES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of the quota there",
    errno.EROFS: "choose a run_dir that can be written to",
    errno.EACCES: "choose a run_dir that this user may write to",
    errno.EPERM: "choose a run_dir that this user may write to",
    errno.ENOENT: "the folder was removed or renamed: create it again",
    errno.ENOTDIR: "choose another run_dir",
    errno.ENAMETOOLONG: "choose a shorter run_dir",
}
_REMEDIES_IF_REFUSED = {  # by safe_files
    errno.ELOOP: "replace the link with its target",
    errno.EMLINK: "replace it with a copy",
    errno.EINVAL: "remove it",
    errno.EISDIR: "remove it",
    errno.EFBIG: "headrace never writes files of this size, so remove it",
}


@contextlib.contextmanager
def checkpoint_errors(path: Path, action: str = "written") -> Iterator[None]:
    """Turn disk errors inside the block into a CheckpointError that names ``path``."""
    try:
        yield
    except OSError as error:
        number, reason = error.errno or 0, error.strerror or str(error)
        is_of_system = reason == os.strerror(number)  # such as a limit of the size of files
        remedies = _REMEDIES if is_of_system else _REMEDIES | _REMEDIES_IF_REFUSED
        remedy = remedies.get(number, "check that disk")
        raise CheckpointError(f"{path} can't be {action} ({reason}): {remedy}") from error


# Exceptions from valid JSON with values that headrace never writes.
FOREIGN = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError),
    *(RecursionError, TypeError, ValueError),
)


class ForeignValues(CheckpointError):
    """Code failed on values of a run directory; ``__cause__`` is its error."""


@contextlib.contextmanager
def foreign_values(*run_dirs: Path) -> Iterator[None]:
    """Turn errors about unexpected values in run directories into a CheckpointError.

    Raises:
        ForeignValues: the error isn't one of the system.
    """
    try:
        yield
    except HeadraceError:
        raise
    except (OSError, MemoryError) as error:
        where = ", ".join(map(str, run_dirs))
        raise CheckpointError(f"{where}: {shown(error)}") from error
    except FOREIGN as error:
        where = ", ".join(map(str, run_dirs))
        raise ForeignValues(
            f"{where}: a file contains values that headrace didn't write ({shown(error)})"
        ) from error


class TolerantWriter:
    """Writes files that may fail while a run continues.

    Args:
        notify: called once when a file can't be written, and once when it works again.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify, self._failing = notify, set[str]()

    def attempt(self, name: str, write: Callable[[], object]) -> bool:
        """Call ``write``; return True if it succeeded. ``name`` describes it in messages."""
        try:
            write()
        except CheckpointError as error:
            if name not in self._failing:
                self._notify(f"{name} failed, training continues and tries again: {error}")
                self._failing.add(name)
            return False
        if name in self._failing:
            self._failing.remove(name)
            self._notify(f"{name} works again")
        return True


class _Hashing:
    """A file for writing that hashes its data and keeps the reason of a failed write.

    torch reports a failed write as its own error, without the reason.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def write_hashed(path: Path, write: Callable[[Any], object], root: Path | None = None) -> str:
    """Write a new file by calling ``write(file)``, flush it to disk, return its SHA-256.

    Args:
        root: see :mod:`headrace.processes.safe_files`.
    """
    with safe_files.created(path, root) as file:
        hashing = _Hashing(file)
        try:
            write(hashing)
        except Exception:
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return hashing.hash.hexdigest()


def replace_text(path: Path, text: str, root: Path | None = None) -> None:
    """Replace a file atomically; see :func:`replace_bytes`."""
    replace_bytes(path, text.encode(), root)


def replace_bytes(path: Path, data: bytes, root: Path | None = None) -> None:
    """Replace a file atomically. A link of this name is replaced, not followed.

    Args:
        root: see :mod:`headrace.processes.safe_files`.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_hashed(temporary, lambda file: file.write(data), root)
        safe_files.replace(temporary, path, root)
    except OSError:
        with contextlib.suppress(OSError):
            safe_files.remove(temporary, root)
        raise
    safe_files.sync(path.parent, root)


def json_text(values: Any) -> str:
    """Format values as JSON in the style of headrace's files."""
    return json.dumps(plain(values), indent=2, allow_nan=False) + "\n"


def write_json(path: Path, values: Any, root: Path | None = None) -> None:
    """Replace ``path`` atomically with JSON.

    Raises:
        CheckpointError: the file can't be written.
    """
    with checkpoint_errors(path):
        replace_text(path, json_text(values), root)


def remove_folder(path: Path, root: Path | None = None) -> None:
    """Delete a folder; its name never refers to a partial folder."""
    aside = path.with_name(path.name + ".tmp")
    safe_files.remove(aside, root)
    safe_files.replace(path, aside, root)
    safe_files.remove(aside, root)

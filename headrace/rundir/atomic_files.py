"""Writes files atomically, and turns disk errors into clear messages."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import CheckpointError
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


@contextlib.contextmanager
def checkpoint_errors(path: Path, action: str = "written") -> Iterator[None]:
    """Turn disk errors inside the block into a CheckpointError that names ``path``."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check that disk")
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} can't be {action} ({reason}): {remedy}") from error


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


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def write_hashed(path: Path, write: Callable[[Any], object]) -> str:
    """Write a new file by calling ``write(file)``, flush it to disk, return its SHA-256."""
    with path.open("wb") as file:
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


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_hashed(temporary, lambda file: file.write(text.encode()))
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def json_text(values: Any) -> str:
    """Format values as JSON in the style of headrace's files."""
    return json.dumps(plain(values), indent=2, allow_nan=False) + "\n"


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` atomically with JSON.

    Raises:
        CheckpointError: the file can't be written.
    """
    with checkpoint_errors(path):
        replace_text(path, json_text(values))


def remove_folder(path: Path) -> None:
    """Delete a folder; its name never refers to a partial folder."""
    aside = path.with_name(path.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    shutil.rmtree(aside)

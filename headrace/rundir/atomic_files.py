"""Files that are whole at any instant, and a sentence where a disk won't take them."""

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
def told(path: Path, what: str = "written") -> Iterator[None]:
    """Turn what a disk refuses inside the block into a CheckpointError that names ``path``."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check that disk")
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} can't be {what} ({reason}): {remedy}") from error


class TolerantWriter:
    """Writes that may fail while a run goes on.

    Args:
        notify: told once when something can't be written, and once when it can again.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify, self._failing = notify, set[str]()

    def attempt(self, name: str, write: Callable[[], object]) -> bool:
        """Call ``write``, which is called ``name``; returns whether that worked."""
        try:
            write()
        except CheckpointError as error:
            if name not in self._failing:
                self._notify(f"{name} failed, training goes on and tries again: {error}")
                self._failing.add(name)
            return False
        if name in self._failing:
            self._failing.remove(name)
            self._notify(f"{name} works again")
        return True


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Hashing:
    """A file for writing that hashes what it is given, and keeps why it failed.

    torch reports a failed write as an error of its own, without the reason.
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
    """A new file as ``write(file)`` fills it, on the disk; returns its SHA-256."""
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
    """As headrace writes JSON files."""
    return json.dumps(plain(values), indent=2, allow_nan=False) + "\n"


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` atomically.

    Raises:
        CheckpointError: the disk refuses.
    """
    with told(path):
        replace_text(path, json_text(values))


def remove_folder(path: Path) -> None:
    """Delete a folder; at no instant is a part of it left under its name."""
    aside = path.with_name(path.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(path, aside)
    shutil.rmtree(aside)

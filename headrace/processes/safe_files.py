"""Opens files of runs, leagues, sweeps, populations and zoos, which may be untrusted.

Every path is opened relative to the descriptor of a folder, its *root*. The root is the run
directory, league or study that the user named, and may be reached through links. Below it no link
is followed, and only regular files are opened, because a pipe would block and a device may have no
end. Files have a size limit, which is checked before reading. Files with a second name (hard
link) aren't written, because the other name may be outside the root.

Functions raise OSError, with the reason in its ``strerror``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

JSON_BYTES = 64 << 20  # limit of a JSON file
LINES_BYTES = 1 << 30  # limit of a file of JSON lines
LINE_BYTES = 16 << 20  # limit of one of its lines
TEXT_BYTES = 1 << 20  # limit of other text, such as pointers and checksums

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
_KINDS = {
    stat.S_IFLNK: "a symbolic link, which is not followed here",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_BLOCK_BYTES = 1 << 20
_MOST_NESTED = 50  # levels of folders; headrace makes fewer


def machine_bytes() -> int:
    """Return the memory of this machine in bytes: the size limit of weights and training state."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def folder(path: Path, root: Path | None = None) -> Iterator[int]:
    """Open a folder and yield its descriptor.

    Args:
        root: folder that contains it; None: the folder itself. Links below the root aren't
            followed.
    """
    root = path if root is None else root
    if not path.is_relative_to(root):
        raise OSError(errno.ELOOP, f"{path} is outside of {root}")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in path.relative_to(root).parts:
            outer, descriptor = descriptor, _inner(part, descriptor)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)


def _inner(name: str, outer: int) -> int:
    if name == "..":
        raise OSError(errno.ELOOP, "it leads out of its folder")
    try:
        return os.open(name, _FOLDER, dir_fd=outer)
    except OSError as error:
        mode = os.stat(name, dir_fd=outer, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise _refused(mode, f"its folder {name} is ") from error
        raise


def _refused(mode: int, what: str = "it is ") -> OSError:
    kind = stat.S_IFMT(mode)
    number = {stat.S_IFLNK: errno.ELOOP, stat.S_IFDIR: errno.EISDIR}.get(kind, errno.EINVAL)
    return OSError(number, what + _KINDS.get(kind, "not a regular file"))


def _descriptor(path: Path, flags: int, root: Path | None) -> int:
    with folder(path.parent, root) as inside:
        with contextlib.suppress(FileNotFoundError):  # before opening, which may affect a device
            _check_regular(os.stat(path.name, dir_fd=inside, follow_symlinks=False), flags)
        descriptor = os.open(path.name, flags | _FILE, 0o666, dir_fd=inside)
    try:
        _check_regular(os.fstat(descriptor), flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result, flags: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(status.st_mode)
    if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is a hard link to a file with another name")


# -- reading ---------------------------------------------------------------------------------------


def opened(path: Path, limit: int, root: Path | None = None) -> BinaryIO:
    """Open a regular file of at most ``limit`` bytes for reading."""
    file = open(path, "rb", opener=lambda _, flags: _descriptor(path, flags, root))  # noqa: SIM115
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        file.close()
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and the limit is {limit:,}")
    return file


def read_bytes(path: Path, limit: int, root: Path | None = None) -> bytes:
    """Read a regular file of at most ``limit`` bytes."""
    with opened(path, limit, root) as file:
        data = file.read(os.fstat(file.fileno()).st_size)
        while more := file.read(_BLOCK_BYTES):  # it grew, or reports no size
            data += more
            if len(data) > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes, the limit")
    return data


def read_json(path: Path, root: Path | None = None) -> Any:
    """Read a JSON file.

    Raises:
        OSError: the file can't be read.
        ValueError: its content isn't JSON, or is nested too deeply.
    """
    return parse_json(read_bytes(path, JSON_BYTES, root))


def parse_json(data: bytes) -> Any:
    """Parse JSON in UTF-8; raises ValueError for everything else."""
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_lines(path: Path, root: Path | None = None) -> Iterator[bytes]:
    """Yield the lines of a file with their ends, of at most ``LINE_BYTES`` each."""
    with opened(path, LINES_BYTES, root) as file:
        while line := file.readline(LINE_BYTES + 1):
            if len(line) > LINE_BYTES:
                raise OSError(errno.EFBIG, f"a line has more than {LINE_BYTES:,} bytes")
            yield line


def status(path: Path, root: Path | None = None) -> os.stat_result | None:
    """Return the status of a regular file; None if it is missing or something else."""
    with contextlib.suppress(OSError, ValueError), folder(path.parent, root) as inside:
        found = os.stat(path.name, dir_fd=inside, follow_symlinks=False)
        return found if stat.S_ISREG(found.st_mode) else None
    return None


def is_file(path: Path, root: Path | None = None) -> bool:
    """Return whether a regular file exists."""
    return status(path, root) is not None


def is_folder(path: Path, root: Path | None = None) -> bool:
    """Return whether a folder exists that isn't a link."""
    with contextlib.suppress(OSError, ValueError), folder(path, root):
        return True
    return False


def link_target(path: Path, root: Path | None = None) -> str | None:
    """Return the path in a symbolic link; None for anything else."""
    with contextlib.suppress(OSError, ValueError), folder(path.parent, root) as inside:
        return os.readlink(path.name, dir_fd=inside)
    return None


# -- writing ---------------------------------------------------------------------------------------


def created(path: Path, root: Path | None = None) -> BinaryIO:
    """Create a file for writing. A file or link of this name is removed first, never followed.

    Raises:
        OSError: it is a device, such as ``/dev/null``.
    """
    with folder(path.parent, root) as inside, contextlib.suppress(FileNotFoundError):
        _check_no_device(path.name, inside)
        os.unlink(path.name, dir_fd=inside)
    return cast(BinaryIO, open(path, "xb", opener=lambda _, flags: _descriptor(path, flags, root)))


def _check_no_device(name: str, inside: int) -> None:
    """Raise OSError for a device: as root, replacing it would break other programs."""
    mode = os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise _refused(mode)


def appended(path: Path, root: Path | None = None) -> BinaryIO:
    """Open a file for appending without a buffer; creates it if it is missing."""
    return cast(
        BinaryIO,
        open(path, "ab", buffering=0, opener=lambda _, flags: _descriptor(path, flags, root)),
    )


def truncate(path: Path, size: int, root: Path | None = None) -> None:
    """Cut an existing file to ``size`` bytes."""
    descriptor = _descriptor(path, os.O_WRONLY, root)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def lock_descriptor(path: Path, root: Path | None = None) -> int:
    """Open a lock file for reading and writing, creating it if missing; return its descriptor."""
    return _descriptor(path, os.O_RDWR | os.O_CREAT, root)


def replace(source: Path, target: Path, root: Path | None = None) -> None:
    """Rename a file or folder, replacing the target.

    Both are in ``root`` (None: in the folder of ``target``).

    Raises:
        OSError: the target is a device.
    """
    root = target.parent if root is None else root
    with folder(source.parent, root) as there, folder(target.parent, root) as here:
        with contextlib.suppress(FileNotFoundError):
            _check_no_device(target.name, here)
        os.replace(source.name, target.name, src_dir_fd=there, dst_dir_fd=here)


def publish(source: Path, target: Path, root: Path | None = None) -> None:
    """Give a complete file its final name; raises FileExistsError if that exists.

    Both are in ``root`` (None: in the folder of ``target``).
    """
    root = target.parent if root is None else root
    with folder(source.parent, root) as there, folder(target.parent, root) as here:
        os.link(source.name, target.name, src_dir_fd=there, dst_dir_fd=here)


def sync(path: Path, root: Path | None = None) -> None:
    """Flush a folder's entries to disk."""
    with folder(path, root) as descriptor:
        os.fsync(descriptor)


def make_folder(path: Path, root: Path | None = None, exist_ok: bool = True) -> None:
    """Create a folder in an existing one; a link of this name raises OSError."""
    with folder(path.parent, root) as inside:
        try:
            os.mkdir(path.name, dir_fd=inside)
        except FileExistsError:
            mode = os.stat(path.name, dir_fd=inside, follow_symlinks=False).st_mode
            if not exist_ok or not stat.S_ISDIR(mode):
                raise (
                    _refused(mode)
                    if stat.S_ISLNK(mode)
                    else FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                ) from None


def make_folders(path: Path, root: Path) -> None:
    """Create a folder and its parents below ``root``, which must exist."""
    for outer in [*reversed(path.relative_to(root).parents)][1:]:
        make_folder(root / outer, root)
    if path != root:
        make_folder(path, root)


def remove(path: Path, root: Path | None = None) -> None:
    """Delete a file, a link, or a folder with its contents; does nothing if it is missing."""
    with contextlib.suppress(FileNotFoundError), folder(path.parent, root) as inside:
        _remove(path.name, inside, _MOST_NESTED)


def _remove(name: str, inside: int, levels: int) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=inside)
        return
    if not levels:
        raise OSError(errno.ELOOP, f"it has more than {_MOST_NESTED} levels of folders")
    descriptor = os.open(name, _FOLDER, dir_fd=inside)
    try:
        for entry in os.listdir(descriptor):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                _remove(entry, descriptor, levels - 1)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=inside)

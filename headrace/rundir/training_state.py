"""Reads ``trainer.pt``, which may be untrusted."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from headrace.errors import shown
from headrace.processes import safe_files

_MOST = 2.0**62  # bound on the size of numbers


def read(file: Path, root: Path) -> dict[str, Any]:
    """Read tensors and plain values from a file that ``torch.save`` wrote.

    Args:
        root: see :mod:`headrace.processes.safe_files`.

    Raises:
        Exception: the file can't be read, would unpack to more than its size, or contains other
            objects.
    """
    with safe_files.opened(file, safe_files.machine_bytes(), root) as opened:
        _check_stored(opened)
        opened.seek(0)
        return dict(torch.load(opened, weights_only=True, map_location="cpu"))


def _check_stored(file: BinaryIO) -> None:
    """Raise ValueError if an archive is compressed, which those of torch aren't."""
    size = os.fstat(file.fileno()).st_size
    try:
        entries = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"it was not written by torch.save: {error}") from None
    packed = [one.filename for one in entries if one.compress_type != zipfile.ZIP_STORED]
    if packed or sum(one.file_size for one in entries) > size:
        raise ValueError("it would unpack to more than its size")


def check_alike(saved: Any, fresh: Any, name: str = "its content") -> None:
    """Raise ValueError if a loaded value differs in type from the value in a new run.

    Numbers must be finite. Where a new run has None, numbers, dicts and lists are allowed. Entries
    that a new run lacks aren't checked.

    Args:
        saved: value from a checkpoint.
        fresh: value at the same place in the state of a new run.
        name: name of the value in the error.
    """
    kind = next((kind for kind in (dict, (list, tuple)) if isinstance(fresh, kind)), None)
    if not (_is_alike(saved, fresh) if kind is None else isinstance(saved, kind)):
        raise ValueError(f"{name} is {shown(saved)}, but a value like {shown(fresh)} is needed")
    if kind is dict:
        for key in fresh.keys() & saved.keys():
            check_alike(saved[key], fresh[key], str(key))
    elif kind is not None:
        for one, other in zip(saved, fresh, strict=False):
            check_alike(one, other, name)


def _is_alike(saved: Any, fresh: Any) -> bool:
    if fresh is None:
        return saved is None or isinstance(saved, dict | list) or _is_alike(saved, 0.0)
    if isinstance(fresh, torch.Tensor):
        return isinstance(saved, torch.Tensor) and saved.dtype == fresh.dtype
    if isinstance(fresh, int | float):
        return isinstance(saved, int | float) and -_MOST < saved < _MOST  # also False for NaN
    return isinstance(saved, type(fresh))

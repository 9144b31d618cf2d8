"""Rendezvous store of learners on a cluster: keys and values held by a Ray actor.

The stores of ``torch.distributed`` open a port without authentication. Here every call goes through
Ray, which requires the cluster's token.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from headrace.ray.connection import fetch

_POLL_S = 0.01
_ANSWER_S = 30.0  # timeout of a call


def store_class() -> type:
    """Return the class of the Ray actor, which is sent by value."""

    class HeadraceStore:
        def __init__(self) -> None:
            self.values: dict[str, bytes] = {}

        def set(self, key: str, value: bytes) -> None:
            self.values[key] = value

        def add(self, key: str, number: int) -> int:
            total = int(self.values.get(key, b"0")) + number
            self.values[key] = str(total).encode()
            return total

        def delete(self, key: str) -> bool:
            return self.values.pop(key, None) is not None

        def find(self, keys: list[str]) -> list[bytes] | None:
            values = self.values
            return [values[key] for key in keys] if all(key in values for key in keys) else None

    return HeadraceStore


class RayStore(dist.Store):
    """A ``torch.distributed`` store in one process of a cluster.

    torch does not keep this object alive: keep a reference to it.

    Args:
        actor: Ray actor that holds the store.
        timeout_s: longest wait for a key in seconds.
    """

    def __init__(self, actor: Any, timeout_s: float = 300.0) -> None:
        super().__init__()
        self._actor, self._timeout_s = actor, timeout_s

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return fetch(getattr(self._actor, method).remote(*args), _ANSWER_S)
        except Exception as error:
            raise dist.DistStoreError(f"the learners' store doesn't answer: {error}") from error

    def _find(self, keys: list[str], timeout_s: float) -> list[bytes]:
        deadline = time.monotonic() + timeout_s
        while (values := self._call("find", keys)) is None:
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"{keys} were not set within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return list(values)

    def set(self, key: str, value: Any) -> None:
        """Set a key to these bytes or this text."""
        self._call("set", key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of a key, once it is set.

        Raises:
            DistStoreError: it was not set in time, or the store is gone.
        """
        return self._find([key], self._timeout_s)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of several keys, see :meth:`get`."""
        return self._find(keys, self._timeout_s)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Set several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, number: int) -> int:
        """Add to the number of a key, initially 0; return the sum."""
        return int(self._call("add", key, number))

    def check(self, keys: list[str]) -> bool:
        """Return True if all of these keys are set."""
        return self._call("find", keys) is not None

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all of these keys are set; see :meth:`get`."""
        self._find(keys, self._timeout_s if timeout is None else timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        """Delete a key; return True if it was set."""
        return bool(self._call("delete", key))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the longest wait for a key."""
        self._timeout_s = timeout.total_seconds()

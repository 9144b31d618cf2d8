"""What learners on a cluster meet through: keys and values that a Ray actor holds.

``torch.distributed`` has stores of its own, which open a port to whoever reaches it. Here every
call is one of Ray's, which asks for the cluster's token.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from headrace.processes.ray_connection import fetch

_POLL_S = 0.01
_ANSWER_S = 30.0  # for the store to answer


def store_class() -> type:
    """What Ray runs; it travels by value."""

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
            known = self.values
            return [known[key] for key in keys] if all(key in known for key in keys) else None

    return HeadraceStore


class RayStore(dist.Store):
    """A ``torch.distributed`` store in one process of a cluster.

    What torch builds on it does not keep this object alive: hold on to it.

    Args:
        actor: that holds it. timeout_s: for a key to be there.
    """

    def __init__(self, actor: Any, timeout_s: float = 300.0) -> None:
        super().__init__()
        self._actor, self._timeout_s = actor, timeout_s

    def _ask(self, what: str, *args: Any) -> Any:
        try:
            return fetch(getattr(self._actor, what).remote(*args), _ANSWER_S)
        except Exception as error:
            raise dist.DistStoreError(f"the learners' store doesn't answer: {error}") from error

    def _find(self, keys: list[str], timeout_s: float) -> list[bytes]:
        deadline = time.monotonic() + timeout_s
        while (values := self._ask("find", keys)) is None:
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"nobody has set {keys} in {timeout_s:g} s")
            time.sleep(_POLL_S)
        return list(values)

    def set(self, key: str, value: Any) -> None:
        """Have a key stand for these bytes, or this text."""
        self._ask("set", key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """What a key stands for, once somebody has set it.

        Raises:
            DistStoreError: nobody did in time, or the store is gone.
        """
        return self._find([key], self._timeout_s)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Likewise, of several."""
        return self._find(keys, self._timeout_s)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Several of :meth:`set`."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, number: int) -> int:
        """Add to the number that a key stands for, 0 at first; returns the sum."""
        return int(self._ask("add", key, number))

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are set."""
        return self._ask("find", keys) is not None

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all of these are set; see :meth:`get`."""
        self._find(keys, self._timeout_s if timeout is None else timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        """Forget a key; returns whether it was set."""
        return bool(self._ask("delete", key))

    def set_timeout(self, timeout: timedelta) -> None:
        """How long to wait for a key from now on."""
        self._timeout_s = timeout.total_seconds()

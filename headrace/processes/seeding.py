"""Seeds and restores the global random generators of Python, NumPy and torch.

Forks of one process start with the same generator states. Environments that draw from ``random``,
``numpy.random`` or ``torch`` directly would then draw the same numbers in every process.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_args

Role: TypeAlias = Literal[
    "actor", "epoch", "environment", "evaluation", "inference", "probe", "worker", "serial", "match"
]
_ROLES: tuple[str, ...] = get_args(Role)


def seed_global_generators(seed: int | None, role: Role, index: int = 0, restart: int = 0) -> None:
    """Seed ``random``, ``numpy.random`` and torch's default generators of this process.

    The same four arguments always give the same streams. Different arguments give independent
    ones.

    Args:
        seed: seed of the run; None: a seed from the operating system.
        role: role of this process in the run.
        index: number of this process within its role, counted over all learners.
        restart: how often the process was replaced, or its environments were reset.
    """
    import numpy as np
    import torch

    entropy = None if seed is None else int(seed) % 2**64
    key = _ROLES.index(role), index, restart
    words = np.random.SeedSequence(entropy, spawn_key=key).generate_state(12, np.uint32)
    random.seed(int.from_bytes(words[:4].tobytes(), "little"))
    np.random.seed(words[4:8])
    torch.manual_seed(int.from_bytes(words[8:10].tobytes(), "little") >> 1)


@contextlib.contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restore the states of all three generators at the end of the block."""
    before = _states()
    try:
        yield
    finally:
        _restore(before)


class OwnGenerators:
    """Separate states of the global generators for code that shares a process with its caller."""

    def __init__(self) -> None:
        self._own: Any = None  # states at the end of the latest block

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Use these states inside the block, then restore the caller's."""
        with global_generators_kept():
            if self._own is not None:
                _restore(self._own)
            try:
                yield
            finally:
                self._own = _states()


def _states() -> tuple[Any, ...]:
    import numpy as np
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def _restore(states: tuple[Any, ...]) -> None:
    import numpy as np
    import torch

    python, numpy, cpu, cuda = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)

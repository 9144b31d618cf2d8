"""Numeric ranges of settings, as annotations of their types.

Upper limits are far beyond practical values, and low enough that no loop, timer or 64-bit integer
overflows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Constraint:
    """Constraint on the values of a setting; ``whole``: its words include the type."""

    words: str
    holds: Callable[[Any], bool]
    whole: bool = False

    def says(self, value: object) -> str:
        """Describe the valid values, in answer to an invalid one."""
        return self.words

    def nearest(self, value: object) -> Any:
        """Return the nearest valid value, or None if unknown."""
        return None


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``.

    Args:
        above, below: exclude ``low``, or ``high``.
        infinite: include infinity, which means no limit.
        inside: distance of the suggested value from an excluded end; 0: suggest none.
        words: replaces "1 or more" and the like.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    infinite: bool = False
    words: str = ""
    inside: float = 0.0

    def holds(self, value: Any) -> bool:
        """Return whether a number is in the range; NaN never is."""
        if self.infinite and value == math.inf:
            return True
        over = value > self.low if self.above else value >= self.low
        return bool(over and (value < self.high if self.below else value <= self.high))

    def says(self, value: object) -> str:
        """Describe the end of the range that a value misses."""
        if isinstance(value, int | float) and value > self.high:
            return f"{'below' if self.below else 'at most'} {_plain(self.high)}"
        if self.words:
            return self.words
        return f"above {_plain(self.low)}" if self.above else f"{_plain(self.low)} or more"

    def nearest(self, value: Any) -> Any:
        """Return the nearest number of the range to a value that can be read as a number, or
        None.
        """
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = value if isinstance(value, int) else math.nan
        if number < self.low or (number == self.low and self.above):
            return self.low + self.inside if self.inside or not self.above else None
        if number > self.high or (number == self.high and self.below):
            return self.high - self.inside if self.inside or not self.below else None
        return number if math.isfinite(number) and self.holds(number) else None


def _plain(number: float) -> str:
    """Format without an exponent if that is short: 1048576, 1e-05."""
    return str(int(number)) if number == int(number) and abs(number) < 1e16 else f"{number:g}"


SIZE = Range(1, 2**20)  # objects in memory: actors, environments, steps, minibatches
ACTORS = Range(1, 2**14)
BATCH = Range(-math.inf, 2**40, words="1 or more")  # steps of an update, a multiple of other sizes
STEPS = Range(1, 10**15)  # environment steps of a run
COUNT = Range(1, 10**6)  # sequential repetitions
COUNT_OR_0 = Range(0, 10**6)
LAG = Range(0, 2**20)  # in updates
VERSIONS = Range(1, 2**20, words="1 or more versions")
LAG_OF_1 = Range(1, 2**20, words="1 or more (0 is synchronous: use A2C or PPO)")
PROCESSORS = Range(1, 1024)  # and threads
NODES = Range(1, 2**14)
UNITS = Range(0, 1e5)  # resources of a scheduler
LEARNERS = Range(1, 1024)
WIDTH = Range(1, 2**16)  # units of a layer
SEED = Range(0, 2**31 - 1, words="between 0 and 2147483647")

ABOVE_0 = Range(0, 1e9, above=True)
ABOVE_0_OR_INF = Range(0, 1e9, above=True, infinite=True, words="above 0 (inf: off)")
AT_LEAST_0 = Range(0, 1e9)
AT_LEAST_1_OR_INF = Range(1, 1e9, infinite=True)
NATS = Range(0, 1e9, words="0 or more nats")
FACTOR = Range(0, 1, words="between 0 and 1")
COLOR = Range(0, 2, words="between 0 and 2")
SHARE = Range(0, 1, above=True, below=True, words="above 0 and below 1", inside=0.01)
RETURN = Range(-1e15, 1e15)
SECONDS = Range(0, 1e6, above=True, words="above 0 seconds")  # poll() counts ms in 32 bits
SECONDS_OR_INF = Range(0, 1e6, above=True, infinite=True, words=SECONDS.words)
MILLISECONDS = Range(0, 1e6, words="0 ms or more")
SOME_SECONDS = Range(0, 1e9)  # only compared with clocks

NOT_EMPTY = Constraint("not empty", bool)
PATH = Constraint(
    "not empty, and without line breaks or other control characters",
    lambda path: bool(path) and not re.search(r"[\x00-\x1f\x7f-\x9f]", path),
)
A_FEW = Constraint("at least one, and at most 64", lambda x: 1 <= len(x) <= 64)


@dataclass(frozen=True)
class PythonOnly:
    """Type of a setting that is only available in Python, not on the command line."""

    type: Any

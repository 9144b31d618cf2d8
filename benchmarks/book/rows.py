"""Rows of a page: a claim, the runs that test it, and the verdict that follows from them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.studies.aggregation import mean_se


class Verdict(enum.Enum):
    """Outcome of testing a claim."""

    REPRODUCED = "reproduced"
    """At the paper's own setting, or independent of scale."""
    IN_KIND = "in kind"
    """At a smaller scale, in the same direction, by more than two standard errors."""
    NOT_REPRODUCED = "not reproduced"
    """No difference beyond two standard errors."""
    REFUTED = "refuted"
    """The opposite, by more than two standard errors."""
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Judgement:
    """A verdict and its result in words, with numbers and spread."""

    verdict: Verdict
    result: str


@dataclass(frozen=True)
class Run:
    """A finished run of an experiment."""

    case: Mapping[str, Any]
    values: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """Return a value or a setting of the case; None if it is missing."""
        return self.values.get(name, self.case.get(name))


@dataclass(frozen=True)
class Runs:
    """Finished runs of an experiment, in the order of its cases."""

    runs: tuple[Run, ...]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def where(self, **case: Any) -> Runs:
        """Return the runs whose case has these values."""
        return Runs(tuple(r for r in self if all(r.case.get(k) == v for k, v in case.items())))

    def values(self, name: str) -> list[float]:
        """Return a value of each run that has it."""
        return [value for run in self if (value := run.get(name)) is not None]

    def by(self, name: str) -> dict[Any, Runs]:
        """Return the runs by a setting of their cases, in order of appearance."""
        found = dict.fromkeys(run.case.get(name) for run in self)
        return {value: self.where(**{name: value}) for value in found}


@dataclass(frozen=True)
class Row:
    """A claim of a document, and how it was tested.

    Attributes:
        where: place in the document, such as ``Figure 4, left``.
        claim: the claim in short, for a reader who does not have the document.
        ran: environment, and settings that matter for the claim.
        experiments: names of the experiments that the judgement reads.
        judge: returns the judgement from the runs by experiment. None: the claim was not tested.
        why: why it was not tested.
    """

    where: str
    claim: str
    ran: str = ""
    experiments: tuple[str, ...] = ()
    judge: Callable[[Mapping[str, Runs]], Judgement] | None = None
    why: str = ""

    def judged(self, data: Mapping[str, Runs]) -> Judgement:
        """Return the judgement; ``not run`` if runs are missing."""
        if self.judge is None:
            return Judgement(Verdict.NOT_RUN, self.why)
        missing = [name for name in self.experiments if not len(data.get(name, Runs(())))]
        if missing:
            return Judgement(Verdict.NOT_RUN, f"not run yet: {', '.join(missing)}")
        try:
            return self.judge(data)
        except (LookupError, ValueError, ZeroDivisionError):  # a variant has too few runs
            return Judgement(Verdict.NOT_RUN, f"incomplete runs: {', '.join(self.experiments)}")


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Format values as ``mean ± standard error``.

    Args:
        digits: decimals; None: chosen by the size of the mean.
    """
    if not values:
        return "–"
    mean, se = mean_se(values)
    if digits is None:
        digits = max(0, 2 - math.floor(math.log10(abs(mean)))) if 0 < abs(mean) < 100 else 0
        digits = min(digits, 4)
    text = f"{mean:,.{digits}f}".replace("-", "−")
    return text if math.isnan(se) else f"{text} ± {se:,.{digits}f}"


def ratios(above: Runs, below: Runs, name: str) -> list[float]:
    """Divide a value of runs by that of the runs with the same seeds."""
    others = {run.case.get("seed"): run.get(name) for run in below}
    pairs = [(run.get(name), others.get(run.case.get("seed"))) for run in above]
    return [a / b for a, b in pairs if a is not None and b]


def more(
    larger: Sequence[float] | float, smaller: Sequence[float] | float, margin: float = 0.0
) -> Verdict:
    """Compare means: is the first larger, by more than two standard errors of the difference?

    Args:
        larger, smaller: values of several runs, or a number without a spread.
        margin: what the first must exceed the second by. A negative margin asks whether it is not
            smaller by more than that.

    Returns:
        IN_KIND, NOT_REPRODUCED or REFUTED.

    Raises:
        ValueError: there are fewer than two runs.
    """
    (a, se_a), (b, se_b) = _mean_se(larger), _mean_se(smaller)
    error = 2 * math.hypot(se_a, se_b)
    difference = a - b - margin
    if difference > error:
        return Verdict.IN_KIND
    return Verdict.REFUTED if difference < -error else Verdict.NOT_REPRODUCED


def _mean_se(values: Sequence[float] | float) -> tuple[float, float]:
    if isinstance(values, int | float):
        return float(values), 0.0
    if len(values) < 2:
        raise ValueError("a comparison needs two runs of each kind")
    return mean_se(values)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the weakest of several verdicts; with both signs, the claim is not reproduced."""
    if Verdict.REFUTED in verdicts and len(set(verdicts)) > 1:
        return Verdict.NOT_REPRODUCED
    order = list(Verdict)
    return max(verdicts, key=order.index)


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a claim that a single refuted part refutes, such as to be the best."""
    return Verdict.REFUTED if Verdict.REFUTED in verdicts else worst(verdicts)


def own_setting(verdict: Verdict) -> Verdict:
    """Return REPRODUCED for IN_KIND: at the paper's setting, or independent of scale."""
    return Verdict.REPRODUCED if verdict is Verdict.IN_KIND else verdict


def holds(condition: bool) -> Verdict:
    """Return the verdict on a claim that has no spread."""
    return Verdict.REPRODUCED if condition else Verdict.REFUTED


def named(texts: Mapping[str, Sequence[float]]) -> str:
    """Format several spreads as ``name: mean ± standard error``."""
    return ", ".join(f"{name}: {spread(values)}" for name, values in texts.items())

"""Accumulates metrics over updates, under the names in the table of results."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

from headrace.rundir.episodes import Episodes
from headrace.rundir.result import Greatest, Latest, Mean, Ratio, Result, Total
from headrace.transport.queue import Header, nano

_SOURCES = {field.name: field.metadata["source"] for field in fields(Result)}
_TOTALS = [source.of for source in _SOURCES.values() if isinstance(source, Total)]
_RATIOS = [f"{s.of} {s.over}" for s in _SOURCES.values() if isinstance(s, Ratio)]
_COUNTED = dict.fromkeys(" ".join(["num_rollouts", *_TOTALS, *_RATIOS]).split())
SUMS = tuple(name for name in _COUNTED if name != "num_learners")
GREATEST = tuple(name for name, source in _SOURCES.items() if isinstance(source, Greatest))
BY_RANK = tuple(sorted(k for k, s in _SOURCES.items() if isinstance(s, Mean) and s.by_rank))


class MetricAccumulator(SimpleNamespace):
    """Metrics of one update, of the updates between two results, or of the whole run.

    Its attributes are the table's sums, initially 0, its maxima, initially None, and ``noted``: the
    latest values of averaged metrics, which each learner keeps to itself.
    """

    def __init__(self) -> None:
        super().__init__(**dict.fromkeys(SUMS, 0), **dict.fromkeys(GREATEST))
        self.noted: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=1000))

    def rollout(self, header: Header) -> None:
        """Count a rollout that is trained on."""
        self.acting_ns += header.acting_ns
        self.waiting_ns += header.waiting_ns
        self.stepping_ns += header.stepping_ns
        self.env_steps += header.valid_steps
        self.num_rollouts += 1

    def count(self, **values: int) -> None:
        """Add to sums and maxima, under the names in the table."""
        for name, value in values.items():
            if name in GREATEST:
                self.greatest(name, value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def divergence(self, nats: float) -> None:
        """Count the divergence reported to an actor."""
        self.divergence_nano += nano(nats)
        self.num_measured += 1

    def greatest(self, name: str, value: int | None) -> None:
        """Update a maximum, under the name of the table's field."""
        values = [x for x in (getattr(self, name), value) if x is not None]
        setattr(self, name, max(values, default=None))

    def note(self, **values: float) -> None:
        """Add values of averaged metrics, under the names of the table's fields."""
        for name, value in values.items():
            self.noted[name].append(value)

    def means(self) -> dict[str, float]:
        """Return the means of averaged metrics, by name."""
        return {name: sum(values) / len(values) for name, values in self.noted.items()}

    def of_losses(self) -> dict[str, float]:
        """Return means of losses that are not in the table, as ``losses/<name>``."""
        own = {name: mean for name, mean in self.means().items() if name not in _SOURCES}
        return {f"losses/{k}": mean for k, mean in own.items() if not k.startswith("policies/")}

    def add(self, other: MetricAccumulator) -> None:
        """Add another accumulator's counts."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in GREATEST:
            self.greatest(name, getattr(other, name))
        for name, values in other.noted.items():
            self.noted[name].extend(values)

    def numbers(self) -> list[float]:
        """Return all counts for the all-reduce; -1 for a maximum without values."""
        counts = [getattr(self, name) for name in SUMS + GREATEST]
        return [-1 if count is None else count for count in counts]

    @classmethod
    def read(cls, numbers: Iterable[float]) -> MetricAccumulator:
        """Read an accumulator from the first of these numbers, see :meth:`numbers`."""
        meter = cls()
        for name, value in zip(SUMS + GREATEST, numbers, strict=False):
            count = value if name.endswith("_s") else int(value)
            setattr(meter, name, None if name in GREATEST and value < 0 else count)
        return meter

    def values(
        self, totals: Mapping[str, Any], episodes: Episodes, num_learners: int
    ) -> dict[str, Any]:
        """Return all fields of a :class:`Result` with a source; ``totals``: since the start."""
        fields_by_name: dict[str, Any] = {}
        means = self.means()
        for name, source in _SOURCES.items():
            match source:
                case Mean():
                    fields_by_name[name] = means.get(name)
                case Greatest():
                    fields_by_name[name] = getattr(self, name)
                case Ratio():
                    fields_by_name[name] = self._ratio(source, num_learners)
                case Total():
                    fields_by_name[name] = totals[source.of]
                case Latest():
                    fields_by_name[name] = source.of(episodes)
        return fields_by_name

    def _ratio(self, ratio: Ratio, num_learners: int) -> float | None:
        counts = vars(self) | {"num_learners": num_learners}
        of, over = (sum(counts[name] for name in names.split()) for names in (ratio.of, ratio.over))
        if ratio.others and num_learners == 1:
            return None
        return float(ratio.unit * of / over) if over else ratio.empty


@dataclass(frozen=True)
class Iteration:
    """One learner's part of an update: its time in seconds, counts and metrics of its data."""

    rank: int
    seconds: float
    meter: MetricAccumulator
    own: dict[str, float]

    def line(self) -> dict[str, Any]:
        """Return the logged line. ``t_iter`` is measured independently of its four parts."""
        meter = self.meter
        return {
            "rank": self.rank,
            "steps": meter.env_steps,
            "fps": meter.env_steps / self.seconds if self.seconds > 0 else 0.0,
            "t_iter": self.seconds,
            "t_rollout": meter.wait_s,
            "t_learn": meter.learn_s,
            "t_comm": meter.publish_s + meter.comm_s,
            "t_sync": meter.sync_s,
            **self.own,
        }

"""Population member on disk: an ordinary run, and its history.

    members/003/run/            the run
    members/003/history.jsonl   a line per event
    members/003/lock            held by who trains it

A copy is written as a checkpoint ``copy_<steps>``, whole or not at all; the line of history that
names it makes it the member's; then ``latest`` points to it. Whoever takes a member that another
left behind, at whatever instant, finds one of these three states, and :func:`recover` makes the
first or the last of them.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headrace.errors import CheckpointError
from headrace.learner.staleness import LagCounter
from headrace.rundir import checkpoint, checksums
from headrace.rundir.atomic_files import json_text, remove_folder
from headrace.rundir.files import append_jsonl, read_jsonl
from headrace.rundir.folders import pointed, saved, write

_TRIES = 20  # to read a checkpoint that its run may delete meanwhile
_LEARNT = ("learner", "own", "episodes")  # of trainer.pt: what goes with weights


@dataclass(frozen=True)
class Event:
    """One line of a member's history.

    Attributes:
        kind: born; trained, a turn; kept, with hyperparameters that may have changed; copied;
            failed, a turn in which training broke down.
        steps: the member's own. hyper: what holds from here on.
        score: as members are compared, of the weights from here on; None: not known yet.
        checkpoint: that holds those weights. sha256: of its policy.safetensors.
        source: the member that was copied, with its steps and checkpoint.
    """

    kind: str
    steps: int
    hyper: dict[str, float]
    score: float | None = None
    checkpoint: str | None = None
    sha256: str | None = None
    source: int | None = None
    source_steps: int | None = None
    source_checkpoint: str | None = None
    note: str = ""


class Member:
    """One member of a population.

    Args:
        folder: of it, which is made when it is born.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder, self.run_dir = number, folder, folder / "run"
        self._file = folder / "history.jsonl"

    def history(self) -> list[Event]:
        """Return all complete history lines, oldest first."""
        return [Event(**line) for line in read_jsonl(self._file)] if self._file.exists() else []

    def latest(self) -> Event | None:
        """Return the last event; None before the member's first."""
        return next(reversed(self.history()), None)

    def note(self, event: Event) -> None:
        """Append to the history; requires the member's lock."""
        append_jsonl(self._file, [asdict(event)])

    def recover(self) -> None:
        """Finish or undo an interrupted turn; requires the member's lock."""
        if self._file.exists():
            data = self._file.read_bytes()
            if not data.endswith(b"\n"):
                with self._file.open("rb+") as file:
                    file.truncate(data.rfind(b"\n") + 1)
        event, checkpoints = self.latest(), self.run_dir / "checkpoints"
        own = event.checkpoint if event is not None and event.kind == "copied" else None
        now = pointed(checkpoints, "latest")
        if own is not None and event is not None and (checkpoints / own).exists():
            steps = -1 if now is None else int(now.name.split("_")[1].partition("-")[0])
            if steps <= event.steps and (now is None or now.name != own):
                checkpoint.point("latest", checkpoints / own)
                now = checkpoints / own
        for path in saved(checkpoints, "copy"):
            if path.name != own and (now is None or path.name != now.name):
                remove_folder(path)

    def trained(self, hyper: dict[str, float], steps: int, score: float) -> Event:
        """Record and return the result of a turn."""
        found = checkpoint.find(self.run_dir)
        weights = (found / "policy.safetensors").read_bytes()
        digest = hashlib.sha256(weights).hexdigest()
        event = Event("trained", steps, hyper, score, found.name, digest)
        self.note(event)
        return event

    def copy(self, other: Member, theirs: Event, note: str = "") -> Event:
        """Copy another member's weights, optimiser and hyperparameters into a new checkpoint.

        Its own are its steps, counters, seed, place, and generator that shuffles. Nothing is noted
        yet, and nothing else knows of the checkpoint.

        Args:
            theirs: the other's latest event.

        Returns:
            the event, with the other's hyperparameters as they were in its checkpoint, and its
            score if that is of these weights: the other may have gone on meanwhile.

        Raises:
            CheckpointError: the other has no whole checkpoint, or the disk refuses.
        """
        values, state, weights, source = _read(other.run_dir)
        own = checkpoint.find(self.run_dir)
        before, description = checkpoint.load_trainer(own), checkpoint.read_config(own)
        state = before | {name: state[name] for name in _LEARNT}
        state["learner"] = _own_generator(state["learner"], before["learner"])
        state["episodes"] = _own_counts(state["episodes"], before["episodes"])
        digest = hashlib.sha256(weights).hexdigest()
        description["config"] |= {"algo": values["config"]["algo"]}
        target = write(
            self.run_dir / "checkpoints",
            f"copy_{before['env_steps']}",
            {
                "config.json": lambda file: file.write(json_text(description).encode()),
                "policy.safetensors": lambda file: file.write(weights),
                "trainer.pt": lambda file: torch.save(state, file),
            },
        )
        algo = values["config"]["algo"]
        latest = self.latest()
        names = latest.hyper if latest is not None else {}
        return Event(
            "copied",
            int(before["env_steps"]),
            {name: float(algo[name]) for name in names},
            theirs.score if theirs.sha256 == digest else None,
            target.name,
            digest,
            other.number,
            int(source[1]),
            source[0],
            note,
        )

    def take_over(self, event: Event) -> None:
        """Make a copy the member's current state by recording it in the history."""
        assert event.checkpoint is not None
        self.note(event)
        self.recover()


def _own_generator(theirs: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return another learner's state to resume from, with no ages and the member's generator.

    Of several policies each has both.
    """
    if "policies" in theirs:
        both = theirs["policies"], own["policies"]
        return {"policies": {name: _own_generator(*(x[name] for x in both)) for name in both[0]}}
    kept = {k: v for k, v in own.get("state", {}).items() if k == "generator"}
    none = LagCounter().state_dict()  # versions are counted from the member's own updates
    return theirs | {"ages": none, "state": theirs.get("state", {}) | kept}


def _own_counts(theirs: Any, own: Any) -> Any:
    """Return another run's latest episodes, also by task, with the member's own counters."""
    if isinstance(theirs, list) and theirs and isinstance(theirs[0], dict):
        return [_own_counts(*pair) for pair in zip(theirs, own, strict=True)]
    if not isinstance(theirs, dict):
        return theirs
    return {
        key: own[key] if key in ("count", "env_steps") else _own_counts(value, own[key])
        for key, value in theirs.items()
    }


def _read(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any], bytes, tuple[str, int]]:
    """Read config.json, trainer.pt, weights and (name, steps) of a run's latest checkpoint.

    The run may go on meanwhile, and delete it: then there is a newer one.
    """
    for left in reversed(range(_TRIES)):
        try:
            folder = checkpoint.find(run_dir)
            values, state = checkpoint.read_config(folder), checkpoint.load_trainer(folder)
            weights = (folder / "policy.safetensors").read_bytes()
            if (
                checksums.fault(folder, *checksums.FILES) is None
            ):  # and it was, while all that was read
                return values, state, weights, (folder.name, state["env_steps"])
        except (CheckpointError, OSError):
            if not left:
                raise
        time.sleep(0.05)
    raise CheckpointError(f"run directory {run_dir} holds no whole checkpoint to copy")

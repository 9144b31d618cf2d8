"""Population member on disk: an ordinary run, and its history.

    members/003/run/            the run
    members/003/history.jsonl   a line per event
    members/003/lock            held by the process that trains it

A copy is written atomically as a checkpoint ``copy_<steps>``. A line of history then makes it the
member's state, and finally ``latest`` points to it. A process that takes over a member after a
crash at any instant finds one of these three states; :func:`recover` restores the first or the
last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headrace.errors import CheckpointError
from headrace.learner.staleness import LagCounter
from headrace.processes import safe_files
from headrace.rundir import checkpoint, checkpoint_writer, checksums
from headrace.rundir.atomic_files import checkpoint_errors, json_text, remove_folder
from headrace.rundir.files import append_jsonl, read_jsonl
from headrace.rundir.folders import pointed, saved, write

_TRIES = 20  # attempts to read a checkpoint that its run may delete meanwhile
_TRAINED = (
    "learner",
    "own",
    "episodes",
    "lr_factor",
)  # entries of trainer.pt that belong to the weights


@dataclass(frozen=True)
class Event:
    """One line of a member's history.

    Attributes:
        kind: born; trained (a turn); kept, with possibly changed hyperparameters; copied; failed,
            for a turn in which training broke down.
        steps: steps of the member. hyper: hyperparameters from this event on.
        score: fitness of the weights from this event on; None: not measured yet.
        checkpoint: checkpoint of those weights. sha256: hash of its policy.safetensors.
        source: the copied member, with its steps and checkpoint.
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
        folder: folder of the member, created at its birth.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder, self.run_dir = number, folder, folder / "run"
        self._file = folder / "history.jsonl"

    def history(self) -> list[Event]:
        """Return all complete history lines, oldest first."""
        if not os.path.lexists(self._file):
            return []
        try:
            return [Event(**line) for line in read_jsonl(self._file)]
        except (OSError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self._file} can't be read as a history: {error}") from error

    def latest(self) -> Event | None:
        """Return the last event; None before the first one."""
        return next(reversed(self.history()), None)

    def note(self, event: Event) -> None:
        """Append to the history; requires the member's lock."""
        append_jsonl(self._file, [asdict(event)])

    def recover(self) -> None:
        """Finish or undo an interrupted turn; requires the member's lock."""
        with checkpoint_errors(self._file), contextlib.suppress(FileNotFoundError):
            data = safe_files.read_bytes(self._file, safe_files.LINES_BYTES)
            if not data.endswith(b"\n"):
                safe_files.truncate(self._file, data.rfind(b"\n") + 1)
        event, checkpoints = self.latest(), self.run_dir / "checkpoints"
        copy = event.checkpoint if event is not None and event.kind == "copied" else None
        now = pointed(checkpoints, "latest")
        if (
            copy is not None
            and event is not None
            and safe_files.is_folder(checkpoints / copy, self.run_dir)
        ):
            steps = -1 if now is None else int(now.name.split("_")[1].partition("-")[0])
            if steps <= event.steps and (now is None or now.name != copy):
                checkpoint_writer.point("latest", checkpoints / copy)
                now = checkpoints / copy
        for path in saved(checkpoints, "copy"):
            if path.name != copy and (now is None or path.name != now.name):
                remove_folder(path, self.run_dir)

    def trained(self, hyper: dict[str, float], steps: int, score: float) -> Event:
        """Record and return the result of a turn."""
        folder = checkpoint.find(self.run_dir)
        digest = hashlib.sha256(_weights(folder)).hexdigest()
        event = Event("trained", steps, hyper, score, folder.name, digest)
        self.note(event)
        return event

    def copy(self, other: Member, theirs: Event, note: str = "") -> Event:
        """Copy another member's weights, optimiser and hyperparameters into a new checkpoint.

        The member keeps its steps, counters, seed, folder and shuffling generator. The history
        doesn't refer to the checkpoint yet.

        Args:
            theirs: latest event of the other member.

        Returns:
            the event, with the hyperparameters in the copied checkpoint. Its score is that of the
            other member if it belongs to these weights: that member may have trained meanwhile.

        Raises:
            CheckpointError: the other member has no complete checkpoint, or a disk error.
        """
        values, state, weights, source = _read(other.run_dir)
        folder = checkpoint.find(self.run_dir)
        before, description = checkpoint.load_trainer(folder), checkpoint.read_config(folder)
        state = before | {name: state[name] for name in _TRAINED}
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


def _weights(folder: Path) -> bytes:
    """Read the weights of a checkpoint folder."""
    file, root = folder / "policy.safetensors", checksums.root_of(folder)
    return safe_files.read_bytes(file, safe_files.machine_bytes(), root)


def _own_generator(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return another learner's state with empty ages and the member's own generator.

    With several policies this applies to the state of each.
    """
    if "policies" in theirs:
        both = theirs["policies"], ours["policies"]
        return {"policies": {name: _own_generator(*(x[name] for x in both)) for name in both[0]}}
    generator = {k: v for k, v in ours.get("state", {}).items() if k == "generator"}
    none = LagCounter().state_dict()  # versions are counted from the member's own updates
    return theirs | {"ages": none, "state": theirs.get("state", {}) | generator}


def _own_counts(theirs: Any, ours: Any) -> Any:
    """Return another run's latest episodes, in total and by task, with the member's counters."""
    if isinstance(theirs, list) and theirs and isinstance(theirs[0], dict):
        return [_own_counts(*pair) for pair in zip(theirs, ours, strict=True)]
    if not isinstance(theirs, dict):
        return theirs
    return {
        key: ours[key] if key in ("count", "env_steps") else _own_counts(value, ours[key])
        for key, value in theirs.items()
    }


def _read(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any], bytes, tuple[str, int]]:
    """Read config.json, trainer.pt, weights and (name, steps) of a run's latest checkpoint.

    The run may delete the checkpoint meanwhile, but then there is a newer one.
    """
    for left in reversed(range(_TRIES)):
        try:
            folder = checkpoint.find(run_dir)
            values, state = checkpoint.read_config(folder), checkpoint.load_trainer(folder)
            weights = _weights(folder)
            if checksums.fault(folder, *checksums.FILES) is None:  # complete while it was read
                return values, state, weights, (folder.name, state["env_steps"])
        except (CheckpointError, OSError):
            if not left:
                raise
        time.sleep(0.05)
    raise CheckpointError(f"run directory {run_dir} holds no complete checkpoint to copy")

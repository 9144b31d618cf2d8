"""A run's checkpoints: what several learners put together into one, and take out of it again."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from headrace.config import Config
from headrace.envs.probe import Probe
from headrace.errors import CheckpointError
from headrace.learning.learner import Learner
from headrace.nn.policy import Policy
from headrace.records import checkpoint
from headrace.records.result import Episodes
from headrace.records.tally import Progress
from headrace.spaces.json import space_to_json
from headrace.types import Group


class Saved(NamedTuple):
    """What a checkpoint holds, as one learner has it."""

    policy: Policy
    learner: Learner
    progress: Progress
    episodes: Episodes


class Archive:
    """Saves and loads; only rank 0 touches files, and every learner makes the same calls.

    Prepares the run directory, goes on from its latest checkpoint if that is to be resumed, and
    writes ``config.json``.

    Args:
        run_dir: of the run. config: all its settings. found: of its environment.
        group: of its learners. saved: of this one.

    Raises:
        CheckpointError: the run directory exists, or what is to be resumed isn't there or doesn't
            fit this run.
    """

    def __init__(
        self, run_dir: Path, config: Config, found: Probe, group: Group, saved: Saved
    ) -> None:
        self._run_dir, self._config, self._group, self._saved = run_dir, config, group, saved
        self._description = {
            "format": checkpoint.FORMAT,
            "config": config.to_json(),
            "observation_space": space_to_json(found.observation_space),
            "action_space": space_to_json(found.action_space),
            "info_mask": found.info_mask,
        }
        if group.rank == 0:
            checkpoint.prepare(run_dir, config.resume, config.overwrite)
        if config.resume:
            self._load()
        if group.rank == 0:
            checkpoint.write_json(run_dir / "config.json", self._description)

    def save(self) -> None:
        """Write a checkpoint."""
        policy, learner, progress, episodes = self._saved
        progress.epoch += self._config.deterministic
        own = self._group.gather_objects((learner.own_state(), episodes.state_dict()))
        if self._group.rank > 0:
            return
        states, parts = zip(*own, strict=True)
        returns = [value for part in parts for value in part["returns"]]
        mean, best = statistics.fmean(returns) if returns else None, progress.best_return
        improved = mean is not None and (best is None or mean > best)
        if improved:
            progress.best_return = mean  # which only rank 0 needs
        state = progress.state_dict() | {
            "learner": learner.state_dict(),
            "own": list(states),  # of each learner, by rank
            "episodes": list(parts),
        }
        path = checkpoint.save(self._run_dir, self._description, policy, state)
        if improved:
            checkpoint.point("best", path)
        checkpoint.rotate(self._run_dir, self._config.keep_checkpoints)

    def _load(self) -> None:
        """Go on from the latest checkpoint, which may be of another number of learners."""
        policy, learner, progress, episodes = self._saved
        found: tuple[Any, ...] = ()
        if self._group.rank == 0:
            folder = checkpoint.find(self._run_dir)
            checkpoint.load_weights(folder, policy)
            found = str(folder), policy.state_dict(), checkpoint.load_trainer(folder)
        name, weights, state = self._group.broadcast(found)
        try:
            policy.load_state_dict(weights)
            progress.load_state_dict(state)
            episodes.load_share(state["episodes"], self._group.rank, self._group.size)
            progress.epoch += not self._config.deterministic
            learner.load_state_dict(state["learner"])
            learner.load_own_state(state["own"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{name}/trainer.pt doesn't fit this run: {error!r}") from error

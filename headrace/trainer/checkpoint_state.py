"""Training state in checkpoints, and checks that a saved state fits the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from headrace.algos import ALGORITHMS
from headrace.envs.changes import EnvChange
from headrace.errors import CheckpointError, NonFinite
from headrace.learner.multi_policy_learner import AnyLearner
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir import checkpoint
from headrace.rundir.atomic_files import FOREIGN
from headrace.rundir.episodes import Episodes, check_episodes
from headrace.rundir.league_run import LeagueRun
from headrace.rundir.run_progress import Progress
from headrace.rundir.training_state import check_alike
from headrace.spaces.json import space_from_json
from headrace.types import Group


class CheckpointState(NamedTuple):
    """State of one learner that checkpoints save and restore."""

    policy: AnyPolicy
    learner: AnyLearner
    progress: Progress
    episodes: Episodes
    league: LeagueRun | None = None

    def check_finite(self) -> None:
        """Raise NonFinite if a weight isn't finite; buffers may be infinite, such as masks."""
        for name, weight in self.policy.named_parameters():
            if not weight.isfinite().all():
                raise NonFinite(f"{name} has values that are not finite, so nothing is saved")

    def own(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the learner and of its episodes, which differ between learners."""
        return self.learner.own_state(), self.episodes.state_dict()

    def to_dict(self, own: list[dict[str, Any]], episodes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the state to save, except the progress.

        Args:
            own, episodes: results of :meth:`own`, by rank.
        """
        state = {"learner": self.learner.state_dict(), "own": own, "episodes": episodes}
        if self.league is not None:
            state["league"] = self.league.state_dict()
        return state

    def restore(self, weights: dict[str, Any], state: dict[str, Any], group: Group) -> None:
        """Load weights, and a state that :meth:`read` returned."""
        self.policy.load_state_dict(weights)
        self.progress.load_state_dict(state)
        self.episodes.load_share(state["episodes"], group.rank, group.size)
        self.learner.load_state_dict(state["learner"])
        self.learner.load_own_state(state["own"])
        if self.league is not None and "league" in state:
            self.league.load_state_dict(state["league"])

    def read(self, folder: Path, algo_name: str) -> dict[str, Any]:
        """Load a checkpoint's training state; check its types against those of a new run.

        Raises:
            CheckpointError: it can't be read, or doesn't fit.
        """
        trained, own = self.learner.state_dict(), self.learner.own_state()
        if algo_name not in ALGORITHMS:  # its state may hold any plain values
            own = {}
            for one in trained.get("policies", {"": trained}).values():
                one["state"] = {}
        fresh = {
            **self.progress.state_dict(),
            "learner": trained,
            "own": [own],
            "episodes": [self.episodes.state_dict()],
        }
        state = checkpoint.load_trainer(folder)
        if state.get("best_return") is not None:
            fresh["best_return"] = 0.0
        try:
            check_alike(state, fresh)
            for one in state["episodes"]:
                check_episodes(one)
            for text in state.get("env_changes", ()):
                EnvChange.from_json(text)
        except FOREIGN as error:
            raise CheckpointError(f"{folder}/trainer.pt doesn't fit this run: {error}") from error
        return state


def check_same(folder: Path, description: dict[str, Any]) -> None:
    """Raise CheckpointError unless a checkpoint has the policies and spaces of this run.

    Args:
        description: contents of this run's ``config.json``.
    """
    saved = checkpoint.read_config(folder)
    before, now = (list(x.get("policies", {}).items()) for x in (saved, description))
    if before != now:
        raise CheckpointError(
            f"{folder} was trained with policies {_agents(before)}, so it can't be resumed "
            f"with {_agents(now)}"
        )
    for name in ("observation_space", "action_space"):
        theirs, ours = (space_from_json(d[name]) for d in (saved, description))
        if theirs != ours:
            raise CheckpointError(
                f"{folder} was trained with {name} {_line(theirs)}, so it can't be resumed on "
                f"{description['config']['env']}, whose {name} is {_line(ours)}"
            )


def _agents(played_by: list[tuple[str, str]]) -> str:
    return ",".join(map(":".join, played_by)) or "shared"


def _line(space: object) -> str:
    return " ".join(str(space).split())

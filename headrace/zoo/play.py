"""Plays whole episodes in a window, or records a video if there is no display."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace import zoo
from headrace.actors.episodes import Limits, drawing, limits_of, played, whole_episodes
from headrace.envs.changes import EnvChange, apply
from headrace.envs.make import make_vec
from headrace.envs.names import env_name
from headrace.errors import CheckpointError, ConfigError, nearest
from headrace.games.vector import agents_of
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir import checkpoint, resolve_imports
from headrace.rundir.video import record_video


def checkpoint_of(what: str) -> Path:
    """Return the checkpoint of a policy of the zoo or of a run directory.

    Raises:
        CheckpointError: ``what`` is neither.
    """
    if what in zoo.NAMES:
        return zoo.folder(what)
    if not Path(what).exists():
        names = ", ".join(zoo.NAMES)
        raise CheckpointError(
            f"{what!r} is neither a run directory nor a trained policy that comes with headrace "
            f"({names}).{nearest(what, zoo.NAMES)}"
        )
    return checkpoint.find(what)


@dataclasses.dataclass(frozen=True)
class Player:
    """Policy with the environment that it was trained on.

    Args:
        folder: folder of a checkpoint.
        seed: seed of the environment.
        trust: import the code that the run names without an entry in the user's allow-list.
        max_steps, timeout_s: limits of an episode; None: the run's eval_max_steps, eval_timeout_s.

    Raises:
        CheckpointError: the checkpoint is corrupt, or names code that isn't allowed.
        ConfigError: the policy was trained on several tasks.
    """

    folder: Path
    seed: int = 1_000_000
    trust: bool = False
    max_steps: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.config.get("tasks"):
            raise ConfigError(
                "a policy of several tasks can't be watched in a window: record each task with "
                "`headrace evaluate RUN --video FOLDER`"
            )
        resolve_imports.check(self.folder, checkpoint.read_config(self.folder), self.trust)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Settings of the run, from its ``config.json``."""
        return dict(checkpoint.read_config(self.folder)["config"])

    @functools.cached_property
    def env(self) -> Any:
        """Resolved environment."""
        return resolve_imports.environment(self.folder, {"config": self.config}, trusted=True)

    @functools.cached_property
    def policy(self) -> AnyPolicy:
        """Policy of the checkpoint."""
        return checkpoint.load_policy(self.folder, trusted=self.trust)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the environment in evaluations."""
        return {**self.config["env_kwargs"], **self.config.get("eval_env_kwargs", {})}

    @property
    def deterministic(self) -> bool:
        """Return True if evaluations play the most likely actions."""
        return bool(self.config.get("eval_deterministic", True))

    @functools.cached_property
    def env_changes(self) -> list[EnvChange]:
        """Changes that the run made to evaluation environments."""
        return checkpoint.eval_env_changes(self.folder, self.trust)

    @property
    def limits(self) -> Limits:
        """Limits of an episode."""
        return limits_of(self.config, self.max_steps, self.timeout_s)

    def record(self, to: Path) -> Path:
        """Write one episode as ``episode.mp4`` into a folder, and return its path.

        Raises:
            ConfigError: the environment can't be made, or provides no images.
        """
        how = self.seed, self.kwargs, self.config["engine"], self.deterministic, self.limits
        return record_video(self.policy, self.env, to, *how, self.env_changes)

    def episodes(self, count: int, window: bool) -> Iterator[tuple[dict[str, float], int]]:
        """Play episodes one by one; yield the returns and the number of steps of each.

        Returns are by agent; a single agent has an empty name. An episode that doesn't end within
        the limits is reported and cut, and the environment is reset.

        Args:
            window: the environment renders itself in a window, at its own pace.

        Raises:
            ConfigError: the environment can't be made, or opens no window.
        """
        engine = "sync" if window else self.config["engine"]
        kwargs = {**self.kwargs, "render_mode": "human"} if window else self.kwargs
        with contextlib.ExitStack() as stack:
            envs = make_vec(self.env, 1, engine, kwargs)
            stack.callback(envs.close)
            for change in self.env_changes:
                apply(envs, change, env_name(self.env))
            stack.enter_context(drawing(self.seed, self.deterministic))
            moments = played(self.policy, envs, self.seed, self.deterministic)
            agents = agents_of(envs) or ("",)
            for i in range(count):
                each, unfinished = whole_episodes(
                    moments, 1, 1, num_agents=len(agents), limits=self.limits
                )
                by_agent = zip(agents, each, strict=True)
                returns = {name: values[0] for name, (values, _) in by_agent if values}
                yield returns, max((lengths[0] for _, lengths in each if lengths), default=0)
                if unfinished:
                    moments = played(self.policy, envs, self.seed + i + 1, self.deterministic)

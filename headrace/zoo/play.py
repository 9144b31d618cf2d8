"""``headrace play``: whole episodes in a window, or on a film where there is no display."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace import zoo
from headrace.envs.make import make_vec
from headrace.errors import CheckpointError, ConfigError, nearest
from headrace.evaluation import drawing, played, whole_episodes
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir import checkpoint, resolve_imports
from headrace.rundir.video import record_video


def found(what: str) -> Path:
    """The checkpoint that a name of the zoo, or else a run directory, stands for.

    Raises:
        CheckpointError: it is neither.
    """
    if what in zoo.NAMES:
        return zoo.folder(what)
    if not Path(what).exists():
        names = ", ".join(zoo.NAMES)
        raise CheckpointError(
            f"{what!r} is no run directory and no trained policy that comes with headrace "
            f"({names}).{nearest(what, zoo.NAMES)}"
        )
    return checkpoint.find(what)


@dataclasses.dataclass(frozen=True)
class Player:
    """A policy with the environment that it was trained on.

    Args:
        folder: of a checkpoint. trust: import the code that the run names, though this user hasn't
            named it here.

    Raises:
        CheckpointError: the checkpoint is corrupt, or names code and isn't this user's.
        ConfigError: it is of several tasks.
    """

    folder: Path
    seed: int = 1_000_000
    trust: bool = False

    def __post_init__(self) -> None:
        if self.config.get("tasks"):
            raise ConfigError(
                "a policy of several tasks can't be watched in a window: record each task with "
                "`headrace evaluate RUN --video FOLDER`"
            )
        resolve_imports.check(self.folder, checkpoint.read_config(self.folder), self.trust)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The run's settings, as its ``config.json`` has them."""
        return dict(checkpoint.read_config(self.folder)["config"])

    @functools.cached_property
    def env(self) -> Any:
        """The environment, resolved."""
        return resolve_imports.environment(self.folder, {"config": self.config}, trusted=True)

    @functools.cached_property
    def policy(self) -> AnyPolicy:
        """The policy of the checkpoint."""
        return checkpoint.load_policy(self.folder, trusted=self.trust)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Of the environment in evaluations."""
        return {**self.config["env_kwargs"], **self.config.get("eval_env_kwargs", {})}

    @property
    def deterministic(self) -> bool:
        """Whether evaluations play the most likely actions."""
        return bool(self.config.get("eval_deterministic", True))

    def film(self, to: Path) -> Path:
        """Write one episode as ``episode.mp4`` into a folder; its path.

        Raises:
            ConfigError: the environment can't be made, or gives no pictures.
        """
        how = self.seed, self.kwargs, self.config["engine"], self.deterministic
        return record_video(self.policy, self.env, to, *how)

    def episodes(self, count: int, window: bool) -> Iterator[tuple[float, int]]:
        """Play one after the other; the return and the steps of each as it ends.

        Args:
            window: the environment shows itself in a window, at its own pace.

        Raises:
            ConfigError: the environment can't be made, or opens no window.
        """
        engine = "sync" if window else self.config["engine"]
        kwargs = {**self.kwargs, "render_mode": "human"} if window else self.kwargs
        with contextlib.ExitStack() as stack:
            envs = make_vec(self.env, 1, engine, kwargs)
            stack.callback(envs.close)
            stack.enter_context(drawing(self.seed, self.deterministic))
            moments = played(self.policy, envs, self.seed, self.deterministic)
            for _ in range(count):
                ((returns, lengths),) = whole_episodes(moments, 1, 1)
                yield returns[0], lengths[0]

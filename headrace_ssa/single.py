"""One SSAConjunction game at a time."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from headrace_ssa.conjunction import SSAConjunctionVectorEnv


class SSAConjunctionEnv(gymnasium.Env):
    """:class:`SSAConjunctionVectorEnv` with one episode at a time; rules and arguments as there."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        n_objects: int = 20,
        horizon: int = 200,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._games = SSAConjunctionVectorEnv(1, n_objects, horizon, seed, render_mode)
        self.observation_space = self._games.single_observation_space
        self.action_space = self._games.single_action_space
        self.render_mode, self._runs = render_mode, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        obs, infos = self._games.reset(seed=seed)
        self._np_random, self._runs = self._games.rngs[0], True
        return obs[0], _first(infos)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            ValueError: there is no such action.
            RuntimeError: the episode has ended, or none was begun.
        """
        if not self._runs:
            raise RuntimeError("no episode is running: call reset() before step()")
        obs, reward, terminated, _, infos = self._games.step(np.asarray(action).reshape(1))
        self._runs = not terminated[0]
        return obs[0], float(reward[0]), bool(terminated[0]), False, _first(infos)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The scene as an image ``[320, 800, 3]`` uint8; None without a render mode."""
        frames = self._games.render()
        return None if frames is None else frames[0]


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    """The infos of one environment: its mask as an array, its counts as plain numbers."""
    return {key: value[0] if value.ndim > 1 else int(value[0]) for key, value in infos.items()}

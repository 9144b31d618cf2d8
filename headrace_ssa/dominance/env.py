"""OrbitalDominance: two sides near one another on orbit, each wants to see and not to be seen.

    draw a game ──► both sides' observations ──► an action each ──► burn | point | jam | hold
                              ▲                                              │
                              └── points ◄── measurements ◄── motion ◄───────┘

A side has an asset and inspectors. It gets points for knowing where the other side's asset is and
for inspecting it from near, and loses some for burns and for an asset that leaves its station.
Rewards are what a side gains less what the other one gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import require
from headrace_ssa.batch import check_counts, checked, generators, is_whole, near
from headrace_ssa.dominance import picture, play, rules, scene, view


class OrbitalDominanceVectorEnv(VectorEnv):
    """``num_envs / 2`` games of two columns each, in NEXT_STEP autoreset.

    Columns 2 g and 2 g + 1 are blue and red of game g (``agents``), each sees it from its own side,
    and both end together. A game plays as long as ``horizon`` steps of 120 s, or until satellites
    of both sides collide; both are terminations.

    **Actions**, ``1 + 7 n + n²``, one for the side: see :class:`rules.Actions`. What
    ``info["action_mask"]`` (int8) forbids does nothing.

    **Observation**, float32 in [-1, 1]: see :class:`view.Seen`.

    **Reward**: own points of the step less the other side's, so both sum to 0. Points: 1 for
    custody of the other side's asset, 3 for each sensor that inspects it, -1 for an own asset off
    its station, -0.2 for a burn, -50 for both sides for a collision: between them it cancels, and
    what is left of it is the end of the game.

    ``infos`` hold, for each column, ``points`` of the step, and whether or how often the side has
    ``custody``, ``inspections``, ``burnt``, ``jammed`` and ``collided`` in it.

    Args:
        num_envs: columns, two for each game.
        n: satellites of a side, 2 or more: an asset, and the others inspect.
        horizon: steps of a game, 1 or more; 96 are two revolutions.
        seed: of the first reset where that gives none; game ``g`` takes ``seed + g``.

    Raises:
        ConfigError: num_envs is odd; n or horizon is too small, or no whole number.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    agents = rules.AGENTS

    def __init__(
        self,
        num_envs: int,
        n: int = 2,
        horizon: int = 96,
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        rounded = near(num_envs, 2)
        even = f"even, two columns for each game (nearest: {rounded + rounded % 2})"
        valid = is_whole(num_envs) and num_envs > 0 and num_envs % 2 == 0
        require(valid, "num_envs", num_envs, even)
        check_counts(n=(n, 2), horizon=(horizon, 1))
        self.num_envs, self.n, self.horizon = num_envs, n, horizon
        self.render_mode, self._seed = render_mode, seed
        self.single_observation_space = Box(-1.0, 1.0, (view.size(n),), np.float32)
        self.single_action_space = Discrete(rules.Actions(n).count)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs: list[np.random.Generator] = []

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game everywhere.

        Args:
            seed: game ``g`` takes ``seed + g``; or one for each column, of which a game takes that
                of its first.

        Raises:
            ValueError: there are not as many seeds as columns.
        """
        if seed is None and not self.rngs:
            seed = self._seed
        if seed is not None and not isinstance(seed, (int, np.integer)):
            if len(seed) != self.num_envs:
                raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} columns")
            seed = seed[::2]
        games = self.num_envs // 2
        self.rngs = generators(self.rngs, seed, games)
        self.scene = scene.draw(self.rngs, self.n, self.horizon)
        self._ended = np.zeros(games, bool)
        nothing = np.zeros((games, 2))
        return self._seen(nothing, nothing.astype(int), nothing > 0, nothing > 0, self._ended)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of every game; a filler for those that ended with the previous one.

        Args:
            actions: ``[num_envs]`` whole numbers.

        Raises:
            ValueError: there are not as many actions as columns, or one doesn't exist.
            RuntimeError: ``reset`` was never called.
        """
        if not self.rngs:
            raise RuntimeError("no game is running: call reset() before step()")
        chosen = checked(actions, self.num_envs, rules.Actions(self.n).count).reshape(-1, 2)
        allowed = np.take_along_axis(self._mask, chosen[..., None], axis=2)[..., 0]
        fillers, at = self._ended, self.scene
        burnt, jamming = play.command(at, np.where(allowed & ~fillers[:, None], chosen, 0))
        fresh = None
        if fillers.any():
            rows = np.flatnonzero(fillers)
            fresh = scene.draw([self.rngs[row] for row in rows], self.n, self.horizon)
            at.put(rows, fresh)  # moved with the others, and put once more
        collided = play.move(at)
        inspections = play.sense(at, jamming)
        if fresh is not None:
            at.put(rows, fresh)
        going = ~fillers
        collided &= going
        inspections *= going[:, None]
        points = self._points(burnt, inspections, collided) * going[:, None]
        at.score += points
        self._ended = collided | (going & (at.time == self.horizon))
        ended = np.repeat(self._ended, 2)
        obs, infos = self._seen(points, inspections, burnt, np.any(jamming, axis=2), collided)
        reward = (points - points[:, ::-1]).reshape(-1)
        return obs, reward, ended, np.zeros_like(ended), infos

    def render(self) -> tuple[np.ndarray, ...] | None:  # type: ignore[override]
        """Each game, twice, ``[400, 800, 3]`` uint8; None without a render mode."""
        if self.render_mode is None:
            return None
        if not self.rngs:
            raise RuntimeError("there is nothing to draw: call reset() before render()")
        frames = [picture.frame(self.scene, game) for game in range(self.num_envs // 2)]
        return tuple(frame for frame in frames for _ in self.agents)

    def _points(
        self, burnt: np.ndarray, inspections: np.ndarray, collided: np.ndarray
    ) -> np.ndarray:
        """Points of the step, ``[G, 2]``."""
        return (
            rules.CUSTODY * play.has_custody(self.scene)
            + rules.INSPECTION * inspections
            + rules.OFF_STATION * play.off_station(self.scene)
            + rules.BURN * burnt
            + rules.COLLISION * collided[:, None]
        )

    def _seen(
        self,
        points: np.ndarray,
        inspections: np.ndarray,
        burnt: np.ndarray,
        jammed: np.ndarray,
        collided: np.ndarray,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Observations and infos of all columns."""
        self._mask = play.mask(self.scene)
        obs = view.observe(self.scene, self.horizon).reshape(self.num_envs, -1)
        infos = {
            "action_mask": self._mask.reshape(self.num_envs, -1).astype(np.int8),
            "points": points.reshape(-1),
            "custody": play.has_custody(self.scene).reshape(-1),
            "inspections": inspections.reshape(-1),
            "burnt": burnt.reshape(-1),
            "jammed": jammed.reshape(-1),
            "collided": np.repeat(collided, 2),
        }
        return obs, infos

"""OrbitalDominance: vector environment of a zero-sum game between two sides on orbit.

    draw a game ──► both sides' observations ──► an action each ──► burn | point | jam | hold
                              ▲                                              │
                              └── points ◄── measurements ◄── motion ◄───────┘

A side has an asset and inspectors. It gains points for a good track of the other side's asset and
for inspecting it at close range. It loses points for burns and for an asset off its station. The
reward of a side is its points less the other side's.
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
from headrace_ssa.dominance import motion, picture, play, rules, scene, view


class OrbitalDominanceVectorEnv(VectorEnv):
    """Vector environment of ``num_envs / 2`` games, two columns each, with NEXT_STEP autoreset.

    Columns 2 g and 2 g + 1 are blue and red of game g (``agents``). Each observes the game from its
    side, and both end together. A game lasts ``horizon`` steps of 120 s, or until satellites of
    both sides collide; both are terminations.

    **Actions**, ``1 + 7 n + n²``, one per side and step: see :class:`rules.Actions`. An action that
    ``info["action_mask"]`` (int8) forbids has no effect.

    **Observation**, float32 in [-1, 1]: see :class:`view.Observation`.

    **Reward**: the side's points of the step less the other side's, so both sum to 0. Points: 1 for
    custody of the other side's asset, 3 for each sensor that inspects it, -1 for an own asset off
    its station, -0.2 for a burn, -50 for both sides for a collision. The points of a collision
    cancel in the reward; its only effect is the end of the game.

    ``infos`` contain, for each column, the ``points`` of the step, and the flag or count of
    ``custody``, ``inspections``, ``burnt``, ``jammed`` and ``collided`` in it.

    Args:
        num_envs: number of columns, two per game.
        n: satellites per side, 2 or more: an asset and inspectors.
        horizon: steps of a game, 1 or more; 96 are two revolutions.
        inclination: inclination of the reference orbit, degrees from 0 to 180, for motion with J2
            averaged over a revolution. None: motion without J2.
        seed: seed of the first reset if that has none; game ``g`` uses ``seed + g``.

    Raises:
        ConfigError: num_envs is odd; n or horizon is too small or not a whole number; the
            inclination is invalid.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 5,
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
        inclination: float | None = None,
    ) -> None:
        rounded = near(num_envs, 2)
        even = f"even, with two columns per game (nearest: {rounded + rounded % 2})"
        valid = is_whole(num_envs) and num_envs > 0 and num_envs % 2 == 0
        require(valid, "num_envs", num_envs, even)
        check_counts(n=(n, 2), horizon=(horizon, 1))
        self.num_envs, self.n, self.horizon = num_envs, n, horizon
        self._rates = motion.rates(inclination)
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
        """Begin all games.

        Args:
            seed: game ``g`` uses ``seed + g``. Or a seed per column; a game uses that of its first
                column.

        Raises:
            ValueError: the number of seeds differs from the number of columns.
        """
        if seed is None and not self.rngs:
            seed = self._seed
        if seed is not None and not isinstance(seed, (int, np.integer)):
            if len(seed) != self.num_envs:
                raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} columns")
            seed = seed[::2]
        games = self.num_envs // 2
        self.rngs = generators(self.rngs, seed, games)
        self.scene = scene.draw(self.rngs, self.n, self.horizon, self._rates)
        self._ended = np.zeros(games, bool)
        self._chosen = np.zeros((games, 2), np.int64)
        nothing = np.zeros((games, 2))
        return self._outputs(nothing, nothing.astype(int), nothing > 0, nothing > 0, self._ended)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every game by a step, and reset those that ended with the previous one.

        Args:
            actions: ``[num_envs]`` integers.

        Raises:
            ValueError: the number of actions is wrong, or an action doesn't exist.
            RuntimeError: ``reset`` was never called.
        """
        if not self.rngs:
            raise RuntimeError("no game is running: call reset() before step()")
        chosen = checked(actions, self.num_envs, rules.Actions(self.n).count).reshape(-1, 2)
        allowed = np.take_along_axis(self._mask, chosen[..., None], axis=2)[..., 0]
        fillers, at = self._ended, self.scene
        self._chosen = np.where(allowed & ~fillers[:, None], chosen, 0)
        burnt, jamming = play.command(at, self._chosen)
        fresh = None
        if fillers.any():
            rows = np.flatnonzero(fillers)
            rngs = [self.rngs[row] for row in rows]
            fresh = scene.draw(rngs, self.n, self.horizon, self._rates)
            at.put(rows, fresh)  # moves with the other games, so it is put again below
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
        obs, infos = self._outputs(points, inspections, burnt, np.any(jamming, axis=2), collided)
        reward = (points - points[:, ::-1]).reshape(-1)
        return obs, reward, ended, np.zeros_like(ended), infos

    def render(self) -> tuple[np.ndarray, ...] | None:  # type: ignore[override]
        """Return an image per column, ``[400, 800, 3]`` uint8; None without a render mode."""
        if self.render_mode is None:
            return None
        if not self.rngs:
            raise RuntimeError("there is nothing to draw: call reset() before render()")
        frames = [
            picture.frame(self.scene, game, chosen) for game, chosen in enumerate(self._chosen)
        ]
        return tuple(frame for frame in frames for _ in self.agents)

    def _points(
        self, burnt: np.ndarray, inspections: np.ndarray, collided: np.ndarray
    ) -> np.ndarray:
        """Return the points of the step, ``[G, 2]``."""
        return (
            rules.CUSTODY * play.has_custody(self.scene)
            + rules.INSPECTION * inspections
            + rules.OFF_STATION * play.off_station(self.scene)
            + rules.BURN * burnt
            + rules.COLLISION * collided[:, None]
        )

    def _outputs(
        self,
        points: np.ndarray,
        inspections: np.ndarray,
        burnt: np.ndarray,
        jammed: np.ndarray,
        collided: np.ndarray,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return observations and infos of all columns."""
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

"""SSAConjunction: schedule radar observations and avoidance burns to protect a satellite.

    draw an episode ──► predict every object ──► risks ──► observe | burn | wait
                              ▲                                      │
                              └────────── closest approaches ◄───────┘

``n_objects`` catalogue objects closely pass a satellite on a low orbit, each once. The uncertainty
of their positions grows with time until a radar observes them. An early, short burn along the
track moves the satellite out of the way. It costs propellant and changes every later approach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace_ssa import orbits, render, scene, tracking
from headrace_ssa.batch import check_counts, checked, generators
from headrace_ssa.catalogue import read
from headrace_ssa.outlook import BURN_MS, FEATURES, GLOBALS, RADIUS_M, look_ahead, observe
from headrace_ssa.tracking import STEP_S

MAX_BURNS = 5
SHORTEST_WITH_CATALOGUE = 100
"""Minimum horizon with a catalogue, in steps: more than one revolution."""
COLLISION = -100.0
"""Reward of a collision, which terminates the episode."""
AVOIDED = 10.0
"""Reward of a miss that would have been a collision without the burns."""
BURN = -1.0
"""Reward of a burn: -33 per m/s."""
FALSE_ALARM = -8.0
"""Reward, at the closest approach, of each burn made while this object was the most dangerous one,
if it would have missed the satellite anyway."""

_METADATA = {"render_modes": ["rgb_array"], "render_fps": 10}


class SSAConjunctionVectorEnv(VectorEnv):
    """Vector environment of ``num_envs`` conjunction games, with NEXT_STEP autoreset.

    **Time.** A step is 120 s. An episode ends after ``horizon`` steps, or with a collision;
    both are terminations.

    **Actions**, ``n_objects + 3``: 0 waits. 1 … n observes the k-th object of the list below, if a
    radar sees it. n + 1 and n + 2 burn forwards and backwards, 0.03 m/s, at most five times. An
    action that ``info["action_mask"]`` (int8) forbids has no effect.

    **Observation**, float32 in [0, 1], ``8 + 8 n_objects``. It begins with the shares of time and
    burns left. Next are the probabilities of any collision without a burn, after a burn forwards
    now, and after one backwards, and the same three for the next 30 steps only. Then follow the
    objects, the most dangerous one first (ties in order of their closest approach), with zeros for
    objects that have passed. Each object has: time to the closest approach over the horizon;
    whether a radar sees it; the collision probabilities without a burn, after a burn forwards now,
    and after one backwards, as ``1 + log10(max(p, 1e-8)) / 8``; the standard deviation of its
    position along the track now, and of the miss (geometric mean of both axes), as
    ``log10(1 + m) / 4``; the share of all burns that were made because of it.

    **Reward**: -100 for a collision; +10 for a closest approach that missed and would have been a
    collision without the burns; -1 for each burn; -8 for each false alarm. A false alarm is a burn
    made while the most dangerous object was one that would have missed anyway. The penalty is
    given at that object's closest approach.

    **Truth.** The true position of an object differs from the catalogue by an error, which is drawn
    at reset from the catalogue's covariance, so the probabilities are calibrated. ``infos`` count
    the ``collisions``, ``avoided`` collisions and ``false_alarms`` of the step.

    Args:
        n_objects: number of catalogue objects, 1 or more.
        horizon: steps of an episode, 40 or more; there is no close approach before step 40.
        seed: seed of the first reset if that has none; environment ``i`` uses ``seed + i``.
        catalogue: path of a file of two-line elements or OMM with the orbits of the objects.

    Raises:
        ConfigError: num_envs, n_objects or horizon is too small or not a whole number; or the
            catalogue is unusable.
    """

    metadata: dict[str, Any] = {**_METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int,
        n_objects: int = 20,
        horizon: int = 200,
        seed: int | None = None,
        render_mode: str | None = None,
        catalogue: str | None = None,
    ) -> None:
        shortest = scene.FIRST_APPROACH if catalogue is None else SHORTEST_WITH_CATALOGUE
        check_counts(num_envs=(num_envs, 1), n_objects=(n_objects, 1), horizon=(horizon, shortest))
        self.num_envs, self.n_objects, self.horizon = num_envs, n_objects, horizon
        self.render_mode, self._seed = render_mode, seed
        self._catalogue = None if catalogue is None else read(catalogue)
        size = GLOBALS + FEATURES * n_objects
        self.single_observation_space = Box(0.0, 1.0, (size,), np.float32)
        self.single_action_space = Discrete(n_objects + 3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs: list[np.random.Generator] = []
        self._rows = np.arange(num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode in each environment; seeds and errors as in :func:`generators`."""
        if seed is None and not self.rngs:
            seed = self._seed
        self.rngs = generators(self.rngs, seed, self.num_envs)
        self.scene = self._draw(self.rngs)
        shape = (self.num_envs, self.n_objects)
        self.time = np.zeros(self.num_envs, np.int64)  # [B] steps of the episode so far
        self.burns_left = np.full(self.num_envs, MAX_BURNS)
        self.shift = np.zeros((*shape, 2))  # m, change of the miss by burns so far
        self.alarms = np.zeros(shape, np.int64)  # burns because of each object
        self._ended = np.zeros(self.num_envs, bool)
        counts = np.zeros(self.num_envs, np.int64)
        return self._look_ahead(counts, counts, counts)

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every episode by a step, and reset those that ended with the previous one.

        Raises:
            ValueError: the number of actions is wrong, or an action doesn't exist.
            RuntimeError: ``reset`` was never called.
        """
        if not self.rngs:
            raise RuntimeError("no episode is running: call reset() before step()")
        actions = checked(actions, self.num_envs, self.n_objects + 3)
        fillers = self._ended
        allowed = self._mask[self._rows, actions] & ~fillers
        actions = np.where(allowed, actions, 0)
        self._look((actions >= 1) & (actions <= self.n_objects), actions)
        burning = actions > self.n_objects
        self._burn(burning, actions)
        self.time += ~fillers
        reward, collided, avoided, false = self._closest_approaches(fillers)
        reward += BURN * burning
        self._ended = collided.astype(bool) | (self.time == self.horizon)
        terminated = self._ended.copy()
        if fillers.any():
            self._restart(np.flatnonzero(fillers))
            self._ended[fillers] = terminated[fillers] = False
        obs, infos = self._look_ahead(collided, avoided, false)
        return obs, reward, terminated, np.zeros_like(terminated), infos

    def render(self) -> tuple[np.ndarray, ...] | None:  # type: ignore[override]
        """Return an image per environment, ``[320, 800, 3]`` uint8; None without a render mode."""
        if self.render_mode is None:
            return None
        if not self.rngs:
            raise RuntimeError("there is nothing to draw: call reset() before render()")
        seconds, limit = STEP_S * self.time, STEP_S / 3600.0 * self.horizon
        turned = self.scene.earth_angle[:, 0] + orbits.EARTH_RATE * seconds
        left = self.burns_left
        titles = [f"{s / 3600:.1f} h, {left[i]} burns left" for i, s in enumerate(seconds)]
        each = zip(range(self.num_envs), titles, turned, strict=True)
        return tuple(render.frame(self.outlook, *values, limit) for values in each)

    # -- effects of actions ----------------------------------------------------------------------

    def _look(self, looking: np.ndarray, actions: np.ndarray) -> None:
        """Measure the positions of the chosen objects and update their tracks."""
        rows = np.flatnonzero(looking)
        if not len(rows):
            return
        at = self.scene
        now, objects = self.time[rows], self.outlook.listed[rows, actions[rows] - 1]
        here = (rows, objects)
        track = tracking.Along(*(x[here] for x in at.track))
        error = at.noise[rows, now]
        measured = at.path[rows, now, objects] + error[:, 0]
        track = tracking.predicted(track, now - at.seen[here])
        for to, new in zip(at.track, tracking.observed(track, measured), strict=True):
            to[here] = new
        at.seen[here] = now
        sides = (rows[:, None], np.arange(2), objects[:, None])
        at.side[sides], at.side_var[sides] = tracking.combined(
            at.side[sides], at.side_var[sides], at.offset[sides] + error[:, 1:]
        )

    def _burn(self, burning: np.ndarray, actions: np.ndarray) -> None:
        """Change the satellite's speed along its track, and so its position at later TCAs."""
        rows = np.flatnonzero(burning)
        if not len(rows):
            return
        sign = np.where(actions[rows] == self.n_objects + 1, 1.0, -1.0)
        self.shift[rows] += sign[:, None, None] * np.moveaxis(self.outlook.pushed[:, rows], 0, -1)
        self.burns_left[rows] -= 1
        self.alarms[rows, self.outlook.listed[rows, 0]] += 1
        at, seconds = self.scene, STEP_S * self.time[rows]
        orbits.burn(at.elements, at.drifts, (rows, 0), sign * BURN_MS, seconds)

    def _closest_approaches(
        self, fillers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return rewards, and counts of collisions, avoided ones and false alarms, each ``[B]``."""
        at = self.scene
        passing = (at.tca == self.time[:, None]) & ~fillers[:, None]
        reward, counts = np.zeros(self.num_envs), np.zeros((3, self.num_envs), np.int64)
        rows, objects = np.nonzero(passing)
        if len(rows):
            radial, across = at.offset[rows, :, objects].T
            error = np.stack([radial, at.path[rows, self.time[rows], objects], across])
            first = at.miss[rows, objects] + at.own_error[rows, objects]
            first += np.einsum("kif,fk->ki", at.spread[rows, objects], error)
            missed = np.hypot(*first.T) >= RADIUS_M
            hit = np.hypot(*(first - self.shift[rows, objects]).T) < RADIUS_M
            alarms = self.alarms[rows, objects] * missed
            for count, amount in zip(counts, (hit, ~missed & ~hit, alarms), strict=True):
                np.add.at(count, rows, amount)
            counts[0] = counts[0] > 0  # at most one collision per episode
            reward += COLLISION * counts[0] + AVOIDED * counts[1] + FALSE_ALARM * counts[2]
        return reward, *counts

    def _draw(self, rngs: list[np.random.Generator]) -> scene.EpisodeState:
        """Draw new episodes, one from each generator."""
        return scene.draw(rngs, self.n_objects, self.horizon, self._catalogue)

    def _restart(self, rows: np.ndarray) -> None:
        """Draw new episodes for some rows."""
        self.scene.put(rows, self._draw([self.rngs[row] for row in rows]))
        self.time[rows], self.burns_left[rows] = 0, MAX_BURNS
        self.shift[rows], self.alarms[rows] = 0.0, 0

    def _look_ahead(self, *counts: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Update ``outlook`` and the mask; return observation and infos."""
        self.outlook = look_ahead(self.scene, self.time, self.shift)
        left, burns = 1.0 - self.time / self.horizon, self.burns_left / MAX_BURNS
        alarms = self.alarms / MAX_BURNS
        obs, self._mask = observe(self.outlook, left, burns, alarms, self.horizon)
        infos = zip(("collisions", "avoided", "false_alarms"), counts, strict=True)
        return obs, {"action_mask": self._mask.astype(np.int8), **dict(infos)}


class SSAConjunctionEnv(gymnasium.Env):
    """Single-environment version of :class:`SSAConjunctionVectorEnv`; same rules and arguments."""

    metadata = _METADATA

    def __init__(
        self,
        n_objects: int = 20,
        horizon: int = 200,
        seed: int | None = None,
        render_mode: str | None = None,
        catalogue: str | None = None,
    ) -> None:
        games = SSAConjunctionVectorEnv(1, n_objects, horizon, seed, render_mode, catalogue)
        self._games = games
        self.observation_space = self._games.single_observation_space
        self.action_space = self._games.single_action_space
        self.render_mode, self._runs = render_mode, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        obs, infos = self._games.reset(seed=seed)
        self._np_random, self._runs = self._games.rngs[0], True
        return obs[0], _first(infos)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance the episode by a step.

        Raises:
            ValueError: the action doesn't exist.
            RuntimeError: no episode is running.
        """
        if not self._runs:
            raise RuntimeError("no episode is running: call reset() before step()")
        obs, reward, terminated, _, infos = self._games.step(np.asarray(action).reshape(1))
        self._runs = not terminated[0]
        return obs[0], float(reward[0]), bool(terminated[0]), False, _first(infos)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        frames = self._games.render()
        return None if frames is None else frames[0]


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    """Return the infos of environment 0: the mask as an array, the counts as plain numbers."""
    return {key: value[0] if value.ndim > 1 else int(value[0]) for key, value in infos.items()}

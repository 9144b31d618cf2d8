"""SimpleSatellite: a small scheduling environment that chooses one of five satellites to observe.

The reward of a satellite is greatest right after its last observation. The optimal policy
therefore observes the satellite of highest priority at every step; :func:`optimal_return` computes
its exact return.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import require, shown
from headrace_ssa.batch import checked, generators

NUM_SATELLITES = 5
EPISODE_STEPS = 20
SUCCESS_PROBABILITY = 0.8
REWARD_SCALE = 10.0
FAILURE_REWARD = -0.5
MIN_PRIORITY, MAX_PRIORITY = 0.1, 1.0
_NUM_DRAWS = NUM_SATELLITES + EPISODE_STEPS  # per episode: priorities first, then success
_OBSERVATION_SPACE = (0.0, 1.0, (1 + 2 * NUM_SATELLITES,), np.float32)


def optimal_return(priorities: Any, num_steps: int = EPISODE_STEPS) -> Any:
    """Return the greatest expected return, reached by always observing the highest priority.

    The staleness of that satellite is 0 before each step, and no reward exceeds that of the highest
    priority at staleness 0. The return is ``num_steps * (0.8 * 10 * max - 0.2 * 0.5)``.

    Args:
        priorities: ``[..., satellites]``, in [0, 1].

    Returns:
        ``[...]`` float64, undiscounted.
    """
    success = REWARD_SCALE * np.max(np.asarray(priorities, np.float64), axis=-1)
    expected = SUCCESS_PROBABILITY * success + (1.0 - SUCCESS_PROBABILITY) * FAILURE_REWARD
    return num_steps * expected


def _check_config(config: Any) -> None:
    """Raise ConfigError unless this is a dict or None; warn that its values have no effect."""
    valid = "a dict or None: RLlib's env_config"
    require(config is None or isinstance(config, Mapping), "config", config, valid)
    if config:
        warnings.warn(
            f"config={shown(dict(config))} has no effect: SimpleSatellite has no settings",
            stacklevel=3,
        )


class SimpleSatelliteEnv(gymnasium.Env):
    """Environment that observes one of 5 satellites at each of 20 steps.

    The observation is float32 ``[11]`` in [0, 1]: the share of time left (1 at the start, 0 at the
    end), the staleness of each satellite over 20, and the priority of each, which is drawn
    uniformly from [0.1, 1] at reset. Actions 0 to 4 observe that satellite and succeed with
    probability 0.8. The reward is ``10 * priority / (1 + staleness)`` with the staleness before the
    step, or -0.5 if the observation fails. Afterwards the staleness of the chosen satellite is 0,
    whether it succeeded or not, and that of all others increases by 1. Episodes terminate after 20
    steps and are never truncated.

    All randomness of an episode comes from one draw of 25 numbers at its reset: the 5 priorities,
    then a number per step, below 0.8 for success.

    Args:
        config: RLlib's ``env_config``. The game has no settings, so values in it are ignored, with
            a warning.

    Raises:
        ConfigError: ``config`` is neither a dict nor None.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        _check_config(config)
        self.observation_space = Box(*_OBSERVATION_SPACE)
        self.action_space = Discrete(NUM_SATELLITES)
        self._steps = EPISODE_STEPS  # so that step() raises before the first reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draws = self.np_random.random(_NUM_DRAWS)
        priorities = MIN_PRIORITY + (MAX_PRIORITY - MIN_PRIORITY) * draws[:NUM_SATELLITES]
        self._priorities = priorities.astype(np.float32)  # rewards use what the agent sees
        self._succeeds = draws[NUM_SATELLITES:] < SUCCESS_PROBABILITY
        self._staleness = [0] * NUM_SATELLITES
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Observe one satellite.

        Raises:
            ValueError: the action isn't a whole number from 0 to 4.
            RuntimeError: no episode is running.
        """
        if self._steps >= EPISODE_STEPS:
            raise RuntimeError("no episode is running: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action={action} must be a whole number from 0 to 4")
        chosen = int(action)
        worth = REWARD_SCALE * float(self._priorities[chosen]) / (1 + self._staleness[chosen])
        reward = worth if self._succeeds[self._steps] else FAILURE_REWARD
        self._staleness = [0 if i == chosen else s + 1 for i, s in enumerate(self._staleness)]
        self._steps += 1
        return self._observe(), reward, self._steps == EPISODE_STEPS, False, {}

    def _observe(self) -> np.ndarray:
        remaining = (EPISODE_STEPS - self._steps) / EPISODE_STEPS
        staleness = [s / EPISODE_STEPS for s in self._staleness]
        return np.array([remaining, *staleness, *self._priorities], np.float32)


class SimpleSatelliteVectorEnv(VectorEnv):
    """Natively vectorised :class:`SimpleSatelliteEnv`, with NEXT_STEP autoreset.

    Each environment has its own generator, so its episodes are bit-for-bit those of a single
    environment with the same seed. All episodes begin and end together.

    Args:
        config: as for :class:`SimpleSatelliteEnv`.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, config: Mapping[str, Any] | None = None) -> None:
        _check_config(config)
        self.num_envs = num_envs
        self.single_observation_space = Box(*_OBSERVATION_SPACE)
        self.single_action_space = Discrete(NUM_SATELLITES)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs: list[np.random.Generator] = []
        self._rows = np.arange(num_envs)
        self._draws = np.empty((num_envs, _NUM_DRAWS))
        self._staleness = np.zeros((num_envs, NUM_SATELLITES))
        self._obs = np.zeros((num_envs, *self.single_observation_space.shape), np.float32)
        self._steps = 0  # of the running episodes

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode in each environment; seeds and errors as in :func:`generators`."""
        self._rngs = generators(self._rngs, seed, self.num_envs)
        return self._begin(), {}

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Observe a satellite in each environment, or begin the next episodes after an end.

        Args:
            actions: ``[num_envs]`` integers; ignored in the reset step.

        Raises:
            ValueError: the number of actions is wrong, or an action isn't from 0 to 4.
            RuntimeError: ``reset`` was never called.
        """
        if not self._rngs:
            raise RuntimeError("no episode is running: call reset() before step()")
        truncated = np.zeros(self.num_envs, bool)
        if self._steps == EPISODE_STEPS:
            return self._begin(), np.zeros(self.num_envs), truncated.copy(), truncated, {}
        chosen = self._rows, checked(actions, self.num_envs, NUM_SATELLITES)
        success = self._success[:, self._steps]
        worth = self._worth[chosen] / (1.0 + self._staleness[chosen])
        reward = np.where(success, worth, FAILURE_REWARD)
        self._staleness += 1.0
        self._staleness[chosen] = 0.0
        self._steps += 1
        terminated = np.full(self.num_envs, self._steps == EPISODE_STEPS)
        return self._observe(), reward, terminated, truncated, {}

    def _begin(self) -> np.ndarray:
        for rng, row in zip(self._rngs, self._draws, strict=True):
            rng.random(out=row)
        priorities, luck = self._draws[:, :NUM_SATELLITES], self._draws[:, NUM_SATELLITES:]
        self._obs[:, 1 + NUM_SATELLITES :] = (
            MIN_PRIORITY + (MAX_PRIORITY - MIN_PRIORITY) * priorities
        )
        self._worth = REWARD_SCALE * self._obs[:, 1 + NUM_SATELLITES :].astype(np.float64)
        self._success = luck < SUCCESS_PROBABILITY
        self._staleness[:] = 0.0
        self._steps = 0
        return self._observe()

    def _observe(self) -> np.ndarray:
        self._obs[:, 0] = (EPISODE_STEPS - self._steps) / EPISODE_STEPS
        self._obs[:, 1 : 1 + NUM_SATELLITES] = self._staleness / EPISODE_STEPS
        return self._obs.copy()

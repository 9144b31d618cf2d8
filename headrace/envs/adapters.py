"""Adapts vector environments to the NEXT_STEP autoreset convention of headrace.types."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from headrace.envs.filler_actions import FillerActions
from headrace.errors import ConfigError, EnvironmentFault
from headrace.ops import tree


def next_step(envs: VectorEnv, name: str) -> VectorEnv:
    """Return ``envs`` itself if it autoresets in NEXT_STEP mode, else wrap it in an adapter.

    Raises:
        ConfigError: the autoreset mode is unknown.
    """
    declared = envs.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(declared)
    except ValueError as error:
        raise ConfigError(
            f"{name} doesn't say how it resets: metadata['autoreset_mode'] is {declared!r}, "
            "not a gymnasium.vector.AutoresetMode"
        ) from error
    return envs if mode is AutoresetMode.NEXT_STEP else NextStep(envs, name)


class NextStep(VectorWrapper):
    """NEXT_STEP autoreset on top of a vector environment in SAME_STEP or DISABLED mode.

    The final observation is returned at an episode's end. The step after it is a reset step: its
    action is ignored, its observation comes from the reset, its reward is 0 and no flag is set. The
    inner environments can only be stepped together, so one that awaits its reset step plays one
    step of an episode that is discarded and is then reset again; it therefore draws more resets
    from its random stream than in NEXT_STEP mode. Where there are action masks, the action of that
    step is one that they allow. ``infos`` come from the inner environments; array entries of the
    reset's infos apply to the rows of reset steps.

    Args:
        envs: supports ``reset(options={"reset_mask": mask})`` and returns the other rows unchanged.
        name: name of the environment, for messages.
    """

    def __init__(self, envs: VectorEnv, name: str = "the environment") -> None:
        super().__init__(envs)
        self._same_step = AutoresetMode(envs.metadata["autoreset_mode"]) is AutoresetMode.SAME_STEP
        self._name = name
        self._ended = np.zeros(envs.num_envs, bool)  # [B] bool, reset at the next step
        self._mask_is_obeyed = False
        self._filler_actions = FillerActions(envs, name)
        self.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those selected by ``options["reset_mask"]``."""
        self._ended = still_ended(self._ended, options)
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment; those that ended with the previous step are reset instead.

        Raises:
            EnvironmentFault: the environments below ignore the reset mask, or don't return the
                final observation in ``infos["final_obs"]``.
        """
        fillers = self._ended
        some_fillers = bool(fillers.any())
        if some_fillers and not self._same_step:
            self._filler_actions.note(*self.env.reset(options=_Mask(fillers)))
        if some_fillers and (allowed := self._filler_actions.of(fillers)) is not None:
            actions = _with_rows(actions, allowed, fillers)
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        if some_fillers:
            obs, infos = self._restart(obs, infos, fillers)
            reward = np.where(fillers, np.zeros_like(reward), reward)
            terminated, truncated = terminated & ~fillers, truncated & ~fillers
        self._ended = np.logical_or(terminated, truncated)
        if self._same_step and self._ended.any():
            if "final_obs" not in infos:
                raise EnvironmentFault(
                    f"{self._name} ended an episode in SAME_STEP mode without infos['final_obs']"
                )
            self._filler_actions.note(obs, infos)
            obs = _with_rows(obs, infos["final_obs"], self._ended)
        return obs, reward, terminated, truncated, infos

    def _restart(
        self, obs: Any, infos: dict[str, Any], mask: np.ndarray
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the rows of ``mask`` and return the merged observations and infos."""
        check = not (self._mask_is_obeyed or mask.all())
        before = tree.map_leaves(np.array, obs) if check else None  # reset may reuse the memory
        obs, begun = self.env.reset(options=_Mask(mask))
        if check:
            self._check_kept(before, obs, ~mask)
        rows = {key: _info_rows(infos.get(key), value, mask) for key, value in begun.items()}
        return obs, {**infos, **rows}

    def _check_kept(self, before: Any, after: Any, unchanged: np.ndarray) -> None:
        for old, new in zip(tree.leaves(before), tree.leaves(after), strict=True):
            nan = old.dtype.kind == "f"
            if not np.array_equal(old[unchanged], np.asarray(new)[unchanged], equal_nan=nan):
                raise EnvironmentFault(
                    f"{self._name} ignores reset(options={{'reset_mask': …}}): environments "
                    "outside the mask changed, so its autoreset mode can't be adapted"
                )
        self._mask_is_obeyed = True


class _Mask(dict[str, Any]):
    """Reset options whose mask survives ``pop``, so that every layer can read it.

    Gymnasium's vector environments remove the mask before they pass the options to single
    environments, but wrappers around them read it afterwards.
    """

    def __init__(self, mask: np.ndarray) -> None:
        super().__init__(reset_mask=mask.copy())
        self._mask = mask.copy()

    def pop(self, key: str, *default: Any) -> Any:
        """Like ``dict.pop``, but keeps the mask."""
        if key != "reset_mask":
            return super().pop(key, *default)
        super().pop(key, None)
        return self._mask

    def get(self, key: str, default: Any = None) -> Any:
        """Like ``dict.get``, but also returns the mask."""
        return self._mask if key == "reset_mask" else super().get(key, default)

    def __missing__(self, key: str) -> Any:
        if key == "reset_mask":
            return self._mask
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key == "reset_mask" or super().__contains__(key)


def still_ended(ended: np.ndarray, options: dict[str, Any] | None) -> np.ndarray:
    """Return which environments ``[B]`` still await a reset step after a partial reset."""
    mask = (options or {}).get("reset_mask")
    return np.zeros_like(ended) if mask is None else ended & ~mask


def _info_rows(old: Any, new: Any, mask: np.ndarray) -> Any:
    """Merge the infos of a step with those of a reset of the rows of ``mask``."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _info_rows(old.get(key), new[key], mask) for key in new}}
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        return tuple(_info_rows(o, n, mask) for o, n in zip(old, new, strict=True))
    arrays = isinstance(old, np.ndarray) and isinstance(new, np.ndarray)
    if not arrays or old.shape != new.shape:
        return new if old is None else old
    merged = old.copy()
    merged[mask] = new[mask]
    return merged


def _with_rows(obs: Any, rows: Any, mask: np.ndarray) -> Any:
    """Return a copy of the batched ``obs`` with the rows of ``mask`` taken from ``rows``.

    ``rows`` is batched like ``obs``, or is an object array with one observation per row.
    """
    if isinstance(rows, np.ndarray) and rows.dtype == object:
        copied = tree.map_leaves(np.array, obs)
        for i in np.flatnonzero(mask):
            tree.map_leaves(lambda to, row, i=i: to.__setitem__(i, row), copied, rows[i])
        return copied
    if isinstance(obs, dict | tuple):
        return tree.map_leaves(lambda o, r: _with_rows(o, r, mask), obs, rows)
    merged = np.array(obs)
    merged[mask] = np.asarray(rows)[mask]
    return merged


class EnvPool(VectorEnv):
    """A pool of envpool's C++ environments as a Gymnasium vector environment.

    By default one thread steps all of them, because actors already provide the parallelism.
    Environment ``i`` is seeded with ``seed + i``. Float actions are float32. envpool can't
    distinguish termination exactly at the time limit from truncation; it reports truncation.

    Args:
        env_id: one of ``envpool.list_all_envs()``.
        seed: int32 seed of the pool, until ``reset(seed=…)`` sets another.
        kwargs: envpool's settings, such as ``max_episode_steps``.

    Raises:
        ConfigError: envpool rejects the settings.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, env_id: str, num_envs: int, seed: int, kwargs: dict[str, Any]) -> None:
        self._env_id, self._kwargs = env_id, {"num_threads": 1, **kwargs, "num_envs": num_envs}
        self._seed, self._used = seed, False
        self._pool = self._make(seed)
        self._step: Callable[[np.ndarray], tuple[Any, ...]] | None = None
        self.num_envs = num_envs
        with warnings.catch_warnings():  # envpool declares float32 bounds in float64
            warnings.filterwarnings("ignore", message=".*precision lowered")
            self.single_observation_space = _unbounded(self._pool.observation_space)
            action_space = self._pool.action_space
        # Gymnasium's MuJoCo takes float32 where envpool's, the same to the last digits, takes
        # float64, which holds every float32.
        self.single_action_space = _as_float32(action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        skips = type(self._pool.spec).__name__ == "AtariEnvSpec"
        self.frames_per_step = self._pool.spec.config.frame_skip if skips else 1
        discrete = isinstance(action_space, (Discrete, MultiDiscrete))
        self._action_dtype = np.dtype(np.int32) if discrete else action_space.dtype

    def _make(self, seed: int) -> Any:
        import envpool

        try:
            return envpool.make_gymnasium(self._env_id, seed=int(seed), **self._kwargs)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"envpool can't make {self._env_id}: {reason}") from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; a seed recreates the pool, as envpool requires.

        Raises:
            ValueError: ``options`` isn't empty.
        """
        if options:
            raise ValueError(f"envpool environments accept no reset options, got {options}")
        if seed is not None and (self._used or seed != self._seed):
            self._pool.close()
            self._seed, self._pool, self._step = seed, self._make(seed), None
        self._used = True
        return self._pool.reset()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._action_dtype is None:  # actions with several parts
            return self._pool.step(actions)
        actions = np.asarray(actions, self._action_dtype, "C")
        if self._step is None:
            stepped, self._step = self._pool.step(actions), _step_of(self._pool)
            return stepped  # envpool's own step, which checks shapes
        return self._step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _step_of(pool: Any) -> Callable[[np.ndarray], tuple[Any, ...]]:
    """Return a faster step function for a pool, without the trees that envpool builds in Python.

    Building the trees takes as long as stepping 8 CartPoles. Pools with several players, or with
    structured observations or actions, keep envpool's own step.
    """
    keys, action_keys = list(getattr(pool, "_state_keys", ())), getattr(pool, "_action_keys", ())
    infos = {key[5:]: i for i, key in enumerate(keys) if key.startswith("info:")}
    players = infos.pop("players.env_id", None)
    plain = [*action_keys[:-1], keys.count("obs")] == ["env_id", "players.env_id", 1]
    several = players is None or pool.config["max_num_players"] > 1
    if several or not plain or any("." in name for name in infos):
        return pool.step  # type: ignore[no-any-return]
    ids, infos["elapsed_step"] = pool.all_env_ids, keys.index("elapsed_step")
    indices = [keys.index(name) for name in ("obs", "reward", "done", "trunc")]

    def step(actions: np.ndarray) -> tuple[Any, ...]:
        pool._send([ids, ids, actions])
        state = pool._recv()
        obs, reward, done, truncated = (state[i] for i in indices)
        step_infos = {name: state[i] for name, i in infos.items()} | {"players": {"env_id": ids}}
        return obs, reward, done & ~truncated, truncated, step_infos

    return step


def _as_float32(space: gymnasium.Space) -> gymnasium.Space:
    if isinstance(space, Box) and space.dtype == np.float64:
        return Box(space.low.astype(np.float32), space.high.astype(np.float32))
    return space


def _unbounded(space: gymnasium.Space) -> gymnasium.Space:
    """Return ``space`` with infinite bounds where envpool writes the limits of the number format.

    envpool writes the smallest *positive* float if there is no lower bound.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({key: _unbounded(part) for key, part in space.items()})
    if not isinstance(space, Box) or space.dtype is None or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where((space.low == limits.tiny) | (space.low == limits.min), -np.inf, space.low)
    high = np.where(space.high == limits.max, np.inf, space.high)
    return Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)

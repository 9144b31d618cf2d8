"""Play whole episodes with a policy and report their returns."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from headrace.envs.make import make_vec
from headrace.nn.inputs import info_mask
from headrace.nn.policy import Policy
from headrace.spaces.actions import MASK

_MAX_PARALLEL = 128


@dataclass(frozen=True)
class Evaluation:
    """Returns of complete episodes."""

    episodes: int
    mean: float
    std: float
    min: float
    max: float
    mean_length: float

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def evaluate(
    policy: Policy,
    env: Any,
    episodes: int = 20,
    seed: int = 1_000_000,
    engine: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    deterministic: bool = True,
) -> Evaluation:
    """Play ``episodes`` episodes in parallel environments.

    Every environment contributes the same number of episodes (give or take one), counted from its
    start, so that short episodes are not favoured.

    Args:
        env, engine, env_kwargs: see ``headrace.envs.make_vec``.
        seed: of the environments; apart from training's by default.
    """
    num_envs = min(episodes, _MAX_PARALLEL)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    envs = make_vec(env, num_envs, engine, env_kwargs)
    returns: list[float] = []
    lengths: list[int] = []
    try:
        obs, infos = envs.reset(seed=seed)
        state, start, reward = None, np.ones(num_envs, bool), np.zeros(num_envs)
        total, length, filler = (
            np.zeros(num_envs),
            np.zeros(num_envs, int),
            np.zeros(num_envs, bool),
        )
        while quota.any():
            mask = info_mask(infos)
            action, state = policy.predict(obs, state, start, deterministic, mask, reward)
            obs, reward, terminated, truncated, infos = envs.step(action)
            total += np.where(filler, 0.0, reward)
            length += ~filler
            start, filler = filler, terminated | truncated
            for i in np.flatnonzero(filler):
                if quota[i]:
                    returns.append(float(total[i]))
                    lengths.append(int(length[i]))
                    quota[i] -= 1
                total[i], length[i] = 0.0, 0
    finally:
        envs.close()
    return Evaluation(
        episodes=len(returns),
        mean=float(np.mean(returns)),
        std=float(np.std(returns)),
        min=float(np.min(returns)),
        max=float(np.max(returns)),
        mean_length=float(np.mean(lengths)),
    )


def record_video(
    policy: Policy, env: Any, folder: Path, seed: int, env_kwargs: dict[str, Any] | None = None
) -> Path:
    """Write one episode as an animated GIF; returns its path.

    Raises:
        gymnasium.error.Error: the environment can't render to ``rgb_array``.
    """
    from PIL import Image

    kwargs = {**(env_kwargs or {}), "render_mode": "rgb_array"}
    single = gymnasium.make(env, **kwargs) if not callable(env) else env(**kwargs)
    frames, state, done = [], None, False
    obs, info = single.reset(seed=seed)
    reward: Any = 0.0
    while not done:
        frames.append(Image.fromarray(np.asarray(single.render())))
        mask = info.get(MASK)
        action, state = policy.predict(obs, state, action_mask=mask, reward=reward)
        obs, reward, terminated, truncated, info = single.step(action)
        done = terminated or truncated
    single.close()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "episode.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=33, loop=0)
    return path

"""Play whole episodes with a policy and report their returns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from headrace.envs.make import make_vec
from headrace.envs.names import env_name
from headrace.errors import ConfigError
from headrace.nn.inputs import info_mask
from headrace.nn.policy import Policy

_MAX_PARALLEL = 128
_FPS = 30  # of a video, where the environment says nothing


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
    *,
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
    returns: list[float] = []
    lengths: list[int] = []
    total, length = np.zeros(num_envs), np.zeros(num_envs, int)
    with contextlib.closing(make_vec(env, num_envs, engine, env_kwargs)) as envs:
        for reward, begins, ends in _played(policy, envs, seed, deterministic):
            total += np.where(begins, 0.0, reward)
            length += ~begins
            counted = ends & (quota > 0)
            returns += total[counted].tolist()
            lengths += length[counted].tolist()
            quota -= counted
            total[ends], length[ends] = 0.0, 0
            if not quota.any():
                break
    mean, std, least, most = (float(f(returns)) for f in (np.mean, np.std, np.min, np.max))
    return Evaluation(len(returns), mean, std, least, most, float(np.mean(lengths)))


def _played(
    policy: Policy, envs: VectorEnv, seed: int, deterministic: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Play for ever: a reset, then step by step.

    Yields:
        rewards; in which environments an episode begins with this observation; and in which one
        ends. ``[N]`` each.
    """
    obs, infos = envs.reset(seed=seed)
    reward, state = np.zeros(envs.num_envs), None
    begins, ends = np.ones(envs.num_envs, bool), np.zeros(envs.num_envs, bool)
    while True:
        yield reward, begins, ends
        given = {"action_mask": info_mask(infos), "reward": reward}
        action, state = policy.predict(obs, state, begins, deterministic, **given)
        obs, reward, terminated, truncated, infos = envs.step(action)
        begins, ends = ends, terminated | truncated


def record_video(
    policy: Policy, env: Any, folder: Path, seed: int, env_kwargs: dict[str, Any] | None = None
) -> Path:
    """Write one episode as ``episode.mp4``, from its first to its last observation; its path.

    It has the environment's ``metadata["render_fps"]``, or 30 pictures a second. A picture with an
    odd side is given one more row or column, as the format needs.

    Raises:
        ConfigError: the environment can't be made, or can't render to ``rgb_array``.
    """
    import imageio.v2 as imageio  # takes a tenth of a second, hence here

    path = folder / "episode.mp4"
    kwargs = {**(env_kwargs or {}), "render_mode": "rgb_array"}
    with contextlib.ExitStack() as stack:
        try:
            envs = stack.enter_context(contextlib.closing(make_vec(env, 1, "sync", kwargs)))
            steps = _played(policy, envs, seed)
            next(steps)
            picture = _picture(envs)
        except Exception as error:  # the user's environment may raise anything
            reason = str(error).partition("\n")[0] or repr(error)
            raise ConfigError(
                f"there is no video of {env_name(env)}, which gives no pictures with "
                f"render_mode='rgb_array': {reason}"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        fps = envs.metadata.get("render_fps") or _FPS
        video: Any = stack.enter_context(imageio.get_writer(path, fps=fps, macro_block_size=1))
        video.append_data(picture)
        for _, _, ends in steps:
            video.append_data(_picture(envs))
            if ends[0]:
                break
    return path


def _picture(envs: Any) -> np.ndarray:
    """What the first environment shows, uint8 ``[H, W, 3]`` with even sides."""
    picture = np.asarray(envs.render()[0])
    if picture.ndim < 2:
        raise ValueError("render() returns no picture")
    odd = [(0, side % 2) for side in picture.shape[:2]] + [(0, 0)] * (picture.ndim - 2)
    return np.pad(picture, odd, "edge")

"""Records an episode as a video, for environments of any kind."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from headrace.actors.episodes import (
    Limits,
    Patience,
    VectorStep,
    drawing,
    played,
    time_limit,
)
from headrace.envs.changes import EnvChange, apply
from headrace.envs.make import make_vec
from headrace.envs.names import env_name
from headrace.errors import ConfigError
from headrace.extras import needs
from headrace.games.vector import agents_of, games_over
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import safe_files, torch_threads
from headrace.processes.output import print_to_stderr
from headrace.rundir.atomic_files import checkpoint_errors, replace_bytes
from headrace.spaces import walk
from headrace.spaces.agreement import difference
from headrace.spaces.images import image_shape, is_image, layout_of
from headrace.spaces.observations import at

_FPS = 30  # if the environment defines no frame rate
_MAX_STEPS = 30_000  # limit of an episode
_SMALL = 64  # pixels; frames with a shorter side are enlarged

_BRIGHTEST = 1e6  # largest plausible range of brightness

_RENDERED: dict[str, Any] = {"render_mode": "rgb_array"}


class _OtherSpaces(ConfigError):
    """Raised if the policy wasn't trained on this environment."""


def record_video(
    policy: AnyPolicy,
    env: Any,
    folder: Path,
    seed: int,
    env_kwargs: dict[str, Any] | None = None,
    engine: str = "auto",
    deterministic: bool = True,
    limits: Limits = Limits(),  # noqa: B008
    env_changes: Iterable[EnvChange] = (),
) -> Path:
    """Write one episode, from its first to its last observation, as ``episode.mp4``.

    An episode that doesn't end within the limits, or ``_MAX_STEPS`` steps, is cut and reported.

    The policy receives the observations that it was trained on. A single environment renders
    itself if its spaces match the policy's; otherwise the run's engine makes the environment. If
    that can't render, the newest image in the observation is shown. The frame rate is the
    environment's ``metadata["render_fps"]`` or 30 per second. Frames with odd sides are padded by
    one row or column, as the format requires.

    Args:
        deterministic: play the most likely actions; False: sample actions with ``seed``.
        env_changes: changes to the environment before its first step.

    Returns:
        path of the video.

    Raises:
        ConfigError: the environment can't be made, or provides no images in any of these ways.
    """
    with needs("a video", "video"):
        import imageio.v2 as imageio  # takes a tenth of a second

    path = folder / "episode.mp4"
    with contextlib.ExitStack() as stack:
        stack.enter_context(checkpoint_errors(path))
        envs = _first_that_shows(policy, env, env_kwargs or {}, engine, seed)
        stack.enter_context(contextlib.closing(envs))
        for change in env_changes:
            apply(envs, change, env_name(env))
        folder.mkdir(parents=True, exist_ok=True)
        private = Path(stack.enter_context(tempfile.TemporaryDirectory()))  # ffmpeg follows links
        stack.enter_context(torch_threads(1))  # more threads are slower for one observation
        fps = envs.metadata.get("render_fps") or _FPS
        written = private / path.name
        video: Any = imageio.get_writer(written, fps=fps, macro_block_size=1)
        stack.callback(lambda: video.close())
        stack.enter_context(drawing(seed, deterministic))
        frames = _until_the_end(envs, played(policy, envs, seed, deterministic), limits)
        for moment in frames:
            video.append_data(_picture(envs, moment.obs))
        video.close()
        replace_bytes(path, safe_files.read_bytes(written, safe_files.machine_bytes()))
    return path


def _until_the_end(
    envs: VectorEnv, moments: Iterator[VectorStep], limits: Limits
) -> Iterator[VectorStep]:
    """Yield the steps of one episode, and report one that doesn't end within the limits."""
    limits = replace(limits, max_steps=min(limits.max_steps, _MAX_STEPS))
    patience = Patience(limits.timeout_s)
    for steps, moment in enumerate(moments):
        yield moment
        if games_over(envs, moment.ends.reshape(-1, len(agents_of(envs)) or 1)).all():
            return
        is_late = patience.is_over(lambda: f"video: {steps:,} steps recorded")  # noqa: B023
        if steps > 0 and (is_late or steps >= limits.max_steps):
            line = f"{limits.exceeded(1, 1, steps)}, so the video ends there"
            print_to_stderr(f"{line}; train with {time_limit()}")
            return


def _first_that_shows(
    policy: AnyPolicy, env: Any, kwargs: dict[str, Any], engine: str, seed: int
) -> VectorEnv:
    """Make an environment with the policy's spaces that provides images."""
    native = "native" if engine == "auto" else engine
    ways = dict.fromkeys(
        (made, tuple(extra.items()))
        for extra in (_RENDERED, {})
        for made in ("sync", native, engine)
    )
    reasons: list[str] = []
    for made, extra in ways:
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of these ways are expected to fail
            try:
                envs = make_vec(env, 1, made, {**kwargs, **dict(extra)})
                stack.callback(envs.close)
                _check_spaces(policy, envs)
                obs, _ = envs.reset(seed=seed)
                _picture(envs, obs)
            except Exception as error:  # the user's environment may raise anything
                reason = str(error).partition("\n")[0] or repr(error)
                is_other = isinstance(error, _OtherSpaces)  # more informative than other errors
                reasons.insert(0, reason) if is_other else reasons.append(reason)
                continue
            stack.pop_all()
            return envs
    raise ConfigError(
        f"can't record a video of {env_name(env)}: it provides no images with "
        f"render_mode='rgb_array' or in its observations ({reasons[0]})"
    )


def _check_spaces(policy: AnyPolicy, envs: VectorEnv) -> None:
    ours = policy.observation_space, policy.action_space
    theirs = envs.single_observation_space, envs.single_action_space
    if mismatch := difference(*ours, *theirs, whose="the policy's"):
        raise _OtherSpaces(mismatch)


def _picture(envs: Any, obs: Any) -> np.ndarray:
    """Return the rendered or observed image, uint8 ``[H, W]`` or ``[H, W, 3]``.

    Raises:
        ValueError: neither rendering nor observation is an image.
    """
    rendered = envs.render() if envs.render_mode == "rgb_array" else None
    picture = np.asarray(rendered[0]) if rendered is not None and len(rendered) else None
    if picture is None or picture.ndim < 2:
        picture = _observed(envs.single_observation_space, obs)
    odd = [(0, side % 2) for side in picture.shape[:2]] + [(0, 0)] * (picture.ndim - 2)
    return np.pad(picture, odd, "edge")


def _observed(space: gymnasium.Space, obs: Any) -> np.ndarray:
    """Return the newest image in an observation ``[1, ...]``."""
    for path, leaf in walk.leaves(space):
        if is_image(leaf):
            return _newest(leaf, np.asarray(at(obs, path)[0]))
    raise ValueError("render() returns no image")


def _newest(space: Box, image: np.ndarray) -> np.ndarray:
    """Return the last image of a stack, in colour if there are three channels."""
    layout = layout_of(space) or "channels_last"
    channels, height, width = image_shape(space, layout)
    if len(space.shape) > 2 and layout == "channels_last":
        image = np.moveaxis(image, -1, -3)
    image = image.reshape(channels, height, width)
    colours = 3 if channels % 3 == 0 else 1
    if image.dtype != np.uint8:
        low, high = float(space.low.min()), float(space.high.max())
        if not 0 < high - low < _BRIGHTEST:  # meaningless bounds
            low, high = float(image.min()), max(float(image.max()), float(image.min()) + 1e-8)
        image = np.clip((image.astype(np.float64) - low) / (high - low) * 255, 0, 255)
    picture = np.moveaxis(image[-colours:], 0, -1).astype(np.uint8)
    times = -(-_SMALL // min(height, width))
    picture = picture.repeat(times, 0).repeat(times, 1) if times > 1 else picture
    return picture if colours == 3 else picture[..., 0]

"""Ten visual tasks with instructions from pip packages, as a substitute for DMLab-30.

Three mazes of MiniWorld, four arenas of ViZDoom and three tasks of BabyAI (MiniGrid). Every
level observes a 60 by 80 RGB image, uint8, channels last, and an instruction text. Ids are
``levels/NAME``. The levels differ in their numbers of actions; training on several levels unifies
the action spaces.
"""

from __future__ import annotations

import contextlib
import io
import string
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import register
from gymnasium.spaces import Box, Dict, Text

from headrace.envs.packages import bring, is_installed, package_of
from headrace.errors import ConfigError

HEIGHT, WIDTH = 60, 80
_TILE = 8  # pixels per field of the 7 by 7 view of a MiniGrid agent
_FRAMES = 4  # frames per action, of Doom's 35 per second
_MAX_WORDS = 120  # characters of an instruction


@dataclass(frozen=True)
class Level:
    """Package, environment and instruction of one level.

    Attributes:
        env_id: id in the package that provides it.
        words: the instruction; None: the environment provides one per episode.
    """

    env_id: str
    words: str | None = None


LEVELS = {
    "hallway": Level("MiniWorld-Hallway-v0", "go to the red box at the end of the hallway"),
    "one-room": Level("MiniWorld-OneRoom-v0", "go to the red box in the room"),
    "t-maze": Level("MiniWorld-TMaze-v0", "go to the red box, left or right of the junction"),
    "shoot": Level("VizdoomBasic-v1", "shoot the monster"),
    "defend": Level("VizdoomDefendCenter-v1", "turn and shoot whoever comes"),
    "health": Level("VizdoomHealthGathering-v1", "walk on acid and collect medical kits"),
    "cover": Level("VizdoomTakeCover-v1", "step aside from what is thrown at you"),
    "red-ball": Level("BabyAI-GoToRedBallGrey-v0"),
    "object": Level("BabyAI-GoToObj-v0"),
    "local": Level("BabyAI-GoToLocal-v0"),
}


class _ImageAndText(gymnasium.ObservationWrapper):
    """Replaces an environment's observation by an image and an instruction.

    Args:
        picture: extracts the image from an observation, and the instruction if ``words`` is None.
    """

    def __init__(
        self, env: gymnasium.Env, picture: Callable[[Any], np.ndarray], words: str | None
    ) -> None:
        super().__init__(env)
        self._picture, self._words = picture, words
        characters = string.ascii_letters + string.digits + " ,.'-"
        self.observation_space = Dict(
            image=Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8),
            instruction=Text(_MAX_WORDS, min_length=0, charset=characters),
        )

    def observation(self, observation: Any) -> dict[str, Any]:
        """Convert an observation to an image and an instruction."""
        words = observation["mission"] if self._words is None else self._words
        return {"image": self._picture(observation), "instruction": words}


def make(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """Make a level by name.

    Raises:
        ConfigError: the package that provides it isn't installed.
    """
    level = LEVELS[name]
    package = package_of(level.env_id)
    if package is not None and not is_installed(package):
        raise ConfigError(
            f"env='levels/{name}' needs {package.pip}, which isn't installed: pip install "
            "'headrace[levels]'"
        )
    kind = level.env_id.partition("-")[0]
    if kind == "MiniWorld":
        return _ImageAndText(
            _mini_world(level.env_id, render_mode), np.ascontiguousarray, level.words
        )
    if kind == "BabyAI":
        return _ImageAndText(_baby_ai(level.env_id, render_mode), _framed, level.words)
    return _ImageAndText(_doom(level.env_id, render_mode), _shrunk, level.words)


def _mini_world(env_id: str, render_mode: str | None) -> gymnasium.Env:
    with contextlib.suppress(ImportError):  # see `_import_quietly`
        import pyglet

        pyglet.options["headless"] = True  # before its first window
    _import_quietly(env_id)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the number of samples per pixel
        return gymnasium.make(env_id, render_mode=render_mode, disable_env_checker=True)


def _baby_ai(env_id: str, render_mode: str | None) -> gymnasium.Env:
    _import_quietly(env_id)
    from minigrid.wrappers import RGBImgPartialObsWrapper

    with contextlib.redirect_stdout(io.StringIO()):
        env = gymnasium.make(env_id, render_mode=render_mode, disable_env_checker=True)
    return RGBImgPartialObsWrapper(_QuietResets(env), _TILE)


def _doom(env_id: str, render_mode: str | None) -> gymnasium.Env:
    _import_quietly(env_id)
    settings = str(
        Path(tempfile.gettempdir()) / "headrace-vizdoom.ini"
    )  # else in the current directory
    return gymnasium.make(
        env_id,
        render_mode=render_mode,
        frame_skip=_FRAMES,
        doom_config_path=settings,
        disable_env_checker=True,
    )


def _import_quietly(env_id: str) -> None:
    package = package_of(env_id)
    if package is not None and env_id not in gymnasium.registry:
        bring(env_id, package)


class _QuietResets(gymnasium.Wrapper):
    """Suppresses the output of BabyAI's resets, which print every rejected room."""

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        """Reset silently."""
        with contextlib.redirect_stdout(io.StringIO()):
            return self.env.reset(**settings)


def _framed(observation: dict[str, Any]) -> np.ndarray:
    """Centre the image of a grid on a black background."""
    picture = observation["image"]
    framed = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    top, left = (HEIGHT - picture.shape[0]) // 2, (WIDTH - picture.shape[1]) // 2
    framed[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return framed


def _shrunk(observation: dict[str, Any]) -> np.ndarray:
    """Average blocks of Doom's 240 by 320 image."""
    picture = observation["screen"].astype(np.uint16)  # sums of slices: `mean` is slow here
    rows, columns = picture.shape[0] // HEIGHT, picture.shape[1] // WIDTH
    bands = sum(picture[i::rows] for i in range(rows))
    sums = sum(bands[:, i::columns] for i in range(columns))
    return (sums // (rows * columns)).astype(np.uint8)


def register_levels_envs() -> None:
    """Register the levels with Gymnasium."""
    for name in LEVELS:
        register(f"levels/{name}", "headrace.envs.levels:make", kwargs={"name": name})

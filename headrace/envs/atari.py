"""Atari games (ALE): settings of ale-py's vector environment, lives, frames and scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from headrace.envs.adapters import still_ended
from headrace.envs.atari_scores import SCORES
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError, setting
from headrace.validation.fields import check_fields, settings
from headrace.validation.ranges import FACTOR, NOT_EMPTY, Range

_VECTOR, _SINGLE = "ale_py.vector_env:AtariVectorEnv", "ale_py.env:AtariEnv"
_NO_SKIP = '{"frameskip": 1}'
_SKIPPING = {"AtariPreprocessing": "frame_skip", "MaxAndSkipObservation": "skip"}  # 4 by default
_HARMLESS = {
    *_SKIPPING,
    "FrameStackObservation",
    "ResizeObservation",
    "GrayscaleObservation",
    "UnifiedTask",
}  # which pads spaces, and leaves rewards as they are
_SIDE, _STACK = Range(1, 1024), Range(1, 64)  # pixels, images
_FRAMES, _FEW_FRAMES = Range(1, 10**9), Range(1, 1000)


@settings()
@dataclass(frozen=True)
class AtariSettings:
    """Settings of ale-py's vector environment, with its own names and defaults."""

    game: Annotated[str, NOT_EMPTY]
    num_threads: Annotated[int, Range(0, 1024)] = 0
    """Number of threads that step the environments; 0: one per processor."""
    frameskip: Annotated[int, _FEW_FRAMES] = 4
    """Number of frames for which an action is repeated."""
    maxpool: bool = True
    """Take the pixel-wise maximum of the last two of these frames."""
    grayscale: bool = True
    img_height: Annotated[int, _SIDE] = 84
    img_width: Annotated[int, _SIDE] = 84
    stack_num: Annotated[int, _STACK] = 4
    """Number of latest images stacked into an observation."""
    noop_max: Annotated[int, Range(0, 10**4)] = 30
    """Upper limit of random no-ops at the start of a game, one frame each."""
    use_fire_reset: bool = True
    """Press FIRE at the start of a game."""
    repeat_action_probability: Annotated[float, FACTOR] = 0.0
    """Probability that a frame repeats the previous frame's action (sticky actions)."""
    full_action_space: bool = False
    """Use all 18 actions instead of the minimal set of the game."""
    life_loss_info: bool = False
    """End an episode at each lost life while the game continues."""
    episodic_life: bool = False
    """End both the episode and the game at each lost life."""
    reward_clipping: bool = True
    """Clip the environment's own rewards to [-1, 1]."""
    max_num_frames_per_episode: Annotated[int, _FRAMES] = 108_000
    """Truncate an episode after this many frames."""
    continuous: bool = False
    continuous_action_threshold: Annotated[float, FACTOR] = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "env_kwargs.")


def _game(target: Any) -> str | None:
    """Return the game's name as in ids, or None for any other environment."""
    if not isinstance(target, EnvSpec) or target.entry_point != _SINGLE:
        return None
    return target.id.removeprefix("ALE/").rpartition("-")[0].removesuffix("NoFrameskip")


def is_vector(target: Any) -> bool:
    """Return whether the id is made by ale-py's own vector environment."""
    return isinstance(target, EnvSpec) and target.vector_entry_point == _VECTOR


def vector_settings(spec: EnvSpec, kwargs: dict[str, Any]) -> AtariSettings:
    """Return all settings with which ale-py's vector environment is made.

    Raises:
        ConfigError: one is unknown or out of its range.
    """
    return AtariSettings(**{**spec.kwargs, **kwargs})


def ends_with_lives(spec: EnvSpec, kwargs: dict[str, Any]) -> bool:
    """Return whether ale-py's vector environment reports a lost life as the end of an episode."""
    return is_vector(spec) and vector_settings(spec, kwargs).life_loss_info


def hint(spec: EnvSpec) -> str:
    """Suggest the vector environment's id of a game; "" for other environments."""
    game = _game(spec)
    return "" if game is None else f": ale-py's own is {vector_id(game) or 'ALE/…-v5'}"


def vector_id(game: str) -> str | None:
    """Return the id of a game named alone: ``ALE/Breakout-v5`` for ``Breakout``."""
    env_id = f"ALE/{game}-v5"
    return env_id if game in SCORES or env_id in gymnasium.registry else None


class LivesAsEpisodes(VectorWrapper):
    """Ends an episode at each lost life in NEXT_STEP autoreset, while the game continues.

    In the inner environment a step after a lost life (``life_loss_info``) continues the game. Here
    it is a reset step as after any other end: a no-op is played whatever the action is, its reward
    is dropped, and its observation begins the next episode. If that step loses a life or the game
    again, the game is reset.

    Args:
        envs: ale-py's vector environment with ``life_loss_info``, in NEXT_STEP autoreset.
    """

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(envs)
        self._ended = np.zeros(envs.num_envs, bool)  # [B] bool, reset at the next step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all games, or those selected by ``options["reset_mask"]``."""
        self._ended = still_ended(self._ended, options)
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment; those whose episode just ended play a no-op."""
        fillers = self._ended
        some_fillers = np.count_nonzero(fillers) > 0  # rare
        if some_fillers:
            actions = np.array(actions)
            actions[fillers] = 0  # no-op; ale-py ignores it and resets a game that is over
        obs, reward, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        if some_fillers:
            again = ended & fillers
            if again.any():
                obs, infos = self.env.reset(options={"reset_mask": again})
            ended = ended & ~fillers
            reward = np.where(fillers, np.zeros_like(reward), reward)
            terminated, truncated = terminated & ~fillers, truncated & ~fillers
        self._ended = ended
        return obs, reward, terminated, truncated, infos


# -- frames ---------------------------------------------------------------------------------------


def frames_per_step(target: Any, kwargs: dict[str, Any], wraps: Iterable[Wrap] = ()) -> int:
    """Return the number of ALE frames per step; 1 for any other environment.

    It is also 1 if the number is drawn at random for each step.

    Raises:
        ConfigError: a wrapper repeats actions that the environment already repeats.
    """
    if _game(target) is None:
        return 1
    skip = {"frameskip": 4, **target.kwargs, **kwargs}["frameskip"]
    for wrap in wraps:
        name = getattr(wrap.function, "__name__", "")
        if name not in _SKIPPING or (own := wrap.kwargs.get(_SKIPPING[name], 4)) == 1:
            continue
        if skip != 1:
            times = f"{skip} times" if isinstance(skip, int) else "a random number of times"
            raise ConfigError(
                f"wrapper {name} repeats each action {own} times, and {target.id} does so {times} "
                f"already: give one of them 1, as in {setting('env_kwargs', _NO_SKIP)}"
            )
        skip = own
    return skip if isinstance(skip, int) else 1


# -- scores ---------------------------------------------------------------------------------------


def human_normalized(
    target: Any, engine: str, kwargs: dict[str, Any], wraps: Iterable[Wrap], score: float
) -> float | None:
    """Return the human-normalised score: 0 is a random player's score and 1 a human's.

    None if the game isn't one of the 57, its rewards are changed, or lives are episodes.

    Args:
        target, wraps: resolved environment and wrappers.
        engine: engine that makes it.
        score: mean return.
    """
    game = _game(target)
    if game not in SCORES:
        return None
    if engine == "native":
        own = vector_settings(target, kwargs)
        if own.reward_clipping or own.life_loss_info or own.episodic_life:
            return None
    for wrap in wraps:
        harmless = getattr(wrap.function, "__name__", "") in _HARMLESS
        if not harmless or wrap.kwargs.get("terminal_on_life_loss"):
            return None
    return SCORES[game].normalized(score)

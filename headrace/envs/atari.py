"""Games of Atari (ALE): settings of its own vector environment, lives, frames and scores."""

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
_SIDE, _STACK = Range(1, 1024), Range(1, 64)  # pixels, pictures
_FRAMES, _FEW_FRAMES = Range(1, 10**9), Range(1, 1000)


@settings()
@dataclass(frozen=True)
class AtariSettings:
    """What ale-py's vector environment takes, with its own names and defaults."""

    game: Annotated[str, NOT_EMPTY]
    num_threads: Annotated[int, Range(0, 1024)] = 0
    """That step the environments; 0: one for each processor."""
    frameskip: Annotated[int, _FEW_FRAMES] = 4
    """Frames for which an action is repeated."""
    maxpool: bool = True
    """Show the maximum of the last two of them."""
    grayscale: bool = True
    img_height: Annotated[int, _SIDE] = 84
    img_width: Annotated[int, _SIDE] = 84
    stack_num: Annotated[int, _STACK] = 4
    """How many of the latest pictures are an observation."""
    noop_max: Annotated[int, Range(0, 10**4)] = 30
    """A game begins with fewer no-ops than this, a frame each."""
    use_fire_reset: bool = True
    """It begins with FIRE."""
    repeat_action_probability: Annotated[float, FACTOR] = 0.0
    """That a frame repeats the action of the frame before (sticky actions)."""
    full_action_space: bool = False
    """All 18 actions rather than those that the game uses."""
    life_loss_info: bool = False
    """An episode ends with each life, and the game goes on."""
    episodic_life: bool = False
    """An episode ends with each life, and so does the game."""
    reward_clipping: bool = True
    """Clip the environment's own rewards to [-1, 1]."""
    max_num_frames_per_episode: Annotated[int, _FRAMES] = 108_000
    """After so many an episode is truncated."""
    continuous: bool = False
    continuous_action_threshold: Annotated[float, FACTOR] = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "env_kwargs.")


def _game(target: Any) -> str | None:
    """The game's name in ids; None of any other environment."""
    if not isinstance(target, EnvSpec) or target.entry_point != _SINGLE:
        return None
    return target.id.removeprefix("ALE/").rpartition("-")[0].removesuffix("NoFrameskip")


def is_vector(target: Any) -> bool:
    """Whether ale-py's own vector environment makes it."""
    return isinstance(target, EnvSpec) and target.vector_entry_point == _VECTOR


def vector_settings(spec: EnvSpec, kwargs: dict[str, Any]) -> AtariSettings:
    """All settings with which ale-py's vector environment is made.

    Raises:
        ConfigError: one is unknown or out of its range.
    """
    return AtariSettings(**{**spec.kwargs, **kwargs})


def hint(spec: EnvSpec) -> str:
    """Which id the vector environment of a game has, where this isn't it; "" of others."""
    game = _game(spec)
    return "" if game is None else f": ale-py's own is {vector_id(game) or 'ALE/…-v5'}"


def vector_id(game: str) -> str | None:
    """The id of a game that is named alone: ``ALE/Breakout-v5`` for ``Breakout``."""
    found = f"ALE/{game}-v5"
    return found if game in SCORES or found in gymnasium.registry else None


class LivesAsEpisodes(VectorWrapper):
    """An episode ends with each life, in NEXT_STEP autoreset, and the game goes on.

    Below, a step after a lost life (``life_loss_info``) plays on. Here it is a filler as after any
    other end: a no-op is played whatever the action is, its reward isn't told, and its observation
    begins the next episode. Where that ends a life or the game once more, the game is reset.

    Args:
        envs: ale-py's, with ``life_loss_info``, in NEXT_STEP autoreset.
    """

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(envs)
        self._ended = np.zeros(envs.num_envs, bool)  # [B] whose next step is a filler

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all games, or those of ``options["reset_mask"]``."""
        self._ended = still_ended(self._ended, options)
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every environment; a no-op of those whose episode ended before."""
        fillers = self._ended
        some_fillers = np.count_nonzero(fillers) > 0  # at few steps
        if some_fillers:
            actions = np.array(actions)
            actions[fillers] = 0  # a no-op; whatever it is, ale-py resets a game that is over
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
    """Frames of a game of ALE that a step takes; 1 of any other environment.

    It is 1, too, where the number is drawn anew for each step.

    Raises:
        ConfigError: a wrapper repeats actions that the environment repeats already.
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
    """The score of whole games where 0 is a random player's and 1 a human's.

    None: the game isn't one of the 57, or its rewards are changed, or lives are episodes.

    Args:
        target, wraps: resolved. engine: that makes it. score: mean return.
    """
    game = _game(target)
    if game not in SCORES:
        return None
    if engine == "native":
        own = vector_settings(target, kwargs)
        if own.reward_clipping or own.life_loss_info or own.episodic_life:
            return None
    for wrap in wraps:
        known = getattr(wrap.function, "__name__", "") in _HARMLESS
        if not known or wrap.kwargs.get("terminal_on_life_loss"):
            return None
    return SCORES[game].normalized(score)

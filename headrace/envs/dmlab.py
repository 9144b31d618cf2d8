"""DeepMind Lab with IMPALA's settings: 72 by 96 pixels, nine actions, action repeat 4.

    headrace train impala --tasks dmlab-30

Its package, ``deepmind_lab``, is built from source and has no wheel. This module calls
Lab's own interface instead of shimmy, whose adapter requests observations after an episode's end,
which Lab rejects, and doesn't support the instruction string. Ids are ``dmlab/LEVEL``, including
separate ids for levels that have a training and a test version.
"""

from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import register
from gymnasium.spaces import Box, Dict, Discrete, Text

from headrace.envs.dmlab_scores import SCORES, trained_on
from headrace.errors import ConfigError

ACTIONS = np.array(
    # look right, look up, strafe right, forward, fire, jump, crouch
    [
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-20, 0, 0, 0, 0, 0, 0),
        (20, 0, 0, 0, 0, 0, 0),
        (-20, 0, 0, 1, 0, 0, 0),
        (20, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ],
    np.intc,
)
"""``[9, 7]``: forward, backward, strafe left and right, look left and right, both combined with
forward, and fire (Espeholt et al. 2018, Table D.2); looks are in pixels per frame."""

_IMAGE, _INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
_INSTALL = "build it from https://github.com/google-deepmind/lab"


class DeepMindLab(gymnasium.Env[dict[str, Any], Any]):
    """A DeepMind Lab level as a Gymnasium environment.

    Observations are ``image`` ``[height, width, 3]`` uint8 and the text ``instruction``, which is
    empty in most levels. An action is an index of :data:`ACTIONS`. The level sets the episode's
    length, so its end is a termination. Lab gives no final observation; the last one before the end
    is returned again.

    Args:
        level: name of a level of ``contributed/dmlab30``.
        action_repeat: number of frames for which an action is repeated.
        lab: factory with the arguments of ``deepmind_lab.Lab``; None: ``deepmind_lab.Lab``.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        level: str,
        width: int = 96,
        height: int = 72,
        action_repeat: int = 4,
        render_mode: str | None = None,
        lab: Any = None,
    ) -> None:
        sizes = {"width": str(width), "height": str(height), "fps": "60"}
        self._lab = (lab or _lab())(
            f"contributed/dmlab30/{level}", [_IMAGE, _INSTRUCTION], config=sizes
        )
        self._repeat, self.render_mode = action_repeat, render_mode
        self.observation_space = Dict(
            image=Box(0, 255, (height, width, 3), np.uint8),
            instruction=Text(500, min_length=0, charset=string.printable),
        )
        self.action_space = Discrete(len(ACTIONS))
        self._seen: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; without a seed, a random one is drawn."""
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed % 2**31)
        return self._observe(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Repeat an action for several frames."""
        reward = float(self._lab.step(ACTIONS[action], num_steps=self._repeat))
        runs = self._lab.is_running()
        return self._observe() if runs else self._seen, reward, not runs, False, {}

    def render(self) -> Any:
        """Return the latest image."""
        return self._seen["image"]

    def close(self) -> None:
        """Close Lab."""
        self._lab.close()

    def _observe(self) -> dict[str, Any]:
        observed = self._lab.observations()
        words = observed[_INSTRUCTION]
        words = words.decode() if isinstance(words, bytes) else str(words)
        self._seen = {"image": np.asarray(observed[_IMAGE]), "instruction": words}
        return self._seen


def _lab() -> Any:
    try:
        import deepmind_lab
    except ImportError as error:
        raise ConfigError(f"tasks of dmlab-30 need deepmind_lab ({error}): {_INSTALL}") from error
    return deepmind_lab.Lab


def register_dmlab_envs() -> None:
    """Register the levels with Gymnasium."""
    for level in sorted({*SCORES, *map(trained_on, SCORES)}):
        register(f"dmlab/{level}", "headrace.envs.dmlab:DeepMindLab", kwargs={"level": level})

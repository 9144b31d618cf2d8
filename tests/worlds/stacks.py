"""Frame stacks that start, end and continue in every way, at random times."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Stacks(gymnasium.Env):
    """Observes the ``size`` latest of its random images; rewards depend on all of them.

    An episode ends at random, by termination or truncation.

    Args:
        begins: the images before an episode's first: black, the same (as it), or those of the
            previous episode, as after a lost life; "mixed": one of them at random; "odd": black in
            the first two episodes, then none of these.
        num_actions: 1: actions have no effect.
        space: of an image. still: images have one colour each.
    """

    def __init__(
        self,
        begins: str = "mixed",
        num_actions: int = 3,
        size: int = 4,
        space: tuple[int, ...] = (20, 20),
        still: bool = False,
    ) -> None:
        self.observation_space = Box(0, 255, (size, *space), np.uint8)
        self.action_space = Discrete(num_actions)
        self._begins, self._still, self._episodes = begins, still, 0
        self._stack = np.zeros(self.observation_space.shape, np.uint8)

    def _picture(self) -> np.ndarray:
        shape = self._stack.shape[1:]
        if self._still:
            return np.full(shape, 200 * self.np_random.integers(2), np.uint8)
        return self.np_random.integers(0, 256, shape, dtype=np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        begins, new = self._begins, self._picture()
        if begins == "mixed":
            begins = ("black", "same", "goes_on")[self.np_random.integers(3)]
        if begins == "odd":
            begins = "black" if self._episodes < 2 else "odd"
        self._episodes += 1
        if begins == "goes_on":
            self._push(new)
        elif begins == "odd":
            self._stack = np.stack([self._picture() for _ in self._stack])
        else:
            self._stack = np.stack([new * (begins == "same")] * (len(self._stack) - 1) + [new])
        return self._stack, {}

    def _push(self, new: np.ndarray) -> None:
        self._stack = np.concatenate([self._stack[1:], new[None]])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Show the next image, which depends on the action."""
        reward = float(self._stack[:, 0].mean(-1).std() + action)
        self._push(self._picture() // (1 + int(action)))
        ended, cut = self.np_random.random(2) < 0.15
        return self._stack, reward, bool(ended), bool(cut), {}

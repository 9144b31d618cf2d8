"""Literal Atari protocol, frame by frame on a single emulator."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from ale_py import Action, ALEInterface, LoggerMode, roms


class Seen(NamedTuple):
    """Result of a step."""

    obs: np.ndarray  # [stack, height, width] of unrounded pixels
    reward: float
    life_lost: bool  # the game continues
    over: bool
    truncated: bool


class SlowGame:
    """Protocol of Mnih et al. (2015), Methods, and IMPALA, Table G.1.

    Args:
        seed: of the emulator. sticky: probability that a frame repeats the previous action.
        side: (height, width) of an image. skip: frames per action. stack: number of images.
        most_frames: frames after which an episode is truncated.
    """

    def __init__(
        self, game, seed, *, sticky=0.0, side=(84, 84), skip=4, stack=4, full=False,
        most_frames=108_000,
    ):  # fmt: skip
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale = ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(roms.get_rom_path(game))
        legal, few = self.ale.getLegalActionSet(), self.ale.getMinimalActionSet()
        self.actions = legal if full else few
        self.side, self.skip, self.num_stacked = side, skip, stack
        self.most_frames = most_frames

    def reset(self, num_noops):
        self.ale.reset_game()
        for _ in range(num_noops):
            self.ale.act(Action.NOOP)
        self.frames = 0
        self.pictures = [np.zeros(self.side)] * (self.num_stacked - 1)
        return self.show([self.ale.getScreenGrayscale()])

    def step(self, action):
        lives, reward, screens = self.ale.lives(), 0.0, []
        for _ in range(self.skip):
            reward += self.ale.act(self.actions[action])
            screens.append(self.ale.getScreenGrayscale().copy())
            self.frames += 1
            if self.ale.game_over():
                break
        over = self.ale.game_over()
        lost = 0 < self.ale.lives() < lives
        truncated = not over and self.frames >= self.most_frames
        return Seen(self.show(screens[-2:]), reward, lost, over, truncated)

    def show(self, screens):
        brightest = np.max(screens, axis=0).astype(float)
        self.pictures = [*self.pictures, shrunk(brightest, self.side)][-self.num_stacked :]
        return np.stack(self.pictures)


def shrunk(picture, side):
    """Return an image whose pixels are means of the covered areas."""
    if picture.shape == side:
        return picture
    rows, columns = (shares(*sides) for sides in zip(picture.shape, side, strict=True))
    return rows @ picture @ columns.T


@functools.cache
def shares(length, parts):
    """Return ``[parts, length]``: the fraction of each pixel in each of several equal parts."""
    found = np.zeros((parts, length))
    for part in range(parts):
        begin, end = part * length / parts, (part + 1) * length / parts
        for pixel in range(length):
            found[part, pixel] = max(0.0, min(end, pixel + 1) - max(begin, pixel))
    return found / found.sum(1, keepdims=True)

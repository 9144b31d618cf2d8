"""Agents and environments that ClusterEnv tests send to workers, and an oracle of step order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from torch import Tensor, nn
from worlds import (
    CountingEnv,
    counting_length,
    counting_reward,
    counting_truncates,
)

# -- environments -------------------------------------------------------------------------------


def chosen(once: str) -> bool:
    """Return whether the caller is the first to create this file."""
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class DelayedCountingEnv(CountingEnv):
    """A CountingEnv that takes up to ``delay_s`` per step. One of them kills its process."""

    def __init__(self, delay_s: float = 0.0, kill_at: int = 0, once: str = "") -> None:
        super().__init__(episode_length=3)
        self._delay_s, self._kill_at, self._once = delay_s, kill_at, once
        self._life = 0

    def step(self, action: Any) -> Any:
        time.sleep(float(np.random.default_rng().uniform(0, self._delay_s)))
        self._life += 1
        if self._life == self._kill_at and chosen(self._once):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class EverythingEnv(gymnasium.Env):
    """Environment with a dict of a uint8 image and a tuple, continuous actions and varied infos."""

    def __init__(self, num_steps: int = 4) -> None:
        self.observation_space = Dict(
            image=Box(0, 255, (3, 4, 4), np.uint8),
            pair=Tuple((Discrete(5), Box(-np.inf, np.inf, (2,), np.float64))),
        )
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self._num_steps = num_steps

    def _observe(self) -> dict[str, Any]:
        rng = self.np_random
        number = self._last + rng.normal(size=2)
        image = rng.integers(0, 256, (3, 4, 4), dtype=np.uint8)
        return {"image": image, "pair": (int(rng.integers(5)), number)}

    def _infos(self) -> dict[str, Any]:
        which = int(self.np_random.integers(6))
        number = float(self.np_random.normal())
        infos = {"number": number, "flag": True, "count": which, "word": f"w{which}"}
        infos |= {"vector": np.full(2, number), "inner": {"number": number, "word": "x"}}
        return dict(list(infos.items())[:which])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._step, self._last = 0, np.zeros(2)
        return self._observe(), self._infos()

    def step(self, action: Any) -> Any:
        self._step, self._last = self._step + 1, np.asarray(action, np.float64)
        ends = self._step >= self._num_steps + int(self.np_random.integers(2))
        by_truncation = bool(self.np_random.integers(2))
        reward = float(self._last.sum())
        infos = self._infos()
        return self._observe(), reward, ends and not by_truncation, ends and by_truncation, infos


class BrokenEnv(CountingEnv):
    """Environment whose constructor fails."""

    def __init__(self) -> None:
        raise RuntimeError("BrokenEnv has no licence")


# -- agents -------------------------------------------------------------------------------------


class AsleepEnv(CountingEnv):
    """Environment that exits in its second step once. Later constructors hang.

    Args:
        once: a path that the first one creates.
    """

    def __init__(self, once: str) -> None:
        super().__init__()
        if not chosen(once):
            time.sleep(3600.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step == 1:
            os._exit(13)
        return super().step(action)


class CountingAgent:
    """Agent that acts by its observation and never trains."""

    def act(self, obs: Tensor) -> Tensor:
        return obs[:, :3].sum(1).long() % 3

    def get_parameters(self) -> dict[str, Any]:
        return {}


class Revealing(nn.Module):
    """Agent that always takes one action, its parameter, with a configurable log-probability."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.choice = nn.Parameter(torch.zeros(()))
        self.logit = nn.Parameter(torch.zeros(size))
        self.register_buffer("note", torch.zeros(3))

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        action = self.choice.long().expand(len(obs))
        return action, self.log_prob(obs, action)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.logit[0].expand(len(obs))


class Watching(Revealing):
    """Agent whose log-probability depends on the environment: 0 to 2 belong to worker 0."""

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.where(obs[:, 0] < 3, self.logit[0], 2 * self.logit[0])


class Stepwise(Revealing):
    """Agent whose log-probability depends on the step, so that wrong observations are detected."""

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return (obs[:, 2] + 10 * obs[:, 1]) + 0 * self.logit[0]


class Categorical(nn.Module):
    """Agent that samples one of three actions, whatever it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.1, 0.7, -0.5]))

    def distribution(self, obs: Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.logits.expand(len(obs), 3))

    def act(self, obs: Tensor) -> Tensor:
        return self.distribution(obs).sample()


class Gaussian(nn.Module):
    """Agent that samples two numbers around its parameters."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.mean, self.log_std = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))

    def distribution(self, obs: Any) -> torch.distributions.Normal:
        mean = self.mean.expand(self._rows(obs), -1)
        return torch.distributions.Normal(mean, self.log_std.exp())

    def _rows(self, obs: Any) -> int:
        return len(obs["image"]) if isinstance(obs, dict) else len(obs)

    def act(self, obs: Any) -> Tensor:
        return self.distribution(obs).sample()


class Plain:
    """Agent without torch and set_parameters, which is sent as a whole."""

    def __init__(self) -> None:
        self.choice = [0]

    def act(self, obs: Tensor) -> np.ndarray:
        return np.full(len(obs), self.choice[0])

    def get_parameters(self) -> list[int]:
        return self.choice


class Numpy:
    """Agent without torch, with both methods, that checks its arrays."""

    def __init__(self) -> None:
        self.weights = np.zeros(2, np.float32)
        self.log = [1.0]

    def act(self, obs: Tensor) -> dict[str, Any]:
        assert type(self.weights) is np.ndarray
        return {"action": np.full(len(obs), int(self.weights[0])), "seen": obs}

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.full((len(obs),), float(self.weights[1]))

    def get_parameters(self) -> dict[str, Any]:
        return {"weights": self.weights, "log": self.log}

    def set_parameters(self, values: dict[str, Any]) -> None:
        self.weights, self.log = values["weights"], list(values["log"])


class Returning(CountingAgent):
    """Agent that returns a function of the observations."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def act(self, obs: Tensor) -> Any:
        return self.function(obs)


class Failing(CountingAgent):
    """Agent that raises in ``act`` while a file exists."""

    def __init__(self, while_there: Path) -> None:
        self.while_there = while_there

    def act(self, obs: Tensor) -> Tensor:
        if self.while_there.exists():
            raise ZeroDivisionError("Failing failed, as asked")
        return super().act(obs)


class FailsAhead(CountingAgent):
    """Agent that acts once."""

    acted = False

    def act(self, obs: Tensor) -> Tensor:
        if self.acted:
            raise RuntimeError("raised ahead")
        self.acted = True
        return super().act(obs)


# -- oracle of CountingEnv ---------------------------------------------------------------------


def follows(before: Any, action: int, ended: bool) -> tuple[list[float], float, bool, bool]:
    """Return observation, reward, terminated and truncated of the step after ``before``."""
    env, episode, step, _ = (int(x) for x in before)
    if ended:
        return [env, episode + 1, 0, -1], 0.0, False, False
    ends = step + 1 >= counting_length(env, episode, 3)
    by_truncation = bool(counting_truncates(env, episode))
    reward = counting_reward(episode, step, action)
    observed = [env, episode, step + 1, action]
    return observed, float(reward), ends and not by_truncation, ends and by_truncation


def check_rollout(rollout: Any, columns: Any = None) -> None:
    """Check that each step of a rollout of CountingEnvs follows from the previous one."""
    num_steps, num_envs = rollout.reward.shape
    for column in range(num_envs) if columns is None else columns:
        for t in range(num_steps):
            before, after = (rollout.obs[t + k, column].tolist() for k in (0, 1))
            filler, action = bool(rollout.first[t + 1, column]), int(rollout.action[t, column])
            obs, reward, terminated, _ = follows(before, action, filler)
            assert after == obs
            assert rollout.reward[t, column] == reward
            assert rollout.terminated[t, column] == terminated
            env, episode, step, _ = map(int, before)
            assert filler == (step == counting_length(env, episode, 3))

"""Child processes of learning.py: Stable-Baselines3's PPO, and evaluations.

A child gets a request: ``task`` (a name of TASKS), ``seed``, ``steps``, ``seconds``, ``started``
(monotonic), ``interval_s`` (between two points of the curve) and ``episodes`` (of the evaluation).
It returns ``curve``, ``env_steps``, ``evaluation`` and ``settings``.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from learning_tasks import TASKS, Task, Zoo

WINDOW = 100
EVALUATION_SEED = 1_000_000  # same as headrace


class Curve:
    """Records seconds since the start, steps and the mean return of 100 training episodes."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.points: list[tuple[float, int, float]] = []
        self._started, self._interval_s = request["started"], request["interval_s"]
        self._limits = request["steps"], request["seconds"]
        self._returns: deque[float] = deque(maxlen=WINDOW)

    def add(self, returns: Iterable[float]) -> None:
        """Add finished episodes."""
        self._returns.extend(map(float, returns))

    def point(self, steps: int, last: bool = False) -> None:
        """Record a point if the interval has passed, or at the end."""
        seconds = time.monotonic() - self._started
        before = self.points[-1] if self.points else (0.0, 0, 0.0)
        due = seconds - before[0] >= self._interval_s or (last and steps > before[1])
        if self._returns and due:
            self.points.append((seconds, steps, statistics.fmean(self._returns)))

    def ended(self, steps: int) -> bool:
        """Return whether the run has used its steps or seconds."""
        most_steps, most_s = self._limits
        return steps >= most_steps or time.monotonic() - self._started >= most_s


def make_env(task: Task) -> Any:
    """Create the task for agents without memory: flat observations, with frame stacking."""
    import gymnasium
    from gymnasium.wrappers import FlattenObservation, FrameStackObservation

    env = gymnasium.make(task.env_id)
    if task.stack > 1:
        env = FrameStackObservation(env, task.stack)
    return env if len(env.observation_space.shape or ()) == 1 else FlattenObservation(env)


def evaluation_of(returns: list[float]) -> dict[str, float]:
    """Return the result of the run."""
    std = statistics.pstdev(returns)
    return {"episodes": len(returns), "mean": statistics.fmean(returns), "std": std}


# -- headrace --------------------------------------------------------------------------------------


def evaluate_headrace(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the latest policy of ``run_dir``, deterministic, after headrace's command."""
    import headrace as hr
    from headrace.processes import torch_threads

    with torch_threads(1):
        policy = hr.load(request["run_dir"])
        return asdict(hr.evaluate(policy, TASKS[request["task"]].env_id, request["episodes"]))


# -- Stable-Baselines3 -----------------------------------------------------------------------------


def sb3_model(task: Task, seed: int) -> Any:
    """Create PPO and its environments with the zoo's settings."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize
    from torch import nn

    zoo, settings = task.zoo, dict(task.zoo.settings)
    network = settings.pop("policy_kwargs", {})
    if zoo.wide:
        units = {"pi": [256, 256], "vf": [256, 256]}
        network = {"log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU}
        network["net_arch"] = units
    for name in zoo.linear:
        settings[name] = _falling(settings[name])
    envs = make_vec_env(lambda: make_env(task), zoo.n_envs, seed=seed)
    if zoo.normalize:
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    return PPO("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs=network, **settings)


def _falling(start: float) -> Any:
    return lambda remaining: start * max(0.0, remaining)


def train_sb3(request: dict[str, Any]) -> dict[str, Any]:
    """Train Stable-Baselines3's PPO with the zoo's settings and evaluate it."""
    return _train_sb3(TASKS[request["task"]], request)


def train_sb3_default(request: dict[str, Any]) -> dict[str, Any]:
    """Train Stable-Baselines3's PPO with its default settings and evaluate it."""
    return _train_sb3(replace(TASKS[request["task"]], zoo=Zoo()), request)


def _train_sb3(task: Task, request: dict[str, Any]) -> dict[str, Any]:
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(1)  # the fastest for its small batches
    curve = Curve(request)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            infos = self.locals["infos"]
            curve.add(info["episode"]["r"] for info in infos if "episode" in info)
            curve.point(self.num_timesteps)
            return not curve.ended(self.num_timesteps)

    model = sb3_model(task, request["seed"])
    while not curve.ended(model.num_timesteps):
        # A further call continues the schedules, which fall from the current fraction of all steps.
        again = model.num_timesteps > 0
        model.learn(task.zoo.n_timesteps, callback=Watch(), reset_num_timesteps=not again)
    curve.point(model.num_timesteps, last=True)
    return {
        "curve": curve.points,
        "env_steps": model.num_timesteps,
        "evaluation": _evaluate_sb3(model, task, request["episodes"]),
        "settings": asdict(task.zoo),
    }


def _evaluate_sb3(model: Any, task: Task, episodes: int) -> dict[str, float]:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    envs: Any = make_vec_env(lambda: make_env(task), episodes, seed=EVALUATION_SEED)
    if task.zoo.normalize:
        envs = VecNormalize(envs, training=False, norm_reward=False)
        envs.obs_rms = model.get_vec_normalize_env().obs_rms
    returns, _ = evaluate_policy(model, envs, episodes, return_episode_rewards=True)
    return evaluation_of(list(map(float, returns)))

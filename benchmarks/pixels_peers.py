"""Peers of pixels.py: a single-file PPO loop with envpool, SB3, and Sample Factory.

    python benchmarks/pixels_peers.py '{"program": "cleanrl", "steps": 20000, ...}' result.json

A request has ``program``, ``steps``, ``num_envs``, ``rollout`` (steps per environment before an
update), ``minibatch``, ``threads`` (of torch) and ``started`` (monotonic). The result has ``sps``,
counted from the end of the first update, and ``first_update_s``, from the start of the process.

All play Pong with ALE's usual protocol (84 x 84 grey, four frames stacked and skipped, up to 30
no-ops, lives as episodes, clipped rewards), with the Nature network shared by policy and value, and
use each sample once. The module doesn't import headrace, so that another Python can run it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_LEARNING_RATE, _CLIP, _ENTROPY = 2.5e-4, 0.1, 0.01


class Clock:
    """Counts steps from the end of the first update."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._started, self._first = request["started"], (0.0, 0)
        self._last = self._first

    def update(self, steps: int) -> None:
        """Record the end of an update at this total number of steps."""
        self._last = time.monotonic(), steps
        if not self._first[1]:  # there may be a call without steps before the first update
            self._first = self._last

    def result(self) -> dict[str, float]:
        """Run the program of a request; see the module's docstring."""
        seconds, steps = (b - a for a, b in zip(self._first, self._last, strict=True))
        return {"sps": steps / seconds, "first_update_s": self._first[0] - self._started}


def cleanrl(request: dict[str, Any]) -> dict[str, float]:
    """Run the single-file loop: one shuffled epoch in minibatches."""
    import torch
    from atari_ppo import Recipe, Training

    torch.set_num_threads(request["threads"])
    num_envs, num_steps = request["num_envs"], request["rollout"]
    num_minibatches = max(1, num_envs * num_steps // request["minibatch"])
    recipe = Recipe(num_envs, num_steps, num_minibatches, epochs=1, anneals=False)
    training, clock = Training("Pong", recipe, seed=1, steps=request["steps"]), Clock(request)
    while training.steps < request["steps"]:
        training.update()
        clock.update(training.steps)
    return clock.result()


def pong(*_: Any, **settings: Any) -> Any:
    """Create the game, also in a process that has not imported ALE."""
    import ale_py
    import gymnasium

    if hasattr(gymnasium, "register_envs"):
        gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", **settings)


def wrapped_pong(*_: Any, **given: Any) -> Any:
    """Create the game with Sample Factory's wrappers."""
    import gymnasium
    from sf_examples.atari import atari_utils

    envs = gymnasium.wrappers
    game = atari_utils.NoopResetEnv(pong(render_mode=given.get("render_mode")), noop_max=30)
    game = atari_utils.EpisodicLifeEnv(atari_utils.MaxAndSkipEnv(game, skip=4))
    game = envs.GrayScaleObservation(envs.ResizeObservation(game, (84, 84)))
    game = envs.FrameStack(atari_utils.ClipRewardEnv(game), 4)
    return atari_utils.NumpyObsWrapper(game)


def sb3(request: dict[str, Any]) -> dict[str, float]:
    """Run Stable-Baselines3's PPO with its Atari wrappers and one process per environment."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    torch.set_num_threads(request["threads"])
    clock, num_envs = Clock(request), request["num_envs"]

    class Watch(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                clock.update(self.num_timesteps)

        def _on_step(self) -> bool:
            return True

    kind = SubprocVecEnv if request.get("processes", True) else DummyVecEnv
    envs = make_atari_env(pong, num_envs, seed=1, vec_env_cls=kind)
    model = PPO(
        "CnnPolicy",
        VecFrameStack(envs, 4),
        n_steps=request["rollout"],
        batch_size=request["minibatch"],
        n_epochs=1,
        learning_rate=_LEARNING_RATE,
        clip_range=_CLIP,
        ent_coef=_ENTROPY,
        device="cpu",
    )
    model.learn(request["steps"] + num_envs * request["rollout"], callback=Watch())
    envs.close()
    return clock.result()


def sample_factory(request: dict[str, Any]) -> dict[str, float]:
    """Run Sample Factory's APPO: a worker per core, double-buffered, batches of one minibatch."""
    import tempfile

    from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS, ExperimentStatus
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sf_examples.atari.train_atari import parse_atari_args

    workers, clock = request["workers"], Clock(request)
    flags: dict[str, Any] = {
        "algo": "APPO", "env": "atari_pong", "device": "cpu", "seed": 1, "num_workers": workers,
        "num_envs_per_worker": request["num_envs"] // workers, "worker_num_splits": 2,
        "rollout": request["fragment"], "recurrence": 1, "use_rnn": False,
        "batch_size": request["minibatch"], "num_batches_per_epoch": 1, "num_epochs": 1,
        "batched_sampling": False, "encoder_conv_architecture": "convnet_atari",
        "encoder_conv_mlp_layers": 512, "nonlinearity": "relu", "normalize_input": False,
        "learning_rate": _LEARNING_RATE, "ppo_clip_ratio": _CLIP, "async_rl": True,
        "exploration_loss_coeff": _ENTROPY, "train_for_env_steps": request["steps"] * 4,
        "save_every_sec": 10_000, "decorrelate_experience_max_seconds": 0, "with_wandb": False,
        "experiment_summaries_interval": 1000,
    }  # fmt: skip

    def learnt(runner: Any, message: dict[str, Any], *_: Any) -> None:
        clock.update(message[LEARNER_ENV_STEPS] // 4)  # it counts frames, four per step

    with tempfile.TemporaryDirectory() as folder:
        flags |= {"train_dir": folder, "experiment": "pong"}
        register_env("atari_pong", wrapped_pong)
        config = parse_atari_args([f"--{name}={value}" for name, value in flags.items()])
        config, runner = make_runner(config)

        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(learnt)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
        if status != ExperimentStatus.SUCCESS:
            raise RuntimeError(f"Sample Factory ended with status {status}")
    return clock.result()


PROGRAMS = {"cleanrl": cleanrl, "sb3": sb3, "sample_factory": sample_factory}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    found = PROGRAMS[asked["program"]](asked)
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")

"""What pixels.py compares with: a single-file PPO loop with envpool, SB3, and Sample Factory.

    python benchmarks/pixels_peers.py '{"program": "cleanrl", "steps": 20000, ...}' result.json

A request has ``program``, ``steps``, ``num_envs``, ``rollout`` (steps of each environment before an
update), ``minibatch``, ``threads`` (of torch) and ``started`` (monotonic). The result has ``sps``,
counted from the end of the first update, and ``first_update_s``, from the start of the process.

All play Pong with ALE's usual protocol (84 x 84 grey, four frames stacked and skipped, up to 30
no-ops, lives as episodes, clipped rewards), with the Nature network, whose torso policy and value
share, and learn from every sample once. Nothing here imports headrace, so that another Python may
run it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_LEARNING_RATE, _GAMMA, _LAMBDA, _CLIP, _ENTROPY, _VALUE = 2.5e-4, 0.99, 0.95, 0.1, 0.01, 0.5


class Clock:
    """Counts steps from the end of the first update."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._started, self._first = request["started"], (0.0, 0)
        self._last = self._first

    def update(self, steps: int) -> None:
        """An update has ended, after so many steps in all."""
        self._last = time.monotonic(), steps
        if not self._first[1]:  # and before it, there may be a note of no steps
            self._first = self._last

    def result(self) -> dict[str, float]:
        """See the top of the file."""
        seconds, steps = (b - a for a, b in zip(self._first, self._last, strict=True))
        return {"sps": steps / seconds, "first_update_s": self._first[0] - self._started}


def nature(num_actions: int) -> Any:
    """The torso, the policy's head and the value's."""
    import torch
    from torch import nn

    def layer(module: Any, gain: float = 2**0.5) -> Any:
        nn.init.orthogonal_(module.weight, gain)
        nn.init.zeros_(module.bias)
        return module

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.torso = nn.Sequential(
                layer(nn.Conv2d(4, 32, 8, stride=4)),
                nn.ReLU(),
                layer(nn.Conv2d(32, 64, 4, stride=2)),
                nn.ReLU(),
                layer(nn.Conv2d(64, 64, 3, stride=1)),
                nn.ReLU(),
                nn.Flatten(),
                layer(nn.Linear(3136, 512)),
                nn.ReLU(),
            )
            self.actor, self.critic = layer(nn.Linear(512, num_actions), 0.01), nn.Linear(512, 1)

        def forward(self, x: Any) -> tuple[Any, Any]:
            hidden = self.torso(x / 255.0)
            policy = torch.distributions.Categorical(logits=self.actor(hidden))
            return policy, self.critic(hidden).flatten()

    return Agent()


def cleanrl(request: dict[str, Any]) -> dict[str, float]:
    """PPO from top to bottom: act, advantages, one shuffled pass in minibatches."""
    import envpool
    import numpy as np
    import torch

    torch.set_num_threads(request["threads"])
    num_envs, num_steps, size = request["num_envs"], request["rollout"], request["minibatch"]
    given = {"episodic_life": True, "reward_clip": True, "seed": 1}
    envs = envpool.make("Pong-v5", env_type="gymnasium", num_envs=num_envs, **given)
    agent, clock = nature(int(envs.action_space.n)), Clock(request)
    optimizer = torch.optim.Adam(agent.parameters(), lr=_LEARNING_RATE, eps=1e-5)
    obs = torch.zeros((num_steps, num_envs, 4, 84, 84))
    action, log_prob, reward, done, value = (torch.zeros(num_steps, num_envs) for _ in range(5))
    next_obs, next_done = torch.Tensor(envs.reset()[0]), torch.zeros(num_envs)
    steps = 0
    while steps < request["steps"]:
        for t in range(num_steps):
            obs[t], done[t] = next_obs, next_done
            with torch.no_grad():
                policy, value[t] = agent(next_obs)
                chosen = policy.sample()
                action[t], log_prob[t] = chosen, policy.log_prob(chosen)
            seen, rewards, terminated, truncated, _ = envs.step(chosen.numpy().astype(np.int32))
            reward[t] = torch.tensor(rewards)
            next_obs, next_done = torch.Tensor(seen), torch.Tensor(terminated | truncated)
        with torch.no_grad():
            next_value = agent(next_obs)[1]
            advantage, last = torch.zeros_like(reward), torch.zeros(num_envs)
            for t in reversed(range(num_steps)):
                is_last = t == num_steps - 1
                alive = 1.0 - (next_done if is_last else done[t + 1])
                ahead = next_value if is_last else value[t + 1]
                delta = reward[t] + _GAMMA * ahead * alive - value[t]
                advantage[t] = last = delta + _GAMMA * _LAMBDA * alive * last
            target = advantage + value
        samples = [x.flatten(0, 1) for x in (obs, action, log_prob, advantage, target)]
        for part in torch.randperm(num_steps * num_envs).split(size):
            seen_b, action_b, old_b, advantage_b, target_b = (x[part] for x in samples)
            policy, value_b = agent(seen_b)
            ratio = (policy.log_prob(action_b) - old_b).exp()
            scaled = (advantage_b - advantage_b.mean()) / (advantage_b.std() + 1e-8)
            clipped = ratio.clamp(1 - _CLIP, 1 + _CLIP)
            loss = -torch.minimum(ratio * scaled, clipped * scaled).mean()
            loss += _VALUE * 0.5 * (value_b - target_b).square().mean()
            loss -= _ENTROPY * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        steps += num_steps * num_envs
        clock.update(steps)
    return clock.result()


def pong(*_: Any, **settings: Any) -> Any:
    """The game alone, also in a process that has not imported ALE."""
    import ale_py
    import gymnasium

    if hasattr(gymnasium, "register_envs"):
        gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", **settings)


def wrapped_pong(*_: Any, **given: Any) -> Any:
    """With Sample Factory's own wrappers."""
    import gymnasium
    from sf_examples.atari import atari_utils

    envs = gymnasium.wrappers
    game = atari_utils.NoopResetEnv(pong(render_mode=given.get("render_mode")), noop_max=30)
    game = atari_utils.EpisodicLifeEnv(atari_utils.MaxAndSkipEnv(game, skip=4))
    game = envs.GrayScaleObservation(envs.ResizeObservation(game, (84, 84)))
    game = envs.FrameStack(atari_utils.ClipRewardEnv(game), 4)
    return atari_utils.NumpyObsWrapper(game)


def sb3(request: dict[str, Any]) -> dict[str, float]:
    """Stable-Baselines3's PPO with its Atari wrappers, an environment in each process."""
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
    """Sample Factory's APPO: as many workers as cores, double-buffered, batches of a minibatch."""
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
        clock.update(message[LEARNER_ENV_STEPS] // 4)  # it counts frames, four to a step

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

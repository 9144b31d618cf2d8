"""Training loops in torch that same_work.py compares: headrace, Stable-Baselines3, CleanRL's style.

Each function returns steps per second after the first update of about some seconds of training.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sb3
from ceiling import HIDDEN

if TYPE_CHECKING:
    from learning_ppo import Agent, Recipe
    from torch import Tensor

ENV_ID = "CartPole-v1"


def headrace_rate(work: Any, seconds: float, algo: str, num_actors: int) -> float:
    """Train with headrace; steps are transitions, without reset steps."""
    import headrace as hr

    algos = {"ppo": hr.PPO, "impala": hr.IMPALA}
    with tempfile.TemporaryDirectory() as folder:
        config = hr.Config(
            ENV_ID,
            algos[algo](epochs=work.epochs, minibatches=work.minibatches),
            num_actors=num_actors,
            envs_per_actor=work.num_envs // num_actors,
            fragment_length=work.num_steps,
            batch_size=work.batch_size,
            network=hr.Network(HIDDEN, "tanh", shared=False),
            total_steps=1 << 40,
            run_dir=f"{folder}/run",
            eval_episodes=0,
        )
        trainer = hr.Trainer(
            config, notify=lambda text: print(text, file=sys.stderr), handle_signals=False
        )
        with contextlib.closing(trainer):
            ends = None
            for _ in trainer:
                ends = ends or time.monotonic() + seconds
                if time.monotonic() > ends and trainer.sps:
                    break
            return trainer.sps


def sb3_rate(work: Any, seconds: float, threads: int) -> float:
    """Train with Stable-Baselines3's PPO, with all environments in its process."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    layers = {"pi": [*HIDDEN], "vf": [*HIDDEN]}
    model = PPO(
        "MlpPolicy",
        make_vec_env(ENV_ID, work.num_envs, seed=0),  # DummyVecEnv, its fastest for cheap steps
        n_steps=work.num_steps,
        batch_size=work.batch_size // work.minibatches,
        n_epochs=work.epochs,
        policy_kwargs={"net_arch": layers, "activation_fn": torch.nn.Tanh},
        device="cpu",
        seed=0,
    )
    return sb3.rate(model, lambda updates, passed: updates > 0 and passed >= seconds)


def cleanrl_rate(work: Any, seconds: float, threads: int) -> float:
    """Train with learning_ppo.py's update on Gymnasium's CartPole, which steps all in NumPy.

    Steps are transitions, without reset steps.
    """
    import gymnasium
    import torch
    from learning_ppo import DISCRETE, Agent, descend

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    recipe = replace(DISCRETE, minibatches=work.minibatches, epochs=work.epochs)
    envs = gymnasium.make_vec(ENV_ID, work.num_envs, vectorization_mode="vector_entry_point")
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n), False)
    optimizer = torch.optim.Adam(agent.parameters(), recipe.learning_rate, eps=1e-5)
    obs, first = torch.from_numpy(envs.reset(seed=0)[0]), torch.zeros(work.num_envs)
    steps, begun = 0, 0.0
    while steps == 0 or time.perf_counter() - begun < seconds:
        batch, obs, first = collect(agent, recipe, envs, work.num_steps, obs, first)
        descend(agent, optimizer, recipe, batch)
        steps += len(batch["target"]) if begun else 0  # the first update doesn't count
        begun = begun or time.perf_counter()
    return steps / (time.perf_counter() - begun)


def collect(
    agent: Agent, recipe: Recipe, envs: Any, num_steps: int, obs: Tensor, first: Tensor
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Collect a rollout with fields ``[N, …]``, without reset steps; also return the next step.

    Args:
        obs: observations, of which the agent chooses its next actions.
        first: 1 where these end an episode, so that the next step only resets.
    """
    import torch
    from learning_ppo import advantages

    rows: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        for _ in range(num_steps):
            chosen = agent.distribution(obs)
            action, value = chosen.sample(), agent.value(obs).squeeze(-1)
            after, reward, terminated, truncated, _ = envs.step(action.numpy())
            ended = torch.from_numpy(terminated | truncated).float()
            reward = torch.from_numpy(reward).float()
            rows.append((obs, action, chosen.log_prob(action), value, reward, ended, first))
            obs, first = torch.from_numpy(after), ended
        names = ("obs", "action", "log_prob", "value", "reward", "ended", "first")
        batch = dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))
        value = torch.cat([batch["value"], agent.value(obs).squeeze(-1)[None]])
    reward, ended, valid = (batch.pop(name) for name in ("reward", "ended", "first"))
    batch["advantage"] = advantages(reward, value, ended, recipe.gamma, recipe.lam)
    batch["target"] = batch["advantage"] + batch["value"]
    return {name: values[valid == 0] for name, values in batch.items()}, obs, first

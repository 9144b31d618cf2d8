"""Tasks of learning.py: budgets, reference returns, and the settings of the peers.

python benchmarks/learning_tasks.py        measures the returns of random actions, ``low``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

RANDOM_EPISODES = 100
SOLVED = 0.9
"""Normalised score at which a task counts as solved."""
GROUPS = ("development", "validation", "test")
"""Defaults are chosen on the first group and checked on the second; the third is for releases."""


@dataclass(frozen=True)
class Zoo:
    """Settings of PPO in hyperparams/ppo.yml of https://github.com/DLR-RM/rl-baselines3-zoo."""

    n_envs: int = 1
    n_timesteps: int = 1_000_000
    """Horizon of linear schedules."""
    normalize: bool = False
    """VecNormalize: observations and rewards."""
    linear: tuple[str, ...] = ()
    """Settings that fall linearly to 0."""
    wide: bool = False
    """256 and 256 units with ReLU, an initial log deviation of -2, no orthogonal weights."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of stable_baselines3.PPO; others have their defaults."""


@dataclass(frozen=True)
class Task:
    """An environment, the budget of a run, and the scale of its returns."""

    env_id: str
    steps: int
    seconds: float
    """Time limit from the start of the process."""
    low: float
    """Mean return of random actions over 100 episodes: a score of 0."""
    high: float
    """Return with a score of 1; see TASKS."""
    zoo: Zoo = field(default_factory=Zoo)
    group: str = "development"
    """One of GROUPS."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of ``headrace train`` that the task requires."""
    stack: int = 1
    """Stacked observations for the peers, which have no memory."""

    @property
    def name(self) -> str:
        """Return a short name for a folder."""
        return self.env_id.rpartition(":")[2].rpartition("/")[2]

    def score(self, value: float) -> float:
        """Return the normalised score: 0 at ``low``, 1 at ``high``."""
        return (value - self.low) / (self.high - self.low)

    @property
    def threshold(self) -> float:
        """Return the return whose score is SOLVED."""
        return self.low + SOLVED * (self.high - self.low)


def _zoo(n_envs: int, n_steps: int, gae_lambda: float, gamma: float, **more: Any) -> Zoo:
    own = {k: more.pop(k) for k in ("n_timesteps", "normalize", "linear", "wide") if k in more}
    settings = {"n_steps": n_steps, "gae_lambda": gae_lambda, "gamma": gamma, "ent_coef": 0.0}
    return Zoo(n_envs, settings=settings | more, **own)


_LANDER = _zoo(16, 1024, 0.98, 0.999, batch_size=64, n_epochs=4, ent_coef=0.01)
_CARTPOLE = _zoo(8, 32, 0.8, 0.98, batch_size=256, n_epochs=20, learning_rate=1e-3, clip_range=0.2,
                 n_timesteps=100_000, linear=("learning_rate", "clip_range"))  # fmt: skip
_PENDULUM = _zoo(4, 1024, 0.95, 0.9, n_epochs=10, learning_rate=1e-3, use_sde=True,
                 sde_sample_freq=4)  # fmt: skip
_BIPEDAL = _zoo(32, 2048, 0.95, 0.999, batch_size=64, n_epochs=10, clip_range=0.18, normalize=True)
_CHEETAH = _zoo(1, 512, 0.92, 0.98, batch_size=64, learning_rate=2.0633e-05, ent_coef=0.000401762,
                clip_range=0.1, n_epochs=20, max_grad_norm=0.8, vf_coef=0.58096, normalize=True,
                wide=True)  # fmt: skip
_HOPPER = _zoo(1, 512, 0.99, 0.999, batch_size=32, learning_rate=9.80828e-05, ent_coef=0.00229519,
               clip_range=0.2, n_epochs=5, max_grad_norm=0.7, vf_coef=0.835671, normalize=True,
               wide=True)  # fmt: skip
_WALKER = _zoo(1, 512, 0.95, 0.99, batch_size=32, learning_rate=5.05041e-05, ent_coef=0.000585045,
               clip_range=0.1, n_epochs=20, max_grad_norm=1.0, vf_coef=0.871923,
               normalize=True)  # fmt: skip
_ATARI = _zoo(8, 128, 0.95, 0.99, batch_size=256, n_epochs=4, learning_rate=2.5e-4, clip_range=0.1,
              ent_coef=0.01, n_timesteps=10_000_000,
              linear=("learning_rate", "clip_range"))  # fmt: skip

_DOUBLE = _zoo(1, 128, 0.8, 0.98, batch_size=512, learning_rate=0.000155454, ent_coef=1.05057e-06,
               clip_range=0.4, n_epochs=10, max_grad_norm=0.5, vf_coef=0.695929,
               normalize=True)  # fmt: skip
_INVERTED = _zoo(1, 32, 0.9, 0.999, batch_size=64, learning_rate=0.000222425, ent_coef=1.37976e-07,
                 clip_range=0.4, n_epochs=5, max_grad_norm=0.3, vf_coef=0.19816,
                 normalize=True)  # fmt: skip
_REACHER = _zoo(1, 512, 1.0, 0.9, batch_size=32, learning_rate=0.000104019, ent_coef=7.52585e-08,
                clip_range=0.3, n_epochs=5, max_grad_norm=0.9, vf_coef=0.950368,
                normalize=True)  # fmt: skip
_MOUNTAIN = _zoo(1, 8, 0.9, 0.9999, batch_size=256, learning_rate=7.77e-05, ent_coef=0.00429,
                 clip_range=0.1, n_epochs=10, max_grad_norm=5, vf_coef=0.19, use_sde=True,
                 policy_kwargs={"log_std_init": -3.29, "ortho_init": False},
                 n_timesteps=20_000, normalize=True)  # fmt: skip
# ``high`` is the evaluated return of rl-baselines3-zoo's trained PPO agent (its benchmark.md, of
# LunarLander-v2 and MuJoCo's -v3). Gymnasium's reward threshold: BipedalWalker, Taxi, both inverted
# pendulums, Reacher, MountainCarContinuous, FrozenLake8x8. TMaze: its optimum. Breakout: the first
# wall, 30 bricks; the other games of MinAtar: round numbers. SSAConjunction: the greedy player of
# docs/ssa.md. The zoo's settings are those of the same environment in the older version. MinAtar
# has those of Atari with a perceptron; other tasks have the library's defaults.
_DEVELOPMENT = (
    Task("CartPole-v1", 1_000_000, 15, 23.7, 500.0, _CARTPOLE),
    Task("Acrobot-v1", 1_000_000, 15, -497.1, -73.5,
         _zoo(16, 256, 0.94, 0.99, n_epochs=4, normalize=True)),
    Task("MountainCar-v0", 1_000_000, 20, -200.0, -110.4,
         _zoo(16, 16, 0.98, 0.99, n_epochs=4, normalize=True)),
    Task("Pendulum-v1", 1_000_000, 20, -1207.6, -172.2, _PENDULUM),
    Task("LunarLander-v3", 3_000_000, 40, -192.0, 242.1, _LANDER),
    Task("BipedalWalker-v3", 3_000_000, 60, -102.8, 300.0, _BIPEDAL),
    Task("HalfCheetah-v5", 1_000_000, 120, -282.5, 5819.1, _CHEETAH),
    Task("Taxi-v4", 1_000_000, 30, -777.5, 8.0),
    Task("InvertedDoublePendulum-v5", 1_000_000, 40, 49.1, 9100.0, _DOUBLE),
    Task("MountainCarContinuous-v0", 1_000_000, 30, -33.3, 90.0, _MOUNTAIN),
    Task("Swimmer-v5", 1_000_000, 60, 0.8, 281.6,
         Zoo(normalize=True, settings={"gamma": 0.9999})),
    Task("learning_envs:SpaceInvaders-v1", 3_000_000, 60, 4.5, 50.0, _ATARI),
)  # fmt: skip
_VALIDATION = (
    Task("LunarLanderContinuous-v3", 3_000_000, 40, -212.7, 270.9, _LANDER),
    Task("Hopper-v5", 1_000_000, 120, 16.7, 2410.4, _HOPPER),
    Task("FrozenLake8x8-v1", 1_000_000, 20, 0.0, 0.85),
    Task("learning_envs:TMaze-v0", 1_000_000, 20, -0.25, 1.0, flags={"core": "lstm"}, stack=16),
    Task("learning_envs:Breakout-v1", 3_000_000, 60, 0.4, 30.0, _ATARI),
    Task("headrace_ssa:headrace/SSAConjunction-v0", 3_000_000, 60, -49.5, -7.4),
)
_TEST = (
    Task("Walker2d-v5", 1_000_000, 120, 1.8, 3478.8, _WALKER),
    Task("Ant-v5", 1_000_000, 120, -48.1, 1327.2, Zoo(normalize=True)),
    Task("Reacher-v5", 1_000_000, 40, -43.3, -3.75, _REACHER),
    Task("InvertedPendulum-v5", 1_000_000, 20, 5.2, 950.0, _INVERTED),
    Task("learning_envs:Asterix-v1", 3_000_000, 60, 0.4, 20.0, _ATARI),
    Task("learning_envs:Freeway-v1", 3_000_000, 60, 0.4, 50.0, _ATARI),
)
TASKS = {
    task.name: replace(task, group=group)
    for group, tasks in zip(GROUPS, (_DEVELOPMENT, _VALIDATION, _TEST), strict=True)
    for task in tasks
}


def random_return(env_id: str, episodes: int = RANDOM_EPISODES) -> float:
    """Return the mean return of uniformly random actions."""
    import gymnasium

    total = 0.0
    with gymnasium.make(env_id) as env:
        env.action_space.seed(0)
        for episode in range(episodes):
            ended, _ = False, env.reset(seed=episode)
            while not ended:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                total += float(reward)
                ended = terminated or truncated
    return total / episodes


def main() -> None:
    """Print the random return of each task next to the one in the table."""
    for name, task in TASKS.items():
        print(f"{name:26} low {random_return(task.env_id):10.2f} (here {task.low})", flush=True)


if __name__ == "__main__":
    main()

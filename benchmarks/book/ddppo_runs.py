"""Runs of the page on synchronous PPO: speed, returns, equality of learners, slow environments."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

import headrace as hr
from book.experiment import Case
from headrace.api import run as train
from headrace.config import Config
from headrace.distributed.ranks import Ranks, file_rendezvous
from headrace.learner.learner import Learner
from headrace.processes import Child
from headrace.studies.scaling.figures import evaluations, run_figures, time_to_target
from headrace.types import Batch, Group

WARM_UP = 5  # iterations that don't count
TARGET = 475.0  # CartPole-v1 counts as solved
SPEEDS = (
    "fps", "t_iter", "t_rollout", "t_learn", "t_comm", "t_sync", "rho_comm", "rho_sync", "coverage",
)  # fmt: skip
LEARNING = ("approx_kl", "clipfrac", "entropy", "value_loss", "final_return")

COLUMNS, ROWS, UPDATES, LIMIT_S = 12, 32, 20, 120.0  # of the comparison of learners


# -- training with several learners ----------------------------------------------------------------


def with_learners(config: Config, world_size: int, growing: bool, **changes: Any) -> Config:
    """Return the config of ``world_size`` learners, with as large a batch or a growing one."""
    growth = world_size if growing else 1
    sizes = {"num_actors": config.num_actors * growth}
    sizes["batch_size"] = config.num_actors * config.envs_per_actor * config.fragment_length
    sizes["batch_size"] *= growth
    return Config(**{**vars(config), **sizes, "num_learners": world_size, **changes})


def learned(config: Config) -> dict[str, Any]:
    """Train in this process and its learners. Return speeds, times and returns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        config = Config(**{**vars(config), "run_dir": str(path), "log_iterations": True})
        train(config, draw=False, quiet=True)
        figures = run_figures(path, config.num_learners, WARM_UP, None)
        lines = evaluations(path)
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    return {
        **{name: figures[name] for name in (*SPEEDS, *LEARNING)},
        "time_to_target": time_to_target(lines, TARGET),
        "steps_to_target": next(
            (x["env_steps"] for x in lines if x["return_mean"] >= TARGET), None
        ),
        "first_return": lines[0]["return_mean"] if lines else None,
        "training_return": summary["episodic_return"],
        "lag_mean": summary["lag"]["mean"],
        "lag_max": summary["lag"]["max"],
    }


class Sleepy(gymnasium.Env):
    """Environment whose steps take 1 ms each; or none, and 32 ms in one of 32 steps."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def __init__(self, even: bool) -> None:
        self._even = even

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        """Sleep; an episode has 50 steps."""
        if self._even:
            time.sleep(1e-3)
        elif self.np_random.random() < 1 / 32:
            time.sleep(32e-3)
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == 50, False, {}


# -- equal steps -----------------------------------------------------------------------------------


def equality(case: Case) -> dict[str, Any]:
    """Return differences between learners in processes, and to one learner with all data.

    ``gradient`` is the greatest difference of the mean gradient in float32, relative to its largest
    element. ``weights`` is that of the weights in float64 after 20 updates of two optimiser steps,
    with advantages scaled over all learners, and ``between`` that of learners to each other.
    """
    size = case["world_size"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        children = [
            Child(f"rank-{rank}", _rank, rank, size, case["seed"], folder) for rank in range(size)
        ]
        for child in children:
            child.process.join(LIMIT_S)
        ranks = [torch.load(folder / f"{rank}.pt") for rank in range(size)]
    one = _steps(None, 0, 1, case["seed"])
    scale = one["gradient"].abs().max()

    def greatest(name: str, other: dict[str, Tensor]) -> float:
        return max(float((own[name] - other[name]).abs().max()) for own in ranks)

    return {
        "gradient": greatest("gradient", one) / float(scale),
        "weights": greatest("weights", one),
        "between": greatest("weights", ranks[0]),
        "moved": float((one["weights"] - one["start"]).abs().max()),
    }


def _rank(rank: int, size: int, seed: int, folder: Path, pipe: object) -> None:
    group = Ranks(file_rendezvous(str(folder / "store"), rank, size), LIMIT_S / 2)
    torch.save(_steps(group, rank, size, seed), folder / f"{rank}.pt")
    group.broadcast(None)  # no rank leaves while another one still reads from it
    group.close()


def _steps(group: Group | None, rank: int, size: int, seed: int) -> dict[str, Tensor]:
    """Return a gradient, and the weights after 20 updates, of one learner's columns."""
    algo = hr.PPO(epochs=2, minibatches=1)
    share = COLUMNS // size
    own = slice(rank * share, (rank + 1) * share)
    single = _learner(algo, seed, torch.float32, group)
    gradient, _, count = single.gradient(_batch(seed, 0, torch.float32, True).columns(own))
    vector = torch.cat([gradient, gradient.new_tensor([count])])
    total = vector if group is None else group.sum(vector)
    double = _learner(algo, seed, torch.float64, group)
    start = _weights(double)
    for update in range(UPDATES):
        batch = _batch(seed, update, torch.float64, False).columns(own)
        double.update(lambda: batch, 3e-3)  # noqa: B023
    return {
        "gradient": total[:-1] / total[-1],
        "weights": _weights(double),
        "start": start,
    }


def _learner(algo: hr.PPO, seed: int, dtype: torch.dtype, group: Group | None) -> Learner:
    torch.manual_seed(seed)
    policy = hr.Policy(Box(-1, 1, (3,)), Discrete(4), hr.Network((32, 32))).to(dtype)
    return Learner(policy, algo, group=group)


def _weights(learner: Learner) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in learner.policy.parameters()])


def _batch(seed: int, update: int, dtype: torch.dtype, with_targets: bool) -> Batch:
    """Return random steps ``[ROWS, COLUMNS]``, some of them resets; equal in all processes."""
    g = torch.Generator().manual_seed(1000 * seed + update)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    first = torch.rand(ROWS + 1, COLUMNS, generator=g) < 0.1
    obs, shape = normal(ROWS + 1, COLUMNS, 3), (ROWS, COLUMNS)
    names = ("advantage", "target", "old_value") if with_targets else ()
    return Batch(
        obs=obs[:ROWS] if with_targets else obs,
        first=first[:ROWS] if with_targets else first,
        action=torch.randint(4, shape, generator=g),
        log_prob=-1.4 + 0.2 * normal(*shape),
        reward=normal(*shape),
        terminated=torch.rand(shape, generator=g) < 0.1,
        valid=~first[1:],
        core=(),
        targets={name: normal(*shape) for name in names},
    )


# -- the paper's command ---------------------------------------------------------------------------

COMMAND = (
    "ppo --env-id CartPole-v1 --world-sizes 1,2,4 --repeats 1 --total-iters 25 --warmup-iters 5 "
    "--fragment-length 64 --envs-per-actor 8 --epochs 2 --minibatches 4 --eval-episodes 0"
)


def by_command(case: Case) -> dict[str, Any]:
    """Run ``headrace bench scaling`` as the paper ran its benchmark. Return its table by W."""
    from headrace.studies.scaling import command

    with tempfile.TemporaryDirectory() as folder:
        argv = [*COMMAND.split(), "--seed", str(case["seed"]), "--output", folder]
        if command.main(argv):
            raise RuntimeError("a run of the study failed")
        model = json.loads((Path(folder) / "model.json").read_text(encoding="utf-8"))
        files = sorted(path.name for path in Path(folder).iterdir() if path.is_file())
    names = ("speedup_fps", "efficiency", *SPEEDS)
    values = {
        f"{name}_{row['world_size']}": row[name] for row in model["measured"] for name in names
    }
    return values | {"files": files}

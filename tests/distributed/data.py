"""Small policies and batches that several learners split by columns."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.types import Batch, Group

COLUMNS = 12
UPDATES = 20
LR = 3e-3
NONE, FEW = 1.0, 0.8  # fractions of reset steps
LSTM = Network((8,), core="lstm", core_size=5)


def make_policy(network: Network | None = None, dtype: torch.dtype = torch.float64) -> Policy:
    """Return a policy with three inputs and one of four actions. Weights are always the same."""
    torch.manual_seed(0)
    box = gymnasium.spaces.Box(-1, 1, (3,))
    return Policy(box, gymnasium.spaces.Discrete(4), network or Network((8,))).to(dtype)


def make_learner(
    algo: Hyperparameters,
    network: Network | None = None,
    dtype: torch.dtype = torch.float64,
    group: Group | None = None,
) -> Learner:
    """Create a learner, in one thread at a time, as its seeds are global."""
    learner = Learner(make_policy(network, dtype), algo, group=group)
    if learner.returns is not None:
        learner.returns.to(dtype)  # otherwise its float32 factor would hide smaller differences
    return learner


def fillers(update: int) -> Tensor:
    """Return the probability of a reset step in each column ``[12]``, uneven for 2 and 3 learners.

    In every third update the first half has no valid step. In every third the last third has only
    few.
    """
    chance = torch.full((COLUMNS,), 0.15)
    if update % 3 == 0:
        chance[:6] = NONE
    elif update % 3 == 1:
        chance[8:] = FEW
    return chance


def make_batch(
    update: int, dtype: torch.dtype = torch.float64, core_size: int = 0, rows: int = 6
) -> Batch:
    """Return ``[6, 12]`` random steps, with a different batch for each update."""
    g = torch.Generator().manual_seed(100 + update)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    first = torch.rand(rows + 1, COLUMNS, generator=g) < fillers(update)
    core = {"h": normal(COLUMNS, core_size), "c": normal(COLUMNS, core_size)} if core_size else ()
    return Batch(
        obs=normal(rows + 1, COLUMNS, 3),
        first=first,
        action=torch.randint(4, (rows, COLUMNS), generator=g),
        log_prob=-1.4 + 0.2 * normal(rows, COLUMNS),
        reward=normal(rows, COLUMNS),
        terminated=torch.rand(rows, COLUMNS, generator=g) < 0.1,
        valid=~first[1:],
        core=core,
        targets={},
        discounted_return=3.0 * normal(rows, COLUMNS),
    )


def part(batch: Batch, rank: int, size: int) -> Batch:
    """Return one learner's columns in separate memory."""
    share = batch.valid.shape[1] // size
    return batch.columns(torch.arange(rank * share, (rank + 1) * share))


def stream(
    rank: int = 0, size: int = 1, dtype: torch.dtype = torch.float64, core_size: int = 0
) -> Iterator[Batch]:
    """Return one learner's parts of the batches of all updates."""
    update = 0
    while True:
        yield part(make_batch(update, dtype, core_size), rank, size)
        update += 1


def parameters(learner: Learner) -> Tensor:
    """Return a copy of all parameters, ``[N]``."""
    return torch.cat([p.detach().reshape(-1).clone() for p in learner.policy.parameters()])


def everything(learner: Learner) -> Tensor:
    """Return a copy of parameters and statistics, including the target network's, ``[N]``."""
    modules = [learner.policy, learner.state.get("target"), learner.returns]
    values = [v for m in modules if m is not None for v in m.state_dict().values()]
    return torch.cat([v.detach().reshape(-1).double() for v in values])

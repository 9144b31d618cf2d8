"""Play whole episodes with a policy and report their returns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from headrace.envs.atari import human_normalized
from headrace.envs.make import opened
from headrace.envs.names import Prepared, env_name, resolve
from headrace.errors import ConfigError, EnvironmentFault
from headrace.nn.inputs import info_mask
from headrace.nn.policy import Policy
from headrace.spaces.json import alike
from headrace.types import Tree
from headrace.valid import ranges
from headrace.valid.fields import checked

_MAX_PARALLEL = 128


@dataclass(frozen=True)
class Evaluation:
    """Returns of complete episodes; ``std`` is their standard deviation."""

    episodes: int
    mean: float
    std: float
    min: float
    max: float
    mean_length: float
    returns: tuple[float, ...] = ()
    """Of each episode, in the order in which they ended."""
    lengths: tuple[int, ...] = ()
    """Steps of each, in the same order."""
    deterministic: bool = True
    """Whether the most likely actions were played, instead of drawn ones."""
    human_normalized: float | None = None
    """The mean where 0 is a random player's and 1 a human's; of whole games of ALE, else None."""

    @staticmethod
    def of(returns: list[float], lengths: list[int]) -> Evaluation:
        """What there is to say of at least one episode."""
        mean, std, least, most = (float(f(returns)) for f in (np.mean, np.std, np.min, np.max))
        each = tuple(returns), tuple(lengths)
        return Evaluation(len(returns), mean, std, least, most, float(np.mean(lengths)), *each)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


@checked
def evaluate(
    policy: Policy,
    env: Any,
    episodes: Annotated[int, ranges.COUNT] = 20,
    seed: Annotated[int, ranges.SEED] = 1_000_000,
    engine: str = "auto",
    *,
    env_kwargs: dict[str, Any] | None = None,
    deterministic: bool = True,
    on_step: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Play ``episodes`` episodes in parallel environments.

    Every environment contributes the same number of episodes (give or take one), counted from its
    start, so that short episodes are not favoured.

    Args:
        env, engine, env_kwargs: see ``headrace.envs.make_vec``.
        episodes: 1 or more.
        seed: of the environments, and of what is drawn; apart from training's by default.
        deterministic: the most likely actions instead of drawn ones.
        on_step: called before each step of the environments.

    Raises:
        ConfigError: the environment can't be made or has other spaces than the policy, or
            ``episodes`` is no such number.
        EnvironmentFault: the return of an episode is not finite.
    """
    num_envs = min(episodes, _MAX_PARALLEL)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    returns: list[float] = []
    lengths: list[int] = []
    total, length = np.zeros(num_envs), np.zeros(num_envs, int)
    engine, envs = opened(env := resolve(env), num_envs, engine, env_kwargs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(envs))
        stack.enter_context(policy.still())
        stack.enter_context(drawing(seed, deterministic))
        _check_spaces(policy, envs, env_name(env))
        for _, reward, begins, ends in played(policy, envs, seed, deterministic):
            on_step()
            total += np.where(begins, 0.0, reward)
            length += ~begins
            counted = ends & (quota > 0)
            returns += total[counted].tolist()
            lengths += length[counted].tolist()
            quota -= counted
            total[ends], length[ends] = 0.0, 0
            if not quota.any():
                break
    if not np.isfinite(returns).all():
        raise EnvironmentFault(f"{env_name(env)} gave an episode whose return isn't finite")
    found, (target, wraps) = Evaluation.of(returns, lengths), Prepared.split(env)
    normalized = human_normalized(target, engine, env_kwargs or {}, wraps, found.mean)
    return replace(found, deterministic=deterministic, human_normalized=normalized)


def _check_spaces(policy: Policy, envs: VectorEnv, name: str) -> None:
    """Raise ConfigError unless the policy can play here."""
    for kind in ("observation", "action"):
        ours = getattr(policy, f"{kind}_space")
        theirs = getattr(envs, f"single_{kind}_space")
        if not alike(ours, theirs, bounds=kind == "action"):
            raise ConfigError(
                f"the policy can't play {name}: its {kind} space is {ours}, the environment's is "
                f"{theirs}"
            )


class Moment(NamedTuple):
    """What N environments show after a step, and what it brought; each ``[N, ...]``."""

    obs: Tree
    reward: np.ndarray
    begins: np.ndarray
    """Whose episode begins with this observation."""
    ends: np.ndarray
    """Whose episode ends with it."""


@contextlib.contextmanager
def drawing(seed: int, deterministic: bool) -> Iterator[None]:
    """Inside, actions are drawn by ``seed``, unless they are the most likely ones."""
    with torch.random.fork_rng([], enabled=not deterministic):
        if not deterministic:
            torch.manual_seed(seed)
        yield


def played(
    policy: Policy, envs: VectorEnv, seed: int, deterministic: bool = True
) -> Iterator[Moment]:
    """Play for ever: a reset, then step by step."""
    obs, infos = envs.reset(seed=seed)
    reward, state = np.zeros(envs.num_envs), None
    begins, ends = np.ones(envs.num_envs, bool), np.zeros(envs.num_envs, bool)
    while True:
        yield Moment(obs, reward, begins, ends)
        given = {"action_mask": info_mask(infos), "reward": reward}
        action, state = policy.predict(obs, state, begins, deterministic, **given)
        obs, reward, terminated, truncated, infos = envs.step(action)
        begins, ends = ends, terminated | truncated

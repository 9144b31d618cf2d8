"""Reference scores of a custom suite: a file with the source of each number."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

from headrace.actors.episodes import Limits, VectorStep, time_limit, whole_episodes
from headrace.envs.atari_scores import Players
from headrace.envs.make import opened
from headrace.envs.names import resolve
from headrace.envs.suites import Suite, suite, the_same
from headrace.errors import ConfigError, nearest, require, shown
from headrace.evaluation import MAX_PARALLEL
from headrace.games.vector import agents_of
from headrace.nn.inputs import info_mask
from headrace.processes import safe_files
from headrace.rundir.atomic_files import checkpoint_errors, write_json
from headrace.studies.scores.runs import score_of

EPISODES = 100


def random_returns(
    env: str,
    episodes: int = EPISODES,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] = (),
    limits: Limits = Limits(),  # noqa: B008
) -> list[float]:
    """Return the returns of complete episodes with actions sampled uniformly from the action space.

    For Discrete actions, those that ``info["action_mask"]`` forbids are not sampled.

    Raises:
        ConfigError: there is no such environment, it is a game of several agents, its actions can't
            be sampled, or an episode doesn't end within the limits.
    """
    num_envs = min(episodes, MAX_PARALLEL)
    _, envs = opened(resolve(env, wrappers), num_envs, env_kwargs=dict(env_kwargs or {}))
    with contextlib.closing(envs):
        valid = "an environment of one agent, because references are its scores"
        require(not agents_of(envs), "env", env, valid)
        played = whole_episodes(_play(envs, seed), num_envs, episodes, limits=limits)
    [(returns, lengths)] = played.agents
    if played.unfinished:
        raise ConfigError(
            f"{env}: {limits.exceeded(played.unfinished, episodes, max(lengths))}, but reference "
            f"scores need complete episodes: set {time_limit()}"
        )
    return returns


def _play(envs: VectorEnv, seed: int) -> Iterator[VectorStep]:
    """Yield the steps of random actions."""
    rng = np.random.default_rng(seed)
    envs.action_space.seed(seed)
    obs, infos = envs.reset(seed=seed)
    reward = np.zeros(envs.num_envs)
    begins, ends = np.ones(envs.num_envs, bool), np.zeros(envs.num_envs, bool)
    while True:
        yield VectorStep(obs, reward, begins, ends)
        action = _sample(envs, info_mask(infos), rng)
        obs, reward, terminated, truncated, infos = envs.step(action)
        begins, ends = ends, terminated | truncated


def _sample(envs: VectorEnv, mask: Any, rng: np.random.Generator) -> Any:
    """Sample an allowed action of each environment."""
    space = envs.single_action_space
    if mask is None:
        return envs.action_space.sample()
    if not isinstance(space, Discrete):
        raise ConfigError(f"random actions of {space} can't be masked: only those of Discrete can")
    keys = np.where(np.asarray(list(mask), bool), rng.random((envs.num_envs, int(space.n))), -1.0)
    return keys.argmax(1) + space.start


def expert_runs(envs: Sequence[str], runs: Sequence[Path]) -> dict[str, float]:
    """Return the final evaluations of trained experts by environment, named as in ``envs``.

    Raises:
        ConfigError: the task of a run isn't in ``envs``, or another run has it as well.
        CheckpointError: a run has no final evaluation.
    """
    scores: dict[str, float] = {}
    for path in runs:
        for trained, value in score_of(path).tasks.items():
            env = the_same(trained, envs)
            if env is None or env in scores:
                problem = "is named twice" if env in scores else "isn't among those named"
                hint = nearest(trained, envs)
                raise ConfigError(f"expert {path} was trained on {trained}, which {problem}.{hint}")
            scores[env] = value
    return scores


def write(
    file: Path,
    random: Mapping[str, Sequence[float]],
    reference: Mapping[str, float],
    sources: Mapping[str, str],
) -> None:
    """Write or update a file for :func:`read`; other tasks and existing references are kept.

    Args:
        random: returns by task. reference: available scores of the reference player by task.
        sources: description of the source of each reference, by task.
    """
    tasks = before(file)
    for task, returns in random.items():
        previous = tasks.get(task, {}) if task not in reference else {}
        tasks[task] = {
            "random": float(np.mean(returns)),
            "random_episodes": len(returns),
            "reference": reference.get(task, previous.get("reference")),
            "reference_source": sources.get(task, previous.get("reference_source")),
        }
    with checkpoint_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"tasks": tasks})


def before(file: Path) -> dict[str, Any]:
    """Return the tasks that a file already contains.

    Raises:
        ConfigError: the file isn't one of references, or can't be read.
    """
    try:
        return dict(safe_files.read_json(file)["tasks"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"output={shown(str(file))} isn't a file of references ({type(error).__name__})"
        raise ConfigError(f"{why}: choose another, as references.json") from error


def read(name: str) -> Suite:
    """Return a suite by name, or from a file of references with a name that ends in .json.

    Raises:
        ConfigError: there is no such suite or file, or it lacks a task's reference score.
    """
    file = Path(name)
    if file.suffix != ".json":
        return suite(name)
    try:
        tasks = safe_files.read_json(file)["tasks"]
        numbers = {task: (one["random"], one["reference"]) for task, one in tasks.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} holds no reference scores ({error!r})") from error
    for task, (low, high) in numbers.items():
        if not _is_number(low):
            raise ConfigError(
                f"the random score of {task} in {file} is {shown(low)}, which isn't a number: "
                f"measure it again with `headrace references {task} --output {file}`"
            )
        if not _is_number(high) or high <= low:
            what = "missing" if high is None else f"{shown(high)}, not above random's {low:g}"
            raise ConfigError(
                f"the reference score of {task} in {file} is {what}: take it from "
                f"an expert's run with `headrace references {task} --expert RUN --output {file}`"
            )
    return Suite(file.stem, {task: Players(*map(float, both)) for task, both in numbers.items()})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

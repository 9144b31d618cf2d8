"""Reference scores of a suite of one's own: a file that says where each number is from."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv

from headrace.envs.atari_scores import Players
from headrace.envs.make import opened
from headrace.envs.names import resolve
from headrace.envs.suites import Suite, suite, the_same
from headrace.errors import ConfigError, nearest, require, shown, wrapper
from headrace.evaluation import MAX_PARALLEL, VectorStep, whole_episodes
from headrace.games.vector import agents_of
from headrace.nn.inputs import info_mask
from headrace.rundir.atomic_files import checkpoint_errors, write_json
from headrace.studies.scores.runs import score_of

EPISODES = 100
_TIME_LIMIT = 'TimeLimit:{"max_episode_steps":1000}'
MOST_STEPS = 200_000  # of an episode of random actions: 27,000 are the longest of Atari


def random_returns(
    env: str,
    episodes: int = EPISODES,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] = (),
) -> list[float]:
    """Returns of whole episodes of actions drawn uniformly from the action space.

    Of a Discrete one, invalid actions that ``info["action_mask"]`` tells of are not drawn.

    Raises:
        ConfigError: there is no such environment, or it is a game of several agents, or its actions
            can't be drawn, or no episode ends in ``MOST_STEPS``.
    """
    num_envs = min(episodes, MAX_PARALLEL)
    _, envs = opened(resolve(env, wrappers), num_envs, env_kwargs=dict(env_kwargs or {}))
    with contextlib.closing(envs):
        valid = "an environment of one agent, whose score a reference is"
        require(not agents_of(envs), "env", env, valid)
        return whole_episodes(_played(env, envs, seed), num_envs, episodes)[0][0]


def _played(env: str, envs: VectorEnv, seed: int) -> Iterator[VectorStep]:
    since = np.zeros(envs.num_envs, np.int64)  # steps of the episode that goes on
    rng = np.random.default_rng(seed)
    envs.action_space.seed(seed)
    obs, infos = envs.reset(seed=seed)
    reward = np.zeros(envs.num_envs)
    begins, ends = np.ones(envs.num_envs, bool), np.zeros(envs.num_envs, bool)
    while True:
        yield VectorStep(obs, reward, begins, ends)
        action = _drawn(envs, info_mask(infos), rng)
        obs, reward, terminated, truncated, infos = envs.step(action)
        begins, ends = ends, terminated | truncated
        since = np.where(ends, 0, since + 1)
        if since.max() >= MOST_STEPS:
            raise ConfigError(
                f"an episode of {env} goes on after {MOST_STEPS:,} steps of random actions: give "
                f"it a limit with {wrapper(_TIME_LIMIT)}"
            )


def _drawn(envs: VectorEnv, mask: Any, rng: np.random.Generator) -> Any:
    space = envs.single_action_space
    if mask is None:
        return envs.action_space.sample()
    if not isinstance(space, Discrete):
        raise ConfigError(f"random actions of {space} can't be masked: only those of Discrete can")
    keys = np.where(np.asarray(list(mask), bool), rng.random((envs.num_envs, int(space.n))), -1.0)
    return keys.argmax(1) + space.start


def expert_runs(envs: Sequence[str], runs: Sequence[Path]) -> dict[str, float]:
    """The final evaluations of trained experts, by the environment of theirs as ``envs`` has it.

    Raises:
        ConfigError: a run has a task that is none of ``envs``, or is another's as well.
        CheckpointError: it holds no final evaluation.
    """
    found: dict[str, float] = {}
    for path in runs:
        for trained, value in score_of(path).tasks.items():
            env = the_same(trained, envs)
            if env is None or env in found:
                is_there = "is named twice" if env in found else "is none of those named"
                hint = nearest(trained, envs)
                raise ConfigError(
                    f"expert {path} was trained on {trained}, which {is_there}.{hint}"
                )
            found[env] = value
    return found


def write(
    file: Path,
    random: Mapping[str, Sequence[float]],
    reference: Mapping[str, float],
    sources: Mapping[str, str],
) -> None:
    """A file that :func:`read` reads; what it had for other tasks stays, and references do.

    Args:
        random: returns by task. reference: score of the reference player by task, where it is
            known. sources: by task, in words, where that is from.
    """
    tasks = before(file)
    for task, returns in random.items():
        known = tasks.get(task, {}) if task not in reference else {}
        tasks[task] = {
            "random": float(np.mean(returns)),
            "random_episodes": len(returns),
            "reference": reference.get(task, known.get("reference")),
            "reference_source": sources.get(task, known.get("reference_source")),
        }
    with checkpoint_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"tasks": tasks})


def before(file: Path) -> dict[str, Any]:
    """The tasks that a file has already.

    Raises:
        ConfigError: it is another one, or can't be read.
    """
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))["tasks"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"output={shown(str(file))} is no file of references ({type(error).__name__})"
        raise ConfigError(f"{why}: choose another, as references.json") from error


def read(name: str) -> Suite:
    """A suite by its name, or from a file of references, whose name ends in .json.

    Raises:
        ConfigError: there is no such suite or file, or a task's reference score is missing there.
    """
    file = Path(name)
    if file.suffix != ".json":
        return suite(name)
    try:
        tasks = json.loads(file.read_text(encoding="utf-8"))["tasks"]
        numbers = {task: (one["random"], one["reference"]) for task, one in tasks.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} holds no reference scores ({error!r})") from error
    for task, (low, high) in numbers.items():
        if not _is_number(low):
            raise ConfigError(
                f"the random score of {task} in {file} is {shown(low)}, which is no number: "
                f"`headrace references {task} --output {file}` measures it again"
            )
        if not _is_number(high) or high <= low:
            what = "missing" if high is None else f"{shown(high)}, not above random's {low:g}"
            raise ConfigError(
                f"the reference score of {task} in {file} is {what}: `headrace references {task} "
                f"--expert RUN --output {file}` takes it from a trained expert's run"
            )
    return Suite(file.stem, {task: Players(*map(float, both)) for task, both in numbers.items()})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

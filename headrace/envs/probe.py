"""Examines a run's environment before anything is built or started."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.envs import atari
from headrace.envs.context import EnvContext
from headrace.envs.engines import Engine
from headrace.envs.make import opened
from headrace.envs.mask_method import METHOD, USED
from headrace.envs.names import Prepared, Tasks, env_name, envs_of, resolve
from headrace.envs.random_play import allowed_action, random_play
from headrace.envs.stack_detection import may_be_stack, shows_stacks
from headrace.envs.symbol_grids import (
    LargestValues,
    common_to_tasks,
    largest_values,
    possible_grids,
)
from headrace.envs.unified_tasks import join
from headrace.errors import (
    ConfigError,
    EnvironmentFault,
    EnvironmentLost,
    HeadraceError,
    require,
    setting,
)
from headrace.games.vector import agents_of, in_turns
from headrace.spaces.agreement import difference
from headrace.spaces.masks import MASK
from headrace.spaces.unified_spaces import Spaces
from headrace.spaces.walk import parts

INDICES = 2  # open at the same time


def beyond(num_learners: int) -> int:
    """Return the first environment index that no learner's probe uses."""
    return INDICES * num_learners


@dataclass(frozen=True)
class Probe:
    """Properties of an environment found by a probe."""

    env: Any  # resolved, see headrace.envs.names.resolve
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    info_mask: bool  # whether infos contain an action mask
    mask_source: str = ""  # where action masks come from, for messages; "" without masks
    engine: Engine = "auto"  # engine name, never "auto" after a probe
    fault: EnvironmentFault | None = None  # fault of its first step
    stacks: bool = False  # observations are stacks of the latest images
    frames_per_step: int = 1  # action repeat of an ALE game
    agents: tuple[str, ...] = ()  # agents of a game, each a column; () for a single agent
    in_turns: bool = False  # agents move one at a time (AEC)
    own_spaces: tuple[Spaces, ...] = ()  # spaces per agent if they differ, else ()
    largest_values: LargestValues = field(default_factory=dict)  # of possible grids of symbols

    @property
    def num_columns(self) -> int:
        """Number of rollout columns per environment."""
        return max(1, len(self.agents))

    def check_shared(self) -> None:
        """Raise ConfigError if agents' spaces differ, which a shared policy doesn't support."""
        for agent, own in zip(self.agents, self.own_spaces, strict=False):
            whose_spaces = f"{self.agents[0]}'s"
            if other := difference(*self.own_spaces[0], *own, whose=whose_spaces):
                raise ConfigError(
                    f"policies='shared' needs agents with the same spaces; for {agent} of "
                    f"{env_name(self.env)} {other}: give "
                    f"{setting('policies', chr(39) + 'per-agent' + chr(39))}, or a policy per agent"
                )

    def check_step(self) -> None:
        """Raise the fault of the first step, once the spaces are known to be supported."""
        if self.fault is not None:
            raise self.fault


def probe(
    env: Any,
    engine: str,
    env_kwargs: dict[str, Any],
    seed: int,
    wrappers: Iterable[Any] = (),
    looks_for_stacks: bool = True,
    rank: int = 0,
    look: Callable[..., Probe] | None = None,
) -> Probe:
    """Make the environment once, as ``headrace.envs.make_vec`` does, reset it and take a step.

    The step's action is a random legal one. A fault of the step is stored for
    :meth:`Probe.check_step`. With several tasks each one is probed, and their spaces are unified.

    Args:
        looks_for_stacks: find out :attr:`Probe.stacks`, by more steps and resets.
        rank: rank of this learner; all learners may probe at the same time.
        look: probes one environment; None: :func:`look_at`.

    Raises:
        ConfigError: the name is unknown, it can't be made, or the tasks' spaces can't be unified.
        EnvironmentFault: it can't be reset.
    """
    env = resolve(env, wrappers)
    if isinstance(env, Tasks):
        return _of_tasks(env, (engine, env_kwargs, seed, (), looks_for_stacks, rank, look))
    return (look or look_at)(env, engine, env_kwargs, seed, looks_for_stacks, rank)


def look_at(
    env: Any,
    engine: str,
    env_kwargs: dict[str, Any],
    seed: int,
    looks_for_stacks: bool = True,
    rank: int = 0,
) -> Probe:
    """Probe one resolved environment; see :func:`probe`."""
    name, alone, fault = env_name(env), "sync" if engine == "async" else engine, None
    target, wraps = Prepared.split(env)
    with contextlib.ExitStack() as stack:
        with _as_fault(f"{name} can't be made"):
            context = EnvContext(INDICES * rank, 0, rank, "probe")
            engine_used, envs = opened(env, 1, alone, env_kwargs, context=context)
            stack.enter_context(contextlib.closing(envs))
        with _as_fault(f"{name} fails at its first reset"):
            # ale-py reloads the game for a seed, which is slow.
            obs, infos = envs.reset(seed=None if atari.is_vector(target) else seed)
        masked = MASK in infos
        try:
            with _as_fault(f"{name} fails at its first step"):
                envs.single_action_space.seed(seed)
                masked |= _shows_mask(envs, obs, infos)
        except EnvironmentFault as error:
            fault = error
        spaces = envs.single_observation_space, envs.single_action_space
        is_vector_atari = engine_used == "native" and atari.is_vector(
            target
        )  # accepts render settings
        stacks = looks_for_stacks and fault is None and _shows_stacks(envs, seed, is_vector_atari)
        by: Any = engine if engine == "async" else engine_used
        frames = getattr(envs, "frames_per_step", 0)  # envpool reports its own
        frames = frames or atari.frames_per_step(target, env_kwargs, wraps)
        agents, own = agents_of(envs), getattr(envs, "own_spaces", ())
        result = Probe(env, *spaces, masked, _mask_source(envs, masked), by, fault, stacks, frames)
        turns = in_turns(envs)
        largest = _largest_values(envs) if looks_for_stacks and fault is None else {}
        rest: dict[str, Any] = {"in_turns": turns, "own_spaces": own, "largest_values": largest}
        return replace(result, agents=agents, **rest)


def _mask_source(envs: VectorEnv, in_infos: bool) -> str:
    """Return the source of masks: the observation, infos, or the method ``action_masks()``."""
    if MASK in (parts(envs.single_observation_space) or ()):
        return f"the observation's {MASK}"
    by_method = getattr(envs.metadata.get(USED), "used", False)
    return "" if not in_infos else f"{METHOD}()" if by_method else f"info[{MASK!r}]"


def _of_tasks(tasks: Tasks, how: tuple[Any, ...]) -> Probe:
    """Combine the probes of all tasks; ``how``: arguments of :func:`probe`."""
    probes = [probe(env, *how) for env in tasks.envs]
    for one in probes:
        valid = "environments of one agent; games of several agents can't be mixed with other tasks"
        require(not one.agents, "tasks", ",".join(tasks.names), valid)
    engines = {one.engine for one in probes}
    if len(engines) > 1:  # then only single environments are stepped
        probes = [
            one if one.engine == "sync" else probe(env, "sync", *how[1:])
            for one, env in zip(probes, tasks.envs, strict=True)
        ]
    if not tasks.joined:
        tasks = join(tasks, [(one.observation_space, one.action_space) for one in probes])
        probes = [
            one if one.env is env else probe(env, *how)
            for one, env in zip(probes, tasks.envs, strict=True)
        ]
    first, engines = probes[0], engines | {one.engine for one in probes}
    frames = {one.frames_per_step for one in probes}
    return replace(
        first,
        env=tasks,
        info_mask=any(one.info_mask for one in probes),
        mask_source=" and ".join(dict.fromkeys(filter(None, (x.mask_source for x in probes)))),
        engine=first.engine if len(engines) == 1 else "sync",
        fault=next((one.fault for one in probes if one.fault is not None), None),
        stacks=all(one.stacks for one in probes),
        largest_values=common_to_tasks(one.largest_values for one in probes),
        frames_per_step=first.frames_per_step if len(frames) == 1 else 1,
    )


def _shows_mask(envs: VectorEnv, obs: Any, infos: dict[str, Any]) -> bool:
    """Take a step, or one per agent in turn-based games; return whether an info had a mask."""
    masked, moves = False, envs.num_envs if in_turns(envs) else 1
    for _ in range(moves):
        obs, *_, infos = envs.step(allowed_action(envs, obs, infos))
        masked |= MASK in infos
    return masked


def _shows_stacks(envs: VectorEnv, seed: int, is_vector_atari: bool) -> bool:
    """Return whether observations are stacks of images, judging by a few more steps.

    Resets are without a seed, as in a run after the first one.
    """
    if not may_be_stack(envs.single_observation_space):
        return False
    if is_vector_atari:
        return True
    with contextlib.suppress(Exception):  # faults are reported by the run
        return shows_stacks(*random_play(envs, seed))
    return False


def _largest_values(envs: VectorEnv) -> LargestValues:
    """Return the largest value of each possible grid of symbols, judging by a few more steps.

    They don't depend on the run's seed, so that runs of a study have equal networks.
    """
    if not possible_grids(envs.single_observation_space):
        return {}
    with contextlib.suppress(Exception):  # faults are reported by the run
        envs.reset(seed=0)
        return largest_values(envs.single_observation_space, *random_play(envs, seed=0))
    return {}


def check_evaluated(
    found: Probe,
    env_kwargs: dict[str, Any],
    seed: int,
    look: Callable[..., Probe] = probe,
    env: Any = None,
    engine: str | None = None,
    setting: str = "eval_env_kwargs",
) -> None:
    """Probe an evaluation environment, and compare its spaces with those of training.

    Args:
        found: the probe of the training environment.
        env_kwargs: arguments of the evaluation environment.
        look: called as :func:`probe` is.
        env: the evaluation environment; None: that of training.
        engine: makes it; None: that of training.
        setting: the setting that defines it, for messages.

    Raises:
        ConfigError: it can't be made, or its spaces are different.
        EnvironmentFault: it can't be reset or stepped.
    """
    for one in envs_of(found.env if env is None or isinstance(env, Tasks) else env):
        played = look(one, engine or found.engine, env_kwargs, seed, looks_for_stacks=False)
        played.check_step()
        spaces = [(x.observation_space, x.action_space) for x in (found, played)]
        if other := difference(*spaces[0], *spaces[1], whose="training's"):
            raise ConfigError(f"with {setting} {env_name(one)} is another environment: {other}")


@contextlib.contextmanager
def _as_fault(what: str) -> Iterator[None]:
    """Convert an exception of the user's environment to a fault that ends in its traceback."""
    try:
        yield
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        reason = traceback.format_exception_only(error)[-1].strip()
        trace = "".join(traceback.format_exception(error)).rstrip()
        raise EnvironmentLost(f"{what}: {reason}\n\nIts traceback:\n{trace}") from error

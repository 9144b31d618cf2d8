"""Evaluations of a run: in a process beside training, which goes on meanwhile, or in this one.

begin(policy) ──► process: environments, episodes ──► take() ──► Played
                     │ raises, dies, falls silent
                     ╰──► told, played once more, then left out
"""

from __future__ import annotations

import copy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from headrace.config import Config
from headrace.config.eval_envs import resolved
from headrace.envs.changes import EnvChange
from headrace.envs.names import Tasks
from headrace.errors import ChangeFailed, WorkerFailed, wrapper
from headrace.evaluation import Evaluation, evaluate
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import Child, cores, set_affinity, torch_threads

_BEAT_S = 0.5
_TRIES = 2  # of one evaluation


@dataclass(frozen=True)
class PlayedEvaluation:
    """An evaluation, and what played it."""

    evaluation: Evaluation
    policy: AnyPolicy  # as it was then, on the CPU
    env_steps: int  # that it had been trained for
    seconds: float  # of training until then


@dataclass
class _Task:
    """The evaluation in progress."""

    policy: AnyPolicy
    env_steps: int
    seconds: float
    child: Child | None = None
    began: float = 0.0  # when the child was started
    heard: float = 0.0  # when it last said something
    told: bool = False  # that it still plays
    tries: int = 1


_TIME_LIMIT = 'TimeLimit:{"max_episode_steps":1000}'


class _Failed(Exception):
    """Why an evaluation came to nothing."""


class Evaluator:
    """Plays whole episodes with the deterministic policy, one evaluation at a time.

    With ``transport="shm"`` it plays in a process of its own. That process may raise or die, and is
    killed if it takes no step for ``actor_timeout_s``: then the evaluation is played once more, and
    left out if that fails, too; after more than ``max_restarts`` failures (of evaluations alone)
    no more is played. With ``transport="serial"`` it plays in this process, which an exception
    doesn't end either; but nothing can end an environment that hangs there.

    Args:
        config: of the run. env: resolved.
        notify: called with a line of text when an evaluation fails.
        env_changes: returns the changes that callbacks have made so far, as JSON.
    """

    def __init__(
        self,
        config: Config,
        env: Any,
        notify: Callable[[str], None],
        env_changes: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._env_changes = env_changes
        self._config, self._env, self._notify = config, env, notify
        self._task: _Task | None = None
        self._failures = 0
        self.reason: str | None = None  # why the latest evaluation is missing

    @property
    def in_process(self) -> bool:
        """Whether it plays in this process, in :meth:`take`."""
        return self._config.transport == "serial"

    @property
    def busy(self) -> bool:
        """Whether an evaluation is in progress."""
        return self._task is not None

    def pids(self) -> list[int]:
        """Of the process that plays, if there is one."""
        child = None if self._task is None else self._task.child
        return [] if child is None else [child.pid]

    def begin(self, policy: AnyPolicy, env_steps: int, seconds: float) -> None:
        """Evaluate a copy of the policy from the next :meth:`take` on; none may be in progress.

        Args:
            env_steps, seconds: of training so far, which :class:`PlayedEvaluation` repeats.
        """
        if self._failures <= self._config.actor_restarts:
            self._task = _Task(copy.deepcopy(policy).cpu(), env_steps, seconds)

    def take(self, timeout_s: float = 0.0) -> PlayedEvaluation | None:
        """The evaluation in progress once it is over, for which this waits so long."""
        task = self._task
        if task is None:
            return None
        try:
            found = self._here(task) if self.in_process else self._elsewhere(task, timeout_s)
        except _Failed as failure:
            self._fail(task, str(failure), isinstance(failure.__cause__, ChangeFailed))
            return None
        if found is None:
            return None
        self.close()
        self.reason = None
        return PlayedEvaluation(found, task.policy, task.env_steps, task.seconds)

    def wait(self, stopped: Callable[[], bool]) -> PlayedEvaluation | None:
        """The evaluation in progress, or None: there is none, it failed, or ``stopped()``."""
        found = None
        while self.busy and found is None and not stopped():
            found = self.take(timeout_s=0.2)
        return found

    def close(self) -> None:
        """End what is in progress; safe to call twice."""
        if self._task is not None and self._task.child is not None:
            self._task.child.kill()
        self._task = None

    def _arguments(self, task: _Task) -> dict[str, dict[str, Any]]:
        """Arguments of each evaluation by its name; that of the run's own environment is empty."""
        own = self._own_arguments(task)
        found = {"": own}
        for name, one in resolved(self._config, self._config.engine).items():
            env = self._env if isinstance(one.env, Tasks) else one.env
            known = {"env": env, "env_kwargs": one.env_kwargs, "engine": one.engine}
            known |= {"env_changes": []} if one.own else {}
            found[name] = own | known | {"episodes": one.episodes}
        return found

    def _own_arguments(self, task: _Task) -> dict[str, Any]:
        config = self._config
        known = {"policy": task.policy, "env": self._env, "episodes": config.eval_episodes}
        known |= {"engine": config.engine, "env_kwargs": config.evaluated_kwargs}
        known |= {"info_metrics": config.info_metrics}
        known |= {"first_index": config.num_actors * config.envs_per_actor}  # after training's
        made = map(EnvChange.from_json, self._env_changes())
        known |= {"env_changes": [change for change in made if change.evaluation]}
        return known | {"deterministic": config.eval_deterministic}

    def _here(self, task: _Task) -> Evaluation:
        try:
            with torch_threads(1):
                return evaluate_all(self._arguments(task))
        except Exception as error:  # the user's environment may raise anything
            raise _Failed(_one_line(error)) from error

    def _elsewhere(self, task: _Task, timeout_s: float) -> Evaluation | None:
        if task.child is None:
            processors = None if self._config.cores_per_learner is None else cores()
            pickled = cloudpickle.dumps((self._arguments(task), processors))
            try:
                task.child = Child("headrace-evaluator", run_evaluation, pickled)
            except (OSError, EOFError, WorkerFailed) as error:
                raise _Failed(f"no process could be started: {_one_line(error)}") from error
            task.began = task.heard = time.monotonic()
        pipe, limit_s = task.child.pipe, self._config.actor_timeout_s
        try:
            while pipe.poll(timeout_s):
                task.heard, timeout_s = time.monotonic(), 0.0
                kind, content = pipe.recv()
                if kind == "done":
                    return content  # type: ignore[no-any-return]
                if kind == "failed":
                    raise _Failed(content)
                if kind == "unchanged":
                    raise _Failed(content) from ChangeFailed(content)
        except (EOFError, OSError) as error:
            code = task.child.exit_code()
            raise _Failed(f"its process ended with exit code {code}") from error
        if time.monotonic() - task.heard > limit_s:
            raise _Failed(f"it was killed because it took no step for {limit_s:g} s")
        if time.monotonic() - task.began > limit_s and not task.told:
            task.told = True
            self._notify(
                f"the evaluation at {task.env_steps:,} steps still plays after {limit_s:g} s: do "
                f"episodes end? ({wrapper(_TIME_LIMIT)} ends them)"
            )
        return None

    def _fail(self, task: _Task, cause: str, would_repeat: bool = False) -> None:
        """Report what happened, and try once more unless it ``would_repeat``."""
        self.close()
        self._failures += 1
        limit = self._config.actor_restarts
        what = f"evaluation at {task.env_steps:,} steps: {cause}"
        if self._failures > limit:
            self.reason = f"{what}; max_restarts={limit} is used up, so nothing more is evaluated"
        elif would_repeat or task.tries == _TRIES:
            tries = "" if would_repeat else f" after {_TRIES} tries"
            self.reason = f"{what}; it is left out{tries}"
        else:
            task.tries, task.child, self._task = task.tries + 1, None, task
            what += f" (played once more, restart {self._failures}/{limit})"
        self._notify(what if self.busy else f"{self.reason}")


def evaluate_all(
    arguments: dict[str, dict[str, Any]], on_step: Callable[[], object] = lambda: None
) -> Evaluation:
    """Evaluate on the run's own environment and on all ``eval_envs``.

    Args:
        arguments: arguments of :func:`evaluate` by the names of ``eval_envs``; those of the run's
            own environment have the name "".
        on_step: called before each step.

    Returns:
        the evaluation on the run's own environment, which holds the others.
    """
    found = {name: evaluate(**how, on_step=on_step) for name, how in arguments.items()}
    own = found.pop("")
    return replace(own, others=found) if found else own


def _one_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]


def run_evaluation(pickled: bytes, pipe: Connection) -> None:
    """What runs in the evaluator's process.

    Messages: ``step``, at most every half second; then ``done`` with the :class:`Evaluation`, or
    with the reason ``failed``, or ``unchanged`` if the environments can't be changed as ordered.

    Args:
        pickled: (arguments of :func:`evaluate_all`, the processors to stay on or None), by
            cloudpickle.
    """
    said = time.monotonic()

    def beat() -> None:
        nonlocal said
        now = time.monotonic()
        if now - said > _BEAT_S:
            said = now
            pipe.send(("step", None))

    try:
        arguments, processors = cloudpickle.loads(pickled)
        set_affinity(processors)
        pipe.send(("done", evaluate_all(arguments, beat)))
    except ChangeFailed as error:
        pipe.send(("unchanged", str(error)))
        sys.exit(1)
    except BaseException as error:
        pipe.send(("failed", _one_line(error)))
        sys.exit(1)

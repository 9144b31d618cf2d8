"""Runs evaluations in a process concurrent with training, or in this process.

begin(policy) ──► process: environments, episodes ──► take() ──► PlayedEvaluation
                     │ raises, dies, hangs
                     ╰──► reported, tried once more, then skipped
"""

from __future__ import annotations

import copy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from headrace.config import Config
from headrace.config.eval_envs import resolved
from headrace.envs.bounds_warnings import ignore_bounds_warnings
from headrace.envs.changes import EnvChange
from headrace.envs.names import Tasks
from headrace.errors import ChangeFailed, WorkerFailed
from headrace.evaluation import Evaluation, evaluate
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import Child, cores, set_affinity, torch_threads
from headrace.processes.restarts import Death, RestartPolicy
from headrace.processes.running_clock import running_s

_BEAT_S, _LONG_S = 0.5, 60.0
_TRIES = 2  # of one evaluation


@dataclass(frozen=True)
class PlayedEvaluation:
    """An evaluation and its policy."""

    evaluation: Evaluation
    policy: AnyPolicy  # a copy at that time, on the CPU
    env_steps: int  # training steps at that time
    seconds: float  # seconds of training at that time
    env_changes: tuple[str, ...] = ()  # made by callbacks before that time, as JSON


@dataclass
class _Task:
    """The evaluation in progress."""

    policy: AnyPolicy
    env_steps: int
    seconds: float
    env_changes: tuple[str, ...]
    child: Child | None = None
    last_step: float = 0.0  # time of its last message
    tries: int = 1
    in_both_modes: bool = False


class _Failed(Exception):
    """Raised with the reason why an evaluation failed."""


class Evaluator:
    """Evaluates whole episodes, one evaluation at a time.

    With ``transport="shm"`` it runs in a separate process. If that process raises, dies, or takes
    no step for ``actor_timeout_s`` and is killed, the evaluation is tried once more and then
    skipped. After more than ``max_restarts`` failures of evaluations, no more are run. With
    ``transport="serial"`` it runs in this process, where exceptions are handled in the same way,
    but an environment that hangs can't be stopped.

    Args:
        config: settings of the run.
        env: resolved environment.
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
        self._restarts = RestartPolicy(config.actor_restarts, WorkerFailed)
        self._gave_up = False  # no restarts are left
        self.reason: str | None = None  # reason why the latest evaluation is missing

    @property
    def in_process(self) -> bool:
        """True if it evaluates in this process, in :meth:`take`."""
        return self._config.transport == "serial"

    @property
    def busy(self) -> bool:
        """True if an evaluation is in progress."""
        return self._task is not None

    def pids(self) -> list[int]:
        """Return the id of the evaluation process, if there is one."""
        child = None if self._task is None else self._task.child
        return [] if child is None else [child.pid]

    def begin(
        self, policy: AnyPolicy, env_steps: int, seconds: float, in_both_modes: bool = False
    ) -> None:
        """Evaluate a copy of the policy from the next :meth:`take` on; none may be in progress.

        Args:
            env_steps, seconds: training so far, recorded in :class:`PlayedEvaluation`.
            in_both_modes: evaluate the most likely actions and sampled ones; the mode that isn't
                ``eval_deterministic`` is left out after a long evaluation.
        """
        if not self._gave_up:
            copied = copy.deepcopy(policy).cpu()
            made = tuple(self._env_changes())
            self._task = _Task(copied, env_steps, seconds, made, in_both_modes=in_both_modes)

    def take(self, timeout_s: float = 0.0) -> PlayedEvaluation | None:
        """Return the evaluation in progress if it completes within ``timeout_s``."""
        task = self._task
        if task is None:
            return None
        try:
            evaluation = (
                self._evaluate_here(task)
                if self.in_process
                else self._evaluate_in_child(task, timeout_s)
            )
        except _Failed as failure:
            self._fail(task, str(failure), isinstance(failure.__cause__, ChangeFailed))
            return None
        if evaluation is None:
            return None
        self.close()
        self.reason = None
        at = task.policy, task.env_steps, task.seconds, task.env_changes
        return PlayedEvaluation(evaluation, *at)

    def wait(self, stopped: Callable[[], bool]) -> PlayedEvaluation | None:
        """Wait for the evaluation; None if there is none, it failed, or ``stopped()``."""
        evaluation = None
        while self.busy and evaluation is None and not stopped():
            evaluation = self.take(timeout_s=0.2)
        return evaluation

    def close(self) -> None:
        """Stop the evaluation in progress; safe to call twice."""
        if self._task is not None and self._task.child is not None:
            self._task.child.kill()
        self._task = None

    def _arguments(self, task: _Task) -> dict[str, dict[str, Any]]:
        """Return arguments of each evaluation by name; "" is the run's own environment."""
        own = self._own_arguments(task)
        arguments = {"": own}
        for name, one in resolved(self._config, self._config.engine).items():
            env = self._env if isinstance(one.env, Tasks) else one.env
            changed = {"env": env, "env_kwargs": one.env_kwargs, "engine": one.engine}
            changed |= {"env_changes": []} if one.own else {}
            arguments[name] = own | changed | {"episodes": one.episodes}
        return arguments

    def _own_arguments(self, task: _Task) -> dict[str, Any]:
        config = self._config
        arguments = {"policy": task.policy, "env": self._env, "episodes": config.eval_episodes}
        arguments |= {"engine": config.engine, "env_kwargs": config.evaluated_kwargs}
        arguments |= {"info_metrics": config.info_metrics, "max_steps": config.eval_max_steps}
        arguments |= {"timeout_s": config.eval_timeout_s}
        first = config.num_actors * config.envs_per_actor  # after those of training
        arguments |= {"first_index": first}
        made = map(EnvChange.from_json, task.env_changes)
        arguments |= {"env_changes": [change for change in made if change.evaluation]}
        return arguments | {"deterministic": config.eval_deterministic}

    def _evaluate_here(self, task: _Task) -> Evaluation:
        try:
            with torch_threads(1):
                notify = partial(self._report, task)
                return evaluate_all(self._arguments(task), notify, in_both_modes=task.in_both_modes)
        except Exception as error:  # the user's environment may raise anything
            raise _Failed(_one_line(error)) from error

    def _evaluate_in_child(self, task: _Task, timeout_s: float) -> Evaluation | None:
        if task.child is None:
            processors = None if self._config.cores_per_learner is None else cores()
            pickled = cloudpickle.dumps((self._arguments(task), processors, task.in_both_modes))
            try:
                task.child = Child("headrace-evaluator", run_evaluation, pickled)
            except (OSError, EOFError, WorkerFailed) as error:
                raise _Failed(f"could not start its process: {_one_line(error)}") from error
            task.last_step = running_s()
        pipe, limit_s = task.child.pipe, self._config.actor_timeout_s
        try:
            while pipe.poll(timeout_s):
                task.last_step, timeout_s = running_s(), 0.0
                kind, content = pipe.recv()
                if kind == "done":
                    return content  # type: ignore[no-any-return]
                if kind == "line":
                    self._report(task, content)
                if kind == "failed":
                    raise _Failed(content)
                if kind == "unchanged":
                    raise _Failed(content) from ChangeFailed(content)
        except (EOFError, OSError) as error:
            how = task.child.how_ended() or "closed its pipe"
            raise _Failed(f"its process {how}") from error
        if running_s() - task.last_step > limit_s:
            raise _Failed(f"it was killed because it took no step for {limit_s:g} s")
        return None

    def _report(self, task: _Task, line: str) -> None:
        self._notify(f"at {task.env_steps:,} steps: {line}")

    def _fail(self, task: _Task, cause: str, would_repeat: bool = False) -> None:
        """Report the failure, and try once more unless it ``would_repeat``."""
        self.close()
        name = f"evaluation at {task.env_steps:,} steps"
        try:
            line = self._restarts.restart(Death("evaluation", name, cause))
        except WorkerFailed as error:
            self._gave_up, self.reason = True, f"{error}, so nothing more is evaluated"
            self._notify(self.reason)
            return
        if would_repeat or task.tries == _TRIES:
            tries = "" if would_repeat else f" after {_TRIES} tries"
            self.reason = f"{name}: {cause}; it is left out{tries}"
            self._notify(self.reason)
        else:
            task.tries, task.child, self._task = task.tries + 1, None, task
            self._notify(line)


def evaluate_all(
    arguments: dict[str, dict[str, Any]],
    notify: Callable[[str], None],
    on_step: Callable[[], object] = lambda: None,
    in_both_modes: bool = False,
) -> Evaluation:
    """Evaluate on the run's own environment and on all ``eval_envs``.

    Args:
        arguments: arguments of :func:`evaluate` by the names of ``eval_envs``; those of the run's
            own environment have the name "".
        notify: called with a line of text about progress and unfinished episodes.
        on_step: called before each step.
        in_both_modes: on the run's own environment also evaluate the other of most likely and
            sampled actions, unless the first evaluation takes a minute or more.

    Returns:
        the evaluation on the run's own environment, which contains the others.
    """
    how, began = arguments[""], time.monotonic()
    calls: dict[str, Any] = {"on_step": on_step, "notify": notify}
    own, other_mode = evaluate(**how, **calls), None
    if in_both_modes and time.monotonic() - began < _LONG_S:
        inverted = how | {"deterministic": not how["deterministic"]}
        other_mode = evaluate(**inverted, **calls)
    others = {name: evaluate(**how, **calls) for name, how in arguments.items() if name}
    return replace(own, others=others or None, other_mode=other_mode)


def _one_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]


def run_evaluation(pickled: bytes, pipe: Connection) -> None:
    """Run the evaluator's process.

    Messages: ``step``, at most every half second, and ``line`` with a line of text. The last one is
    ``done`` with the :class:`Evaluation`, ``failed`` with a reason, or ``unchanged`` with a reason
    if changes to the environments failed.

    Args:
        pickled: (arguments of each evaluation, CPU affinity or None, in both modes), by
            cloudpickle.
    """
    last_beat = time.monotonic()

    def beat() -> None:
        nonlocal last_beat
        now = time.monotonic()
        if now - last_beat > _BEAT_S:
            last_beat = now
            pipe.send(("step", None))

    try:
        arguments, processors, in_both_modes = cloudpickle.loads(pickled)
        set_affinity(processors)
        if list(arguments) == [""]:  # the same environment as in actors, which warn
            ignore_bounds_warnings()
        evaluation = evaluate_all(
            arguments, lambda line: pipe.send(("line", line)), beat, in_both_modes
        )
        pipe.send(("done", evaluation))
    except ChangeFailed as error:
        pipe.send(("unchanged", str(error)))
        sys.exit(1)
    except BaseException as error:
        pipe.send(("failed", _one_line(error)))
        sys.exit(1)

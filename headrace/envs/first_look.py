"""Probes a run's environments before training, in a temporary process.

    trainer ──► fork server ──► a process that makes, resets and steps environments
       │                             │
       └── requests ─► pipe ◄─ the results of probes, or an error

Changes that an environment makes to its process (working directory, signal handlers, torch's
defaults) don't affect the trainer, and neither do crashes. The trainer waits for each answer, or
for the end of the process, for at most ``timeout_s``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cloudpickle

from headrace import errors
from headrace.envs.env_pickling import pickled_env
from headrace.envs.names import Tasks, env_name
from headrace.envs.probe import Probe, look_at, probe
from headrace.envs.step_cost import StepCost, mean_cost, step_cost, timed_tasks
from headrace.errors import EnvironmentLost, HeadraceError
from headrace.processes import Child, end_children, seed_global_generators, torch_defaults_kept
from headrace.processes.output import flush_output

_CLOSE_S = 2.0


class EnvProber(Protocol):
    """Interface for probing environments; methods take the arguments of the functions they name."""

    def probe(self, env: Any, *args: Any, **kwargs: Any) -> Probe:
        """See ``headrace.envs.probe.probe``."""

    def step_cost(self, env: Any, *args: Any) -> StepCost | None:
        """See ``headrace.envs.step_cost.step_cost``."""


class LocalProber:
    """Probes environments in this process, where they will also be stepped."""

    def probe(self, env: Any, *args: Any, **kwargs: Any) -> Probe:
        return torch_defaults_kept(lambda: probe(env, *args, **kwargs))

    def step_cost(self, env: Any, *args: Any) -> StepCost | None:
        return torch_defaults_kept(lambda: step_cost(env, *args))


class _Answer(NamedTuple):
    value: Any = None
    error: str = ""  # the class of a HeadraceError, or "" with a message: another exception
    message: str = ""
    warned: tuple[tuple[str, type[Warning], str, int], ...] = ()


class ChildProber:
    """Probes environments in a separate process that the first request starts.

    Args:
        seeding: (seed of the run, number of this probe in the run).
        timeout_s: timeout of each request, in seconds.
    """

    def __init__(self, seeding: tuple[int, int] = (0, 0), timeout_s: float = 300.0) -> None:
        self._seeding, self._timeout_s = seeding, timeout_s
        self._child: Child | None = None

    def probe(self, env: Any, *args: Any, **kwargs: Any) -> Probe:
        result: Probe = probe(env, *args, **{**kwargs, "look": self._look_at})
        return result

    def step_cost(self, env: Any, *args: Any) -> StepCost | None:
        if isinstance(env, Tasks):
            return mean_cost(self.step_cost(one, *args) for one in timed_tasks(env))
        try:
            cost: StepCost | None = self._call("step_cost", env, *args)
        except EnvironmentLost:  # the actor that steps it reports the reason
            return None
        return cost

    def _look_at(self, env: Any, *args: Any) -> Probe:
        result: Probe = self._call("look_at", env, *args)
        return replace(result, env=env)

    def _call(self, function: str, env: Any, *args: Any) -> Any:
        """Call a function of this module in the probing process.

        Raises:
            EnvironmentLost: the process ended or didn't answer.
            HeadraceError: the function raised it.
        """
        request = pickled_env(env, function, *args)
        if self._child is None:
            self._child = Child("headrace-probe", serve_probes, self._seeding, nice=False)
        try:
            self._child.pipe.send_bytes(request)
            if not self._child.pipe.poll(self._timeout_s):
                raise self._lost_error(env, f"did not answer within {self._timeout_s:g} s")
            answer: _Answer = cloudpickle.loads(self._child.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            how = _named_end(self._child.exit_code())
            raise self._lost_error(env, f"ended its process ({how})") from error
        _reissue_warnings(answer.warned)
        if answer.error:
            raise getattr(errors, answer.error)(answer.message)
        if answer.message:
            raise EnvironmentLost(f"{env_name(env)}: {answer.message}")
        return answer.value

    def _lost_error(self, env: Any, event: str) -> EnvironmentLost:
        self.close(0.0)
        return EnvironmentLost(
            f"{env_name(env)} {event} when it was made, reset and stepped before training; "
            "transport='serial' runs it in the trainer's process, where you can debug it"
        )

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """End the process; safe to call twice."""
        child, self._child = self._child, None
        if child is not None:
            end_children([child], timeout_s)


@contextlib.contextmanager
def first_look(
    apart: bool, seed: int = 0, timeout_s: float = 300.0, index: int = 0
) -> Iterator[EnvProber]:
    """Open a :class:`EnvProber` for the duration of the block.

    Args:
        apart: use a separate process instead of this one.
        seed: seed of the run.
        timeout_s: timeout of each request, in seconds.
        index: number of this probe in the run.
    """
    if not apart:
        seed_global_generators(seed, "probe", index)
        yield LocalProber()
        return
    with contextlib.closing(ChildProber((seed, index), timeout_s)) as look:
        yield look


def _named_end(code: int | None) -> str:
    with contextlib.suppress(ValueError):
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _reissue_warnings(warned: tuple[tuple[str, type[Warning], str, int], ...]) -> None:
    """Repeat the other process's warnings here, subject to this process's filters."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    for message, category, file, line in warned:
        module = "__main__" if file == main else Path(file).stem  # as Python names it
        warnings.warn_explicit(message, category, file, line, module)


def serve_probes(seeding: tuple[int, int], pipe: Connection) -> None:
    """Answer requests in the probing process until the pipe is closed."""
    functions = {"look_at": look_at, "step_cost": step_cost}
    seed_global_generators(seeding[0], "probe", seeding[1])
    with contextlib.suppress(EOFError):
        while True:
            answer = _answer(functions, pipe.recv_bytes())
            flush_output()
            pipe.send_bytes(answer)


def _answer(functions: dict[str, Any], request: bytes) -> bytes:
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env, function, *args = cloudpickle.loads(request)
            result = functions[function](env, *args)
        answer = _Answer(replace(result, env=None) if isinstance(result, Probe) else result)
    except HeadraceError as error:
        answer = _Answer(error=type(error).__name__, message=str(error))
    except BaseException as error:  # not even SystemExit ends this process
        answer = _Answer(message="".join(traceback.format_exception(error)).strip())
    warned = [(str(one.message), one.category, one.filename, one.lineno) for one in caught]
    try:
        return cloudpickle.dumps(answer._replace(warned=tuple(warned)))
    except Exception as error:  # a custom space
        return cloudpickle.dumps(_Answer(message=f"its spaces can't be pickled ({error})"))

"""Calls user functions and objects with the results of a run."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from headrace.errors import HeadraceError, require

Call = Callable[..., bool | None]
_PAUSE_S = 60.0  # pause after a failure of a dispensable callback; doubles each time


class Callback(Protocol):
    """Interface of ``callbacks``; a plain function lacks ``begin`` and ``end``.

    Exceptions fail the run, unless it has ``dispensable = True``, like trackers: then its first
    failure is printed, and it is skipped for one minute, then two, then four.
    """

    def begin(self, trainer: Any) -> None:
        """Called before the first result; ``trainer.config`` and ``trainer.run_dir`` are final."""

    def __call__(self, result: Any, trainer: Any) -> bool | None:
        """Called with each result; return False to stop training."""

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        """Called once at the end with the contents of ``summary.json``; None if the run failed."""


class CallbackList:
    """Calls the callbacks of one run in order.

    Args:
        notify: called with a line of text when a dispensable callback fails.

    Raises:
        ConfigError: a callback is not callable, or is a class.
    """

    def __init__(self, callbacks: Iterable[Any], notify: Callable[[str], None] = print) -> None:
        listed = list(callbacks)
        for one in listed:
            require(callable(one), "callbacks", one, "functions, or objects with __call__")
            # The class would be called with each result, which only makes another object.
            name = getattr(one, "__name__", "")
            require(not inspect.isclass(one), "callbacks", one, f"objects, such as {name}()")
        self._callbacks = [
            _OptionalCallback(one, notify) if getattr(one, "dispensable", False) else one
            for one in listed
        ]
        self._results = [_with_trainer(one) for one in self._callbacks]
        self.summary: dict[str, Any] | None = None  # after a successful run

    @contextlib.contextmanager
    def around(self, trainer: Any) -> Iterator[None]:
        """Begin all callbacks, and end those that have begun, in reverse order, in any case."""
        with contextlib.ExitStack() as stack:
            for one in self._callbacks:
                if hasattr(one, "begin"):
                    one.begin(trainer)
                if hasattr(one, "end"):
                    stack.callback(self._end, one, trainer)
            yield

    def _end(self, callback: Any, trainer: Any) -> None:
        callback.end(trainer, self.summary)

    def result(self, result: Any, trainer: Any) -> bool:
        """Call all callbacks with a result; return False if one stops training."""
        return not [call for call in self._results if call(result, trainer) is False]


class _OptionalCallback:
    """A dispensable callback, whose failures are reported once and don't fail the run."""

    def __init__(self, callback: Any, notify: Callable[[str], None]) -> None:
        self._callback, self._notify = callback, notify
        self._call = _with_trainer(callback)
        self._began, self._reported = True, False
        self._next_s, self._pause_s = 0.0, _PAUSE_S

    def begin(self, trainer: Any) -> None:
        if hasattr(self._callback, "begin"):
            self._began = self._attempt(lambda: self._callback.begin(trainer))[0]

    def __call__(self, result: Any, trainer: Any) -> bool | None:
        if not self._began or time.monotonic() < self._next_s:
            return None
        worked, answer = self._attempt(lambda: self._call(result, trainer))
        if not worked:
            self._next_s = time.monotonic() + self._pause_s
            self._pause_s *= 2
        return answer

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        if self._began and hasattr(self._callback, "end"):
            self._attempt(lambda: self._callback.end(trainer, summary))

    def _attempt(self, call: Callable[[], bool | None]) -> tuple[bool, bool | None]:
        """Call a function; return its success and its result."""
        try:
            return True, call()
        except Exception as error:  # foreign packages may raise anything
            if not self._reported:
                kind = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
                message = kind + " ".join(str(error).split())[:300]
                name = type(self._callback).__name__
                self._notify(f"{name} failed, training continues: {message}")
                self._reported = True
            return False, None


def _with_trainer(callback: Call) -> Call:
    """Adapt a callback to a call with a result and the trainer."""
    try:
        parameters = inspect.signature(callback).parameters
    except ValueError:  # some built-in functions have no signature
        return lambda result, trainer: callback(result)
    if "trainer" in parameters and parameters["trainer"].kind is inspect.Parameter.KEYWORD_ONLY:
        return lambda result, trainer: callback(result, trainer=trainer)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in parameters.values() if p.kind in positional]
    if [p.name for p in taken[1:2]] == ["trainer"] or sum(p.default is p.empty for p in taken) > 1:
        return callback
    return lambda result, trainer: callback(result)

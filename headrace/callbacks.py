"""What a run calls while it trains: functions of its results, or objects that see its end, too."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from headrace.errors import HeadraceError, require

Call = Callable[..., bool | None]
_PAUSE_S = 60.0  # after a failure of what a run can do without; doubles with each


class Callback(Protocol):
    """What may be among ``callbacks``; a plain function is one that has neither begin nor end.

    What it raises ends the run, unless it has ``dispensable = True``, as trackers have: then its
    first failure is told in a line, and results are kept from it for a minute, then two, then four.
    """

    def begin(self, trainer: Any) -> None:
        """Before the first result; ``trainer.config`` and ``trainer.run_dir`` are settled."""

    def __call__(self, result: Any, trainer: Any) -> bool | None:
        """With each result; one that returns False ends the run."""

    def end(self, trainer: Any, summary: dict[str, Any] | None) -> None:
        """After the last one, once, with what ``summary.json`` holds; None if the run failed."""


class CallbackList:
    """The callbacks of one run, in their order.

    Args:
        notify: called with a line of text when a dispensable one fails.

    Raises:
        ConfigError: one can't be called.
    """

    def __init__(self, callbacks: Iterable[Any], notify: Callable[[str], None] = print) -> None:
        given = list(callbacks)
        for one in given:
            require(callable(one), "callbacks", one, "functions, or objects with __call__")
        self._callbacks = [
            _OptionalCallback(one, notify) if getattr(one, "dispensable", False) else one
            for one in given
        ]
        self._results = [_with_trainer(one) for one in self._callbacks]
        self.summary: dict[str, Any] | None = None  # of a run that has ended well

    @contextlib.contextmanager
    def around(self, trainer: Any) -> Iterator[None]:
        """Begin all, and end those that have begun, in the opposite order, whatever happens."""
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
        """Call all with a result; whether none wants the run to end."""
        return not [call for call in self._results if call(result, trainer) is False]


class _OptionalCallback:
    """A callback whose failures are told once, and cost the run nothing else."""

    def __init__(self, callback: Any, notify: Callable[[str], None]) -> None:
        self._callback, self._notify = callback, notify
        self._call = _with_trainer(callback)
        self._began, self._told = True, False
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
        """Whether a call worked, and what it returned."""
        try:
            return True, call()
        except Exception as error:  # other people's packages raise what they like
            if not self._told:
                kind = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
                what = kind + " ".join(str(error).split())[:300]
                self._notify(f"{type(self._callback).__name__} failed, the run goes on: {what}")
                self._told = True
            return False, None


def _with_trainer(callback: Call) -> Call:
    """The callback as one that is called with a result and the trainer, whichever it takes."""
    try:
        parameters = inspect.signature(callback).parameters
    except ValueError:  # some built-in functions have none
        return lambda result, trainer: callback(result)
    if "trainer" in parameters and parameters["trainer"].kind is inspect.Parameter.KEYWORD_ONLY:
        return lambda result, trainer: callback(result, trainer=trainer)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in parameters.values() if p.kind in positional]
    if [p.name for p in taken[1:2]] == ["trainer"] or sum(p.default is p.empty for p in taken) > 1:
        return callback
    return lambda result, trainer: callback(result)

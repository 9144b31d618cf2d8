"""Runs turns in threads, each of which waits for its own child processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from headrace.studies.children import Children


def work(jobs: int, turn: Callable[[Children], bool]) -> None:
    """Call ``turn`` in each of several threads, repeatedly while it returns True.

    An error or Ctrl-C kills the children and is raised.
    """
    children, ended = Children(), threading.Event()

    def turns() -> None:
        while not ended.is_set() and turn(children):
            pass

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(turns) for _ in range(jobs)]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            error = next((one.exception() for one in done if one.exception()), None)
        finally:
            if not all(one.done() for one in running):
                ended.set()
                children.end()  # before the pool waits for its threads
    if error is not None:
        raise error

"""Python modules run in sessions of their own, which end with the process that started them.

The one who starts a module holds a pipe to it. The kernel closes the pipe when he is gone, however
he ended, and a module that called :func:`end_with_starter` then kills its whole session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_SHOWN_CHARACTERS = 3000  # of the output of what failed


class Processes:
    """Runs modules one after the other or in several threads, and can end them all."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._ended = threading.Lock(), False

    def run(self, module: str, arguments: Sequence[str], output: Path, timeout_s: float) -> None:
        """Run ``python -m module *arguments`` to its end.

        Args:
            output: a file for all that it prints.
            timeout_s: it is killed after that, with all that it has started.

        Raises:
            RuntimeError: it failed, took too long or was ended; the message shows the end of its
                output.
        """
        command = [sys.executable, "-m", module, *arguments]
        with output.open("wb") as file:
            process = self._start(command, file.fileno())
            try:
                how = f"ended with code {process.wait(timeout_s)}"
            except subprocess.TimeoutExpired:
                how = f"took longer than {timeout_s:.0f} s"
            finally:
                self._kill(process)
        if process.returncode:
            end = output.read_text(encoding="utf-8", errors="replace")[-_SHOWN_CHARACTERS:].strip()
            raise RuntimeError(f"{' '.join(command[2:])} {how}; the end of {output}:\n{end}")

    def _start(self, command: Sequence[str], output: int) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise RuntimeError("the study was interrupted")
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it left behind
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        with self._lock:
            self._running.discard(process)

    def end(self) -> None:
        """Kill what runs, with all that it has started; :meth:`run` starts nothing any more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


def end_with_starter() -> None:
    """Kill this process's session as soon as the one who started it is gone; see the module."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if os.getpgrp() == os.getpid():  # nobody else's processes are in it
        threading.Thread(target=watch, name="headrace-starter-watch", daemon=True).start()

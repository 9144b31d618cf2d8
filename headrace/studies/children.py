"""Runs child processes in separate sessions that end with the process that started them.

The parent holds a pipe to a shell next to each child. The kernel closes the pipe when the parent
ends for any reason, and the shell then kills the child's session.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.processes import safe_files

_SHOWN_CHARACTERS = 3000  # length of reported output of a failed process
_LOOK_S = 0.25  # polling interval

Watch = Callable[[int], None]


class ProcessKilled(RuntimeError):
    """Error of a process that a signal ended, such as a lack of memory; a retry may succeed."""


@dataclass(frozen=True)
class ProcessResult:
    """Result of a process."""

    output: Path
    code: int
    wall_s: float  # from just before its start to its end
    timed_out: bool

    def error(self, name: str) -> RuntimeError:
        """Return an error that describes how the process ended, with the end of its output."""
        kind = ProcessKilled if self.code < 0 and not self.timed_out else RuntimeError
        late = f"took longer than {self.wall_s:.0f} s"
        how = late if self.timed_out else f"ended with code {self.code}"
        with safe_files.opened(self.output, safe_files.machine_bytes()) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * _SHOWN_CHARACTERS))
            text = file.read(4 * _SHOWN_CHARACTERS).decode(errors="replace")
        end = text[-_SHOWN_CHARACTERS:].strip()
        return kind(f"{name} {how}; the end of {self.output.name}:\n{end}")


class Children:
    """Runs child processes one after the other or in several threads, and can end them all."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._ended = threading.Lock(), False

    def call(
        self,
        function: Callable[[Any], Any],
        request: Mapping[str, Any],
        timeout_s: float,
        output: Path | None = None,
        watch: Watch | None = None,
        within: Sequence[str] = (),
    ) -> Any:
        """Call a function of a module in a separate Python process and return its result.

        Args:
            request: argument of the function, as JSON; the result is JSON as well.
            timeout_s: time limit, after which the process and its children are killed.
            output: file for its output. None: only the end is shown, if the process fails.
            watch: called with the process id several times per second while it runs.
            within: command prefix, for instance to run on another host.

        Raises:
            RuntimeError: the process failed, took too long or was killed; contains the end of its
                output.
        """
        module = function.__module__
        if module == "__main__":
            main = sys.modules[module]
            module = main.__spec__.name if main.__spec__ else Path(str(main.__file__)).stem
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            todo: dict[str, Any] = {"module": module, "function": function.__qualname__}
            todo |= {"request": dict(request), "result": str(result), "path": sys.path}
            command, output = [sys.executable, "-m", __name__], output or Path(folder) / "output"
            ended = self.run(
                [*within, *command], output, timeout_s, watch=watch, line=json.dumps(todo)
            )
            if ended.code or not result.exists():
                raise ended.error(f"{module}.{function.__qualname__}")
            return json.loads(result.read_text(encoding="utf-8"))

    def run(
        self,
        command: Sequence[str],
        output: Path,
        timeout_s: float,
        grace_s: float = 0.0,
        *,
        watch: Watch | None = None,
        line: str = "",
    ) -> ProcessResult:
        """Run a command to its end.

        Args:
            output: file for its output.
            timeout_s: time limit, after which the process is asked to stop. It is killed with its
                children ``grace_s`` later.
            watch: as for :meth:`call`.
            line: text for its standard input, which stays open.

        Raises:
            RuntimeError: :meth:`end` was called before.
        """
        start = time.monotonic()
        with safe_files.created(output) as file, self._lock:
            if self._ended:
                raise RuntimeError("the study was interrupted")
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        assert process.stdin is not None
        try:
            with _ends_with_starter(process):
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(line.encode() + b"\n")
                    process.stdin.flush()
                timed_out = not _wait(process, timeout_s, watch)
                if timed_out and grace_s:
                    process.terminate()
                    _wait(process, grace_s, watch)
        finally:
            _kill_session(process)  # including processes that it left behind
            process.wait()
            with self._lock:
                self._running.discard(process)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        return ProcessResult(output, process.returncode, time.monotonic() - start, timed_out)

    def end(self) -> None:
        """Kill all running processes with their children, and refuse new ones."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill_session(process)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, watch: Watch | None) -> bool:
    """Wait for a process, and return whether it ended in time."""
    end = time.monotonic() + timeout_s
    while (left_s := end - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(left_s, _LOOK_S))
            return True
        if watch is not None:
            watch(process.pid)
    return False


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _ends_with_starter(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the session of a process if this process ends inside the block."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", 'cat >/dev/null; kill -9 "-$0"', str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        shell.kill()  # before its pipe is closed
        shell.communicate()


# -- in the child ----------------------------------------------------------------------------------


def _main() -> None:
    """Call the function named by the first line of standard input."""
    todo = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = todo["path"]
    function = getattr(importlib.import_module(todo["module"]), todo["function"])
    result = json.dumps(function(todo["request"]))
    Path(todo["result"]).write_text(result, encoding="utf-8")


if __name__ == "__main__":
    _main()

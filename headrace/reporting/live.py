"""Serves a run's report during training to a browser on this machine.

browser ──GET /?token=…──► server (127.0.0.1) ──► run directory, read again if a file has changed

Access is restricted: the server only listens on the loopback interface, the address contains a
secret, and requests that name another host (DNS rebinding) are rejected.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from headrace.errors import CheckpointError, ConfigError, on_one_line
from headrace.processes import safe_files
from headrace.reporting.page import NAME, page
from headrace.rundir.atomic_files import foreign_values
from headrace.rundir.curves import read_run

_HOST = "127.0.0.1"
_FILES = (
    *("metrics.jsonl", "evaluations.jsonl", "returns.jsonl", "warnings.jsonl"),
    *("summary.json", "config.json"),
)
REST = 10.0  # pause between two drawings, relative to the duration of the last one
_REQUEST_S = 10.0  # timeout of a request
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Live:
    """Serves a run's report until :meth:`close`.

    Args:
        run_dir: directory of a run that has logged results.
        refresh_s: seconds between reloads of the page.
        port: port to listen on; 0: any free port.

    Raises:
        ConfigError: the port is not available.
    """

    def __init__(self, run_dir: Path, refresh_s: float = 2.0, port: int = 0) -> None:
        self._run_dir, self._refresh_s = run_dir, refresh_s
        self._token = secrets.token_urlsafe(24)
        self._drawing, self._text = threading.Lock(), ""
        self._seen: tuple[tuple[int, int], ...] = ()
        self._rests_until = 0.0
        try:
            self._server = _Server((_HOST, port), _handler(self._answer))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port={port} is not available ({error}): try port=0") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Address with the secret, which grants access."""
        return f"http://{_HOST}:{self.port}/?token={self._token}"

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_REQUEST_S)

    def _answer(self, target: str, host: str) -> tuple[HTTPStatus, str]:
        """Return the response to a request."""
        names = {f"{name}:{self.port}" for name in (_HOST, "localhost")}
        try:
            parts = urlsplit(target)
        except ValueError:
            return HTTPStatus.BAD_REQUEST, "Malformed address."
        token = parse_qs(parts.query).get("token", [""])[0]
        if host not in names or not hmac.compare_digest(token.encode(), self._token.encode()):
            return HTTPStatus.FORBIDDEN, "Open the address that headrace watch printed."
        if parts.path != "/":
            return HTTPStatus.NOT_FOUND, "There is one page, at /."
        try:
            return HTTPStatus.OK, self._page()
        except CheckpointError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, str(error)

    def _page(self) -> str:
        """Return the page, drawn again if a file has changed, in at most a tenth of the time."""
        with self._drawing:
            paths = [self._run_dir / name for name in _FILES]
            states = [state for path in paths if (state := safe_files.status(path)) is not None]
            current_state = tuple((state.st_mtime_ns, state.st_size) for state in states)
            began = time.monotonic()
            if current_state != self._seen and began >= self._rests_until:
                run = read_run(self._run_dir)
                with foreign_values(self._run_dir):
                    self._text = page([run], self._run_dir / NAME, refresh_s=self._refresh_s)
                self._seen, ended = current_state, time.monotonic()
                self._rests_until = ended + REST * (ended - began)
            return self._text


class _Server(ThreadingHTTPServer):
    """Server that ignores clients that disconnect early."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing; the default is a traceback."""


def _handler(
    answer: Callable[[str, str], tuple[HTTPStatus, str]],
) -> type[BaseHTTPRequestHandler]:
    """Create the request handler that responds with the result of ``answer``."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            try:
                status, text = answer(self.path, self.headers.get("Host", ""))
            except Exception as error:  # the next request may succeed
                status, text = HTTPStatus.INTERNAL_SERVER_ERROR, on_one_line(error)
            data = text.encode(errors="backslashreplace")
            self.send_response(status)
            plain = {} if status == HTTPStatus.OK else {"Content-Type": "text/plain; charset=utf-8"}
            for name, value in (_HEADERS | plain | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing, because the secret would be in the log."""

    return Handler

"""A run's report while it goes on, for a browser on this machine.

browser ──GET /?token=…──► server (127.0.0.1) ──► run directory, read anew once a file has changed

Nobody else gets in: the server listens on the loopback interface only, the address holds a secret,
and a request that names another host, as a page elsewhere can make a browser send, is refused.
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

from headrace.errors import CheckpointError, ConfigError
from headrace.reporting.page import NAME, page
from headrace.rundir.curves import read_run

_HOST = "127.0.0.1"
_FILES = ("metrics.jsonl", "evaluations.jsonl", "warnings.jsonl", "summary.json", "config.json")
REST = 10.0  # times as long as the last drawing took nothing is drawn
_REQUEST_S = 10.0  # in which a browser has to ask
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
        run_dir: of a run that has logged something.
        refresh_s: how often the page asks for itself anew.
        port: to listen on; 0: any that is free.

    Raises:
        ConfigError: the port can't be had.
    """

    def __init__(self, run_dir: Path, refresh_s: float = 2.0, port: int = 0) -> None:
        self._run_dir, self._refresh_s = run_dir, refresh_s
        self._token = secrets.token_urlsafe(24)
        self._drawing, self._text = threading.Lock(), ""
        self._seen: tuple[tuple[int, int], ...] = ()
        self._rests_until = 0.0
        try:
            self._server = ThreadingHTTPServer((_HOST, port), _handler(self._answer))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port={port} can't be listened on ({error}): try port=0") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """With the secret: who has it may look."""
        return f"http://{_HOST}:{self.port}/?token={self._token}"

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_REQUEST_S)

    def _answer(self, target: str, host: str) -> tuple[HTTPStatus, str]:
        """What a request gets."""
        names = {f"{name}:{self.port}" for name in (_HOST, "localhost")}
        parts = urlsplit(target)
        given = parse_qs(parts.query).get("token", [""])[0]
        if host not in names or not hmac.compare_digest(given.encode(), self._token.encode()):
            return HTTPStatus.FORBIDDEN, "Open the address that headrace watch printed."
        if parts.path != "/":
            return HTTPStatus.NOT_FOUND, "There is one page, at /."
        try:
            return HTTPStatus.OK, self._page()
        except CheckpointError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, str(error)

    def _page(self) -> str:
        """The page, drawn anew if a file has changed, in at most a tenth of the time."""
        with self._drawing:
            paths = [self._run_dir / name for name in _FILES]
            states = [path.stat() for path in paths if path.exists()]
            seen = tuple((state.st_mtime_ns, state.st_size) for state in states)
            began = time.monotonic()
            if seen != self._seen and began >= self._rests_until:
                run = read_run(self._run_dir)
                self._text = page([run], self._run_dir / NAME, refresh_s=self._refresh_s)
                self._seen, ended = seen, time.monotonic()
                self._rests_until = ended + REST * (ended - began)
            return self._text


def _handler(
    answer: Callable[[str, str], tuple[HTTPStatus, str]],
) -> type[BaseHTTPRequestHandler]:
    """Who takes requests, and lets ``answer`` say what they get."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            status, text = answer(self.path, self.headers.get("Host", ""))
            data = text.encode()
            self.send_response(status)
            plain = {} if status == HTTPStatus.OK else {"Content-Type": "text/plain; charset=utf-8"}
            for name, value in (_HEADERS | plain | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing: the secret would be in it."""

    return Handler

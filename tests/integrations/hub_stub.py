"""Minimal Hugging Face Hub server that saves and loads a few small files.

It covers the HTTP requests of huggingface_hub. Files are in memory, and a commit replaces them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stub(ThreadingHTTPServer):
    """Hub on a port of the loopback interface."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.tokens: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """Handles one request."""

    protocol_version = "HTTP/1.1"
    server: Stub

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.tokens.add(self.headers.get("Authorization", ""))
        match self.path.split("/")[1:]:
            case ["api", "repos", "create"]:
                asked = json.loads(body)
                owner = asked.get("organization") or "me"
                name = f"{owner}/{asked['name']}"
                self.server.repos.setdefault(name, {})
                self._json({"url": f"{self.server.url}/{name}", "name": name, "id": name})
            case ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            case ["api", "models", _, _, "preupload", _]:
                files = json.loads(body)["files"]
                plain = {"uploadMode": "regular", "shouldIgnore": False}
                self._json({"files": [{"path": file["path"], **plain} for file in files]})
            case ["api", "models", owner, name, "commit", _]:
                self._commit(f"{owner}/{name}", body)
            case _:
                self._missing()

    def do_GET(self) -> None:
        match self.path.partition("?")[0].split("/")[1:]:
            case ["api", "models", owner, name, *_] if f"{owner}/{name}" in self.server.repos:
                files = self.server.repos[f"{owner}/{name}"]
                siblings = [{"rfilename": file} for file in files]
                self._json({"id": f"{owner}/{name}", "sha": _sha(files), "siblings": siblings})
            case [owner, name, "resolve", _, file]:
                self._file(self.server.repos.get(f"{owner}/{name}", {}), file)
            case _:
                self._missing()

    do_HEAD = do_GET

    def _commit(self, repo: str, body: bytes) -> None:
        files = self.server.repos[repo]
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                assert line["value"]["encoding"] == "base64"
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        url = f"{self.server.url}/{repo}/commit/{_sha(files)}"
        self._json({"success": True, "commitOid": _sha(files), "commitUrl": url})

    def _file(self, files: dict[str, bytes], name: str) -> None:
        if name not in files:
            self._missing("EntryNotFound" if files else "RepoNotFound")
            return
        etag = hashlib.sha256(files[name]).hexdigest()
        self._answer(200, files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": _sha(files)})

    def _json(self, values: dict[str, Any]) -> None:
        self._answer(200, json.dumps(values).encode(), {"Content-Type": "application/json"})

    def _missing(self, why: str = "RepoNotFound") -> None:
        self._answer(404, b"{}", {"X-Error-Code": why, "X-Error-Message": why})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sha(files: dict[str, bytes]) -> str:
    """Return the id of a commit."""
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


@contextlib.contextmanager
def serving() -> Iterator[Stub]:
    """Run a Hub until the end of the block."""
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join(10)

"""Opens every page of a built site in Chromium: python docs/_site/browse.py site [IMAGES]

Each page is opened at three widths, light and dark. It must have no errors on the console, fit the
width, and meet the checks in ``browse.js``: contrast, headings and alternative texts. With a folder
IMAGES, screenshots are saved there. Needs Debian's package ``chromium``.
"""

from __future__ import annotations

import base64
import functools
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

WIDTHS = 390, 900, 1440
SCHEMES = "light", "dark"
_MATERIAL = {"light": "default", "dark": "slate"}
_HEIGHT = 900
# Waits until the theme's script has chosen the scheme and the page is drawn.
_WAIT = """new Promise((done) => {
  const until = Date.now() + 1000;
  const isRight = () => document.body.dataset.mdColorScheme === %s;
  const end = () => done(isRight());
  const look = () => setTimeout(isRight() || Date.now() > until ? () => setTimeout(end, 50) : look);
  look();
})"""
_TRIES = 3  # Chromium sometimes emulates the scheme only after a page was loaded
_LEFT_OUT = "404.html"  # its links are absolute
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """Drives a page of headless Chromium through the DevTools protocol over a pipe."""

    def __init__(self, profile: str) -> None:
        name = shutil.which("chromium") or shutil.which("chromium-browser")
        if name is None:
            raise SystemExit("chromium is not installed (Debian: apt-get install chromium)")
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()

        def connect() -> None:  # the pipes must have the descriptors 3 and 4 there
            read, write = os.dup(its_in), os.dup(its_out)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [name, *_FLAGS, f"--user-data-dir={profile}"], close_fds=False, preexec_fn=connect,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(its_in)
        os.close(its_out)
        self._numbers, self._rest, self.errors = itertools.count(1), b"", list[str]()
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        forget = "try { localStorage.clear(); } catch {}"  # the site stores the first scheme
        self.call("Page.addScriptToEvaluateOnNewDocument", source=forget)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        """Read a message, and keep errors of the console."""
        while b"\0" not in self._rest:
            if not (data := os.read(self._in, 1 << 20)):
                raise RuntimeError("chromium has exited")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        name, params = message.get("method"), message.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["exception"]["description"])
        elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif name == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str([x.get("value") for x in params["args"]]))
        return message

    def load(self, url: str) -> None:
        """Load a page and wait for it."""
        self.call("Page.navigate", url=url)
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def open(self, url: str, width: int, scheme: str) -> list[str]:
        """Open a page, and return its problems."""
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=media)
        size = {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 500, **size)
        for _ in range(_TRIES):
            self.load("about:blank")  # the last page stores its scheme when it is left
            self.errors.clear()
            self.load(url)
            if is_right := self.evaluate(_WAIT % json.dumps(_MATERIAL[scheme])):
                break
        script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
        problems = [*self.errors, *self.evaluate(script)]
        return problems if is_right else [*problems, "the colour scheme is the other one"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of its promise."""
        how: dict[str, Any] = {"awaitPromise": True, "returnByValue": True}
        return self.call("Runtime.evaluate", expression=expression, **how)["result"].get("value")

    def save(self, path: Path) -> None:
        """Save a screenshot of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Stop the browser."""
        self.call("Browser.close")
        self._process.wait(10)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *args: Any) -> None:
        pass


def main(site: Path, images: Path | None = None) -> int:
    """Print the problems of all pages; returns 1 if there are any."""
    handler = functools.partial(_Handler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pages = [p.relative_to(site) for p in sorted(site.rglob("*.html")) if p.name != _LEFT_OUT]
    count = 0
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        for page, width, scheme in itertools.product(pages, WIDTHS, SCHEMES):
            url = f"http://127.0.0.1:{server.server_port}/{page}"
            for problem in browser.open(url, width, scheme):
                print(f"{page} at {width} px, {scheme}: {problem}")
                count += 1
            if images is not None:
                images.mkdir(exist_ok=True)
                browser.save(images / f"{'_'.join(page.parts)}-{width}-{scheme}.png")
        browser.close()
    server.shutdown()
    print(f"{len(pages)} pages, {count} problems")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))

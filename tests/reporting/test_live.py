"""Live page of a run, which requires the address with its token."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from patience import PATIENCE_S
from reporting.runs import Page, write_run

from headrace.cli import main, reports
from headrace.errors import ConfigError
from headrace.reporting import live, panels, screen
from headrace.rundir.curves import read_run
from headrace.rundir.files import append_jsonl, read_jsonl


@pytest.fixture(autouse=True)
def one_panel(monkeypatch):
    """A report that is drawn soon, and again at once."""
    monkeypatch.setattr(panels, "KINDS", panels.KINDS[:1])
    monkeypatch.setattr(live, "REST", 0.0)


@pytest.fixture
def served(tmp_path):
    with contextlib.closing(live.Live(write_run(tmp_path / "run"), refresh_s=1.5)) as one:
        yield one


def asked(one: live.Live, target: str | None = None, **headers: str) -> tuple[int, str, dict]:
    """Return status, text and headers of an answer; by default of the printed address."""
    parts = urlsplit(one.url)
    line = http.client.HTTPConnection("127.0.0.1", one.port, timeout=PATIENCE_S)
    with contextlib.closing(line):
        line.request("GET", f"/?{parts.query}" if target is None else target, headers=headers)
        answer = line.getresponse()
        return answer.status, answer.read().decode(), dict(answer.headers)


def test_who_has_the_address_sees_the_run_and_the_page_asks_again(served, tmp_path):
    status, text, headers = asked(served)
    assert status == 200
    page = Page(text)
    assert ("body", {"data-refresh": "1.5"}) in page.elements
    assert "live" in page.text
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    before = page.data[0]["lines"][0]["x"]
    assert asked(served)[1] == text  # without changes nothing is drawn again
    lines = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    append_jsonl(tmp_path / "run" / "metrics.jsonl", [lines[-1] | {"env_steps": 99_000}])
    assert Page(asked(served)[1]).data[0]["lines"][0]["x"] == [*before, 99_000]
    assert asked(served, Host=f"localhost:{served.port}")[0] == 200


def test_nobody_else_sees_anything(served):
    good = f"/?{urlsplit(served.url).query}"
    for target in ("/", "/?token=", good + "x", good[:-1], "/?token=%FF", "/?tokem=" + good[8:]):
        status, text, _ = asked(served, target)
        assert (status, "CartPole" in text) == (403, False), target
    for host in ("evil.example", f"evil.example:{served.port}", "127.0.0.1", "127.0.0.1:1", ""):
        status, text, _ = asked(served, Host=host)
        assert (status, "CartPole" in text) == (403, False), host
    assert asked(served, good.replace("/?", "/etc/passwd?"))[0] == 404
    line = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
    with contextlib.closing(line):
        line.request("POST", good)
        assert line.getresponse().status == 501


def test_secrets_differ_and_are_compared_in_constant_time(served, tmp_path, monkeypatch):
    calls = []
    compare = live.hmac.compare_digest
    monkeypatch.setattr(live.hmac, "compare_digest", lambda *a: calls.append(a) or compare(*a))
    assert asked(served)[0] == 200
    assert calls
    with contextlib.closing(live.Live(tmp_path / "run")) as other:
        assert urlsplit(other.url).query != urlsplit(served.url).query
        assert len(urlsplit(other.url).query) > len("token=") + 30


def test_only_the_loopback_interface_is_listened_on(served):
    assert served._server.server_address[0] == "127.0.0.1"
    with pytest.raises(ConfigError, match=f"port={served.port}"):
        live.Live(served._run_dir, port=served.port)
    served.close()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", served.port), 2):
        pass


def test_a_run_that_is_broken_meanwhile_is_told(served, tmp_path):
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    status, text, _ = asked(served)
    assert (status, "no metrics" in text) == (503, True)


def test_a_run_that_is_not_there_is_one_sentence_after_the_time_limit(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "nowhere"), "--timeout-s", "0.3"]) == 2
    told = capsys.readouterr().err
    assert told.count("nowhere does not exist") == 1
    assert "timeout_s=0.3" in told
    assert "Traceback" not in told
    for flags, words in ((["--port", "70000"], "port=70000"), (["--refresh-s", "0"], "refresh_s")):
        assert main(["watch", str(tmp_path), *flags]) == 2
        assert words in capsys.readouterr().err


def test_in_a_terminal_a_run_is_shown_until_it_ends(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main(["watch", str(run), "--terminal", "--refresh-s", "0.1"]) == 0
    shown = capsys.readouterr().out
    assert "training return" in shown
    assert "█" in shown
    assert shown.endswith("\n")
    assert reports._has_ended(run)
    summary = run / "summary.json"
    summary.unlink()
    assert not reports._has_ended(run)


def test_small_curves_go_from_their_least_to_their_greatest_value(tmp_path):
    assert screen.small([1.0, 2.0, 3.0]) == "▁▅█"
    assert screen.small([5.0] * 3) == "▄▄▄"
    assert len(screen.small(range(1000))) == 48
    assert screen.screen(read_run(write_run(tmp_path / "[bold]x[/bold]"))) is not None


def test_ctrl_c_ends_watching_without_an_error(tmp_path):
    run = write_run(tmp_path / "run")
    command = [sys.executable, "-m", "headrace", "watch", str(run), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ, preexec_fn=_hears_ctrl_c)  # fmt: skip
    try:
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_browser_that_says_nothing_is_let_go(served, monkeypatch):
    with socket.create_connection(("127.0.0.1", served.port), 5):
        assert asked(served)[0] == 200  # it blocks no one
    assert served._server.RequestHandlerClass.timeout == live._REQUEST_S


def test_drawing_takes_at_most_a_tenth_of_the_time(served, monkeypatch):
    now, drawings = [100.0], []

    def page(*_, **settings):
        now[0] += 2.0  # seconds that it takes
        drawings.append(now[0])
        return "page"

    monkeypatch.setattr(live, "REST", 10.0)
    monkeypatch.setattr(live, "page", page)
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    metrics = served._run_dir / "metrics.jsonl"
    line = read_jsonl(metrics)[-1]
    for _ in range(60):
        append_jsonl(metrics, [line])
        served._page()
        now[0] += 1.0
    gaps = [b - a for a, b in itertools.pairwise(drawings)]
    assert len(gaps) >= 2
    assert min(gaps) >= 20.0


@pytest.mark.parametrize(
    ("flags", "display", "shown"),
    [
        ([], True, "browser"),
        ([], False, "terminal"),
        (["--port", "0", "--no-browser"], False, "address"),
        (["--terminal"], True, "terminal"),
    ],
)
def test_a_browser_opens_a_file_of_its_owner_and_none_is_missed(
    tmp_path, monkeypatch, capsys, flags, display, shown
):
    opened = []

    def browse(address):
        file = Path(url2pathname(urlsplit(address).path))
        opened.append((address, file.stat().st_mode & 0o777, file.read_text(), file))

    def stop(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(reports, "has_display", lambda: display)
    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr(reports, "time", SimpleNamespace(sleep=stop, monotonic=time.monotonic))
    assert main(["watch", str(write_run(tmp_path / "run")), *flags]) == 0
    told = capsys.readouterr().out
    assert ("http://127.0.0.1:" in told) == (shown != "terminal")
    assert len(opened) == (shown == "browser")
    for address, mode, text, file in opened:
        assert address.startswith("file://")
        assert "token" not in address
        assert mode == 0o600
        assert re.search(r"http://127.0.0.1:\d+/\?token=\S+", told)[0] in text
        assert not file.exists()


@pytest.mark.parametrize("target", ["http://[::1/", "//[", "\x1b"])
def test_malformed_addresses_are_answered(served, target, capfd):
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as one:
        one.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert one.recv(100).split()[1].startswith(b"4")
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_client_that_disconnects_early_prints_no_traceback(served, capfd):
    for sent in (b"", b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
        one = socket.create_connection(("127.0.0.1", served.port), PATIENCE_S)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        one.sendall(sent)
        one.close()
    assert asked(served)[0] == 200  # a later connection works
    assert "Traceback" not in "".join(capfd.readouterr())

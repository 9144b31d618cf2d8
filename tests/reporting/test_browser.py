"""Reports in a real browser: nothing is complained of, and all of it fits the window.

Chromium (Debian's package ``chromium``) says what a page's console says when it runs headless.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reporting.runs import write_run

from headrace.reporting import live
from headrace.reporting.page import write
from headrace.rundir.files import append_jsonl, read_jsonl

pytestmark = pytest.mark.browser
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--enable-logging=stderr",
)  # fmt: skip
# Asked of the page after it was loaded: what sticks out of the window, and what the pointer sees.
PROBE = """
<script>
addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  const plot = document.querySelector(".plot"), at = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
    clientX: at.left + at.width / 2, clientY: at.top + at.height / 2}));
  const tip = plot.querySelector(".tip");
  parent.postMessage(JSON.stringify([wide, innerWidth, tip.hidden, tip.textContent]), "*");
});
</script>
"""
# A window is never narrower than 500 pixels; a frame in it is as narrow as a telephone.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><title></title>
<script>addEventListener("message", (event) => { document.title = event.data; });</script>
<iframe src="probed.html" style="border: 0; width: %dpx; height: 800px"></iframe>
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        why = "needs chromium (Debian: chromium)"
        if os.environ.get("HEADRACE_BROWSER_TESTS") == "required":
            pytest.fail(f"HEADRACE_BROWSER_TESTS=required, but this {why}")
        pytest.skip(why)
    return found


@pytest.fixture
def browse(chromium, tmp_path):
    """Opens an address; the page's elements as they are then, and what its console said."""

    def run(address: str, width: int = 1280, *flags: str) -> tuple[str, list[str]]:
        own = f"--user-data-dir={tmp_path / 'profile'}"
        command = [chromium, *FLAGS, own, f"--window-size={width},900", *flags, "--dump-dom"]
        done = subprocess.run(
            [*command, address], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout, re.findall(r"CONSOLE[:(].*", done.stderr)

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("browser")
    names = ("s0", "s1", "a-name-that-goes-on-and-on-without-a-place-to-break-it-anywhere")
    return [write_run(folder / name, seed) for seed, name in enumerate(names)]


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_a_report_fits_and_its_console_is_silent(browse, runs, tmp_path, width):
    from headrace.cli import main

    file = tmp_path / "report.html"
    assert main(["report", *map(str, runs), "--output", str(file)]) == 0
    _, said = browse(file.as_uri(), width)
    assert said == []
    # The page's own policy lets no script in but its own, so the probe is asked without it.
    probed = re.sub(r"<meta http-equiv[^>]*>", "", file.read_text()).replace(
        "</body>", PROBE + "</body>"
    )
    (tmp_path / "probed.html").write_text(probed)
    (tmp_path / "frame.html").write_text(FRAME % width)
    page, said = browse((tmp_path / "frame.html").as_uri(), width + 100)
    title = re.search(r"<title>(.*?)</title>", page, re.S)[1]
    assert title.startswith(f"[0,{width},false,"), title
    assert "steps" in title
    assert "training, last 100 episodes: " in title
    assert said == []


PRINTED = """
<script>
addEventListener("load", () => {
  const open = () => document.querySelectorAll("details[open]").length;
  const counts = [document.querySelectorAll("details").length, open()];
  for (const name of ["beforeprint", "afterprint"]) {
    dispatchEvent(new Event(name));
    counts.push(open());
  }
  document.title = JSON.stringify(counts);
});
</script>
"""


def test_on_paper_nothing_is_folded(browse, runs, tmp_path):
    text = write(runs, tmp_path / "report.html").read_text()
    probed = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", PRINTED + "</body>")
    (tmp_path / "probed.html").write_text(probed)
    page, said = browse((tmp_path / "probed.html").as_uri())
    count, *open_ = map(int, re.search(r"<title>\[(.*?)\]</title>", page)[1].split(","))
    assert count > 0
    assert open_ == [0, count, 0]
    assert said == []


def test_a_script_in_a_report_would_not_run(browse, runs, tmp_path):
    file = write(runs[:1], tmp_path / "report.html")
    broken = file.read_text().replace("</h1>", "</h1><script>document.title = 'in'</script>")
    file.write_text(broken)
    page, said = browse(file.as_uri())
    assert "<title>s0</title>" in page
    assert any("Content Security Policy" in line for line in said)


def test_a_watched_run_is_shown_anew_by_itself(browse, runs, monkeypatch):
    monkeypatch.setattr(live, "REST", 0.0)  # which a busy machine does for half a minute
    with contextlib.closing(live.Live(runs[0], refresh_s=0.2)) as served:
        lines = read_jsonl(runs[0] / "metrics.jsonl")
        first, said = browse(served.url)
        assert "40,000" in first
        answer, seen = served._answer, []

        def later(*request):
            seen.append(request)
            if len(seen) == 2:
                append_jsonl(runs[0] / "metrics.jsonl", [lines[-1] | {"env_steps": 77_000}])
            return answer(*request)

        served._server.RequestHandlerClass = live._handler(later)
        page, more = browse(served.url, 1280, "--virtual-time-budget=8000")
        assert said == more == []
        assert len(seen) >= 3
        assert "77,000" in page

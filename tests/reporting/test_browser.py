"""Reports in a real browser: no errors, and everything fits the window.

Headless Chromium (Debian's package ``chromium``) prints the console of a page.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from reporting.runs import write_run

from headrace.reporting import live
from headrace.reporting.page import write
from headrace.reporting.panels import short
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
    """Opens an address; returns the page's elements and its console messages."""

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


@pytest.fixture
def asked(browse, tmp_path):
    """Returns what a script finds in a page, as JSON, and checks that the console is empty."""

    def ask(file: Path, script: str, *flags: str):
        probe = f"<script>addEventListener('load', () => {{ {HELPERS}\n{script} }});</script>"
        text = re.sub(r"<meta http-equiv[^>]*>", "", file.read_text())
        (tmp_path / "asked.html").write_text(text.replace("</body>", probe + "</body>"))
        page, said = browse((tmp_path / "asked.html").as_uri(), 1280, *flags)
        assert said == []
        return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", page, re.S)[1]))

    return ask


HELPERS = """
const answer = (value) => { document.title = JSON.stringify(value); };
const panels = JSON.parse(document.getElementById("data").textContent);
const plot = document.querySelector(".plot");
const ticks = () => [...plot.querySelectorAll(".axes text")].map((text) => text.textContent);
const pointer = (kind, x, y, more = {}) => {
  const at = plot.querySelector("svg").getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent(kind, {bubbles: true, pointerType: "mouse",
    buttons: kind === "pointerup" ? 0 : 1,
    clientX: at.left + x * at.width, clientY: at.top + y * at.height, ...more}));
};
const key = (name) => plot.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
const tip = () => plot.querySelector(".tip").hidden ? null : plot.querySelector(".tip").textContent;
const lines = () => plot.querySelectorAll(".line").length;
const button = (text) => [...document.querySelectorAll("button")].find(
  (one) => one.textContent.trim() === text || one.textContent.startsWith(text));
const set = (tool, name, value) => {
  const control = document.querySelector(`[data-tool=${tool}]`);
  control[name] = value;
  control.dispatchEvent(new Event("input", {bubbles: true}));
};
"""


def parsed(tip: str) -> tuple[int, dict[str, tuple[float, int]]]:
    """Return the step of a tip, and by label value and step of each line's point."""
    head, *rows = tip.splitlines()
    step = int(head.removesuffix(" steps").replace(",", ""))
    points = {}
    for row in rows:
        label, text = row.split(": ")
        value, _, other = text.partition(" at ")
        points[label] = (float(value.replace(",", "")),
                         int(other.replace(",", "")) if other else step)  # fmt: skip
    return step, points


def test_a_tip_shows_step_and_value_of_the_same_point(asked, runs, tmp_path):
    file = write(runs[:1], tmp_path / "one.html")
    script = """
    const seen = [];
    for (let i = 0; i <= 40; i++) { pointer("pointermove", i / 40, 0.1 + (i % 9) / 10); seen.push(tip()); }
    key("ArrowRight"); seen.push(tip()); key("ArrowRight"); seen.push(tip());
    answer([seen, panels[0].lines]);
    """  # noqa: E501
    tips, lines = asked(file, script)
    points = {line["label"]: dict(zip(line["x"], line["y"], strict=True)) for line in lines}
    seen = [parsed(tip) for tip in tips if tip is not None]
    assert len(seen) > 30
    assert len({step for step, _ in seen}) > 20
    for step, each in seen:
        assert set(each) == set(points)
        assert any(own == step for _, own in each.values())
        for label, (value, own) in each.items():
            assert value == pytest.approx(points[label][own], rel=1e-4), (label, own)
            assert abs(own - step) == min(abs(x - step) for x in points[label])


def test_plots_zoom_together_by_dragging_keys_and_buttons(asked, runs, tmp_path):
    file = write(runs[:1], tmp_path / "one.html")
    script = """
    const all = ticks();
    pointer("pointerdown", 0.4, 0.5); pointer("pointermove", 0.6, 0.5); pointer("pointerup", 0.6, 0.5);
    const dragged = ticks(), others = document.querySelectorAll(".plot")[1].textContent;
    pointer("pointerdown", 0.5, 0.5, {shiftKey: true}); pointer("pointermove", 0.3, 0.5, {shiftKey: true});
    pointer("pointerup", 0.3, 0.5);
    const panned = ticks();
    pointer("pointerdown", 0.2, 0.5); pointer("pointermove", 0.5, 0.5);
    pointer("pointermove", 0.6, 0.5, {buttons: 0}); pointer("pointerup", 0.7, 0.5);
    const lost = ticks();
    key("0"); const reset = ticks();
    button("Zoom in").click(); const zoomed = ticks();
    button("Zoom out").click(); const out = ticks();
    answer({all, dragged, panned, lost, reset, zoomed, out, shared: others.includes(dragged[0])});
    """  # noqa: E501
    seen = asked(file, script)
    assert seen["all"] == seen["reset"] == seen["out"]
    assert len({str(seen[name]) for name in ("all", "dragged", "panned", "zoomed")}) == 4
    assert seen["shared"]
    assert seen["lost"] == seen["panned"]  # the button was released outside of the window
    low, high = (short_value(seen["dragged"][i]) for i in (0, 1))
    assert 10_000 < low < high < 28_000


def short_value(text: str) -> float:
    return float(text.removesuffix("k")) * (1000 if text.endswith("k") else 1)


def test_series_can_be_hidden_smoothed_and_shown_on_a_logarithmic_axis(asked, runs, tmp_path):
    folder = tmp_path / "other"
    file = write([*runs[:2], write_run(folder, 5, num_actors=3)], tmp_path / "three.html")
    script = """
    const before = lines(), range = ticks();
    document.querySelector("[data-group]").click();
    const hidden = [lines(), document.querySelector("[data-group]").getAttribute("aria-pressed")];
    document.querySelector("[data-group]").click();
    button("evaluated").click(); const without = lines(); button("evaluated").click();
    const again = lines(), paths = plot.querySelectorAll(".line path").length;
    set("smoothing", "value", 0.9);
    const smooth = plot.querySelectorAll(".line path").length;
    pointer("pointermove", 0.5, 0.5); const said = tip();
    const flat = document.querySelectorAll(".plot")[panels.findIndex(
      (panel) => panel.title === "Memory")].querySelectorAll(".axes text").length;
    set("smoothing", "value", 0); set("log", "checked", true);
    answer({flat, before, hidden, without, again, paths, smooth, said, range, log: ticks()});
    """
    seen = asked(file, script)
    assert (seen["before"], seen["again"]) == (4, 4)
    assert seen["hidden"] == [2, "false"]
    assert seen["without"] == 2
    assert seen["smooth"] == 2 * seen["paths"]
    assert "smoothed" in seen["said"]
    assert 5 < seen["flat"] < 20  # constant values, apart from rounding
    assert seen["log"][-1] == "log"
    assert seen["log"] != seen["range"]


def test_the_script_formats_and_divides_like_a_ruler(asked, runs, tmp_path):
    values = [1.5e6, 12_000, 0.02, -0.0075, 2.5e-4, -1.25e-4, 0.0, 1234, 99.5]
    script = f"""answer([{json.dumps(values)}.map(chart.short), chart.linearTicks(0, 100),
      chart.linearTicks(-0.05, 0.052), chart.logTicks(1, 1000), chart.logTicks(0.5, 30),
      chart.smoothed([4, 4, 4, null, 0], 0.5)]);"""
    texts, *found = asked(write(runs[:1], tmp_path / "one.html"), script)
    assert texts == [short(value) for value in values]
    assert found[0] == [0, 20, 40, 60, 80, 100]
    assert found[1] == pytest.approx([-0.05, -0.025, 0, 0.025, 0.05])
    assert found[2] == [1, 10, 100, 1000]
    assert found[3] == pytest.approx([0.5, 1, 2, 5, 10, 20])
    assert found[4] == [4, 4, 4, None, pytest.approx(4 * 7 / 15)]


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


def test_a_watched_page_keeps_the_readers_view(browse, runs, monkeypatch):
    monkeypatch.setattr(live, "REST", 0.0)
    script = """
    document.querySelector("[data-tool=in]").click();
    const range = document.querySelector("[data-tool=smoothing]");
    range.value = 0.5; range.dispatchEvent(new Event("input", {bubbles: true}));
    document.querySelector("[data-tool=reset]").focus();
    new MutationObserver(() => setTimeout(() => {
      const paths = document.querySelector(".plot").querySelectorAll(".line path").length;
      document.title = [document.querySelector("[data-tool=smoothing]").value, paths,
        document.activeElement.dataset.tool,
        document.querySelector("[data-tool=reset]").disabled].join();
    })).observe(document.body, {childList: true});
    """
    with contextlib.closing(live.Live(runs[0], refresh_s=0.2)) as served:
        answer = served._answer

        def probed(*request):
            status, text = answer(*request)
            text = re.sub(r"<meta http-equiv[^>]*>", "", text)
            return status, text.replace("</body>", f"<script>{script}</script></body>")

        served._server.RequestHandlerClass = live._handler(probed)
        page, said = browse(served.url, 1280, "--virtual-time-budget=8000")
    assert said == []
    assert "<title>0.5,4,reset,false</title>" in page


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

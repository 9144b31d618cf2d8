"""Pages for readers with a keyboard, a screen reader, a small screen, or a dark one."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import pytest
from reporting.runs import Page, write_run

from headrace.reporting import panels
from headrace.reporting.page import write


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    folder = tmp_path_factory.mktemp("pages")
    runs = [write_run(folder / "a", 0), write_run(folder / "b", 1, num_actors=3)]
    return Page(write(runs, folder / "page.html").read_text())


def test_each_plot_has_a_description_and_each_control_a_name(page):
    plots = [a for tag, a in page.elements if tag == "svg" and a.get("role") == "img"]
    assert len(plots) == len(page.data) > 10
    first = plots[0]["aria-label"]
    assert first.startswith("Return over environment steps. ")
    assert "num_actors=3: evaluated: from 100 at 10,000 steps to 300 at 30,000" in first
    groups = [a["aria-label"] for _, a in page.elements if a.get("class") == "plot"]
    assert groups == [f"Plot: {panel['title']}" for panel in page.data]
    toggles = [a for tag, a in page.elements if tag == "button" and "aria-pressed" in a]
    assert {a["aria-pressed"] for a in toggles} == {"true"}
    assert [a for tag, a in page.elements if tag == "html"] == [{"lang": "en"}]


def test_headings_descend_by_one_and_table_headings_have_a_scope(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all("scope" in a for tag, a in page.elements if tag == "th")


def test_no_unit_repeats_the_end_of_its_title():
    for kind in panels.KINDS:
        assert kind.title.lower().split()[-1] != kind.unit, kind.title
        assert not kind.unit or not kind.title.lower().endswith(kind.unit), kind.title


def luminance(colour: str) -> float:
    if len(colour) == 4:
        colour = "#" + "".join(2 * x for x in colour[1:])
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "paper"])
def test_text_and_curves_have_enough_contrast(theme):
    css = resources.files("headrace.reporting").joinpath("page.css").read_text()
    blocks = re.findall(r":root\{(.*?)\}", css, re.S)
    assert len(blocks) == 3
    colours = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", blocks[theme]))
    for text in ("ink", "soft", "c1"):  # c1: settings that differ
        for ground in ("paper", "card"):
            assert contrast(colours[text], colours[ground]) >= 4.5, text
    assert contrast(colours["warn"], colours["warn-card"]) >= 4.5
    assert contrast(colours["edge"], colours["paper"]) >= 3
    for i in range(panels.COLOURS):
        assert contrast(colours[f"c{i}"], colours["paper"]) >= 3, i

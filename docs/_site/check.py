"""Checks that a built site is complete without a network: python docs/_site/check.py site

Every script, style, image and font that a page loads is a file of the site, every link and anchor
exists, and no Markdown syntax is left in the text. Images have an alternative text, and headings
begin with one of the first level and skip none.
"""

from __future__ import annotations

import itertools
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_NO_TEXT = ("code", "pre", "script", "style", "title", "h1", "h2", "nav")
_URL = re.compile(r"url\(\s*['\"]?([^)'\"]+)")
_RAW = re.compile(
    r"^(\||```|[-*] |\d\. |#{2,} ).*|.*\]\([\w./#-]+\)|.*:(?:class|func|meth|mod|attr|data):.*",
    re.MULTILINE,
)


class Page(HTMLParser):
    """Parsed HTML page: loaded files, links, anchors, headings, images and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.shown = ""
        self.levels: list[int] = []  # of the headings
        self.unnamed: list[str] = []  # images without an alternative text
        self._code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag in _LOADED and values.get("rel") not in ("canonical", "prev", "next"):
            self.loads += [values[_LOADED[tag]]] if _LOADED[tag] in values else []
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img" and not values.get("alt"):
            self.unnamed.append(values.get("src", ""))
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        self._code += tag in _NO_TEXT

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in _NO_TEXT

    def handle_data(self, data: str) -> None:
        self.shown += "" if self._code else data


def faults(site: Path) -> list[str]:
    """Return one line for each problem in the pages and styles of a site."""
    site = site.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8"))
             for path in sorted(site.rglob("*.html"))}  # fmt: skip
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for loaded in page.loads:
            if not _is_there(path.parent, of_top(path, loaded)):
                found.append(f"{name} loads {loaded}, which is not a file of the site")
        for link in page.links:
            here = of_top(path, link)
            found += [f"{name} links to {link}, which doesn't exist"] * _is_dead(path, here, pages)
        found += [f"{name} shows {image} without an alternative text" for image in page.unnamed]
        found += [f"{name} {fault}" for fault in heading_faults(page.levels)]
        found += [f"{name} shows Markdown: {x[0].strip()}" for x in _RAW.finditer(page.shown)]
    for path in site.rglob("*.css"):
        for loaded in _URL.findall(path.read_text(encoding="utf-8")):
            if not loaded.startswith("data:") and not _is_there(path.parent, loaded):
                found.append(f"{path.relative_to(site)} loads {loaded}")
    return found


def heading_faults(levels: list[int]) -> list[str]:
    """Return what is wrong with the order of a page's headings."""
    if levels[:1] != [1] or levels.count(1) > 1:
        return [f"needs one heading of level 1 at the beginning, not {levels[:3]}"]
    skipped = [(a, b) for a, b in itertools.pairwise(levels) if b > a + 1]
    return [f"has a heading of level {b} below one of level {a}" for a, b in skipped]


def of_top(path: Path, link: str) -> str:
    """Return a link; those of 404.html are relative to the root, as it is shown at any address."""
    return link.removeprefix("/") if path.name == "404.html" else link


def _is_there(folder: Path, target: str) -> bool:
    plain = unquote(target.partition("#")[0].partition("?")[0])
    return target.startswith("data:") or (folder / plain).is_file()


def _is_dead(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    """Return whether the target of a link into the site is missing."""
    if link.startswith(("http:", "https:", "mailto:")):
        return False
    file, _, anchor = link.partition("#")
    target = (path.parent / unquote(file)).resolve() if file else path
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return True
    return bool(anchor) and target in pages and unquote(anchor) not in pages[target].ids


if __name__ == "__main__":
    found = faults(Path(sys.argv[1]))
    print("\n".join(found) or "all files, links and anchors of the site exist")
    sys.exit(bool(found))

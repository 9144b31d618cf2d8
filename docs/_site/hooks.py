"""Hooks of mkdocs: draw equations, rewrite links to files outside of docs/, shorten roles.

The pages stay Markdown that GitHub renders as well. mkdocs calls the functions by name (see
mkdocs.yml).
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

DOCS = Path(__file__).parents[1]
_CODE_OR_LINK = re.compile(
    r"^```.*?^```|(?<!\[)`[^`\n]+`|(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)",
    re.DOTALL | re.MULTILINE,
)
_BLOCK = re.compile(r"^```math\n(.*?)^```", re.DOTALL | re.MULTILINE)
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_LONG = re.compile(r"(?<=<code>)[^<\s]{24,}(?=</code>)")
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):(<code>)(?:~(?:\w+\.)*)?")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Draw equations as SVG, which needs no font, and show files outside of the site as paths."""
    text = _BLOCK.sub(lambda found: equation(found[1]), markdown)
    folder = (DOCS / page.file.src_uri).parent

    return _CODE_OR_LINK.sub(lambda found: named(found, folder), text)


def named(link: re.Match[str], folder: Path) -> str:
    """Return a link unchanged, or as a repository path if the file is outside of docs/."""
    if link[2] is None:
        return link[0]  # code
    target = (folder / link[2]).resolve()
    if target.is_relative_to(DOCS) or not target.exists():  # mkdocs reports missing files
        return link[0]
    path = target.relative_to(DOCS.parent)
    return f"`{path}`" if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"


def on_page_content(html: str, **_: Any) -> str:
    """Shorten cross-references of docstrings, and allow line breaks in long names in tables.

    ``:class:`~module.X``` becomes ``X``. The search index holds the same content.
    """
    html = _ROLE.sub(r"\1", html)
    return _CELL.sub(lambda cell: _LONG.sub(breakable, cell[0]), html)


def breakable(code: re.Match[str]) -> str:
    """Return a name with optional line breaks after separators."""
    return re.sub(r"(?<=[/_:.])(?=\w)", "<wbr>", code[0])


def equation(latex: str) -> str:
    """Return HTML of equations, separated by ``\\qquad``, that are side by side if they fit."""
    parts = " ".join(latex.split()).split(r" \qquad ")
    return f'<div class="equation">{"".join(map(drawing, parts))}</div>\n'


def drawing(text: str) -> str:
    """Return an equation as an SVG path in the colour and size of the surrounding text."""
    path = TextPath((0, 0), f"${text}$", 1.0, prop=FontProperties(math_fontfamily="cm"))
    letters = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C"}
    drawn = "".join(
        "Z" if code == Outline.CLOSEPOLY else letters[code] + " ".join(f"{x:.3f}" for x in points)
        for points, code in path.iter_segments(simplify=False)
    )
    box = path.get_extents().padded(0.05)
    style = f"width: {box.width:.2f}em; height: {box.height:.2f}em"
    view = f"{box.x0:.3f} {-box.y1:.3f} {box.width:.3f} {box.height:.3f}"
    return (
        f'<svg role="img" aria-label="{html.escape(text)}" '
        f'viewBox="{view}" style="{style}" fill="currentColor">'
        f'<path transform="scale(1 -1)" d="{drawn}"/></svg>'
    )

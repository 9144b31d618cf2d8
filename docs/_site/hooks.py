"""What the site needs beyond Markdown that GitHub shows as well: equations, files, roles.

Read by mkdocs (see mkdocs.yml), which calls functions by their names.
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
    """Draw equations, which then need no font, and show files outside of the site as names."""
    text = _BLOCK.sub(lambda found: equation(found[1]), markdown)
    folder = (DOCS / page.file.src_uri).parent

    return _CODE_OR_LINK.sub(lambda found: named(found, folder), text)


def named(link: re.Match[str], folder: Path) -> str:
    """A link as it is, or the file's path in the repository where it lies outside of docs/."""
    if link[2] is None:
        return link[0]  # code
    target = (folder / link[2]).resolve()
    if target.is_relative_to(DOCS) or not target.exists():  # what is missing mkdocs tells
        return link[0]
    path = target.relative_to(DOCS.parent)
    return f"`{path}`" if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"


def on_page_content(html: str, **_: Any) -> str:
    """Shorten the cross-references of docstrings, and let long names in tables break.

    ``:class:`~module.X``` becomes ``X``. The search index holds the same content.
    """
    html = _ROLE.sub(r"\1", html)
    return _CELL.sub(lambda cell: _LONG.sub(breakable, cell[0]), html)


def breakable(code: re.Match[str]) -> str:
    """A name of code with places where a line may end."""
    return re.sub(r"(?<=[/_:.])(?=\w)", "<wbr>", code[0])


def equation(latex: str) -> str:
    """Equations, parted by wide spaces, as drawings that stand beside each other if they can."""
    parts = " ".join(latex.split()).split(r" \qquad ")
    return f'<div class="equation">{"".join(map(drawing, parts))}</div>\n'


def drawing(text: str) -> str:
    """An equation as one drawn path, in the colour and size of the text around it."""
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

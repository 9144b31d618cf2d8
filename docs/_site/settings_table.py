"""Tables of settings for the reference, read from the source files of their dataclasses.

A page has ``<!-- settings: headrace/nn/network.py Network -->`` where a table belongs. The sources
are parsed, not imported, because the environment that builds the site has no torch. mkdocs calls
``on_page_markdown`` (see mkdocs.yml).
"""

from __future__ import annotations

import ast
import html
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"^<!-- settings: (\S+) (\w+) -->$", re.MULTILINE)
_ALIASES = {  # types whose definition readers need not know
    "Actors": 'int | "auto"',
    "BatchSize": 'int | "auto" | None',
    "Engine": "auto | native | envpool | sync | async | threads",
    "InfoNames": "str | dict | None",
    "Layout": "auto | channels_first | channels_last",
    "PlayedBy": "str | dict",
    "Size": 'int | "auto"',
    "Torso": "Module | callable | str | None",
}
_CONSTANTS = {"AUTO": '"auto"', "SHARED": '"shared"'}
_SHARED = ROOT / "headrace/algos/common.py", "Hyperparameters"


class Setting(NamedTuple):
    """A field of a dataclass, as its source file defines it."""

    name: str
    kind: str
    default: str
    text: str


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with a table in place of each marker."""
    return MARKER.sub(lambda found: table(settings_of(ROOT / found[1], found[2])), markdown)


def table(settings: list[Setting]) -> str:
    """Return a Markdown table that the reader can filter (see settings.js)."""
    rows = [
        f"| {_code(one.name)} | {_code(one.kind)} | {_code(one.default)} | {_cell(one.text)} |"
        for one in settings
    ]
    head = "| setting | type | default | meaning |\n|---|---|---|---|"
    return "\n".join(['<div class="settings" markdown>', "", head, *rows, "", "</div>"])


def settings_of(file: Path, name: str) -> list[Setting]:
    """Return the fields of a class; an algorithm's texts may come from the shared settings."""
    shared = {one.name: one for one in _fields(*_SHARED)}
    return [
        one if one.text or one.name not in shared else one._replace(text=shared[one.name].text)
        for one in _fields(file, name)
    ]


def _fields(file: Path, name: str) -> Iterator[Setting]:
    module = ast.parse(file.read_text(encoding="utf-8"))
    (kind,) = (x for x in module.body if isinstance(x, ast.ClassDef) and x.name == name)
    for field, after in itertools.pairwise([*kind.body, ast.Pass()]):
        match field:
            case ast.AnnAssign(target=ast.Name(id=setting), annotation=kind_of, value=ast.expr()):
                shown = ast.unparse(kind_of)
                if "Suppress" not in shown and not shown.startswith("ClassVar"):
                    yield Setting(setting, _type(kind_of), _default(field.value), _text(after))


def _text(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def _type(annotation: ast.expr) -> str:
    """Return an annotation without the ranges of ``Annotated[type, …]``."""
    while isinstance(annotation, ast.Subscript) and _is_annotated(annotation):
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    text = ast.unparse(annotation)
    inner = re.compile(r"Annotated\[([^,\[\]]+), [^\[\]]*\]")
    while inner.search(text):
        text = inner.sub(r"\1", text)
    choices = re.match(r"Literal\[(.*?)\]( \| None)?$", text)
    if choices:
        return choices[1].replace("'", "").replace(", ", " | ") + (choices[2] or "")
    return _ALIASES.get(text, text)


def _is_annotated(annotation: ast.Subscript) -> bool:
    return isinstance(annotation.value, ast.Name) and annotation.value.id == "Annotated"


def _default(value: ast.expr | None) -> str:
    assert value is not None
    text = ast.unparse(value)
    made = re.match(r"field\(default_factory=(\w+)\)$", text)
    if made:
        return f"{made[1]}()" if made[1][0].isupper() else {"dict": "{}"}[made[1]]
    return _CONSTANTS.get(text, text.replace("'", '"'))


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False)}</code>".replace("|", "&#124;")


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")

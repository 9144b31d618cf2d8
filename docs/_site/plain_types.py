"""Griffe extension that shows ``Annotated[int, SIZE]`` as ``int`` in the reference.

Griffe reads the sources for mkdocstrings (see mkdocs.yml).
"""

from __future__ import annotations

from typing import Any

import griffe


class PlainTypes(griffe.Extension):
    """Simplifies the annotations of each attribute and function that griffe reads."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = plain(attr.annotation)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)


def plain(annotation: Any) -> Any:
    """Return an annotation with each ``Annotated[type, …]`` in it replaced by ``type``."""
    if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_name == "Annotated":
        inside = annotation.slice
        return plain(inside.elements[0] if isinstance(inside, griffe.ExprTuple) else inside)
    if isinstance(annotation, griffe.ExprSubscript):
        annotation.slice = plain(annotation.slice)
    if isinstance(annotation, griffe.ExprTuple):
        annotation.elements = [plain(one) for one in annotation.elements]
    return annotation

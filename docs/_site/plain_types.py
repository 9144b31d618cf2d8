"""Types without what headrace's own checks add to them: ``Annotated[int, SIZE]`` is shown as int.

An extension of griffe, which reads the sources for mkdocstrings (see mkdocs.yml).
"""

from __future__ import annotations

from typing import Any

import griffe


class PlainTypes(griffe.Extension):
    """Called for each attribute and function that is read."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = plain(attr.annotation)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)


def plain(annotation: Any) -> Any:
    """The type that ``Annotated[type, …]`` is of, also in a union or another one."""
    if isinstance(annotation, griffe.ExprSubscript) and annotation.canonical_name == "Annotated":
        inside = annotation.slice
        return plain(inside.elements[0] if isinstance(inside, griffe.ExprTuple) else inside)
    if isinstance(annotation, griffe.ExprSubscript):
        annotation.slice = plain(annotation.slice)
    if isinstance(annotation, griffe.ExprTuple):
        annotation.elements = [plain(one) for one in annotation.elements]
    return annotation

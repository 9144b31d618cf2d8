"""Command-line syntax of structured settings, as annotations."""

from __future__ import annotations

import json
from typing import Any

import tyro

from headrace.errors import shown


def _from_json(arguments: list[str]) -> Any:
    try:
        return json.loads(arguments[0])
    except (ValueError, RecursionError) as error:
        text = shown(arguments[0])
        raise ValueError(f'{text} is not valid JSON, such as {{"name": 1}}: {error}') from None


IDS = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="ID,ID…",
    instance_from_str=lambda arguments: tuple(arguments[0].split(",")),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda values: [",".join(map(str, values))],
)

JSON = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="NAME=VALUE…|JSON",
    instance_from_str=_from_json,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda values: [json.dumps(values)],
)

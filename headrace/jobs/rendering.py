"""Renders job scripts and manifests from the files in ``templates/``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, shown

_TEMPLATES = Path(__file__).with_name("templates")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PLAIN = re.compile(r"[\w./:,=+@%*\[\]-]*", re.ASCII)  # sbatch accepts these characters unquoted


def rendered(template: str, **values: Any) -> str:
    """Return a template with these values; a value that it lacks raises an error."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"sbatch": _quoted_for_sbatch, "sh": _quoted_for_shell, "json": _to_json}
    return environment.get_template(template).render(values)


def _quoted_for_sbatch(value: Any) -> str:
    """Quote an option's value for sbatch, which has its own quoting, escapes and comments."""
    text = str(value)
    check_one_line("a name", text)
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _quoted_for_shell(value: Any) -> str:
    check_one_line("a name", str(value))
    return shlex.quote(str(value))


def check_one_line(what: str, text: str) -> None:
    """Raise ConfigError if text for a script or manifest has control characters."""
    if _CONTROL.search(text):
        raise ConfigError(
            f"{what} for the job must not contain line breaks or other control characters: "
            f"{shown(text)}"
        )


def _to_json(value: Any) -> str:
    """Return JSON, which YAML contains; without escapes for pairs of surrogates, which it lacks."""
    return json.dumps(value, ensure_ascii=False)

"""Parses the first word of a command: a subcommand, an algorithm or a study."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import ConfigError, nearest
from headrace.validation import aliases

_HELP = {"-h", "--help"}
_ALONE = ("--help", "--version")
_EXAMPLE = "appo"  # the algorithm in examples


def chosen(
    prog: str, what: str, argv: list[str], choices: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Return the first argument, one of the choices, and the remaining arguments.

    Args:
        prog: what comes before it, for messages. what: is chosen, with its article.
        choices: by name, in lower case; their docstrings are shown by ``--help``.

    Raises:
        ConfigError: there is none, it is unknown, or a flag comes before it.
        SystemExit: help was asked for and shown.
    """
    first, names, asks = argv[0] if argv else "", ", ".join(choices), prog.split()[-1]
    if first.lower() in choices:
        return first.lower(), argv[1:]
    if not first:
        raise ConfigError(f"{asks} needs {what}: {names} ({prog} --help says more)")
    if not first.startswith("-"):
        raise ConfigError(_unknown(first, asks, what, choices))
    if not {*_HELP, "--help-all"} & set(argv):
        default = _EXAMPLE if _EXAMPLE in choices else next(iter(choices))
        name = next((word for word in argv if word in choices), default)
        rest = [word for word in argv if word not in (name, "--algo", "--algorithm")]
        similar = [flag for flag in _ALONE if flag[:3] == first[:3]]
        raise ConfigError(
            f"{asks} needs {what} before its flags: {names}. For example: "
            f"{shlex.join([*prog.split(), name, *rest])}.{nearest(first, similar)}"
        )
    import tyro

    shown: dict[str, Callable[..., Any]] = {name: _shown(one) for name, one in choices.items()}
    description = f"{what.capitalize()} comes first; its own --help lists what follows it."
    tyro.extras.subcommand_cli_from_dict(shown, prog=prog, description=description, args=["--help"])
    raise SystemExit(2)


def _unknown(word: str, asks: str, what: str, choices: Mapping[str, Any]) -> str:
    """Build the error message for a word that isn't a choice."""
    words = f"{word!r} is not {what} of {asks}; choose {', '.join(choices)}"
    if what == "an algorithm":
        words += ", or name a custom one as module:Class or file.py:Class"
    near = "" if aliases.is_other_algorithm(word) else nearest(word.lower(), choices)
    return f"{words}.{near}"


def _shown(choice: Any) -> Callable[[], None]:
    """Return a command without arguments with a choice's description."""

    def command() -> None: ...

    text = choice if isinstance(choice, str) else inspect.getdoc(choice) or ""
    command.__doc__ = text.split("\n\n")[0]
    return command

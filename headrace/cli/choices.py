"""The word that says what to do: a command, an algorithm, a study."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import ConfigError, nearest


def chosen(
    prog: str, what: str, argv: list[str], choices: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """The first argument, which is one of the choices, and all others.

    Args:
        prog: what comes before it, for messages. what: is chosen, with its article.
        choices: by name; their docstrings are shown by ``--help``.

    Raises:
        ConfigError: there is none, or it is unknown; the message names the nearest.
        SystemExit: help was asked for and shown, or it is a flag, which comes behind the choice.
    """
    first, names, asks = argv[0] if argv else "", ", ".join(choices), prog.split()[-1]
    if first in choices:
        return first, argv[1:]
    if not first:
        raise ConfigError(f"{asks} needs {what}: {names} ({prog} --help says more)")
    if not first.startswith("-"):
        kind = what.split(" ", 1)[1]
        raise ConfigError(
            f"{first!r} is no {kind} of {asks}; choose {names}.{nearest(first.lower(), choices)}"
        )
    import tyro

    shown: dict[str, Callable[..., Any]] = {name: _shown(one) for name, one in choices.items()}
    description = f"{what.capitalize()} comes first; its own --help lists what follows it."
    tyro.extras.subcommand_cli_from_dict(shown, prog=prog, description=description, args=argv)
    raise SystemExit(2)


def _shown(choice: Any) -> Callable[[], None]:
    """A command without arguments that has this one's description."""

    def command() -> None: ...

    text = choice if isinstance(choice, str) else inspect.getdoc(choice) or ""
    command.__doc__ = text.split("\n\n")[0]
    return command

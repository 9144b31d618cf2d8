"""``headrace completion SHELL``: completion scripts for commands, algorithms and flags.

The words are those of each command's own ``--help``, so that there is no other list of them. They
are all in the script: a key that is pressed starts no Python.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from headrace.errors import ConfigError

_COLUMNS = "100"  # of the help that is read: narrow enough for one column of flags
_ROW = re.compile(r"^[│ ] {1,2}(--\S.*?)(?: {2}|$)", re.MULTILINE)  # its frame may be left out
_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")
_HELP_OF = {"train": "--help-all"}  # commands whose --help omits flags
_CHOICES = re.compile(r"(--[a-z0-9-]+) (?:\{None\}\|)?\{([^}\s]+)\}")


Command: TypeAlias = Callable[[list[str]], int]


class Completions(NamedTuple):
    """Words that can follow each command, and values of flags."""

    after: dict[str, list[str]]  # by what stands before: "train appo" and its flags
    values: dict[str, list[str]]  # of flags that have few, of any command


def words_of(commands: Mapping[str, Command], groups: Mapping[str, Sequence[str]]) -> Completions:
    """Collect all words of the command line.

    Args:
        commands: all that have flags, by name; called with what stands behind the name.
        groups: the second words of commands that have some.
    """
    after, values = dict[str, list[str]](), dict[str, dict[str, None]]()
    for name, command in commands.items():
        for second in groups.get(name, [""]):
            rows = _ROW.findall(_help(command, [*second.split(), _HELP_OF.get(name, "--help")]))
            flags = [flag for row in rows for flag in _FLAG.findall(row)]
            flags += [_HELP_OF[name]] if name in _HELP_OF else []
            after[f"{name} {second}".rstrip()] = [*dict.fromkeys([*flags, "--help"])]
            for flag, given in _CHOICES.findall("\n".join(rows)):
                values.setdefault(flag, {}).update(dict.fromkeys(given.split(",")))
    after |= {name: list(words) for name, words in groups.items()}
    known = {flag: [v for v in given if v != "None"] for flag, given in values.items()}
    return Completions(after, {flag: given for flag, given in known.items() if given})


def script(shell: str, words: Completions) -> str:
    """Build the completion script for bash, zsh or fish."""
    return _fish(words) if shell == "fish" else _bash(words, shell == "zsh")


def _help(command: Command, words: list[str]) -> str:
    """Return what a command prints for these arguments, which ask for help.

    The result is empty for commands whose optional packages aren't installed.
    """
    shown, ends = io.StringIO(), (SystemExit, ConfigError)
    with _columns(), contextlib.redirect_stdout(shown), contextlib.suppress(*ends):
        command(words)
    return shown.getvalue()


@contextlib.contextmanager
def _columns() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _bash(words: Completions, is_zsh: bool) -> str:
    groups = "|".join(dict.fromkeys(path.split()[0] for path in words.after if " " in path))
    cases = [f'    "{path}") words="{" ".join(some)}" ;;' for path, some in words.after.items()]
    values = [f'    {flag}) words="{" ".join(some)}" ;;' for flag, some in words.values.items()]
    lines = [
        *(["autoload -U +X bashcompinit && bashcompinit"] if is_zsh else []),
        "_headrace() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local path="" words=""',
        '  if [ "$COMP_CWORD" -gt 1 ]; then path="${COMP_WORDS[1]}"; fi',
        f'  case "$path" in {groups})',
        '    if [ "$COMP_CWORD" -gt 2 ]; then path="$path ${COMP_WORDS[2]}"; fi ;;',
        "  esac",
        '  case "$path" in',
        *cases,
        "  esac",
        '  case "$before" in',
        *values,
        "  esac",
        '  COMPREPLY=( $(compgen -W "$words" -- "$cur") )',
        "}",
        "complete -o default -F _headrace headrace",
    ]
    return "\n".join(lines) + "\n"


def _fish(words: Completions) -> str:
    lines = []
    for path, some in words.after.items():
        seen = [f"__fish_seen_subcommand_from {word}" for word in path.split()]
        plain = " ".join(word for word in some if not word.startswith("--"))
        if plain:
            when = "; and ".join([*seen, f"not __fish_seen_subcommand_from {plain}"])
            lines.append(f"complete -c headrace -f -n '{when}' -a '{plain}'")
        for flag in (word for word in some if word.startswith("--")):
            given = words.values.get(flag)
            takes = f" -x -a '{' '.join(given)}'" if given else ""
            when = "; and ".join(seen) or "__fish_use_subcommand"
            lines.append(f"complete -c headrace -n '{when}' -l {flag[2:]}{takes}")
    return "\n".join(lines) + "\n"

"""The command line: ``headrace COMMAND``; the commands are in ``cli/commands.py``.

Nothing here imports torch before it is known that a command will train: what it waits for most is
that import, and a process that does it too can be started before.
"""

from __future__ import annotations

import sys

import headrace
from headrace.cli.choices import chosen
from headrace.cli.commands import COMMANDS
from headrace.cli.import_path import import_from_here
from headrace.errors import HeadraceError, bounded, in_flags
from headrace.processes.ctrl_c import ends_in_one_line
from headrace.processes.output import ends_with_its_reader, print_to_stderr
from headrace.processes.terminal_text import printable, printable_output


@ends_in_one_line
@ends_with_its_reader
def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Raises:
        SystemExit: help was shown (0), or tyro told what is wrong with an argument (2).
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments in (["--version"], ["-V"], ["-v"]):
        print(f"headrace {headrace.__version__}")
        return 0
    try:
        name, rest = chosen("headrace", "a command", arguments, COMMANDS)
        if name in (
            "plan",
            "bench",
            "sweep",
            "pbt",
        ):  # others decide when they know what a run names
            import_from_here()
        with in_flags(), printable_output():
            return COMMANDS[name](rest)
    except HeadraceError as error:
        print_to_stderr(printable(bounded(str(error), 50_000)))
        return 2

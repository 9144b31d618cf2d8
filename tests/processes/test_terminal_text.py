"""Untrusted names can't control the terminal."""

from __future__ import annotations

import io
import sys

import pytest

from headrace.cli import main
from headrace.processes.terminal_text import PrintableStream, printable, printable_output

EVIL = "\x1b]0;pwned\x07\x1b[2J"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain text, ü and 漢\n\tlines", "plain text, ü and 漢\n\tlines"),
        (EVIL, r"\x1b]0;pwned\x07\x1b[2J"),
        ("\x9b2J\r\x00\x7f", r"\x9b2J\r\x00\x7f"),
        ("a\u202eb\u2028c", r"a\u202eb\u2028c"),
    ],
)
def test_control_characters_are_printed_as_escapes(text, escaped):
    assert printable(text) == escaped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_only_what_rich_writes(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    file, terminal = io.StringIO(), Terminal()
    for stream in (file, terminal):
        PrintableStream(stream).write(f"\x1b[1mbold\x1b[0m\r\x1b[2K{EVIL}\n")
    assert file.getvalue() == (r"\x1b[1mbold\x1b[0m\r\x1b[2K\x1b]0;pwned\x07\x1b[2J" + "\n")
    assert terminal.getvalue() == (
        "\x1b[1mbold\x1b[0m\r\x1b[2K" + r"\x1b]0;pwned\x07\x1b[2J" + "\n"
    )


def test_streams_are_restored(capsys):
    before = sys.stdout, sys.stderr
    with printable_output():
        print(EVIL)
        print(EVIL, file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before
    assert "\x1b" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("command", ["report", "doctor", "score", "evaluate", "resume", "play"])
def test_commands_print_no_escapes(command, tmp_path, capsys):
    assert main([command, str(tmp_path / EVIL)]) == 2
    out = "".join(capsys.readouterr())
    assert "\x1b" not in out
    assert "pwned" in out

"""Completion of commands in a shell knows the words of their help."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from patience import PATIENCE_S

from headrace.algos import NAMES
from headrace.cli import completion, main
from headrace.cli.commands import COMMANDS, SCHEDULERS
from headrace.cli.completion import Completions, words_of
from headrace.errors import ConfigError

HELP = """usage: headrace fly
│ --env STR, --env-id STR    │ A name, as in --no-flag. │
│ --engine {None}|{auto,native}  How it is made.
  --seed INT                 (default: 0)
          --not-a-flag, within an explanation
  --trust, --no-trust
"""


def test_words_are_read_from_help_in_and_out_of_a_frame():
    def fly(argv):
        assert argv[-1] == "--help"
        print(HELP)
        raise SystemExit(0)

    words = words_of({"fly": fly}, {"fly": ["low", "high"]})
    flags = ["--env", "--env-id", "--engine", "--seed", "--trust", "--no-trust", "--help"]
    assert words.after == {"fly low": flags, "fly high": flags, "fly": ["low", "high"]}
    assert words.values == {"--engine": ["auto", "native"]}


def test_a_command_whose_package_is_missing_leaves_the_others_complete():
    def needs_package(argv):
        raise ConfigError("headrace plan needs simpy")

    def fly(argv):
        print(HELP)

    words = words_of({"plan": needs_package, "fly": fly}, {})
    assert words.after["plan"] == ["--help"]
    assert "--seed" in words.after["fly"]


@pytest.fixture(scope="module")
def words():
    """Return the help of fast commands and of one algorithm."""
    some = {name: COMMANDS[name] for name in ("train", "evaluate", "launch")}
    found = words_of(some, {"train": ["ppo"], "launch": list(SCHEDULERS)})
    found.after["train"], found.after[""] = NAMES, [*COMMANDS, "--version"]
    return found


def completed(shell: str, words: Completions, *line: str) -> set[str]:
    """Return what a shell offers for the last word of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    text = completion.script(shell, words)
    if shell == "fish":
        text += f"\ncomplete -C '{' '.join(line)}'\n"
        command = ["fish", "--no-config", "-c", text]
    else:
        text += 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _headrace\n'
        text += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
        command = [shell, "--norc", "-c", text, "bash", *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return {row.split("\t")[0] for row in done.stdout.splitlines() if row}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_algorithms_flags_and_values_are_completed(shell, words):
    assert completed(shell, words, "headrace", "tr") == {"train"}
    assert completed(shell, words, "headrace", "train", "i") == {"impala", "impact"}
    assert completed(shell, words, "headrace", "launch", "") >= set(SCHEDULERS)
    offered = completed(shell, words, "headrace", "train", "ppo", "--num-")
    assert offered >= {"--num-actors", "--num-learners"}
    assert all(word.startswith("--num-") for word in offered)
    assert completed(shell, words, "headrace", "evaluate", "runs/x", "--wh") == {"--which"}
    transports = completed(shell, words, "headrace", "train", "ppo", "--transport", "")
    assert transports == {"shm", "serial"}


IN_A_TERMINAL = """
zmodload zsh/zpty
zpty -b it "zsh -f -i"
zpty -w it "autoload -U compinit; compinit -u -D; source $1; print RE''ADY"
zpty -r it seen '*READY*'
zpty -w -n it "headrace train ppo --transport "$'\\t\\t'
zpty -r it seen '*serial*shm*' && print -r -- "$seen"
zpty -d it
"""


def test_zsh_completes_in_a_terminal(words, tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("needs zsh")
    (tmp_path / "completion").write_text(completion.script("zsh", words))
    command = ["zsh", "-f", "-c", IN_A_TERMINAL, "zsh", str(tmp_path / "completion")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "serial" in done.stdout
    assert "shm" in done.stdout


def test_zsh_takes_what_bash_does_and_other_shells_are_refused(words, capsys):
    zsh = completion.script("zsh", words)
    assert zsh.startswith("autoload -U +X bashcompinit && bashcompinit\n_headrace() {\n")
    assert zsh.split("\n", 1)[1] == completion.script("bash", words)
    assert main(["completion", "tcsh"]) == 2
    assert "choose bash, zsh, fish" in capsys.readouterr().err
    assert main(["completion", "bash", "now"]) == 2

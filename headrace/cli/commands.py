"""The commands; each takes the arguments after its name and returns the exit status."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace import extras
from headrace.algos import NAMES, installed
from headrace.cli.choices import chosen
from headrace.errors import ConfigError, require

SCHEDULERS = {
    "slurm": "On the nodes of a job of SLURM.",
    "k8s": "In pods of a Kubernetes cluster that has KubeRay's operator.",
}
SHELLS = {
    "bash": "For ~/.local/share/bash-completion/completions/headrace.",
    "zsh": "For a file that ~/.zshrc sources behind compinit.",
    "fish": "For ~/.config/fish/completions/headrace.fish.",
}
_HELP = {"-h", "--help"}
_HELP_ALL = "--help-all"  # of train, whose --help shows the most common flags
STUDIES = {
    "scaling": "Measure the speedup of several learners on this machine.",
    "aaps": "Measure how many weight fetches adaptive synchronisation saves.",
}


def train(argv: list[str]) -> int:
    """Train an algorithm on an environment."""
    name, rest = _algorithm(argv)
    if name in NAMES and len(rest) == 1 and rest[0] in _HELP:
        from headrace.cli.short_help import short_help

        print(short_help(name))
        return 0
    rest = ["--help" if word == _HELP_ALL else word for word in rest]
    _begin_imports(rest)
    with _no_collections():
        from headrace.cli.training import train as of_algorithm

    of_algorithm(name, rest)
    return 0


def resume(argv: list[str]) -> int:
    """Continue a run from its latest checkpoint, with its settings except those that are given."""
    if not argv or (argv[0].startswith("-") and argv[0] not in _HELP):
        raise ConfigError("headrace resume needs a run directory first: headrace resume RUN …")
    _begin_imports(argv)
    with _no_collections():
        from headrace.cli.training import resume as of_run

    of_run(argv[0], argv[1:])
    return 0


def evaluate(argv: list[str]) -> int:
    """Play episodes with the policy of a run."""
    return _by_signature("evaluate", argv)


def play(argv: list[str]) -> int:
    """Watch a trained policy that comes with headrace, or that of a run."""
    return _by_signature("play", argv)


def plot(argv: list[str]) -> int:
    """Draw learning curves of runs."""
    return _by_signature("plot", argv)


def report(argv: list[str]) -> int:
    """Write one HTML file about one or several runs."""
    return _by_signature("report", argv)


def watch(argv: list[str]) -> int:
    """Show a running training in a browser or in the terminal."""
    return _by_signature("watch", argv)


def doctor(argv: list[str]) -> int:
    """Find problems of runs, and settings that usually fix them."""
    return _by_signature("doctor", argv)


def plan(argv: list[str]) -> int:
    """Predict a run's speed and bottleneck, and what would help."""
    extras.require("headrace plan", "studies", "simpy", "matplotlib")
    from headrace.studies.plan.command import main

    return main(argv)


def bench(argv: list[str]) -> int:
    """Measure scaling over learners, or adaptive weight synchronisation, on this machine."""
    study, rest = chosen("headrace bench", "a study", argv, STUDIES)
    extras.require(f"headrace bench {study}", "studies", "scipy", "matplotlib")
    if study == "scaling":
        from headrace.studies.scaling.command import main
    else:
        from headrace.studies.aaps.command import main
    return main(rest)


def sweep(argv: list[str]) -> int:
    """Train with sampled settings, several at a time, and rank them."""
    extras.require("headrace sweep", "sweep", "optuna", "matplotlib")
    from headrace.studies.sweep.command import main

    return main(argv)


def pbt(argv: list[str]) -> int:
    """Train a population whose members copy better ones and change their settings a little."""
    extras.require("headrace pbt", "studies", "matplotlib")
    from headrace.studies.pbt.command import main

    return main(argv)


def score(argv: list[str]) -> int:
    """Compute normalised and capped scores of runs over a suite of tasks."""
    return _by_signature("score", argv)


def references(argv: list[str]) -> int:
    """Measure random and expert scores, which normalise other scores."""
    return _by_signature("references", argv)


def league(argv: list[str]) -> int:
    """Rate the snapshots of a league, plot their pay-offs, and play games between them."""
    if not _HELP & set(argv):
        extras.require("headrace league", "studies", "scipy", "matplotlib")
    return _by_signature("league", argv)


def launch(argv: list[str]) -> int:
    """Run a command on a cluster: slurm, k8s."""
    scheduler, rest = chosen("headrace launch", "a scheduler", argv, SCHEDULERS)
    from headrace.cli.launch import LAUNCH

    return LAUNCH[scheduler](rest)


def completion(argv: list[str]) -> int:
    """Print the completion script of a shell: bash, zsh, fish."""
    shell, rest = chosen("headrace completion", "a shell", argv, SHELLS)
    require(not rest, "arguments", " ".join(rest), "left out: the shell is all that is asked for")
    from headrace.cli.completion import script, words_of

    groups = {
        "train": NAMES,
        "bench": list(STUDIES),
        "launch": list(SCHEDULERS),
        "completion": list(SHELLS),
    }
    others = {name: one for name, one in COMMANDS.items() if name != "completion"}
    words = words_of(others, groups)
    words.after[""] = [*COMMANDS, "--help", "--version"]
    print(script(shell, words), end="")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    one.__name__: one
    for one in (
        *(train, resume, evaluate, play, plot, report, watch, doctor, plan, bench, sweep, pbt),
        *(league, score, references, launch, completion),
    )
}


def _algorithm(argv: list[str]) -> tuple[str, list[str]]:
    """Return the algorithm named first, built-in or custom, and the other arguments."""
    if argv and not argv[0].startswith("-") and (":" in argv[0] or argv[0].endswith(".py")):
        return argv[0], argv[1:]
    offered = {name: f"From {point.value}." for name, point in installed().items()}
    if argv and argv[0] in offered:
        return argv[0], argv[1:]
    choices = {**{name: _doc(name) for name in NAMES}, **offered}
    return chosen("headrace train", "an algorithm", argv, choices)


def _doc(algorithm: str) -> str:
    """Return the docstring of an algorithm's file, without importing it."""
    spec = importlib.util.find_spec(f"headrace.algos.{algorithm}")
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def _begin_imports(argv: list[str]) -> None:
    """Start the process that actors are forked from, which imports torch while this one does."""
    if not (_HELP | {"serial"}) & set(argv):
        from headrace.actors.fleet import start_fork_server

        start_fork_server()


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Import inside the block without garbage collections, which take a fifth of the time.

    What was imported is left out of later collections. That also saves the half second which the
    last one takes, when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _by_signature(name: str, argv: list[str]) -> int:
    """Call the function of this name, whose signature defines the command's arguments."""
    import tyro

    from headrace.cli import signatures
    from headrace.validation.flag_rewrites import flags_of, rewritten

    function = getattr(signatures, name)
    argv = rewritten(argv, flags_of(function)).argv
    config: Any = (tyro.conf.PositionalRequiredArgs,)
    tyro.cli(function, prog=f"headrace {name}", args=argv, config=config)
    return 0

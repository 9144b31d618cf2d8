"""The commands; each takes the arguments behind its name and returns the exit status."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.algos import NAMES
from headrace.cli.choices import chosen
from headrace.errors import ConfigError

SCHEDULERS = {
    "slurm": "On the nodes of a job of SLURM.",
    "k8s": "In pods of a Kubernetes cluster that has KubeRay's operator.",
}
_HELP = {"-h", "--help"}
STUDIES = {
    "scaling": "What more learners bring on this machine.",
    "aaps": "What fetching weights on drift only saves.",
}


def train(argv: list[str]) -> int:
    """Train an algorithm on an environment."""
    name, rest = chosen("headrace train", "an algorithm", argv, {n: _doc(n) for n in NAMES})
    _begin_imports(rest)
    from headrace.cli.training import train as of_algorithm

    of_algorithm(name, rest)
    return 0


def resume(argv: list[str]) -> int:
    """Continue a run from its latest checkpoint, with its settings but for those that are named."""
    if not argv or (argv[0].startswith("-") and argv[0] not in _HELP):
        raise ConfigError("headrace resume needs a run directory first: headrace resume RUN …")
    _begin_imports(argv)
    from headrace.cli.training import resume as of_run

    of_run(argv[0], argv[1:])
    return 0


def evaluate(argv: list[str]) -> int:
    """Play episodes with the policy of a run."""
    return _by_signature(_evaluate, "evaluate", argv)


def plot(argv: list[str]) -> int:
    """Draw learning curves of runs."""
    return _by_signature(_plot, "plot", argv)


def plan(argv: list[str]) -> int:
    """Say how fast a run will be, who its bottleneck is, and what would help."""
    from headrace.studies.plan.command import main

    return main(argv)


def bench(argv: list[str]) -> int:
    """Measure what headrace brings on this machine: scaling, aaps."""
    study, rest = chosen("headrace bench", "a study", argv, STUDIES)
    if study == "scaling":
        from headrace.studies.scaling.command import main
    else:
        from headrace.studies.aaps.command import main
    return main(rest)


def launch(argv: list[str]) -> int:
    """Run a command on nodes that a scheduler gives: slurm, k8s."""
    scheduler, rest = chosen("headrace launch", "a scheduler", argv, SCHEDULERS)
    from headrace.cli.launch import LAUNCH

    return LAUNCH[scheduler](rest)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    one.__name__: one for one in (train, resume, evaluate, plot, plan, bench, launch)
}


def _doc(algorithm: str) -> str:
    """What an algorithm's file says of itself; it isn't imported."""
    spec = importlib.util.find_spec(f"headrace.algos.{algorithm}")
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def _begin_imports(argv: list[str]) -> None:
    """Let the process that actors are forked from import torch beside this one."""
    if not (_HELP | {"serial"}) & set(argv):
        from headrace.acting.fleet import start_fork_server

        start_fork_server()


# -- commands whose arguments and help tyro takes from the signature ------------------------------


def _by_signature(function: Callable[..., None], name: str, argv: list[str]) -> int:
    import tyro

    config: Any = (tyro.conf.PositionalRequiredArgs,)
    tyro.cli(function, prog=f"headrace {name}", args=argv, config=config)
    return 0


def _evaluate(
    run_dir: str,
    episodes: int | None = None,
    seed: int = 1_000_000,
    which: str = "latest",
    json: bool = False,
    video: str | None = None,
    trust: bool = False,
) -> None:
    """Play episodes with the policy of a run, as its settings for evaluations say.

    Args:
        run_dir: a run directory or checkpoint folder.
        episodes: how many; None: as many as the run's evaluations have (20 where it has none).
        seed: of the environments.
        which: latest or best.
        json: print one line of JSON.
        video: folder for episode.mp4, one episode.
        trust: import the code that the run names, though you haven't named it on this machine.
    """
    from headrace.api import load
    from headrace.cli.here import import_from_here_if_named
    from headrace.evaluation import evaluate
    from headrace.records import checkpoint, recall
    from headrace.records.video import record_video

    folder = checkpoint.find(run_dir, which)
    values = checkpoint.read_config(folder)
    config = values["config"]
    recall.check(folder, values, trust)
    import_from_here_if_named(config)
    env = recall.environment(folder, values, trust)
    policy = load(run_dir, which, trust=trust)
    kwargs = config["env_kwargs"] | config.get("eval_env_kwargs", {})
    deterministic = config.get("eval_deterministic", True)
    result = evaluate(
        policy,
        env,
        (config["eval_episodes"] or 20) if episodes is None else episodes,
        seed,
        config["engine"],
        env_kwargs=kwargs,
        deterministic=deterministic,
    )
    if json:
        print(result.to_json())
    else:
        normalized = result.human_normalized
        human = "" if normalized is None else f", human-normalised {normalized:.1%}"
        print(
            f"{result.episodes} episodes: return {result.mean:.2f} ± {result.std:.2f} "
            f"(standard deviation over episodes; min {result.min:.2f}, max {result.max:.2f}), "
            f"length {result.mean_length:.1f}{human}"
        )
    if video is not None:
        path = record_video(policy, env, Path(video), seed, kwargs, config["engine"], deterministic)
        print(f"video: {path}", file=sys.stderr)


def _plot(runs: list[Path], output: Path | None = None) -> None:
    """Draw learning curves of runs.

    Args:
        runs: run directories.
        output: the PNG to write; curve.png in the first run by default.
    """
    from headrace.records.plot import plot

    print(f"picture: {plot(runs, output)}")

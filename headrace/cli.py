"""The command line: ``headrace train|resume|evaluate|plot|plan|bench``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.algos import NAMES

USAGE = f"""\
usage: headrace COMMAND …

  train ALGORITHM [--recipe NAME] [--env-id ID] …   {", ".join(NAMES)} (--help)
  resume RUN [--total-steps N] …                    continue a run from its latest checkpoint
  evaluate RUN [--episodes N] [--json] [--video DIR]
  plot RUN [RUN …] [--output PNG]                   draw learning curves
  plan [ALGORITHM] [--measure ENV] [--simulate] …   how fast a run will be, and what would help
  bench scaling [ALGORITHM] [--world-sizes 1,2] …   what more learners bring on this machine
  bench aaps [--preset machine|paper] …             what fetching weights on drift only saves
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # "my_module:MyEnv-v0" beside the user, as python -m does
    commands = {"train": _train, "plan": _plan, "bench": _bench}
    signatures: dict[str, Callable[..., None]]
    signatures = {"resume": _resume, "evaluate": _evaluate, "plot": _plot}
    if name not in commands | signatures:
        known = name in ("-h", "--help")
        print(USAGE, end="", file=sys.stdout if known else sys.stderr)
        return 0 if known else 2
    if name in ("train", "resume") and not {"-h", "--help", "serial"} & set(rest):
        from headrace.acting.fleet import start_fork_server

        start_fork_server()  # imports torch beside this process
    from headrace.errors import HeadraceError

    try:
        if name in commands:
            return commands[name](rest)
        import tyro

        config = (tyro.conf.PositionalRequiredArgs,)
        tyro.cli(signatures[name], prog=f"headrace {name}", args=rest, config=config)
        return 0
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2


def _train(argv: list[str]) -> int:
    import tyro

    from headrace.algos import ALGORITHMS
    from headrace.api import run
    from headrace.config import Config
    from headrace.errors import ConfigError, nearest
    from headrace.process import process_started
    from headrace.recipes import take_recipe

    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS)
        raise ConfigError(f"train needs an algorithm: {', '.join(ALGORITHMS)}; got {name!r}.{hint}")
    default, rest = take_recipe(argv[1:], name, Config(algo=ALGORITHMS[name]()))
    prog, config = f"headrace train {name}", (tyro.conf.OmitArgPrefixes,)
    settings = tyro.cli(type(default), prog=prog, args=rest, default=default, config=config)
    run(settings, started=process_started())
    return 0


def _plan(argv: list[str]) -> int:
    from headrace.studies.plan.command import main as plan

    return plan(argv)


def _bench(argv: list[str]) -> int:
    from headrace.errors import require_choice

    study = argv[0] if argv else "--help"
    if study in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    require_choice("bench", study, ("scaling", "aaps"))
    return int(importlib.import_module(f"headrace.studies.{study}.command").main(argv[1:]))


# -- commands whose arguments and help tyro takes from the signature ------------------------------


def _resume(
    run_dir: str,
    total_steps: int | None = None,
    stop_return: float | None = None,
    num_learners: int | None = None,
) -> None:
    """Continue a run from its latest checkpoint.

    Args:
        run_dir: the run directory.
        total_steps: a new number of environment steps after which training ends.
        stop_return: a new mean return that ends training.
        num_learners: a new number of learners.
    """
    from headrace.api import resume_config, run
    from headrace.launch.torchrun import torchrun_rendezvous
    from headrace.process import process_started

    met = torchrun_rendezvous()
    given = {
        "total_steps": total_steps,
        "stop_return": stop_return,
        "num_learners": num_learners or (met and met.size),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    run(resume_config(run_dir, **settings), started=process_started())


def _evaluate(
    run_dir: str,
    episodes: int = 20,
    seed: int = 1_000_000,
    which: str = "latest",
    json: bool = False,
    video: str | None = None,
) -> None:
    """Play episodes with the deterministic policy of a run.

    Args:
        run_dir: a run directory or checkpoint folder.
        episodes: how many.
        seed: of the environments.
        which: latest or best.
        json: print one line of JSON.
        video: folder for episode.mp4, one episode.
    """
    from headrace.api import load
    from headrace.evaluation import evaluate, record_video
    from headrace.records import checkpoint

    policy = load(run_dir, which)
    config = checkpoint.read_config(checkpoint.find(run_dir, which))["config"]
    env, kwargs = config["env"], config["env_kwargs"]
    result = evaluate(policy, env, episodes, seed, config["engine"], env_kwargs=kwargs)
    if json:
        print(result.to_json())
    else:
        print(
            f"{result.episodes} episodes: return {result.mean:.2f} ± {result.std:.2f} "
            f"(min {result.min:.2f}, max {result.max:.2f}), length {result.mean_length:.1f}"
        )
    if video is not None:
        path = record_video(policy, env, Path(video), seed, kwargs)
        print(f"video: {path}", file=sys.stderr)


def _plot(runs: list[Path], output: Path | None = None) -> None:
    """Draw learning curves of runs.

    Args:
        runs: run directories.
        output: the PNG to write; curve.png in the first run by default.
    """
    from headrace.records.plot import plot

    print(f"picture: {plot(runs, output)}")


if __name__ == "__main__":
    sys.exit(main())

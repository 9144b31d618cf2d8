"""Commands whose arguments and help come from the signatures of these functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.cli.reports import doctor, report, watch
from headrace.errors import ConfigError, require

if TYPE_CHECKING:
    from headrace.actors.episodes import Limits
    from headrace.envs.changes import EnvChange
    from headrace.evaluation import Evaluation
    from headrace.nn.multi_policy import AnyPolicy

    # seed, env_kwargs, engine, deterministic, limits and env_changes, as in record_video
    _How: TypeAlias = tuple[int, dict[str, Any], str, bool, Limits, list[EnvChange]]

__all__ = ["doctor", "evaluate", "league", "play", "plot", "references", "report", "score", "watch"]


def evaluate(
    run_dir: str,
    episodes: int | None = None,
    seed: int = 1_000_000,
    which: str = "latest",
    json: bool = False,
    video: str | None = None,
    max_steps: int | None = None,
    timeout_s: float | None = None,
    trust: bool = False,
) -> None:
    """Play episodes with the policy of a run, using its evaluation settings.

    Args:
        run_dir: run directory or checkpoint folder.
        episodes: number of episodes; None: as in the run's evaluations, or 20.
        seed: random seed of the environments.
        which: checkpoint to use: latest or best.
        json: print one line of JSON.
        video: folder for a video of one episode, episode.mp4. Each of several tasks gets its own
            subfolder.
        max_steps: limit of an episode's steps. Longer episodes count as unfinished. None: the run's
            eval_max_steps.
        timeout_s: time limit in seconds. Episodes still running then count as unfinished. None: the
            run's eval_timeout_s.
        trust: import code named by the run that you haven't named on this machine.
    """
    from headrace.actors.episodes import limits_of
    from headrace.api import load
    from headrace.cli.import_path import import_from_here_if_named
    from headrace.envs.names import Tasks
    from headrace.envs.probe import probe
    from headrace.rundir import checkpoint, resolve_imports

    folder = checkpoint.find(run_dir, which)
    values = checkpoint.read_config(folder)
    config = values["config"]
    resolve_imports.check(folder, values, trust)
    import_from_here_if_named(config)
    env = resolve_imports.environment(folder, values, trust)
    policy = load(run_dir, which, trust=trust)
    kwargs = config["env_kwargs"] | config.get("eval_env_kwargs", {})
    deterministic = config.get("eval_deterministic", True)
    limits = limits_of(config, max_steps, timeout_s)
    changes = checkpoint.eval_env_changes(folder, trust)
    how = seed, kwargs, config["engine"], deterministic, limits, changes
    if isinstance(env, Tasks):
        env = probe(env, config["engine"], kwargs, seed, looks_for_stacks=False).env
    count = (config["eval_episodes"] or 20) if episodes is None else episodes
    result = _evaluated(policy, env, count, config.get("info_metrics"), how)
    print(result.to_json() if json else "\n".join(_lines_of(result)))
    if video is not None:
        _record(policy, env, video, how)


def _evaluated(
    policy: AnyPolicy, env: Any, episodes: int, info_metrics: Any, how: _How
) -> Evaluation:
    """Evaluate a policy with the changes that its run made to evaluation environments."""
    from headrace.evaluation import evaluate

    seed, kwargs, engine, deterministic, limits, changes = how
    return evaluate(
        policy,
        env,
        episodes,
        seed,
        engine,
        env_kwargs=kwargs,
        deterministic=deterministic,
        info_metrics=info_metrics,
        env_changes=changes,
        max_steps=limits.max_steps,
        timeout_s=limits.timeout_s,
    )


def _record(policy: AnyPolicy, env: Any, folder: str, how: _How) -> None:
    """Record an episode of the environment, or of each task."""
    from headrace.envs.names import Tasks
    from headrace.rundir.video import record_video

    tasks = zip(env.names, env.envs, strict=True) if isinstance(env, Tasks) else [("", env)]
    videos = dict(tasks)
    for name, one in videos.items():
        try:
            path = record_video(policy, one, Path(folder, name.replace("/", "-")), *how)
        except ConfigError as error:
            if len(videos) == 1:
                raise
            print(f"headrace: {name}: {error}", file=sys.stderr)  # other tasks may be drawn
        else:
            print(f"video: {path}", file=sys.stderr)


def _lines_of(result: Evaluation) -> Iterator[str]:
    """Format an evaluation, and those of each task or agent, as lines of text."""
    parts = result.tasks or result.agents or {}
    each, *others = {one.episodes for one in parts.values()} or {result.episodes}
    kind = "tasks" if result.tasks else "agents"
    count = result.episodes if others else each
    cut = f", {result.unfinished} of which did not end" if result.unfinished else ""
    of = f" of {'' if others else 'each of '}{len(parts)} {kind}" if parts else ""
    yield (
        f"{count} episodes{of}{cut}: return {result.mean:.2f} ± {result.std:.2f} "
        f"(standard deviation over episodes; min {result.min:.2f}, max {result.max:.2f}), "
        f"length {result.mean_length:.1f}{_human(result)}"
    )
    for name, one in parts.items():
        of_it = f"return {one.mean:.2f} ± {one.std:.2f}, length {one.mean_length:.1f}"
        yield f"  {name}: {of_it}{_human(one)}"


def _human(result: Evaluation) -> str:
    score = result.human_normalized
    return "" if score is None else f", human-normalised {score:.1%}"


def play(
    what: str,
    episodes: int = 3,
    seed: int = 1_000_000,
    video: Path | None = None,
    max_steps: int | None = None,
    timeout_s: float | None = None,
    trust: bool = False,
) -> None:
    """Watch a trained policy in a window, or record a video if there is no display.

    Args:
        what: policy that comes with headrace, such as cartpole, or a run directory.
        episodes: number of episodes.
        seed: random seed of the environment.
        video: record one episode in this folder, without a window.
        max_steps: steps after which an episode is cut; None: the run's eval_max_steps.
        timeout_s: seconds after which an episode is cut; None: the run's eval_timeout_s.
        trust: import code named by the run that you haven't named on this machine.
    """
    from headrace.cli.import_path import import_from_here_if_named
    from headrace.processes.display import has_display
    from headrace.zoo.play import Player, checkpoint_of

    require(episodes >= 0, "episodes", episodes, "0 or more (nearest: 0)")
    folder = checkpoint_of(what)
    player = Player(folder, seed, trust, max_steps, timeout_s)
    import_from_here_if_named(player.config)
    window = video is None and has_display()
    if not window:
        try:
            print(f"video: {player.record(video or Path('plays', folder.name))}", file=sys.stderr)
        except ConfigError as error:  # what isn't drawn can still be played
            print(f"headrace: {error}", file=sys.stderr)
    for returns, steps in player.episodes(episodes, window):
        values = ", ".join(f"{agent} {value:.2f}".strip() for agent, value in returns.items())
        noun = "return" if len(returns) == 1 else "returns"
        print(f"{noun} {values} after {steps} steps", flush=True)


def plot(runs: list[Path], output: Path | None = None, metrics: tuple[str, ...] = ()) -> None:
    """Draw learning curves of runs.

    Runs that differ only in their seed are one curve: the interquartile mean with its 95% bootstrap
    interval.

    Args:
        runs: run directories.
        output: path of the PNG; None: curve.png in a single run, comparison.png next to several.
        metrics: names in metrics.jsonl, such as env/is_success, with a panel each.
    """
    from headrace.cli.reports import interval_of
    from headrace.rundir import plot as curves

    runs = list(dict.fromkeys(runs))
    print(f"plot: {curves.plot(runs, output, interval_of(runs)[0], metrics)}")


def league(
    path: Path,
    play: tuple[str, ...] = (),
    episodes: int | None = None,
    most: int = 12,
    picture: Path | None = None,
    seed: int = 1_000_000,
    trust: bool = False,
) -> None:
    """Rate the snapshots of a league by their games, and plot their pay-offs.

    Args:
        path: run directory, or folder of a league.
        play: two snapshots that play against each other first. The name of a run means its newest
            snapshot.
        episodes: games between these two, or games that every pair should have; half of them in
            each seat.
        most: largest number of snapshots that are paired, evenly spaced in each run.
        picture: path of the PNG; None: league.png in the folder of the league.
        seed: random seed of games and actions.
        trust: import code named by snapshots that you haven't named on this machine.
    """
    from headrace.cli.import_path import import_from_here_if_named
    from headrace.rundir import resolve_imports
    from headrace.studies.league.command import settings_of, show_league

    if (play or episodes is not None) and (found := settings_of(path)) is not None:
        resolve_imports.check(*found, trust)
        import_from_here_if_named(found[1]["config"])
    show_league(path, play, episodes, most, seed, trust, picture)


def score(runs: list[Path], suite: str = "atari-57", picture: Path | None = None) -> None:
    """Compute scores of runs over a suite of tasks, from 0 (random) to 1 (reference).

    A task's episodes are averaged, then normalised, then capped at 1, without a floor; then tasks
    are averaged (IMPALA, Table B.1).

    Args:
        runs: directories of finished runs, or one JSON file of returns by task.
        suite: atari-57, atari-5, dmlab-30, or a file written by headrace references.
        picture: path of a PNG with performance profiles of the algorithms; None: no plot.
    """
    from headrace.studies.scores import command

    command.score(runs, suite, picture)


def references(
    envs: list[str],
    expert: tuple[Path, ...] = (),
    episodes: int = 100,
    seed: int = 0,
    env_kwargs: str = "{}",
    wrapper: tuple[str, ...] = (),
    output: Path = Path("references.json"),
) -> None:
    """Measure random and expert scores, which normalise other scores.

    Args:
        envs: environment ids.
        expert: run directories of trained experts, whose final evaluations are the references.
        episodes: episodes with random actions per environment.
        seed: random seed of environments and actions.
        env_kwargs: keyword arguments of all environments, as a JSON object.
        wrapper: wrapper of all environments, as for training; may be repeated.
        output: JSON file to write; other tasks in it stay unchanged.
    """
    import json

    from headrace.cli.import_path import import_from_here
    from headrace.studies.scores.command import measure_references

    try:
        kwargs = json.loads(env_kwargs)
    except ValueError:
        kwargs = None
    require(isinstance(kwargs, dict), "env_kwargs", env_kwargs, "a JSON object")
    import_from_here()
    measure_references(envs, list(expert), episodes, seed, kwargs, wrapper, output)

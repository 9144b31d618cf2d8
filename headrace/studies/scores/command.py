"""``headrace references`` and ``headrace score``: measures and compares normalised scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from rich.console import Console

from headrace.envs.names import resolve
from headrace.envs.suites import SUITES, Scores, Suite, the_same
from headrace.envs.tasks import named_in
from headrace.errors import CheckpointError, ConfigError, require
from headrace.processes import safe_files
from headrace.rundir.curves import by_settings as by_settings_of
from headrace.studies import plotting, statistics
from headrace.studies.aggregation import grouped, mean_se
from headrace.studies.machine import show, wide_console
from headrace.studies.scores import references
from headrace.studies.scores.runs import RunScore, score_of
from headrace.validation import fields, ranges

TAUS = np.linspace(0.0, 1.5, 61)  # scores at which performance profiles are drawn


class Matrix(NamedTuple):
    """Normalised scores ``[seeds, tasks]``."""

    tasks: list[str]
    scores: np.ndarray


def measure_references(
    envs: list[str],
    expert: list[Path],
    episodes: int,
    seed: int,
    env_kwargs: dict[str, Any],
    wrappers: Sequence[str],
    output: Path,
) -> None:
    """Measure random scores, read experts' scores from their runs, and write both.

    Raises:
        ConfigError: an environment or an expert is invalid; nothing was measured.
    """
    require(bool(envs), "envs", envs, "at least one environment")
    fields.check("episodes", Annotated[int, ranges.Range(1, 10**6)], episodes)
    fields.check("seed", Annotated[int, ranges.SEED], seed)
    references.before(output)  # raises before anything is measured
    envs = list(named_in(envs))
    for env in envs:
        resolve(env, wrappers)
    expert_scores = references.expert_runs(envs, expert)
    sources = {
        env: f"final evaluation of {run}"
        for run in expert
        for env in references.expert_runs(envs, [run])
    }
    for env in envs:
        returns = references.random_returns(env, episodes, seed, env_kwargs, wrappers)
        references.write(output, {env: returns}, expert_scores, sources)
        written = references.before(output)
        mean, se = mean_se(returns)
        reference = written[env]["reference"]
        high = "missing (--expert RUN)" if reference is None else f"{reference:g}"
        print(f"{env}: random {mean:g} ± {se:.2g}, reference {high}")
    print(f"references: {output}")


def score(
    runs: Sequence[Path], suite: str, picture: Path | None = None, console: Console | None = None
) -> dict[str, Scores]:
    """Print the scores of runs, or of a JSON file of returns by task, by algorithm.

    Runs of an algorithm on the same task are seeds, whose mean is the return of the task. Runs of
    one task and runs of several are separate kinds; so are runs of the same task with different
    settings of algorithm or network. Several kinds, or a single one with a plot, are compared if
    they have equal numbers of seeds on the same tasks; intervals need two seeds. Episodes in a
    file don't count as seeds.

    Args:
        picture: PNG of performance profiles to write.

    Raises:
        ConfigError: a task has no reference score, or there is nothing to plot.
        CheckpointError: a run hasn't ended.
    """
    require(bool(runs), "runs", runs, "at least one run directory or file of returns")
    players, console = references.read(suite), console or wide_console()
    returns = _returns(runs, players)
    scores = {name: players.scores(of) for name, of in returns.items()}
    tasks = [
        task for task in players.tasks if any(task in one.normalized for one in scores.values())
    ]
    rows = [
        {"task": task} | {name: f"{one.normalized[task]:.1%}" if task in one.normalized else ""
                          for name, one in scores.items()}
        for task in tasks
    ]  # fmt: skip
    show(rows, f"Scores in {players.name}: 0% random, 100% the reference", console)
    for name, one in scores.items():
        count = f"{len(one.normalized)} of {len(players.tasks)} tasks"
        line = f"{name}, capped, {count}: mean {one.mean:.1%}, median {one.median:.1%}"
        console.print(line, soft_wrap=True)
        if one.missing:
            console.print(f"  without a run: {', '.join(one.missing)}", soft_wrap=True)
        if (median := one.atari_57_median) is not None and len(one.normalized) == 5:
            console.print(f"  median of 57 games, as Atari-5's regression has it: {median:.1%}")
    if len(scores) > 1 or picture is not None:
        if _is_file(runs):  # its episodes are of one policy, so they aren't seeds
            means = {task: [float(np.mean(each))] for task, each in returns[runs[0].stem].items()}
            returns = {runs[0].stem: means}
        compared = {name: matrix(players, of) for name, of in returns.items()}
        compare(compared, picture, console)
    return scores


def matrix(suite: Suite, returns: Mapping[str, Sequence[float]]) -> Matrix | None:
    """Return the scores of each seed on each task; None if tasks have unequal numbers of seeds."""
    tasks = [suite.task(name) for name in returns]
    if len({len(each) for each in returns.values()}) != 1:
        return None
    scores = [
        [suite.references[task].normalized(value) for value in each]
        for task, each in zip(tasks, returns.values(), strict=True)
    ]
    order = sorted(range(len(tasks)), key=lambda i: tasks[i])
    return Matrix([tasks[i] for i in order], np.array([scores[i] for i in order]).T)


def compare(compared: Mapping[str, Matrix | None], picture: Path | None, console: Console) -> None:
    """Print interquartile means and probabilities of improvement; plot performance profiles."""
    matrices = {name: one for name, one in compared.items() if one is not None}
    shapes = {(*one.tasks, len(one.scores)) for one in matrices.values()}
    if len(shapes) != 1 or len(matrices) < len(compared):
        why = "not compared with intervals: this needs equal numbers of seeds of the same tasks"
        if picture is not None:
            raise ConfigError(f"{why}, so there is nothing to plot in {picture}")
        console.print(why)
        return
    scores = {name: one.scores for name, one in matrices.items()}
    seeds = len(next(iter(scores.values())))
    if seeds < 2 and picture is not None:
        raise ConfigError(
            "one seed has no intervals, so there is nothing to plot in "
            f"{picture}: give two or more runs of each task, with other seeds"
        )
    iqm = statistics.interquartile(scores)
    names = list(scores)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    better = statistics.improvement(scores, pairs)
    rows = [{"": name, "interquartile mean": iqm[name].text(interval=seeds > 1)}
            | {f"beats {b}": better[name, b].text(interval=seeds > 1) if (name, b) in better else ""
               for b in names}
            for name in names]  # fmt: skip
    intervals = "95% intervals of stratified bootstraps" if seeds > 1 else "no intervals"
    of = f"{seeds} seeds of each task, " if seeds > 1 else "one seed: "
    show(rows, of + intervals, console)
    if picture is not None:
        draw_profiles(statistics.profiles(scores, TAUS), picture)
        console.print(f"plot: {picture}")


def draw_profiles(profiles: Mapping[str, statistics.Estimate], path: Path) -> None:
    """Plot performance profiles with their bands."""
    with plotting.picture(path, "Performance profiles", (6.0, 4.2)) as (_, (panel,)):
        for i, (name, one) in enumerate(profiles.items()):
            panel.plot(TAUS, one.value, label=name, color=f"C{i}")
            panel.fill_between(TAUS, one.low, one.high, alpha=0.2, color=f"C{i}", linewidth=0)
        panel.set(xlabel="score τ (0 random, 1 the reference)", ylabel="share of runs above τ")
        panel.legend(fontsize="small")
        panel.grid(alpha=0.3)


def _returns(runs: Sequence[Path], suite: Suite) -> dict[str, Mapping[str, Sequence[float]]]:
    """Return the returns by task, by kind of run or file name."""
    if _is_file(runs):
        return {runs[0].stem: _of_file(runs[0])}
    paths = [path.resolve() for path in runs]
    twice = [str(path) for path in runs if paths.count(path.resolve()) > 1]
    require(not twice, "runs", twice and twice[0], "each run once, because seeds must differ")
    returns: dict[str, Mapping[str, Sequence[float]]] = {}
    for name, scores in _kinds([_checked(path, suite) for path in runs]).items():
        pairs = [pair for one in scores for pair in one.tasks.items()]
        by_env = grouped(pairs, lambda pair: suite.task(pair[0]))
        returns[name] = {env: [value for _, value in each] for env, each in by_env.items()}
    return returns


def _checked(path: Path, suite: Suite) -> RunScore:
    one = score_of(path)
    games = SUITES["atari-57"].references
    unlike = [name for name in one.unlike_humans if the_same(name, games)]
    if suite.is_atari and unlike:
        raise ConfigError(
            f"{path} was evaluated in {unlike[0]} with clipped rewards, lives as "
            f"episodes, or wrappers that may change returns, unlike the scores of {suite.name}: "
            "train with eval_env_kwargs that disable these, as --recipe atari does"
        )
    return one


def _kinds(scores: Sequence[RunScore]) -> dict[str, list[RunScore]]:
    """Group runs that count as seeds of each other, or as one agent on different tasks."""
    kinds: list[list[RunScore]] = []
    for some in grouped(scores, lambda one: (one.algorithm, len(one.tasks) > 1)).values():
        by_task = grouped(((task, one) for one in some for task in one.tasks), lambda pair: pair[0])
        alike = all(_are_alike([one for _, one in pairs]) for pairs in by_task.values())
        by_settings = grouped(some, lambda one: json.dumps(one.run.settings, sort_keys=True))
        kinds += [some] if alike else list(by_settings.values())
    if len({kind[0].algorithm for kind in kinds}) == len(kinds):
        return {kind[0].algorithm: kind for kind in kinds}
    labels = by_settings_of([kind[0].run for kind in kinds])
    by_path = {runs[0].path: name for name, runs in labels.items()}
    return {by_path[kind[0].run.path]: kind for kind in kinds}


def _are_alike(scores: Sequence[RunScore]) -> bool:
    return all(one.run.settings == scores[0].run.settings for one in scores)


def _is_file(runs: Sequence[Path]) -> bool:
    return len(runs) == 1 and runs[0].suffix == ".json"


def _of_file(file: Path) -> dict[str, list[float]]:
    try:
        values = safe_files.read_json(file)
        if not values:
            raise ValueError("it is empty")
        return {
            task: [float(x) for x in (each if isinstance(each, list) else [each])]
            for task, each in values.items()
        }
    except OSError as error:
        raise CheckpointError(f"{file} can't be read: {error}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f'{file} must contain returns of episodes by task, as {{"Pong-v5": [20, 21]}} ({error})'
        ) from error

"""Reports the runs of learning.py: a page of tables, a CSV file of all seeds, and a plot."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learning_scores import PEERS, Suite, seconds_to
from learning_tasks import SOLVED, TASKS
from rich.console import Console

from headrace.studies.machine import markdown, show, write_csv
from headrace.studies.plotting import picture
from headrace.studies.statistics import Estimate, improvement, interquartile

FRACTIONS = [i / 20 for i in range(1, 21)]
COLORS = {"appo": "C0", "impala": "C1", "ppo": "C2", "impact": "C3", "a2c": "C4", "a3c": "C6"}
GREYS = {"sb3": "0.2", "sb3-default": "0.4", "cleanrl": "0.6"}
PAGE, DATA = "results/learning.md", "learning_suite.csv"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def summary_rows(suite: Suite) -> list[dict[str, str]]:
    """Return the summary by program.

    Columns: interquartile means over equal seconds, equal steps, and evaluations; the probability
    of beating each peer; and the task with the lowest share of the best score.
    """
    columns = {
        "all seconds": interquartile({a: suite.scores(a, 0, [1.0]) for a in suite.algos}),
        "all steps": interquartile({a: suite.scores(a, 1, [1.0]) for a in suite.algos}),
        "evaluated": interquartile({a: suite.evaluated(a) for a in suite.algos}),
    }
    better = _improvements(suite)
    rows = []
    for algo in suite.algos:
        row = {"program": PEERS.get(algo, algo)}
        row |= {name: found[algo].text() for name, found in columns.items()}
        row |= {
            f"beats {PEERS[peer]}": better[algo, peer].text() if (algo, peer) in better else ""
            for peer in suite.algos
            if peer in PEERS
        }
        share, task = suite.worst(algo)
        rows.append(row | {"lowest share of the best": f"{share:.2f} ({task})"})
    return rows


def _improvements(suite: Suite) -> dict[tuple[str, str], Estimate]:
    """Return the probability that headrace beats a peer after equal seconds, by (own, peer)."""
    peers = [algo for algo in suite.algos if algo in PEERS]
    pairs = [(algo, peer) for algo in suite.algos if algo not in PEERS for peer in peers]
    return improvement({a: suite.scores(a, 0, [1.0])[..., 0] for a in suite.algos}, pairs)


def _number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:,.{1 if abs(value) < 1000 else 0}f}"


def evaluated_rows(suite: Suite) -> list[dict[str, str]]:
    """Return the median over seeds of the evaluated return, by task and program."""
    rows = []
    for task, by_algo in suite.by_task.items():
        seconds = next(iter(by_algo.values()))[0]["budget"]["seconds"]
        row = {"task": f"{task}, {seconds:g} s"}
        for algo in suite.algos:
            values = [run["evaluation"]["mean"] for run in by_algo.get(algo, [])]
            row[PEERS.get(algo, algo)] = _number(statistics.median(values)) if values else ""
        rows.append(row)
    return rows


def seed_rows(suite: Suite) -> list[dict[str, Any]]:
    """Return a row per task, program and seed, for a CSV file."""
    return [
        {
            "task": task,
            "budget_seconds": run["budget"]["seconds"],
            "budget_steps": run["budget"]["steps"],
            "threshold": TASKS[task].threshold,
            "program": PEERS.get(algo, algo),
            "seed": run["seed"],
            "training_return": _plain(run["training_return"]),
            "evaluated": _plain(run["evaluation"]["mean"]),
            "seconds_to_threshold": _plain(seconds_to(run, TASKS[task].threshold)),
            "median_env_steps": round(statistics.median(r["env_steps"] for r in runs)),
        }
        for task, by_algo in suite.by_task.items()
        for algo, runs in by_algo.items()
        for run in runs
    ]


def _plain(value: float) -> str:
    """Format a number for a CSV file; empty if it isn't finite."""
    return _number(value).replace(",", "") if math.isfinite(value) else ""


def page(suite: Suite, summary: Sequence[Mapping[str, str]]) -> str:
    """Return the report in Markdown.

    Args:
        summary: result of :func:`summary_rows`, if any task has all its runs.
    """
    runs = [r for by_algo in suite.by_task.values() for own in by_algo.values() for r in own]
    machines = " · ".join(dict.fromkeys(run["machine"] for run in runs))
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
    shares = ", ".join(sorted({str(run["budget"]["cores"]) for run in runs}))
    parts = [f"{len(runs)} runs of {len(suite.by_task)} tasks, each on {shares} core(s), at "
             f"{commits}: {machines}."]  # fmt: skip
    if suite.whole:
        seeds = len(suite.by_task[suite.whole[0]][suite.algos[0]])
        names = "" if len(suite.whole) == len(suite.by_task) else f": {', '.join(suite.whole)}"
        over = f"{len(suite.whole)} tasks × {seeds} seeds{names}"
        parts += [
            "![Interquartile mean scores of all programs against seconds and against steps]"
            "(learning_suite.png)",
            f"Interquartile mean of scores (95% interval) of {over}.",
            markdown(summary),
        ]
    else:
        parts.append("No task has every seed of every program yet, so nothing is aggregated.")
    parts.append(
        f"Evaluated return by task and its seconds, median of the seeds. [Every seed]({DATA}) also "
        f"has training returns, steps, and the seconds until a training score of {SOLVED}."
    )
    parts.append(markdown(evaluated_rows(suite)))
    return "\n\n".join(parts)


def draw(suite: Suite, path: Path) -> None:
    """Plot interquartile means against seconds and steps, with intervals."""
    count = len(suite.by_task[suite.whole[0]][suite.algos[0]])
    title = f"Interquartile mean of scores, {len(suite.whole)} tasks × {count} seeds"
    labels = "share of each task's seconds", "share of the steps that all have taken"
    with picture(path, title, (11, 4.5), ncols=2, sharey=True) as (_, panels):
        for axis, panel in enumerate(panels):
            scores = {algo: suite.scores(algo, axis, FRACTIONS) for algo in suite.algos}
            for algo, found in interquartile(scores).items():
                color = COLORS.get(algo) or GREYS.get(algo, "C5")
                style = {"color": color, "linestyle": "--" if algo in PEERS else "-"}
                panel.plot(FRACTIONS, found.value, label=PEERS.get(algo, algo), **style)
                band = {"color": color, "alpha": 0.15, "linewidth": 0}
                panel.fill_between(FRACTIONS, found.low, found.high, **band)
            panel.set(xlabel=labels[axis], xlim=(0, 1))
            panel.grid(alpha=0.3)
        panels[0].set(ylabel="score (0 random, 1 reference)")
        panels[0].legend(fontsize="small")


def fill_in(file: Path, text: str) -> None:
    """Put the text between a page's markers.

    Raises:
        ValueError: the page lacks them.
    """
    head, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file} lacks the lines {BEGIN} and {END}")
    file.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")


def report(files: Sequence[Path], output: Path, docs: Path | None, console: Console) -> None:
    """Report the existing runs of these files, ``TASK/PROGRAM/SEED.json``."""
    expected = [(f.parts[-3], f.parts[-2], int(f.stem)) for f in files]
    runs = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            runs.append(json.loads(file.read_text(encoding="utf-8")))
    if not runs:
        console.print(f"there is no run in {output} yet", soft_wrap=True)
        return
    suite = Suite(runs, expected)
    summary = summary_rows(suite) if suite.whole else []
    text = page(suite, summary)
    (output / "report.md").write_text(text + "\n", encoding="utf-8")
    folders = [output] if docs is None else [output, docs]
    for folder in folders:
        write_csv(folder / DATA, seed_rows(suite))
    if suite.whole:
        for folder in folders:
            draw(suite, folder / "learning_suite.png")
        show(summary, "Interquartile mean of scores", console, wrap=True)
    if docs is not None:
        fill_in(docs / PAGE, text.replace("](learning_suite", "](../learning_suite"))
    written = ", ".join(str(folder) for folder in folders)
    console.print(f"{len(runs)} of {len(files)} runs reported, in {written}", soft_wrap=True)

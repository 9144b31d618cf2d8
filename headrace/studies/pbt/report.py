"""Writes the report of a population: a page, and a plot of scores, schedules and lineage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from headrace.rundir.atomic_files import checkpoint_errors, replace_text
from headrace.rundir.countdown import continue_line
from headrace.studies import flags
from headrace.studies.machine import markdown, show
from headrace.studies.pbt.member import Event, Member
from headrace.studies.pbt.settings import Population
from headrace.studies.plotting import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Histories = Sequence[Sequence[Event]]  # by member


def ancestors(histories: Histories, member: int) -> list[tuple[int, int]]:
    """Return the lineage of a member's weights, oldest first: (member, its steps when copied).

    Raises:
        ValueError: a copy refers to steps that its source never had.
    """
    line: list[tuple[int, int]] = []
    index = len(histories[member]) - 1
    number, until = member, histories[member][-1].steps
    while True:
        line.append((number, until))
        copied = [i for i in range(index + 1) if histories[number][i].kind == "copied"]
        if not copied:
            return line[::-1]
        event = histories[number][copied[-1]]
        assert event.source is not None
        assert event.source_steps is not None
        source = histories[event.source]
        if event.source_steps < 0:
            raise ValueError(f"member {number} copied {event.source} at {event.source_steps} steps")
        before = [i for i, one in enumerate(source) if one.steps <= event.source_steps]
        number, index, until = event.source, _left(source, before, event), event.source_steps


def _left(source: Sequence[Event], before: Sequence[int], event: Event) -> int:
    """Return the index of the source's latest event before the copied checkpoint."""
    same = [i for i in before if source[i].checkpoint == event.source_checkpoint]
    if same:
        return same[0] if source[same[0]].kind == "copied" else same[-1]
    strict = [i for i in before if source[i].steps < (event.source_steps or 0)]
    return (strict or before)[-1]


def founders(histories: Histories) -> list[int]:
    """Return for each member the founder, whose initial weights it descends from."""
    return [ancestors(histories, member)[0][0] for member in range(len(histories))]


def rows_of(histories: Histories) -> list[dict[str, str]]:
    """Return a table row per member, best first."""
    began = founders(histories)
    scores = [_score(history) for history in histories]
    order = sorted(range(len(histories)), key=lambda i: (scores[i] is None, -(scores[i] or 0.0)))
    return [
        {
            "member": str(i),
            "score": "none" if (score := scores[i]) is None else f"{score:.4g}",
            "steps": f"{histories[i][-1].steps:,}",
            "copied": str(sum(event.kind == "copied" for event in histories[i])),
            "founder": str(began[i]),
            **{name: f"{value:.4g}" for name, value in histories[i][-1].hyper.items()},
        }
        for i in order
    ]


def _score(history: Sequence[Event]) -> float | None:
    """Return the score of a member's weights; None for untrained weights or unscored copies."""
    for event in reversed(history):
        if event.score is not None or event.kind == "copied":
            return event.score
    return None


def write(population: Population, members: Sequence[Member], console: Console) -> None:
    """Write ``population.md`` and ``population.png``, and print a table of members."""
    histories = [member.history() for member in members]
    if not all(histories):
        console.print("not every member is born yet")
        return
    rows, folder = rows_of(histories), Path(population.output)
    show(rows[:10], "The best members", console, wrap=True)
    env, total = flags.named(population.config), population.config.total_steps
    title = f"{population.config.algo_name} on {env}, {len(members)} members"
    units = "returns" if population.suite is None else "0 random, 1 the reference"
    best = str(members[int(rows[0]["member"])].run_dir)
    command = continue_line(best, total)
    page = [
        f"# Population: {title}",
        f"Turns of {population.turn_steps:,} of {total:,} steps. After {population.burn_in:,} "
        "steps a member copies a random other one if that is better by more than "
        f"{population.lead:g}. "
        f"Each setting is multiplied by {population.factor:g} or its inverse with probability "
        f"{population.probability:.2g}. Scores: {units}. A member's weights descend from the "
        "initial weights of its founder.",
        "![Scores, schedules and lineage](population.png)",
        markdown(rows),
        f"The best policy is in {best}. Continue it with `{command}`.",
    ]
    draw(histories, title, folder / "population.png")
    with checkpoint_errors(folder / "population.md"):
        replace_text(folder / "population.md", "\n\n".join(page) + "\n")
    console.print(f"best run: {best}\ncontinue it: {command}", soft_wrap=True)
    where = f"page: {folder}/population.md, plot: {folder}/population.png"
    console.print(where, soft_wrap=True)


def draw(histories: Histories, title: str, path: Path) -> None:
    """Plot scores, the schedule of each setting, and the copies, coloured by founder."""
    names, began = list(histories[0][0].hyper), founders(histories)
    best = int(rows_of(histories)[0]["member"])
    with picture(path, title, (4.6 * (2 + len(names)), 4.2), ncols=2 + len(names)) as (_, axes):
        for i, history in enumerate(histories):
            look = {"color": f"C{began[i] % 10}", "linewidth": 2.0 if i == best else 0.8}
            scored = [event for event in history if event.kind == "trained"]
            axes[0].plot([e.steps for e in scored], [e.score for e in scored], **look)
            for panel, name in zip(axes[1:], names, strict=False):
                values = [event.hyper[name] for event in history]
                panel.step([e.steps for e in history], values, where="post", **look)
        for panel, name in zip(axes[1:], names, strict=False):
            panel.set(xlabel="a member's own steps", ylabel=name, yscale="log")
        axes[0].set(xlabel="a member's own steps (thick: the best)", ylabel="score")
        _draw_lineage(axes[-1], histories, began)


def _draw_lineage(panel: Axes, histories: Histories, began: Sequence[int]) -> None:
    """Plot a line per member, and an arrow per copy."""
    for i, history in enumerate(histories):
        panel.plot([0, history[-1].steps], [i, i], color=f"C{began[i] % 10}", linewidth=1.2)
        for event in (event for event in history if event.kind == "copied"):
            ends = [(event.source_steps or 0, event.source or 0), (event.steps, i)]
            panel.annotate(
                "", ends[1], ends[0], arrowprops={"arrowstyle": "->", "color": "0.4", "lw": 0.6}
            )
    panel.set(xlabel="steps; arrows: copies", ylabel="member (colour: its founder)")

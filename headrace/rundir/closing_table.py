"""The table at the end of a run: returns, speed, and where the time was spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

_SPENT = {
    "learn": "computing", "wait": "waiting", "publish": "publishing", "comm": "all-reduce",
    "sync": "waiting for others",
}  # fmt: skip
_ACTIONS = {True: "deterministic policy", False: "sampled actions"}


def shown(value: float) -> str:
    """Format a return: with two decimals between -1 and 1, otherwise with one."""
    return f"{value:.2f}" if 0.0 < abs(value) < 1.0 else f"{value:.1f}"


def _spread(played: dict[str, Any]) -> str:
    """Format the mean return and its standard deviation."""
    return f"{shown(played['mean'])} ± {shown(played['std'])}"


def closing_table(summary: dict[str, Any]) -> Table:
    """Build the table of returns, then of speed, times and lag."""
    table = Table.grid(padding=(0, 2))
    for name, value in (_result_rows(summary) | _speed_rows(summary)).items():
        if value:  # otherwise unknown
            table.add_row(Text(name, style="bold"), Text(str(value)))
    return table


def _result_rows(summary: dict[str, Any]) -> dict[str, Any]:
    """Format the returns of a run, and what the doctor found."""
    played, missing = summary.get("evaluation"), summary.get("no_evaluation")
    human = played and played.get("human_normalized")
    capped = ", each task capped" if summary.get("tasks") else ""
    mean, of_each = summary["episodic_return"], " of each task" if summary.get("tasks") else ""
    warned = [one["name"] for one in summary.get("warnings", ()) if "earlier" not in one]
    return {
        "evaluated return": f"{_spread(played)} (standard deviation over "
        f"{played['episodes']} episodes{_unfinished(played)}, "
        f"{_ACTIONS[played.get('deterministic', True)]})"
        if played
        else missing and f"none: {missing}",
        **_other_mode(played or {}),
        "human-normalised": human is not None and f"{human:.1%} (0 random, 100% human{capped})",
        "training return": mean is not None and f"{shown(mean)} (last 100 episodes{of_each})",
        **{f"evaluated on {k}": v for k, v in _others(played or {}).items()},
        **_of_parts(summary, played, "tasks"),
        **_of_parts(summary, played, "agents"),
        **{f"policy {k}": v for k, v in _of_parts(summary, played, "policies").items()},
        "doctor": warned and f"{', '.join(warned)}: see warnings.jsonl and the report",
    }


def _speed_rows(summary: dict[str, Any]) -> dict[str, Any]:
    """Format steps, speed, and where the time went."""
    first, plan, frames = (summary.get(x) for x in ("seconds_to_first_update", "plan", "frames"))
    busy, lag, sync = summary["utilisation"], summary["lag"], summary["sync"]
    lost, is_asynchronous = summary.get("lost"), lag.get("bound") != 0
    times = [(word, summary["time"][name]) for name, word in _SPENT.items()]
    return {
        "environment steps": f"{summary['env_steps']:,} in {summary['seconds_training']:.1f} s of "
        "training",
        "frames": frames and f"{frames:,}, {summary['frames_per_step']} per step",
        "speed": summary["sps"] and f"{summary['sps']:,.0f} steps/s after the first update",
        "first update": first is not None and f"{first:.1f} s after the start",
        "session": f"{summary['seconds_total']:.1f} s with start-up, until the end of training",
        "bottleneck": plan and _is_clear(plan, busy, is_asynchronous) and _advice(plan["line"]),
        "learner's time": " · ".join(f"{word} {s:.1f} s" for word, s in times if s is not None),
        "busy": busy["actor"] is not None
        and f"learner {busy['learner']:.0%} · actors {busy['actor']:.0%}",
        "policy lag": is_asynchronous
        and lag["mean"] is not None
        and f"{lag['mean']:.2f} updates on average, at most {lag['max']}",
        "dropped rollouts": summary["dropped"] and f"{summary['dropped']}, too old",
        "lost rollouts": lost and f"{lost}, unfinished in actors that died",
        "weights pulled": sync.get("divergence") is not None
        and f"{sync['pulls']:,} times, {sync['bytes'] / 1e6:,.1f} MB",
    }


def _is_clear(plan: dict[str, Any], busy: dict[str, Any], is_asynchronous: bool) -> bool:
    """Return False if the side with the smaller capacity was the less busy one."""
    sides = {"actors": ("actor", "learner"), "learners": ("learner", "actor")}
    if not is_asynchronous or busy["actor"] is None or plan.get("bottleneck") not in sides:
        return True
    slow, fast = sides[plan["bottleneck"]]
    return bool(busy[slow] >= busy[fast])


def _advice(line: str) -> str:
    """Shorten the line about the bottleneck to what it is and what would help."""
    subject, _, advice = line.partition("; ")
    helps, would, _ = advice.partition(" would help")
    return f"{subject.partition(':')[0].removeprefix('taking turns, ')}; {helps}{would}"


def _unfinished(played: dict[str, Any]) -> str:
    """Format the number of episodes that did not end, if there are any."""
    count = played.get("unfinished")
    return f", {count} of which did not end" if count else ""


def _other_mode(played: dict[str, Any]) -> dict[str, str]:
    """Format the final evaluation in the other mode of actions."""
    other = played.get("other_mode")
    if other is None:
        return {}
    return {_ACTIONS[other["deterministic"]]: _spread(other)}


def _others(played: dict[str, Any]) -> dict[str, str]:
    """Format mean and standard deviation for each of the run's ``eval_envs``."""
    return {k: _spread(x) for k, x in (played.get("others") or {}).items()}


def _of_parts(summary: dict[str, Any], played: dict[str, Any] | None, kind: str) -> dict[str, str]:
    """Format a row for each of several tasks, agents of a game, or policies."""
    evaluated = (played or {}).get(kind) or {}
    return {
        name: " · ".join(_of_part(one, evaluated.get(name)))
        for name, one in (summary.get(kind) or {}).items()
        if tuple(one.get("agents", ())) != (name,)  # its agent's row is the same
    }


def _of_part(trained: dict[str, Any], played: dict[str, Any] | None) -> Iterator[str]:
    if played is not None:
        yield f"evaluated {_spread(played)}"
        if played["human_normalized"] is not None:
            yield f"human-normalised {played['human_normalized']:.1%}"
    if trained["episode_return"] is not None:
        yield f"training {shown(trained['episode_return'])}, length {trained['episode_length']:.0f}"
    yield f"{trained['env_steps']:,} steps"

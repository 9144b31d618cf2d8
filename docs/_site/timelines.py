"""Draws timelines of actors and learner for each algorithm: python docs/_site/timelines.py

The drawings are schematic: lengths are not measurements.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "algorithms"
WIDTH, LEFT, UNIT, LANE, BAR = 680, 90, 48, 34, 22
COLOURS = {
    "play": "#26a69a", "learn": "#ef6c00", "again": "#ffb74d", "wait": "#e0e0e0",
    "target": "#5e35b1",
}  # fmt: skip
LEGEND = {
    "play": "collects a rollout", "learn": "trains on new data", "again": "trains on it again",
    "wait": "waits", "target": "target network",
}  # fmt: skip


class Bar(NamedTuple):
    """A stretch of time, in units from the left edge."""

    start: float
    end: float
    kind: str
    text: str = ""


STYLE = (
    "<style>.page { fill: #ffffff } .label { fill: #212121 } .inside { fill: #212121 } "
    "@media (prefers-color-scheme: dark) "
    "{ .page { fill: #1e2129 } .label { fill: #e6e6e6 } }</style>"
)


def repeated(period: float, bars: list[Bar], times: int) -> list[Bar]:
    """Repeat bars several times, one period apart."""
    return [
        bar._replace(start=bar.start + i * period, end=bar.end + i * period)
        for i in range(times)
        for bar in bars
    ]


def passes(start: float, count: int, each: float) -> list[Bar]:
    """Return passes over one batch: the first on new data, the others on the same data."""
    ends = [(start + i * each, start + (i + 1) * each) for i in range(count)]
    return [Bar(a, b, "again" if i else "learn") for i, (a, b) in enumerate(ends)]


def synchronous(learns: list[Bar], period: float, times: int) -> dict[str, list[Bar]]:
    """Return lanes of actors that wait for the slowest actor, and then for the learner."""
    slow = [Bar(0, 3, "play"), Bar(3, period, "wait")]
    quick = [Bar(0, 2.2, "play"), Bar(2.2, period, "wait")]
    return {
        "actor 0": repeated(period, slow, times),
        "actor 1": repeated(period, quick, times),
        "learner": repeated(period, [Bar(0, 3, "wait"), *learns], times),
    }


def asynchronous(learns: list[Bar]) -> dict[str, list[Bar]]:
    """Return lanes of actors that never wait."""
    return {
        "actor 0": repeated(3, [Bar(0, 3, "play")], 4),
        "actor 1": repeated(2, [Bar(0, 2, "play")], 6),
        "learner": [Bar(0, 2, "wait"), *learns],
    }


SLOTS = [
    Bar(2 + 0.8 * i, 2.8 + 0.8 * i, "again" if 3 <= i < 9 else "learn", str(i % 3 + 1))
    for i in range(12)
]
TIMELINES = {
    "a2c": synchronous([Bar(3, 4, "learn")], 4, 3),
    "ppo": synchronous(passes(3, 4, 0.75), 6, 2),
    "a3c": {
        "actor 0": repeated(4, [Bar(0, 3, "play"), Bar(3, 4, "learn")], 3),
        "actor 1": repeated(3, [Bar(0, 2.2, "play"), Bar(2.2, 3, "learn")], 4),
        "actor 2": repeated(2.4, [Bar(0, 1.6, "play"), Bar(1.6, 2.4, "learn")], 5),
    },
    "impala": asynchronous([Bar(2 + i, 3 + i, "learn") for i in range(10)]),
    "appo": asynchronous([b for i in range(3) for b in passes(2 + 10 / 3 * i, 4, 10 / 12)]),
    "impact": asynchronous(SLOTS)
    | {"target": [Bar(4.3, 4.5, "target"), Bar(6.7, 6.9, "target"), Bar(9.1, 9.3, "target")]},
}


def picture(lanes: dict[str, list[Bar]]) -> str:
    """Return an SVG of the lanes, one above the other, with a legend."""
    kinds = [
        kind for kind in LEGEND if any(b.kind == kind for bars in lanes.values() for b in bars)
    ]
    height = 18 + LANE * len(lanes) + 40
    parts = [STYLE, f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>']
    for row, (name, bars) in enumerate(lanes.items()):
        top = 14 + row * LANE
        parts.append(_text(LEFT - 10, top + BAR - 6, name, "end"))
        for bar in bars:
            x, width = LEFT + bar.start * UNIT, (bar.end - bar.start) * UNIT
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width - 1.5:.1f}" height="{BAR}" rx="2" '
                f'fill="{COLOURS[bar.kind]}"/>'
            )
            if bar.text:
                parts.append(_text(x + width / 2, top + BAR - 6, bar.text, "middle", "inside"))
    x = 14.0
    for kind in kinds:
        top = height - 30
        parts.append(f'<rect x="{x}" y="{top}" width="14" height="14" fill="{COLOURS[kind]}"/>')
        parts.append(_text(x + 19, top + 12, LEGEND[kind], "start"))
        x += 34 + 6.8 * len(LEGEND[kind])
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


if __name__ == "__main__":
    for name, lanes in TIMELINES.items():
        (FOLDER / f"{name}.svg").write_text(picture(lanes), encoding="utf-8")

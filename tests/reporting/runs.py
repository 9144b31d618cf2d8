"""Run directories written in milliseconds, and a parser of report pages."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import headrace as hr
from headrace.rundir.atomic_files import write_json
from headrace.rundir.files import append_jsonl
from headrace.spaces.json import space_to_json


def write_run(folder: Path, seed: int = 0, count: int = 40, **settings) -> Path:
    """Write a finished run of CartPole with made-up numbers."""
    import gymnasium

    folder.mkdir(parents=True)
    config = hr.Config(algo=hr.APPO(), seed=seed, run_dir=str(folder), **settings).settled
    spaces = {"observation_space": gymnasium.spaces.Box(-1, 1, (4,)),
              "action_space": gymnasium.spaces.Discrete(2)}  # fmt: skip
    described = {name: space_to_json(space) for name, space in spaces.items()}
    write_json(folder / "config.json", {"format": 3, "config": config.to_json(), **described})
    lines = []
    for i in range(count):
        part = (i + 1) / count
        lines.append({
            "env_steps": 1000 * (i + 1), "seconds": float(i),
            "charts/episodic_return": 20 + 400 * part + 10 * math.sin(i + seed),
            "charts/episodic_length": 20 + 400 * part, "charts/episodes": 2.0 * (i + 1),
            "charts/SPS": 9000.0 + 100 * seed,
            "charts/learning_rate": 1e-3, "losses/policy_loss": -0.01 * part,
            "losses/value_loss": 1 / (i + 1), "losses/entropy": 0.69 - 0.3 * part,
            "losses/approx_kl": 0.01, "losses/clipfrac": 0.1, "losses/explained_variance": part,
            "losses/grad_norm": 0.4, "lag/mean": 1.0, "lag/max": 1.0, "lag/steps": 20.0,
            "lag/dropped": 0.0, "queue/lost": 0.0, "utilisation/learner": 0.9,
            "utilisation/actor": 0.6, "utilisation/environment": 0.4, "time/learn": 0.9,
            "time/wait": 0.1, "memory/learner_bytes": 3e8, "memory/free_bytes": 1e10,
        })  # fmt: skip
    append_jsonl(folder / "metrics.jsonl", lines)
    played = [{"env_steps": 10_000 * k, "seconds": 1.0 * k, "return_mean": 100.0 * k,
               "return_std": 1.0} for k in (1, 2, 3)]  # fmt: skip
    append_jsonl(folder / "evaluations.jsonl", played)
    write_json(folder / "machine.json", {"machine": {"cores": "2"}, "versions": {"torch": "2.13"}})
    write_json(folder / "summary.json", {
        "seconds_total": 14.5, "seconds_training": 12.5, "sps": 9100.0,
        "seconds_to_first_update": 0.7,
        "time": {"learn": 9.0, "wait": 1.0, "publish": 0.0, "comm": None, "sync": None},
        "plan": {"planned_sps": 10_000.0, "measured_sps": 9100.0, "actors_sps": 20_000.0,
                 "learners_sps": 10_000.0, "bottleneck": "learners", "line": "the learner is it"},
        "evaluation": {"mean": 480.25, "std": 3.0, "episodes": 20},
    })  # fmt: skip
    return folder


class Page(HTMLParser):
    """Elements of a page by name with their attributes, its text, and its embedded data."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        held = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
        assert held is not None
        self.data = json.loads(held[1])

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data):
        if self._inside[-1:] == ["script"]:
            self.scripts.append(data)
        elif self._inside[-1:] != ["style"]:
            self.text += data

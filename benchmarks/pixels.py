"""Training speed on Pong's images, vs. other programs and vs. the upper bound of this machine.

    python benchmarks/pixels.py                                   # headrace, CleanRL-style, SB3
    python benchmarks/pixels.py --peer-python sf/bin/python       # and Sample Factory

All programs have the same number of environments, the Nature network, and minibatches of the same
size, and use each sample once. Each rate comes from a separate process. Repeats are interleaved
(A B C A B C …), and ratios are medians of the ratios within a repeat. Steps count from the end of
the first update.

The *ceiling* is ``cores / (emulation + acting + learning)``: the cost per step of each part in
handwritten torch, measured on all cores at once, without waiting. The cheapest of several variants
of each part counts.

Sample Factory needs an older Gymnasium. Create a virtual environment for all peers
(``sample-factory``, ``gymnasium==0.29.1``, ``ale-py==0.10.2``, ``envpool``,
``stable-baselines3<2.4``, ``opencv-python-headless<4.12``, ``numpy<2``, ``pandas<2.3``), and pass
its interpreter.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import tyro
from learning_report import markdown
from pixels_ceiling import measure_ceiling
from rich.console import Console

from headrace.errors import require_choice
from headrace.processes import num_cores
from headrace.studies.children import Children
from headrace.studies.machine import machine, show, wide_console, write_csv

PEERS = {"CleanRL-style": "cleanrl", "Stable-Baselines3": "sb3", "Sample Factory": "sample_factory"}
SLOWER = {"cleanrl": 2, "sb3": 3, "sample_factory": 3}  # divisors of the step count
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Args:
    """Measure training speed on Pong; see the module's docstring."""

    programs: tuple[str, ...] = ("headrace", "CleanRL-style", "Stable-Baselines3", "ceiling")
    """Programs to measure; also "Sample Factory", "headrace float32", "headrace PPO"."""
    peer_python: str = ""
    """Interpreter with Sample Factory, and with Stable-Baselines3 if this one lacks OpenCV."""
    repeats: int = 3
    """Number of measurements of each case."""
    steps: int = 30_000
    """Steps of a headrace run; slower programs take fewer, see SLOWER."""
    envs: int = 16
    """Environments of each program."""
    minibatch: int = 512
    """Samples per optimiser step."""
    rollout: int = 128
    """Steps per environment before an update of the synchronous programs."""
    actors: int = field(default_factory=num_cores)
    """headrace's actors, and Sample Factory's workers."""
    output: Path = Path("results/pixels")
    """Folder for runs.csv, summary.csv, table.md and pixels.png."""


def flags(request: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of ``headrace train``: the recipe with the common network and one epoch."""
    lag = {"max_lag": request["max_lag"]} if "max_lag" in request else {}
    return lag | {
        "recipe": "atari",
        "env_id": "Pong",
        "conv": "nature",
        "no_normalize_images": True,  # brightness from 0 to 1, as in all programs
        "epochs": 1,
        "minibatches": request["minibatches"],
        "num_actors": request["actors"],
        "envs_per_actor": request["envs"] // request["actors"],
        "fragment_length": request["fragment"],
        "batch_size": request["batch_size"],
        "total_steps": request["steps"],
        "precision": request["precision"],
        "eval_episodes": 0,
    }


def _headrace(request: dict[str, Any], memory: common.Memory) -> dict[str, Any]:
    """Train with the command. Return steps per second after the first update."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        common.train_command(request["algo"], run, TIMEOUT_S, watch=memory, **flags(request))
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    busy = {f"{name}_busy": share for name, share in summary["utilisation"].items()}
    first = {"first_update_s": summary["seconds_to_first_update"]}
    return {"sps": summary["sps"]} | first | busy


# -- all programs ---------------------------------------------------------------------------------


def requests(args: Args) -> dict[str, dict[str, Any]]:
    """Return the request of each program."""
    fragment = args.minibatch * args.actors // args.envs  # a rollout of an actor is a minibatch
    shared = {"steps": args.steps, "envs": args.envs, "minibatch": args.minibatch}
    ours = shared | {"actors": args.actors, "precision": "auto"}
    # Each actor may continue while another of its rollouts waits.
    own = {**ours, "algo": "appo", "fragment": fragment, "max_lag": 2 * args.actors - 1}
    own |= {"batch_size": args.minibatch, "minibatches": 1}
    ppo = {**ours, "algo": "ppo", "fragment": args.rollout}
    ppo |= {"batch_size": args.rollout * args.envs}
    ppo["minibatches"] = args.rollout * args.envs // args.minibatch
    peer = {**shared, "num_envs": args.envs, "rollout": args.rollout, "threads": num_cores()}
    peer |= {"workers": args.actors, "fragment": fragment}
    known = {"headrace": own, "headrace float32": own | {"precision": "float32"}}
    known |= {"headrace PPO": ppo, "ceiling": own}
    for name, program in PEERS.items():
        known[name] = {**peer, "program": program, "steps": args.steps // SLOWER[program]}
    for name in args.programs:
        require_choice("programs", name, known)
    return {name: known[name] for name in args.programs}


def measure(name: str, request: dict[str, Any], args: Args) -> dict[str, Any]:
    """Measure once in separate processes, with their peak memory."""
    memory, started = common.Memory(), {"started": time.monotonic()}
    if name in PEERS:
        result = _peer(name, request | started, args.peer_python or sys.executable, memory)
    elif name == "ceiling":
        result = Children().call(measure_ceiling, request, TIMEOUT_S)
    else:
        result = _headrace(request, memory)
    return result | {"rss_gb": memory.rss / 1e9, "pss_gb": memory.pss / 1e9}


def _peer(name: str, request: dict[str, Any], python: str, memory: common.Memory) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result, script = Path(folder) / "result.json", Path(__file__).with_name("pixels_peers.py")
        command = [python, str(script), json.dumps(request), str(result)]
        ended = Children().run(command, Path(folder) / "output", TIMEOUT_S, watch=memory)
        if ended.code or not result.exists():
            raise ended.error(name)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found


def summarise(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row of the table per program."""

    def ratio(name: str, other: str) -> float | None:
        if other not in runs or name == other:
            return None
        pairs = zip(runs[name], runs[other], strict=True)
        return statistics.median(a["sps"] / b["sps"] for a, b in pairs)

    rows = []
    for name, results in runs.items():
        row = {"name": name, **common.spread("sps", [one["sps"] for one in results])}
        row["headrace_is"] = ratio("headrace", name) if "headrace" in runs else None
        row["of_ceiling"] = ratio(name, "ceiling")
        row["pss_gb"] = max(one["pss_gb"] for one in results) if name != "ceiling" else None
        firsts = [one["first_update_s"] for one in results if "first_update_s" in one]
        row["first_update_s"] = statistics.median(firsts) if firsts else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows as text cells."""
    return [
        {
            "": row["name"],
            "steps/s (median)": f"{row['sps_median']:,.0f}",
            "min–max": f"{row['sps_min']:,.0f}–{row['sps_max']:,.0f}",
            "headrace is": f"{row['headrace_is']:.2f} ×" if row["headrace_is"] else "",
            "of ceiling": f"{row['of_ceiling']:.0%}" if row["of_ceiling"] else "",
            "peak PSS, sum": f"{row['pss_gb']:.2f} GB" if row["pss_gb"] else "",
            "first update": f"{row['first_update_s']:.1f} s" if row["first_update_s"] else "",
        }
        for row in rows
    ]


def parts_text(results: list[dict[str, Any]]) -> str:
    """Return the parts of the ceiling, medians."""
    lines = ["The ceiling's parts, median µs per step on each core (the cheapest counts):\n"]
    parts = [result["us_per_step"] for result in results]
    for part, ways in parts[0].items():
        costs = {way: statistics.median(p[part][way] for p in parts) for way in ways}
        lines.append(f"- {part}: " + " · ".join(f"{k} {v:.0f}" for k, v in costs.items()))
    return "\n".join(lines) + "\n"


def main(args: Args) -> None:
    """Measure, print and write the results."""
    console: Console = wide_console()
    title = f"Pong, {args.envs} environments, {args.repeats} repeats on {machine()}"
    console.print(title, soft_wrap=True)
    asked = requests(args)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    for repeat, name in itertools.product(range(args.repeats), asked):
        runs[name].append(measure(name, asked[name], args))
        console.print(f"[{repeat + 1}/{args.repeats}] {name}: {runs[name][-1]['sps']:,.0f} steps/s")
    rows = summarise(runs)
    args.output.mkdir(parents=True, exist_ok=True)
    write_csv(args.output / "runs.csv", [
        {"name": name, "repeat": i, **one} for name in runs for i, one in enumerate(runs[name])
    ])  # fmt: skip
    write_csv(args.output / "summary.csv", [row | {"machine": machine()} for row in rows])
    common.draw_rates(rows, title, args.output / "pixels.png")
    text = f"{title}\n\n{markdown(table(rows))}\n"
    if "ceiling" in runs:
        text += "\n" + parts_text(runs["ceiling"])
    (args.output / "table.md").write_text(text, encoding="utf-8")
    show(table(rows), title, console)
    console.print(f"{text[text.index('The ceiling') :]}" if "ceiling" in runs else "")
    console.print(f"results: {args.output}/runs.csv, summary.csv, table.md, pixels.png")


if __name__ == "__main__":
    main(tyro.cli(Args))

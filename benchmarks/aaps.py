"""ClusterEnv's speed on this machine: against sending all weights as JSON, and against one process.

On CartPole-v1 (natively vectorised): steps/s of ``collect`` and ``step(agent)``, and of a scheme in
which the head sends each worker one JSON message per step with all weights in it and gets one back.
On LunarLander-v3 (a loop over single environments): ``step(agent)`` against what one process alone
reaches with SyncVectorEnv and the same agent, and what two such processes reach side by side.

    python benchmarks/aaps.py [--repeats 5] [--output runs/clusterenv]

The sweep over thresholds is ``headrace bench aaps``.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from common import draw_rates, spread
from gymnasium.vector import SyncVectorEnv
from json_steps import ENVS, WORKERS, JsonWorkers, agent_for

import headrace as hr
from headrace.process import die_with_parent
from headrace.studies.machine import head, show, wide_console, write_csv


@dataclass(frozen=True)
class Arguments:
    """What the command line sets."""

    repeats: int = 5
    """Measurements of each way, in turn."""
    seconds: float = 3.0
    """Length of each measurement."""
    num_steps: int = 128
    """Steps per ``collect``."""
    output: str = "runs/clusterenv"
    """Folder for the table and the picture."""


# -- one process alone -----------------------------------------------------------------------------


def alone(pipe: Connection, env_id: str) -> None:
    """Each time a number of seconds comes, step that long and send back the steps per second."""
    die_with_parent()
    torch.set_num_threads(1)
    envs, agent = SyncVectorEnv([lambda: gymnasium.make(env_id)] * ENVS), agent_for(env_id)
    obs, _ = envs.reset(seed=0)

    @torch.no_grad()
    def step() -> None:
        nonlocal obs
        action, _ = agent.act(torch.as_tensor(obs))
        obs = envs.step(action.numpy())[0]

    while True:
        try:
            pipe.send(rate(step, ENVS, pipe.recv()))
        except EOFError:
            return


def rate(call: Callable[[], Any], steps: int, seconds: float) -> float:
    """Steps per second of a call that does ``steps``."""
    call()
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        call()
        count += 1
    return count * steps / spent


class Alone:
    """Two processes that each step 32 environments by themselves."""

    def __init__(self, env_id: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in range(WORKERS):
            ours, theirs = context.Pipe()
            context.Process(target=alone, args=(theirs, env_id), daemon=True).start()
            self._pipes.append(ours)

    def measure(self, count: int, seconds: float) -> float:
        """Steps per second of the first ``count`` of them together."""
        for pipe in self._pipes[:count]:
            pipe.send(seconds)
        return sum(pipe.recv() for pipe in self._pipes[:count])

    def close(self) -> None:
        """End them."""
        for pipe in self._pipes:
            pipe.close()


# -- the measurements ------------------------------------------------------------------------------


def measure(arguments: Arguments) -> tuple[dict[str, list[float]], int]:
    """Steps per second by name, one number per repeat; and the bytes of a JSON step."""
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {}
    every = WORKERS * ENVS

    def note(name: str, value: float) -> None:
        rates.setdefault(name, []).append(value)

    def cluster(env_id: str, engine: str) -> hr.ClusterEnv:
        settings = {"env_name": env_id, "envs_per_node": ENVS, "engine": engine}
        envs = hr.ClusterEnv(settings, hr.LocalConfig(nodes=WORKERS))
        envs.reset(seed=0)
        return envs

    cartpole, lander = agent_for("CartPole-v1"), agent_for("LunarLander-v3")
    fast, slow = cluster("CartPole-v1", "auto"), cluster("LunarLander-v3", "sync")
    workers, single = JsonWorkers("CartPole-v1", "auto", cartpole), Alone("LunarLander-v3")
    per_collect, seconds = every * arguments.num_steps, arguments.seconds
    try:
        for _ in range(arguments.repeats):
            note("CartPole: JSON, all weights per step", rate(workers.step, every, seconds))
            note("CartPole: step(agent)", rate(lambda: fast.step(cartpole), every, seconds))
            collected = rate(
                lambda: fast.collect(cartpole, arguments.num_steps), per_collect, seconds
            )
            note("CartPole: collect", collected)
            note("LunarLander: one process alone", single.measure(1, seconds))
            note("LunarLander: two processes side by side", single.measure(2, seconds))
            note("LunarLander: step(agent)", rate(lambda: slow.step(lander), every, seconds))
            collected = rate(
                lambda: slow.collect(lander, arguments.num_steps), per_collect, seconds
            )
            note("LunarLander: collect", collected)
    finally:
        for closable in (fast, slow, workers, single):
            closable.close()
    return rates, workers.bytes_per_step


def main(arguments: Arguments) -> None:
    """Measure, print, write."""
    console, output = wide_console(), Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    layout = f"{WORKERS} workers × {ENVS} environments, MLP 2 × (64, 64), {arguments.repeats} times"
    head(__doc__, f"{layout} {arguments.seconds:g} s each, in turn", console)
    rates, json_bytes = measure(arguments)
    rows = [
        {"name": name, **spread("sps", values), "repeats": len(values)}
        for name, values in rates.items()
    ]
    spelled = [{k: f"{v:,.0f}" if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    show(spelled, "Steps per second", console)

    def ratio(a: str, b: str, factor: float = 1.0) -> str:
        each = [x / (factor * y) for x, y in zip(rates[a], rates[b], strict=True)]
        return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"

    sent = "CartPole: JSON, all weights per step"
    one, two = "LunarLander: one process alone", "LunarLander: two processes side by side"
    console.print(f"a step as JSON: {json_bytes / 1e3:,.0f} kB to the workers")
    console.print(f"collect / JSON: {ratio('CartPole: collect', sent)}")
    console.print(f"step(agent) / JSON: {ratio('CartPole: step(agent)', sent)}")
    console.print(f"step(agent) / twice one process: {ratio('LunarLander: step(agent)', one, 2.0)}")
    console.print(f"step(agent) / two processes: {ratio('LunarLander: step(agent)', two)}")
    console.print(f"two processes / twice one: {ratio(two, one, 2.0)}")
    write_csv(output / "rates.csv", rows)
    draw_rates(rows, layout, output / "rates.png")
    console.print(f"table: {output / 'rates.csv'}, picture: {output / 'rates.png'}")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))

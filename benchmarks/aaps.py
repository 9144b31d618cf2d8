"""Benchmarks ClusterEnv: against JSON messages that carry all weights, and against one process.

On CartPole-v1 (natively vectorised): steps/s of ``collect`` and ``step(agent)``, and of a scheme
in which head and workers exchange one JSON message per step, with all weights.
On LunarLander-v3 or another environment (``loop``, a loop over single environments):
``step(agent)``, with and without running ahead. The baselines are one process with Gymnasium's
SyncVectorEnv and the same agent, and two such processes in parallel, with the niceness of workers.
On images of 4 x 84 x 84 bytes that cost nothing to create: ``collect`` and ``step(agent)``
against one process.

    python benchmarks/aaps.py [--repeats 5] [--env-id LunarLander-v3] [--output runs/clusterenv]

``headrace bench aaps`` sweeps over thresholds.
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
import numpy as np
import psutil
import torch
import tyro
from common import draw_rates, spread
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from json_steps import ENVS, WORKERS, JsonWorkers, agent_for
from torch import Tensor, nn
from torch.distributions import Categorical

import headrace as hr
from headrace.envs.contract import CHECKED_STEPS
from headrace.processes import die_with_parent, new_mark
from headrace.processes.process_tree import begin_session
from headrace.studies.machine import head, show, wide_console, write_csv

ONE, TWO = "loop: one process alone", "loop: two processes side by side"
STEP, AHEAD = "loop: step(agent)", "loop: step(agent), running ahead"


@dataclass(frozen=True)
class Arguments:
    """Command-line arguments."""

    repeats: int = 5
    """Measurements of each case, in turn."""
    seconds: float = 3.0
    """Length of each measurement in seconds."""
    num_steps: int = 128
    """Steps per ``collect``."""
    env_id: str = "LunarLander-v3"
    """Environment of the loop, with vector observations and discrete actions."""
    output: str = "runs/clusterenv"
    """Folder for the table and the plot."""


# -- images ----------------------------------------------------------------------------------------


class Images(gymnasium.Env):
    """Environment that cycles through 64 noise images and never ends."""

    observation_space, action_space = Box(0, 255, (4, 84, 84), np.uint8), Discrete(6)
    _frames = np.random.default_rng(0).integers(0, 256, (64, 4, 84, 84), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Return the first image."""
        super().reset(seed=seed)
        self._at = 0
        return self._frames[0], {}

    def step(self, action: Any) -> Any:
        """Return the next image."""
        self._at = (self._at + 1) % len(self._frames)
        return self._frames[self._at], 1.0, False, False, {}


class Glance(nn.Module):
    """Linear policy on every twelfth row and column."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4 * 7 * 7, 6)

    def distribution(self, obs: Tensor) -> Categorical:
        """Return the action distribution."""
        return Categorical(logits=self.layer(obs[..., ::12, ::12].flatten(1) / 255))

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities."""
        distribution = self.distribution(obs)
        action = distribution.sample()
        return action, distribution.log_prob(action)


# -- one process ----------------------------------------------------------------------------------


def alone(pipe: Connection, env_id: str) -> None:
    """Receive durations in seconds, step for each of them, and send back the steps per second."""
    mark = new_mark()
    begin_session(mark, 10)
    die_with_parent(mark)
    torch.set_num_threads(1)
    make = (lambda: gymnasium.make(env_id)) if env_id else Images
    envs, agent = SyncVectorEnv([make] * ENVS), agent_for(env_id) if env_id else Glance()
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
    """Return the steps per second of a call that takes ``steps`` steps."""
    call()
    start, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds:
        call()
        count += 1
    return count * steps / spent


class Alone:
    """Two processes that each step 32 environments, with images if there is no id."""

    def __init__(self, env_id: str = "") -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for _ in range(WORKERS):
            ours, theirs = context.Pipe()
            context.Process(target=alone, args=(theirs, env_id), daemon=True).start()
            self._pipes.append(ours)

    def measure(self, count: int, seconds: float) -> float:
        """Return the total steps per second of the first ``count`` processes."""
        for pipe in self._pipes[:count]:
            pipe.send(seconds)
        return sum(pipe.recv() for pipe in self._pipes[:count])

    def close(self) -> None:
        """Stop the processes."""
        for pipe in self._pipes:
            pipe.close()


# -- CPU time -------------------------------------------------------------------------------------


def processor_ms(call: Callable[[], Any], count: int) -> tuple[float, float]:
    """Return the CPU milliseconds per call of this process and its descendants.

    Unlike rates, CPU time hardly depends on other programs on the machine.
    """
    started = psutil.Process().children(recursive=True)

    def spent() -> tuple[float, float]:
        return time.process_time(), sum(sum(p.cpu_times()[:2]) for p in started)

    before = spent()
    for _ in range(count):
        call()
    own, others = (1e3 * (b - a) / count for a, b in zip(before, spent(), strict=True))
    return own, others


# -- the measurements ------------------------------------------------------------------------------


def measure(arguments: Arguments) -> tuple[dict[str, list[float]], int, dict[str, float]]:
    """Return steps per second by name, one per repeat, the bytes of a JSON step, and CPU times.

    CPU times are milliseconds per step of the loop: of one process, of a worker that runs ahead,
    and of the head.
    """
    torch.set_num_threads(1)
    rates: dict[str, list[float]] = {}
    every = WORKERS * ENVS

    def note(name: str, value: float) -> None:
        rates.setdefault(name, []).append(value)

    def cluster(env: Any, engine: str, **settings: Any) -> hr.ClusterEnv:
        kind = {"env_name": env} if isinstance(env, str) else {"type": env}
        settings |= {**kind, "envs_per_node": ENVS, "engine": engine}
        envs = hr.ClusterEnv(settings, hr.LocalConfig(nodes=WORKERS))
        envs.reset(seed=0)
        return envs

    looped = arguments.env_id
    cartpole, lander, glance = agent_for("CartPole-v1"), agent_for(looped), Glance()
    fast, slow = cluster("CartPole-v1", "auto"), cluster(looped, "sync")
    ahead, images = cluster(looped, "sync", runs_ahead=True), cluster(Images, "sync")
    workers, single, shown = JsonWorkers("CartPole-v1", "auto", cartpole), Alone(looped), Alone()
    steps, seconds = arguments.num_steps, arguments.seconds
    for _ in range(CHECKED_STEPS):  # which cost more than the other steps
        slow.step(lander), ahead.step(lander), images.step(glance)

    def collecting(envs: hr.ClusterEnv, agent: Any, num_steps: int) -> float:
        return rate(lambda: envs.collect(agent, num_steps), every * num_steps, seconds)

    try:
        for _ in range(arguments.repeats):
            note("CartPole: JSON, all weights per step", rate(workers.step, every, seconds))
            note("CartPole: step(agent)", rate(lambda: fast.step(cartpole), every, seconds))
            note("CartPole: collect", collecting(fast, cartpole, steps))
            note(ONE, single.measure(1, seconds))
            note(TWO, single.measure(2, seconds))
            note(STEP, rate(lambda: slow.step(lander), every, seconds))
            note(AHEAD, rate(lambda: ahead.step(lander), every, seconds))
            note("loop: collect", collecting(slow, lander, steps))
            note("images: one process alone", shown.measure(1, seconds))
            note("images: step(agent)", rate(lambda: images.step(glance), every, seconds))
            note("images: collect", collecting(images, glance, max(1, steps // 4)))
        calls = max(2, int(300 * seconds))
        head_ms, workers_ms = processor_ms(lambda: ahead.step(lander), calls)
        costs = {"head": head_ms, "worker": workers_ms / WORKERS}
        found: list[float] = []
        _, alone_ms = processor_ms(lambda: found.append(single.measure(1, 2 * seconds)), 1)
        costs["alone"] = alone_ms * ENVS / (found[0] * 2 * seconds)
    finally:
        for closable in (fast, slow, ahead, images, workers, single, shown):
            closable.close()
    return rates, workers.bytes_per_step, costs


def main(arguments: Arguments) -> None:
    """Measure, print the results and write the files."""
    console, output = wide_console(), Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    layout = f"{WORKERS} workers × {ENVS} environments, MLP 2 × (64, 64), {arguments.repeats} times"
    layout += f", loop over {arguments.env_id},"
    head(__doc__, f"{layout} {arguments.seconds:g} s each, in turn", console)
    rates, json_bytes, costs = measure(arguments)
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
    console.print(f"one step as JSON: {json_bytes / 1e3:,.0f} kB to the workers")
    console.print(f"collect / JSON: {ratio('CartPole: collect', sent)}")
    console.print(f"step(agent) / JSON: {ratio('CartPole: step(agent)', sent)}")
    for name in (STEP, AHEAD):
        short = name.removeprefix("loop: ")
        console.print(f"{short} / twice one process: {ratio(name, ONE, 2.0)}")
        console.print(f"{short} / two processes: {ratio(name, TWO)}")
    console.print(f"two processes / twice one: {ratio(TWO, ONE, 2.0)}")
    alone_ms, worker_ms, head_ms = (costs[name] for name in ("alone", "worker", "head"))
    console.print(
        f"CPU time per step: {alone_ms:.2f} ms in one process; running ahead "
        f"{worker_ms:.2f} ms in each worker and {head_ms:.2f} ms in the head"
    )
    bound = 2 * alone_ms / (2 * worker_ms + head_ms)
    console.print(f"upper bound on two cores: {bound:.2f} of twice one process")
    for name in ("images: step(agent)", "images: collect"):
        megabytes = statistics.median(rates[name]) * 4 * 84 * 84 / 1e6
        console.print(f"{name}: {megabytes:,.0f} MB/s")
    write_csv(output / "rates.csv", rows)
    draw_rates(rows, layout, output / "rates.png")
    console.print(f"table: {output / 'rates.csv'}, plot: {output / 'rates.png'}")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))

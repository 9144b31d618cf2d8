"""What the benchmarks share: timed child processes with their memory, the machine, files.

Also the handwritten torch loops that the throughput ceiling is computed from.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from matplotlib.figure import Figure

from headrace.studies.machine import machine, wide_console, write_csv  # noqa: F401, users' imports

FRAGMENT_LENGTH = 64
HIDDEN = (64, 64)  # tanh, separate networks for policy and value, in every program
CHUNK_STEPS = 4096  # the ceiling's learner, besides whole batches
PART_S = 0.6  # how long each part of the ceiling is measured
RSS_INTERVAL_S, PSS_INTERVAL_S = 0.25, 2.0  # PSS makes the kernel walk page tables: ask less often


@dataclass
class Memory:
    """Peaks of the sums over a process and all its descendants, in bytes."""

    rss: int = 0  # resident; a page that n processes share counts n times
    pss: int = 0  # proportional; a page that n processes share counts once in all (Linux only)
    processes: int = 0

    def sample(self, pid: int, with_pss: bool) -> None:
        """Look at the tree of ``pid`` once and keep the maxima."""
        rss = pss = 0
        with contextlib.suppress(psutil.Error):
            tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    rss += process.memory_info().rss
                    if with_pss:
                        pss += getattr(process.memory_full_info(), "pss", 0)
            self.processes = max(self.processes, len(tree))
        self.rss, self.pss = max(self.rss, rss), max(self.pss, pss)


@dataclass
class Finished:
    """What is left of a child process."""

    stdout: str
    stderr: str
    code: int
    wall_s: float  # from just before the spawn to the exit
    timed_out: bool
    memory: Memory

    def last_json(self) -> dict[str, Any]:
        """The JSON object on the last line of its standard output.

        Raises:
            RuntimeError: it failed; the message carries the end of its standard error.
        """
        lines = self.stdout.strip().splitlines()
        if self.code or not lines:
            raise RuntimeError(f"a run ended with code {self.code}:\n{self.stderr[-3000:]}")
        return json.loads(lines[-1])


def run(command: Sequence[str], timeout_s: float, measure_memory: bool = True) -> Finished:
    """Run a command to its end; after ``timeout_s`` it is asked to stop, then killed."""
    memory, timed_out, next_pss = Memory(), False, 0.0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(RSS_INTERVAL_S)
                break
            now = time.monotonic()
            if measure_memory:
                memory.sample(process.pid, with_pss=now >= next_pss)
                next_pss = now + PSS_INTERVAL_S if now >= next_pss else next_pss
            if now - start > timeout_s:
                timed_out = True
                _stop(process)
                break
        wall_s = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        return Finished(out.read(), err.read(), process.returncode, wall_s, timed_out, memory)


def _stop(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """SIGTERM, and after ``grace_s`` SIGKILL for it and for what it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def draw_rates(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Horizontal bars of ``sps_median`` with whiskers from ``sps_min`` to ``sps_max``."""
    picture = Figure(figsize=(9, 0.42 * len(rows) + 1.4), layout="constrained")
    panel = picture.subplots()
    panel.set_title(title, fontsize="small", wrap=True)
    names, medians = [row["name"] for row in rows], [row["sps_median"] for row in rows]
    low = [row["sps_median"] - row["sps_min"] for row in rows]
    high = [row["sps_max"] - row["sps_median"] for row in rows]
    colors = ["#1f77b4" if name.startswith("headrace") else "#999999" for name in names]
    panel.barh(names, medians, xerr=[low, high], color=colors, ecolor="#333333", capsize=3)
    for i, row in enumerate(rows):
        panel.annotate(f"{row['sps_median']:,.0f}", (row["sps_max"], i), (6, 0),
                       textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    panel.set(xlabel="steps per second", xlim=(0, 1.15 * max(row["sps_max"] for row in rows)))
    panel.invert_yaxis()
    picture.savefig(path, dpi=120)


# -- the ceiling: nothing of headrace but its vector environments ----------------------------------


def engine_of(env_id: str, engine: str) -> str:
    """The engine that ``auto`` means for this environment."""
    from headrace import make_vec

    if engine != "auto":
        return engine
    envs = make_vec(env_id, 1)
    envs.close()
    name = type(envs.unwrapped).__name__
    return {"EnvPool": "envpool", "SyncVectorEnv": "sync"}.get(name, "native")


def measure_env(env_id: str, engine: str, num_envs: int) -> dict:
    """Steps per second of the environments alone on one core, random actions, fillers included."""
    from headrace import make_vec

    envs = make_vec(env_id, num_envs, engine)
    envs.action_space.seed(0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(100)])
    envs.reset(seed=0)
    return {"sps": num_envs / best_of(lambda: envs.step(next(actions)))}


def measure_ceiling(env_id: str, engine: str, num_envs: int, batch_size: int) -> dict:
    """Microseconds per step of each part by each way, and ``sps`` of all cores at the cheapest."""
    import torch

    from headrace import make_vec
    from headrace.config import num_cores
    from headrace.process import keep_freed_memory

    torch.set_num_threads(1)
    envs = make_vec(env_id, 1, engine)
    sizes = (envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    envs.close()
    ways: dict[str, dict[str, float]] = {"environment": {}, "inference": {}, "learning": {}}
    for allocator in ("default malloc", "tuned malloc"):
        if allocator == "tuned malloc":
            keep_freed_memory()
        ways["environment"][allocator] = 1e6 / measure_env(env_id, engine, num_envs)["sps"]
        ways["inference"][allocator] = inference_us(*sizes, num_envs)
        ways["learning"][f"whole batch, {allocator}"] = learning_us(*sizes, batch_size, batch_size)
        ways["learning"][f"chunks, {allocator}"] = learning_us(*sizes, batch_size, CHUNK_STEPS)
    step_us = sum(min(costs.values()) for costs in ways.values())
    return {"sps": num_cores() * 1e6 / step_us, "us_per_step": ways}


def best_of(call: Callable[[], Any]) -> float:
    """Seconds per call: the best of three stretches of PART_S / 3, after a warm-up."""
    call()
    best = math.inf
    for _ in range(3):
        start, seconds, count = time.perf_counter(), 0.0, 0
        while seconds < PART_S / 3:
            call()
            seconds, count = time.perf_counter() - start, count + 1
        best = min(best, seconds / count)
    return best


def plain_network(num_inputs: int, num_outputs: int) -> Any:
    """Two hidden layers of HIDDEN units, tanh."""
    from torch import nn

    a, b = HIDDEN
    return nn.Sequential(
        nn.Linear(num_inputs, a), nn.Tanh(), nn.Linear(a, b), nn.Tanh(), nn.Linear(b, num_outputs)
    )


def inference_us(num_inputs: int, num_actions: int, num_envs: int) -> float:
    """Policy forward and sampling, with noise and log-probabilities done once per fragment."""
    import torch

    policy, obs = plain_network(num_inputs, num_actions), torch.randn(num_envs, num_inputs)

    @torch.inference_mode()
    def fragment() -> None:
        shape = (FRAGMENT_LENGTH, num_envs, num_actions)
        noise = torch.empty(shape).exponential_().log_()
        logits, actions = torch.empty(shape), torch.empty(shape[:2], dtype=torch.int64)
        for t in range(FRAGMENT_LENGTH):
            logits[t] = policy(obs)
            actions[t] = (logits[t] - noise[t]).argmax(-1)
        logits.log_softmax(-1).gather(-1, actions[..., None])

    return best_of(fragment) / (FRAGMENT_LENGTH * num_envs) * 1e6


def learning_us(num_inputs: int, num_actions: int, batch_size: int, chunk_steps: int) -> float:
    """APPO's update: forward, V-trace, clipped loss, backward over chunks, then one Adam step."""
    import torch

    rows, columns = FRAGMENT_LENGTH, batch_size // FRAGMENT_LENGTH
    policy, critic = plain_network(num_inputs, num_actions), plain_network(num_inputs, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-6)
    obs, reward = torch.randn(rows + 1, columns, num_inputs), torch.ones(rows, columns)
    action = torch.randint(num_actions, (rows, columns, 1))
    old_log_prob = torch.full((rows, columns), -1.0).sub_(torch.rand(rows, columns))
    discount = 0.99 * (torch.rand(rows, columns) > 0.01)
    width = chunk_steps // rows

    def chunk_loss(part: slice) -> Any:
        log_p = policy(obs[:-1, part]).log_softmax(-1)
        log_ratio = log_p.gather(-1, action[:, part]).squeeze(-1) - old_log_prob[:, part]
        ratio, value = log_ratio.exp(), critic(obs[:, part]).squeeze(-1)
        v, gamma = value.detach(), discount[:, part]
        rho = ratio.detach().clamp(max=1.0)
        x = (rho * (reward[:, part] + gamma * v[1:] - v[:-1])).numpy()  # becomes vs - V in place
        trace = (0.95 * gamma * rho).numpy()
        for t in range(rows - 2, -1, -1):
            x[t] += trace[t] * x[t + 1]
        target = v[:-1] + torch.from_numpy(x)
        advantage = reward[:, part] + gamma * torch.cat([target[1:], v[-1:]]) - v[:-1]
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        entropy = -(log_p.exp() * log_p).sum()
        return 0.5 * (value[:-1] - target).square().sum() - surrogate - 0.01 * entropy

    def update() -> None:
        optimizer.zero_grad()
        for i in range(0, columns, width):
            (chunk_loss(slice(i, i + width)) / batch_size).backward()
        optimizer.step()

    return best_of(update) / batch_size * 1e6

"""Throughput of environments that only wait, relative to the upper bound.

512 environments wait 20 ms per step, like a remote simulator or a networked game. Stepped without
any pause, they would reach 512 / 0.02 = 25,600 steps/s, the ceiling. In the last cases, one of the
512 waits ten times as long, and rollouts are cut after a time limit.

    python benchmarks/waiting.py
    python benchmarks/waiting.py --num-actors 4 --envs-per-actor 128 --repeats 5

Start-up and the first rollout of each actor don't count. Whole rounds of rollouts are measured,
because actors that start together deliver together. Rates count transitions, without reset steps.
The environments cost almost nothing, and run in the processes of the actors.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ceiling
import common
import gymnasium
import numpy as np
import tyro
from gymnasium.vector import VectorWrapper

import headrace as hr
from headrace.actors.rollout_source import RolloutSource
from headrace.envs.names import resolve
from headrace.studies.machine import machine, show, wide_console, write_csv

SLOWER = 10  # factor of the slow environment's waits
CLAIM_AT = 20  # step at which an environment may become slow, later than in probes before the run


@dataclass(frozen=True)
class Args:
    """Measure environments that wait; see the module's docstring."""

    num_actors: int = 8
    """Processes."""
    envs_per_actor: int = 64
    """Environments per actor, one thread each."""
    fragment_length: int = 128
    """Steps per rollout."""
    step_s: float = 0.02
    """Seconds that an environment waits per step."""
    seconds: float = 10.0
    """Seconds of each case at the ceiling."""
    repeats: int = 3
    """Number of measurements of each case."""
    output: Path = Path("results/waiting")
    """Folder for waiting.csv and waiting.png."""

    @property
    def num_envs(self) -> int:
        """Return the number of environments of all actors."""
        return self.num_actors * self.envs_per_actor

    @property
    def rounds(self) -> int:
        """Return the number of measured rollouts per actor."""
        return math.ceil(self.seconds / (self.fragment_length * self.step_s))

    @property
    def rollout_s(self) -> float:
        """Return the seconds after which rollouts are cut if one environment is slow."""
        return 1.25 * self.fragment_length * self.step_s


class Wait:
    """The wait of a step.

    Args:
        step_s: seconds.
        claim: a path; whoever first makes ``CLAIM_AT`` steps creates it, and then waits ``SLOWER``
            times as long. Empty: none does.
    """

    def __init__(self, step_s: float, claim: str = "") -> None:
        self._step_s, self._claim, self._steps = step_s, claim, 0

    def __call__(self) -> None:
        self._steps += 1
        if self._claim and self._steps == CLAIM_AT and _is_first(self._claim):
            self._step_s *= SLOWER
        if self._step_s:
            time.sleep(self._step_s)


class Waiting(gymnasium.Env):
    """Waits at every step, and never ends; see :class:`Wait` for the arguments."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s: float, claim: str = "") -> None:
        self._wait = Wait(step_s, claim)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self._wait()
        return np.zeros(4, np.float32), 1.0, False, False, {}


def _is_first(claim: str) -> bool:
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Together(VectorWrapper):
    """Step the same threads synchronously: each step waits for the slowest."""

    def __init__(self, num_envs: int, step_s: float, claim: str = "") -> None:
        super().__init__(hr.make_vec(Waiting, num_envs, "threads", _settings(step_s, claim)))


def _settings(step_s: float, claim: str) -> dict[str, Any]:
    return {"step_s": step_s, "claim": claim}


def config_of(args: Args, env: Any, claim: str, total_steps: int, run_dir: str) -> hr.Config:
    """Return the config: APPO with a small network, and one optimiser step per rollout.

    Two rollouts of each actor may be in flight, so that no actor waits for the learner.
    """
    return hr.Config(
        env,
        hr.APPO(max_lag=2 * args.num_actors - 1, epochs=1, minibatches=1),
        engine="threads" if env is Waiting else "native",
        env_kwargs=_settings(args.step_s, claim),
        num_actors=args.num_actors,
        envs_per_actor=args.envs_per_actor,
        fragment_length=args.fragment_length,
        batch_size=args.envs_per_actor * args.fragment_length,
        network=hr.Network(ceiling.HIDDEN, "tanh"),
        inference="actor",
        precision="float32",
        max_rollout_seconds=args.rollout_s if claim else None,
        total_steps=total_steps,
        eval_episodes=0,
        log_interval_s=0.0,
        run_dir=run_dir,
    )


def acting(args: Args, env: Any, claim: str, folder: str) -> float:
    """Return steps per second of the actors alone, with discarded rollouts."""
    config = config_of(args, env, claim, 10**9, folder)  # a short run has fewer rollouts in flight
    policy = hr.Policy(Waiting.observation_space, Waiting.action_space, config.network)
    source = RolloutSource(config.actor_spec(resolve(env), policy), print)
    source.publish(policy, 0, 0)
    try:
        _count(source, args.num_actors)
        start = time.monotonic()
        steps = _count(source, args.rounds * args.num_actors)
        return steps / (time.monotonic() - start)
    finally:
        source.close()


def _count(source: RolloutSource, rollouts: int) -> int:
    steps = 0
    for _ in range(rollouts):
        for slot, header, _ in source.take(1, lambda: False):
            steps += header.valid_steps
            source.release([slot])
    return steps


def training(args: Args, env: Any, claim: str, folder: str) -> float:
    """Return steps per second while APPO trains on all rollouts."""
    round_steps = args.num_envs * args.fragment_length
    first_round = round_steps - round_steps // (2 * args.num_actors)  # cut rollouts are shorter
    config = config_of(args, env, claim, (1 + args.rounds) * round_steps, folder)
    begin: tuple[int, float] | None = None
    with contextlib.closing(
        hr.Trainer(config, notify=lambda text: None, handle_signals=False)
    ) as trainer:
        for result in trainer:
            if begin is None and result.env_steps >= first_round:
                begin = result.env_steps, time.monotonic()
            end = result.env_steps, time.monotonic()
    assert begin is not None
    return (end[0] - begin[0]) / (end[1] - begin[1])


CASES = [
    ("all together", acting, Together, False),
    ("headrace, own pace", acting, Waiting, False),
    ("headrace, own pace, while training", training, Waiting, False),
    ("one is slow: all together", acting, Together, True),
    ("one is slow: headrace, own pace", acting, Waiting, True),
    ("one is slow: headrace, own pace, while training", training, Waiting, True),
]


def measure(args: Args) -> list[dict[str, Any]]:
    """Measure every case ``repeats`` times in turn. Return a row of the table for each."""
    rates: dict[str, list[float]] = {name: [] for name, *_ in CASES}
    for _ in range(args.repeats):
        for name, rate, env, one_is_slow in CASES:
            with tempfile.TemporaryDirectory() as folder:
                claim = f"{folder}/claim" if one_is_slow else ""
                rates[name].append(rate(args, env, claim, f"{folder}/run"))
    rows = []
    for name, _, _, one_is_slow in CASES:
        most = (args.num_envs - one_is_slow * (1 - 1 / SLOWER)) / args.step_s
        found = common.spread("sps", rates[name])
        share = found["sps_median"] / most
        rows.append({"name": name, **found, "ceiling": most, "share": share})
    return rows


def main(args: Args) -> None:
    """Measure, print, and write waiting.csv and waiting.png."""
    args.output.mkdir(parents=True, exist_ok=True)
    rows = measure(args)
    title = (
        f"{args.num_actors} processes of {args.envs_per_actor} environments that wait "
        f"{1000 * args.step_s:g} ms per step; {machine()}"
    )
    columns = {"steps/s": "sps_median", "least": "sps_min", "most": "sps_max", "ceiling": "ceiling"}
    show([
        {"": row["name"]}
        | {column: f"{row[name]:,.0f}" for column, name in columns.items()}
        | {"share": f"{row['share']:.1%}"}
        for row in rows
    ], title, wide_console())  # fmt: skip
    write_csv(args.output / "waiting.csv", rows)
    common.draw_rates(rows, title, args.output / "waiting.png")


if __name__ == "__main__":
    main(tyro.cli(Args))

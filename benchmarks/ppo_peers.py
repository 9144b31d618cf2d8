"""PPO vs. Stable-Baselines3 with the same updates: HalfCheetah, and CartPole with an LSTM.

    python benchmarks/ppo_peers.py                # needs mujoco and sb3-contrib
    python benchmarks/ppo_peers.py --cases lstm

Environments, steps, epochs, minibatches and units are the same in both. Each uses its fastest
settings, found before: headrace's number of actors; Stable-Baselines3's torch threads, and its
environments in one process (DummyVecEnv) or in one process each (SubprocVecEnv). Rates come from
separate processes, interleaved, and ratios are medians of the ratios within a repeat. Start-up and
first updates don't count.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
import sb3
import tyro

from headrace.studies.children import Children
from headrace.studies.machine import machine, show, wide_console, write_csv

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Case:
    """Environment and update settings of a case, for both programs."""

    env_id: str
    num_envs: int
    num_steps: int  # steps per environment and update
    epochs: int
    minibatches: int
    units: int = 0  # units of an LSTM shared by policy and value; 0: none


CASES = {
    "cheetah": Case("HalfCheetah-v5", 16, 128, 4, 8),
    "lstm": Case("CartPole-v1", 8, 128, 10, 8, 256),  # RecurrentPPO's defaults, except num_envs
    "lstm-128": Case("CartPole-v1", 16, 128, 4, 8, 128),
}
PEER = {True: "sb3-contrib RecurrentPPO", False: "Stable-Baselines3 PPO"}
GRIDS: dict[str, list[dict[str, Any]]] = {
    "headrace": [{"num_actors": 1}, {"num_actors": 2}],
    "peer": [{"threads": t, "processes": p} for t in (1, 2) for p in (False, True)],
}


@dataclass(frozen=True)
class Args:
    """Measure training speed; see the module's docstring."""

    cases: tuple[str, ...] = ("cheetah", "lstm")
    """Names of CASES."""
    repeats: int = 3
    """Number of measurements of each case."""
    seconds: float = 15.0
    """Approximate seconds of a run."""
    output: Path = Path("results/ppo_peers")
    """Folder for runs.csv."""


def measured(request: dict[str, Any]) -> float:
    """Return steps per second of one run in this process."""
    case, how = Case(**request["case"]), request["how"]
    run = headrace_rate if request["who"] == "headrace" else sb3_rate
    return run(case, request["seconds"], **how)


def headrace_rate(case: Case, seconds: float, num_actors: int) -> float:
    """Return steps per second after the first update."""
    import headrace as hr

    core = "lstm" if case.units else None
    with tempfile.TemporaryDirectory() as folder:
        config = hr.Config(
            case.env_id,
            hr.PPO(epochs=case.epochs, minibatches=case.minibatches),
            num_actors=num_actors,
            envs_per_actor=case.num_envs // num_actors,
            fragment_length=case.num_steps,
            network=hr.Network(core=core, core_size=case.units or 1),
            total_steps=1 << 40,
            run_dir=f"{folder}/run",
            eval_episodes=0,
        )
        trainer = hr.Trainer(
            config, notify=lambda text: print(text, file=sys.stderr), handle_signals=False
        )
        with contextlib.closing(trainer):
            ends = None
            for _ in trainer:
                ends = ends or time.monotonic() + seconds
                if time.monotonic() > ends and trainer.sps:
                    break
            print(trainer.summary()["utilisation"], file=sys.stderr)
            return trainer.sps


def sb3_rate(case: Case, seconds: float, threads: int, processes: bool) -> float:
    """Return steps per second after the first update."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(threads)
    kind = SubprocVecEnv if processes else DummyVecEnv
    settings: dict[str, Any] = {
        "env": make_vec_env(case.env_id, case.num_envs, seed=0, vec_env_cls=kind),
        "n_steps": case.num_steps,
        "n_epochs": case.epochs,
        "batch_size": case.num_envs * case.num_steps // case.minibatches,
        "device": "cpu",
    }
    if case.units:
        from sb3_contrib import RecurrentPPO

        network = {"lstm_hidden_size": case.units, "shared_lstm": True, "enable_critic_lstm": False}
        model: Any = RecurrentPPO("MlpLstmPolicy", **settings, policy_kwargs=network)
    else:
        model = PPO("MlpPolicy", **settings)
    return sb3.rate(model, lambda _, past: past >= seconds)


def rate(case: Case, who: str, how: dict[str, Any], seconds: float) -> float:
    """Return steps per second of one run in a separate process."""
    request = {"case": asdict(case), "who": who, "how": how, "seconds": seconds}
    return Children().call(measured, request, TIMEOUT_S)


def compare(name: str, args: Args, console: Any) -> list[dict[str, Any]]:
    """Return a row per program with its fastest settings, measured in turn."""
    case = CASES[name]
    best = {
        who: max(grid, key=lambda how, who=who: rate(case, who, how, args.seconds / 3))
        for who, grid in GRIDS.items()
    }
    found: dict[str, list[float]] = {who: [] for who in best}
    for _, (who, how) in itertools.product(range(args.repeats), best.items()):
        found[who].append(rate(case, who, how, args.seconds))
        console.print(f"{name}, {who} {how}: {found[who][-1]:,.0f} steps/s")
    ratio = statistics.median(a / b for a, b in zip(*found.values(), strict=True))
    return [
        {"case": name, "program": "headrace PPO" if who == "headrace" else PEER[case.units > 0],
         **common.spread("sps", rates), "settings": str(best[who]),
         "ratio": ratio if who == "headrace" else 1.0}
        for who, rates in found.items()
    ]  # fmt: skip


def main(args: Args) -> None:
    """Measure, print and write the results."""
    console = wide_console()
    rows = [row for name in args.cases for row in compare(name, args, console)]
    args.output.mkdir(parents=True, exist_ok=True)
    write_csv(args.output / "runs.csv", [row | {"machine": machine()} for row in rows])
    texts = [row | {"sps_median": f"{row['sps_median']:,.0f}", "ratio": f"{row['ratio']:.2f}",
                    "sps_min": f"{row['sps_min']:,.0f}", "sps_max": f"{row['sps_max']:,.0f}"}
             for row in rows]  # fmt: skip
    show(texts, f"{args.repeats} repeats on {machine()}", console)


if __name__ == "__main__":
    main(tyro.cli(Args))

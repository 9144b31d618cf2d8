"""Population with instant turns and real checkpoints: ``FILE OUTPUT [JSON]``.

A run's training history is the list of all (member, steps) of its weights, saved in ``trainer.pt``.
All weights have one value, which follows from the history.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import gymnasium
import torch

import headrace as hr
from headrace.rundir import checkpoint, checkpoint_writer
from headrace.rundir.atomic_files import write_json
from headrace.rundir.config_file import replaced
from headrace.rundir.lock import Lock
from headrace.spaces.json import space_to_json
from headrace.studies.machine import wide_console
from headrace.studies.pbt.command import run
from headrace.studies.pbt.member import Event, Member
from headrace.studies.pbt.settings import Population

SIZES = {"num_actors": 1, "envs_per_actor": 8, "fragment_length": 4, "batch_size": 32}
TOTAL, TURN, BURN_IN = 400, 40, 80
HYPER = {"entropy_coef": 0.001, "learning_rate": 0.001, "optimizer_eps": 0.01}
SPACES = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)


def population(output: str, **settings) -> Population:
    network = hr.Network(hidden=(4,))
    algo = hr.IMPALA(lr_schedule="constant")
    config = hr.Config(algo=algo, total_steps=TOTAL, network=network, **SIZES)
    known = {"members": 5, "interval": TURN, "burn_in": BURN_IN, "threshold": 0.5}
    return Population(output=output, config=config, **(known | settings))


def shade(marks: list) -> float:
    """Return the weights of a history."""
    return float(zlib.crc32(json.dumps(marks).encode()) % 1000)


def score(member: int, steps: int) -> float:
    """Return the score of a member after a turn, whatever its history."""
    return float(zlib.crc32(json.dumps([member, steps]).encode()) % 100)


def check_whole(folder: Path) -> list:
    """Return the history of a checkpoint, and check its weights."""
    marks = checkpoint.load_trainer(folder)["learner"]["marks"]
    for weight in checkpoint.load_policy(folder).parameters():
        assert bool((weight == shade(marks)).all()), f"{folder} is of two checkpoints"
    return marks


def train(population, member, hyper, until, children):
    """Train a turn in two halves, each of which is saved."""
    run_dir, number = member.run_dir, member.number
    config = replaced(population.config, {"run_dir": str(run_dir), "seed": number, **hyper})
    run_dir.mkdir(parents=True, exist_ok=True)
    lock = Lock(run_dir)
    description = {
        "format": checkpoint_writer.FORMAT, "config": config.to_json(), "signature": None,
        "observation_space": space_to_json(SPACES[0]), "action_space": space_to_json(SPACES[1]),
        "info_mask": False,
    }  # fmt: skip
    state = {
        "env_steps": 0,
        "updates": 0,
        "learner": {"marks": [], "state": {"generator": number}},
        "own": [],
        "lr_factor": 1.0 - number / 4,
        "episodes": [],
    }
    if checkpoint.exists(run_dir):
        folder = checkpoint.find(run_dir)
        state = checkpoint.load_trainer(folder)
        check_whole(folder)
        saved = checkpoint.read_config(folder)["config"]
        assert saved["seed"] == number
    write_json(run_dir / "config.json", description)
    policy = hr.Policy(*SPACES, config.network)
    while state["env_steps"] < until:
        state["env_steps"] += TURN // 2
        state["learner"]["marks"].append([number, state["env_steps"]])
        with torch.no_grad():
            for weight in policy.parameters():
                weight.fill_(shade(state["learner"]["marks"]))
        checkpoint_writer.save(run_dir, description, policy, state)
        checkpoint_writer.rotate(run_dir, 1)
    mean = {"mean": score(number, until)}
    write_json(run_dir / "summary.json", {"env_steps": state["env_steps"], "evaluation": mean})
    lock.release()
    return {}


def histories(population: Population) -> list[list[Event]]:
    return [Member(i, population.member_dir(i)).history() for i in range(population.members)]


def member_of(population: Population, number: int, score: float, steps: int = 100) -> Member:
    """Return a run that has trained for a while, with its checkpoint."""
    member = Member(number, population.member_dir(number))
    member.folder.mkdir(parents=True)
    hyper = {name: value * (1 + number) for name, value in HYPER.items()}
    member.note(Event("born", 0, hyper))
    train(population, member, hyper, steps, None)
    member.trained(hyper, steps, score)
    return member


if __name__ == "__main__":
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    sys.exit(run(population(sys.argv[1], **settings), wide_console(), train))

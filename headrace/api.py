"""The functions that a user calls: train, resume, load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headrace.algos.common import Hyperparameters
from headrace.config import Config, unknown_setting
from headrace.errors import CheckpointError
from headrace.launch.local import LearnerGroup
from headrace.launch.torchrun import join_torchrun
from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.process import torch_threads
from headrace.records import checkpoint
from headrace.records.result import Result
from headrace.records.settings import from_json
from headrace.records.terminal import Report
from headrace.training.run import evaluated
from headrace.training.sizes import few_steps
from headrace.training.trainer import Trainer
from headrace.types import Group

Callback = Callable[[Result], bool | None]


def train(
    env: Any,
    algo: Hyperparameters | None = None,
    callbacks: Iterable[Callback] = (),
    **settings: Any,
) -> Policy:
    """Train on an environment and return the policy; results are in its run directory.

    Args:
        env: Gymnasium id, Env class or callable; or a whole :class:`Config`.
        algo: ``hr.APPO()``, ``hr.PPO(...)`` …; APPO by default.
        callbacks: called with every Result; one that returns False ends the run.
        **settings: fields of :class:`Config`.

    Raises:
        ConfigError: a setting is unknown or wrong; nothing was started.
    """
    for name in settings:
        if name not in {f.name for f in dataclasses.fields(Config)}:
            raise unknown_setting(name)
    if algo is not None:
        settings["algo"] = algo
    if isinstance(env, Config):
        return run(dataclasses.replace(env, **settings), callbacks)
    return run(Config(env, **settings), callbacks)


def resume(run_dir: str | Path, callbacks: Iterable[Callback] = (), **settings: Any) -> Policy:
    """Continue a run from its latest checkpoint, with some settings replaced.

    Raises:
        CheckpointError: there is no checkpoint to continue from, or it is another algorithm's.
    """
    return run(resume_config(run_dir, **settings), callbacks)


def resume_config(run_dir: str | Path, **settings: Any) -> Config:
    """The config that continues a run; see :func:`resume`."""
    values = checkpoint.read_config(checkpoint.find(run_dir))["config"]
    settings = {"resume": True, "overwrite": False, "run_dir": str(run_dir), **settings}
    config = from_json(values, **settings)
    if config.algo_name != values["algo"]["name"]:
        raise CheckpointError(
            f"run directory {run_dir} was trained with {values['algo']['name']}, so it can't be "
            f"resumed with {config.algo_name}"
        )
    return config


def load(run_dir: str | Path, which: str = "latest", network: Network | None = None) -> Policy:
    """The policy of a run directory or checkpoint folder, ready for ``predict``.

    Args:
        which: ``latest`` or ``best`` (by training return).
        network: what it was trained with, if its own torso can't be imported by name.

    Raises:
        CheckpointError: it is missing, corrupt or not headrace's.
    """
    return checkpoint.load_policy(checkpoint.find(run_dir, which), network)


def run(config: Config, callbacks: Iterable[Callback] = (), started: float | None = None) -> Policy:
    """Train with progress on the terminal, evaluate, draw, and write ``summary.json``.

    Under torchrun every process calls this; only rank 0 reports and writes.

    Args:
        started: when the run counts as started, on the clock of ``time.monotonic()``.
    """
    config, group = join_torchrun(config)
    leads = group is None or group.rank == 0
    report = Report(config, quiet=not leads)
    with report, _trainer(config, started, report, group) as trainer:
        report.begin(trainer.config, trainer.run_dir)
        if hint := few_steps(trainer.config):
            report.say(hint)
        for result in trainer:
            report.update(result)
            for callback in callbacks:
                if callback(result) is False:
                    trainer.stop()
        policy = trainer.policy
        if leads:
            summary = trainer.summary()
            if config.eval_episodes and not trainer.interrupted:
                with torch_threads(1):
                    evaluation = evaluated(config, trainer.env, policy.to("cpu"))
                summary["evaluation"] = dataclasses.asdict(evaluation)
            checkpoint.write_json(trainer.run_dir / "summary.json", summary)
            report.end(trainer.run_dir, summary)
    if group is not None:
        group.close()
    return policy


def _trainer(
    config: Config, started: float | None, report: Report, group: Group | None
) -> Trainer | LearnerGroup:
    """What trains: one learner in this process, or several in theirs."""
    if group is not None or config.num_learners == 1:
        return Trainer(config, started, report.say, group)
    return LearnerGroup(config, started, report.say)

"""Public functions to train, resume and load policies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.actors.task_adapter import one_task
from headrace.algos.common import Hyperparameters
from headrace.callbacks import CallbackList
from headrace.config import Config, unknown_setting
from headrace.config.algorithms import check_order, instance, is_called, short_name
from headrace.errors import (
    CheckpointError,
    ConfigError,
    WorkerFailed,
    require,
    setting,
    shown,
)
from headrace.launch.group import LearnerGroup
from headrace.launch.torchrun import join_torchrun, torchrun_rendezvous
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.network import Network
from headrace.nn.policy import Policy
from headrace.processes import global_generators_kept, library_defaults
from headrace.processes.output import output_best_effort
from headrace.recipes import for_tasks
from headrace.rundir import checkpoint, checkpoint_writer, resolve_imports
from headrace.rundir.config_file import check_resumed, from_json, replaced
from headrace.rundir.config_keywords import Settings
from headrace.rundir.finished import check_steps, nothing_left
from headrace.rundir.terminal import Report
from headrace.trainer.auto_sizes import few_steps
from headrace.trainer.trainer import Trainer
from headrace.types import Group
from headrace.validation.fields import checked

if TYPE_CHECKING:  # typing has it from Python 3.11 on
    from typing_extensions import Unpack


@checked
def train(
    env: Any = None,
    algo: Hyperparameters | str | None = None,
    callbacks: Iterable[Any] = (),
    quiet: bool = False,
    **settings: Unpack[Settings],
) -> AnyPolicy:
    """Train on an environment and return the policy; results are in its run directory.

    The first Ctrl-C stops training, saves a checkpoint and returns the policy; a second one raises
    KeyboardInterrupt.

    Args:
        env: Gymnasium id, Env class or callable; or a complete :class:`Config`. Leave it out with
            ``tasks``, or with ``resume`` to keep the run's environment.
        algo: ``hr.APPO()``, ``hr.PPO(...)`` …, an instance of a custom subclass of
            :class:`Hyperparameters`, or a name with default hyperparameters: ``"ppo"``,
            ``"module:Class"`` or ``"file.py:Class"``. APPO by default.
        callbacks: called with every Result, and with the :class:`Trainer` (with several learners,
            the :class:`LearnerGroup`) if they take two arguments, or one named ``trainer``.
            Training stops if a callback returns False. Objects may also have ``begin(trainer)``
            and ``end(trainer, summary)``, see :class:`~headrace.callbacks.Callback`.
        quiet: print nothing.
        **settings: fields of :class:`Config`. With ``resume``, other settings keep the run's
            values, see :func:`resume`.

    Raises:
        ConfigError: a setting is unknown or invalid; no process was started.
    """
    overrides: dict[str, Any] = dict(settings)
    check_order(env, algo, "train")
    algo = cast("Hyperparameters | None", instance(algo))
    for name in overrides:
        if name not in {f.name for f in dataclasses.fields(Config)}:
            raise unknown_setting(name, algo)
    if algo is not None:
        overrides["algo"] = algo
    if isinstance(env, Config):
        tasks = overrides.get("tasks")
        base = for_tasks(env, tasks) if tasks and isinstance(tasks, list | tuple) else env
        return run(dataclasses.replace(base, **overrides), callbacks, quiet=quiet)
    if env is not None and overrides.get("tasks"):
        raise ConfigError(f"env={shown(env)} must be left out with tasks, which replace it")
    goes_on = overrides.get("resume") and not overrides.get("overwrite")
    if env is not None or not (goes_on or overrides.get("tasks")):
        overrides["env"] = env
    if goes_on and overrides.get("run_dir") is not None:
        return run(resume_config(**overrides), callbacks, quiet=quiet)
    return run(Config(**overrides), callbacks, quiet=quiet)


@checked
def resume(
    run_dir: str | Path,
    callbacks: Iterable[Any] = (),
    trust: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> AnyPolicy:
    """Continue a run from its latest checkpoint, with some settings replaced.

    Changed settings are printed. The algorithm, the network, the environment's spaces, ``seed``,
    ``scale_free``, ``optimizer`` and ``normalize_returns`` can't change.

    Args:
        trust: import the environment, wrappers, torso and algorithm that its ``config.json``
            names, even if you haven't named them on this machine.
        quiet: print nothing.
        **settings: fields of :class:`Config`, of the run's algorithm and of :class:`Network`, as
            in ``hr.resume("runs/a", learning_rate=1e-5, total_steps=2_000_000)``.

    Raises:
        ConfigError: a setting is unknown or invalid, or can't change.
        CheckpointError: there is no checkpoint, it is from another algorithm, or it names code and
            is not trusted.
    """
    return run(resume_config(run_dir, trust, **settings), callbacks, quiet=quiet)


@checked
def resume_config(run_dir: str | Path, trust: bool = False, **settings: Any) -> Config:
    """Return the config that continues a run; see :func:`resume`.

    Under torchrun it has as many learners as torchrun started, unless ``num_learners`` is set.
    """
    folder = checkpoint.find(run_dir)
    values = checkpoint.read_config(folder)
    if "algo" in settings:
        settings["algo"] = instance(settings["algo"])
    named = resolve_imports.settings(folder, values, trust, tuple(settings))
    saved = _saved_config(run_dir, settings.get("algo"), **named)
    if rendezvous := torchrun_rendezvous():
        settings = {"num_learners": rendezvous.size, **settings}
    config = replaced(saved, settings)
    check_resumed(saved, config)
    return config


def _saved_config(run_dir: str | Path, algorithm: Any = None, **named: Any) -> Config:
    """Return the settings of a run's latest checkpoint, set to resume.

    Args:
        algorithm: algorithm to resume with, of the saved class; None: import it by its name.
        named: settings with resolved code.

    Raises:
        CheckpointError: the run was trained with another algorithm.
    """
    values = checkpoint.read_config(checkpoint.find(run_dir))["config"]
    if isinstance(algorithm, Hyperparameters):
        check_trained(run_dir, values["algo"]["name"], type(algorithm))
        functions = {n: getattr(algorithm, n, None) for n, x in values["algo"].items()
                     if isinstance(x, dict)}  # fmt: skip
        named["algo"] = {**values["algo"], **functions, "name": type(algorithm)}
    overrides = {"resume": True, "overwrite": False, "init_from": None, "run_dir": str(run_dir)}
    return from_json(values, **overrides, **named)


def check_trained(run_dir: str | Path, name: str, kind: type[Hyperparameters]) -> None:
    """Raise CheckpointError unless a run of the named algorithm can be resumed with this class."""
    if not is_called(name, kind):
        raise CheckpointError(
            f"run directory {run_dir} was trained with {name}, so it can't be resumed with "
            f"{short_name(kind)}"
        )


@checked
def load(
    run_dir: str | Path,
    which: str = "latest",
    network: Network | None = None,
    trust: bool = False,
    policy: str | None = None,
    task: str | None = None,
) -> AnyPolicy:
    """Load the policy of a run directory or checkpoint folder, ready for ``predict``.

    Args:
        which: ``latest`` or ``best`` (by evaluated return in runs with ``eval_interval``, otherwise
            by training return at a checkpoint).
        network: network that it was trained with, if its custom torso can't be imported by name.
        trust: import a custom torso that it names, even if you haven't named it on this machine.
        policy: name of one of several policies; None: all of them, as one that plays a whole game.
        task: name of one of several tasks: the policy then uses that task's spaces; None: the
            unified spaces of all tasks.

    Raises:
        ConfigError: there is no ``policy`` or ``task`` with this name.
        CheckpointError: it is missing, corrupt or not from headrace, or names a torso and is not
            trusted.
    """
    with library_defaults(), global_generators_kept():
        loaded = checkpoint.load_policy(checkpoint.find(run_dir, which), network, trust)
    if task is not None:
        several = isinstance(loaded, Policy) and len(loaded.tasks) > 0
        require(several, "task", task, f"None: {run_dir} wasn't trained on several tasks")
        assert isinstance(loaded, Policy)
        loaded = one_task(loaded, task)
    if policy is None:
        return loaded
    require(
        isinstance(loaded, MultiPolicy), "policy", policy, f"None: {run_dir} has a single policy"
    )
    assert isinstance(loaded, MultiPolicy)
    loaded.mapping.check(policy)
    return loaded.policies[policy]


def run(
    config: Config,
    callbacks: Iterable[Any] = (),
    started: float | None = None,
    draw: bool = True,
    quiet: bool = False,
) -> AnyPolicy:
    """Train with progress on the terminal, evaluate, draw, and write ``summary.json``.

    Under torchrun every process calls this; only rank 0 reports and writes.

    Args:
        started: start time of the run (``time.monotonic()``); None: now.
        draw: draw curves and report at the end.
        quiet: print nothing.
    """
    config, group = join_torchrun(config)
    leads = group is None or group.rank == 0
    report = Report(config, quiet=quiet or not leads)
    calls = CallbackList(callbacks if leads else (), report.say)
    if leads and config.resume and config.run_dir is not None:
        saved = _saved_config(config.run_dir, config.algo)
        report.say(check_resumed(saved, config))
        check_steps(config, saved)
        limits: Any = {"total_steps": saved.total_steps, "stop_time_s": saved.stop_time_s}
        is_same = dataclasses.replace(config, **limits) == saved
        if is_same and group is None and (line := nothing_left(config)):
            report.say(line)
            network = config.network if config.network.torso is not None else None
            return checkpoint.load_policy(checkpoint.find(config.run_dir), network, trusted=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(output_best_effort())
        stack.enter_context(_explain_lost_cluster(config))
        stack.enter_context(report)
        trainer = _trainer(config, started, report, group)
        stack.enter_context(trainer)
        report.begin(trainer.config, trainer.run_dir)
        if hint := few_steps(trainer.config):
            report.say(hint)
        with calls.around(trainer):
            for result in trainer:
                report.update(result)
                if not calls.result(result, trainer):
                    trainer.stop()
            summary = calls.summary = trainer.finish(draw)
        policy = trainer.policy.to("cpu")
        policy.compute_in("float32")  # like load()
        if leads and checkpoint.exists(trainer.run_dir):
            checkpoint_writer.make_savable(policy, checkpoint.read_config(trainer.run_dir))
        if leads:
            report.end(trainer.run_dir, summary)
    if group is not None:
        group.close()
    return policy


@contextlib.contextmanager
def _explain_lost_cluster(config: Config) -> Iterator[None]:
    """Explain how to continue a resumed run whose cluster is gone."""
    try:
        yield
    except WorkerFailed as error:
        if not config.resume or config.cluster is None:
            raise
        alone = [setting(name, "None") for name in ("cluster", "min_actors")
                 if getattr(config, name) is not None]  # fmt: skip
        raise WorkerFailed(
            f"{error}; to continue without the cluster, set {' and '.join(alone)}; to continue on "
            f"another one, set {setting('cluster', chr(39) + 'ray:ADDRESS' + chr(39))}"
        ) from error


def _trainer(
    config: Config, started: float | None, report: Report, group: Group | None
) -> Trainer | LearnerGroup:
    """Create a trainer in this process, or a group of several learners."""
    if group is not None or config.num_learners == 1:
        return Trainer(config, started, report.say, group)
    return LearnerGroup(config, started, report.say)

"""``headrace launch SCHEDULER [flags] -- COMMAND``: runs a command on a scheduler's nodes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.algos import NAMES, installed
from headrace.cli.flags import parsed
from headrace.errors import ConfigError, LaunchFailed
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.kubernetes.entry import RUNS
from headrace.jobs.kubernetes.following import Hopeless, Kubernetes
from headrace.jobs.kubernetes.manifest import KubernetesJob, manifest
from headrace.jobs.rendering import check_one_line
from headrace.jobs.slurm.following import JobFollower, LogTail, cancelled, log_of
from headrace.jobs.slurm.job import Job, script
from headrace.jobs.slurm.queue import check_cluster, submit
from headrace.processes.ctrl_c import STATUS
from headrace.ray.connection import check_installed
from headrace.recipes import take_flag
from headrace.rundir import directories


class Command(NamedTuple):
    """Command of a job; "{run}", "{seed}" and "{address}" are substituted on the nodes."""

    words: list[str]
    from_scratch: list[str]  # after a start of this job that left no checkpoint
    again: list[str]  # after one that did
    run_dir: str | None  # as the user named it
    trains: bool  # True: a training run of headrace
    grows: bool = True  # False: it can't use nodes that are added later


def command_of(
    argv: list[str], python: str, on_cluster: bool, has_seeds: bool, sees_runs: bool = True
) -> Command:
    """Return the command after ``--``, with its settings checked.

    Args:
        python: Python interpreter on the nodes.
        on_cluster: actors run on a Ray cluster.
        has_seeds: the job is an array with a run for each seed.
        sees_runs: this machine sees the run directories.

    Raises:
        ConfigError: there is no command, or its settings are invalid.
    """
    if not argv:
        raise ConfigError(
            "headrace launch needs a command behind --, as in "
            "`headrace launch slurm --nodes 2 -- train appo --recipe cartpole`"
        )
    name, rest = argv[0], [_dashed(word) for word in argv[1:]]
    if name not in ("train", "resume"):
        return Command(argv, argv, argv, None, False)
    if name == "resume" and not rest:
        raise ConfigError("headrace resume needs a run directory first: resume RUN …")
    if name == "train" and (not rest or not _is_algorithm(rest[0])):
        raise ConfigError(f"headrace train needs an algorithm first: {', '.join(NAMES)}")
    if take_flag(rest, "--cluster")[0] is not None:
        raise ConfigError("--cluster is set by headrace launch: leave it out")
    program = [python, "-m", "headrace"]
    resumes = name == "resume" or "--resume" in rest
    cluster = _cluster(rest, on_cluster, resumes)
    if name == "resume":
        if has_seeds:
            raise ConfigError("--array is for headrace train: a resumed run has its seed")
        words = [*program, "resume", "{run}", *rest[1:], *cluster]
        return Command(words, words, words, rest[0], True)
    if has_seeds and take_flag(rest, "--seed")[0] is not None:
        raise ConfigError("--seed is set by --array: leave one of them out")
    run_dir, others = take_flag(rest, "--run-dir")
    grows = True
    if sees_runs or not resumes:
        run = ["--run-dir", run_dir] if resumes and run_dir else []
        grows = _check(others[0], [*others[1:], *run, *cluster])
    if has_seeds:
        others = [*others, "--seed", "{seed}"]
    kept = [word for word in others if word in ("--trust", "--quiet")]
    again = [*program, "resume", "{run}", *kept, *cluster]
    words = [*program, "train", *others, "--run-dir", "{run}", *cluster]
    replaces = resumes or "--overwrite" in others
    from_scratch = words if replaces else [*words, "--overwrite"]
    return Command(words, from_scratch, again, run_dir, True, grows)


def _is_algorithm(word: str) -> bool:
    """Return True for a built-in, installed or custom algorithm, as ``headrace train`` takes it."""
    custom = ":" in word and not word.startswith("-")
    return custom or word in NAMES or word in installed()


def _dashed(word: str) -> str:
    """Return a flag with dashes: --run_dir becomes --run-dir."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _cluster(rest: list[str], on_cluster: bool, resumes: bool) -> list[str]:
    """Return flags for the place of actors; a resumed run may name a cluster that is gone."""
    if on_cluster:
        return ["--cluster", "ray:{address}"]
    least = [] if take_flag(rest, "--min-actors")[0] else ["--min-actors", "None"]
    return ["--cluster", "None", *least] if resumes else []


def _check(algorithm: str, argv: list[str]) -> bool:
    """Raise ConfigError for invalid settings; return whether actors may start later."""
    from headrace.cli.training import QUIET, check_env_given, config_of

    known = [word.replace("{address}", "auto") for word in argv if word != QUIET]
    config = config_of(algorithm, take_flag(known, "--device")[1])  # only the nodes may have it
    check_env_given(algorithm, argv)
    return config.min_actors is not None and config.num_actors != "auto"


@dataclasses.dataclass(frozen=True)
class SubmitOptions:
    """Options of a submission."""

    dry_run: bool = False
    """Print the job script or manifest, and submit nothing."""
    detach: bool = False
    """Submit the job and return without following it."""


_SLURM = (
    "Submit a SLURM job that starts Ray on each of its nodes and runs a command of headrace, or "
    "any other program, on the first node; follow the job to its end."
)


def slurm(argv: list[str]) -> int:
    """``headrace launch slurm``; the exit status is the job's.

    Raises:
        ConfigError, CheckpointError: the settings are invalid; nothing was submitted.
        LaunchFailed: SLURM rejected the job, or doesn't answer.
    """
    flags, words = _divided(argv)
    job, options = parsed("headrace launch slurm", flags, _SLURM, Job, SubmitOptions)
    command = command_of(words, sys.executable, job.nodes > 1, job.array is not None)
    check_one_line("run_dir", command.run_dir or "")
    if set(command.run_dir or "") & set("%\\"):
        raise ConfigError(
            f"run_dir={command.run_dir!r} must be without % and \\, which SLURM takes for its "
            "own in the name of a job's log"
        )
    if command.run_dir and job.array is None:
        resumes = words[0] == "resume" or "--resume" in words
        directories.check(Path(command.run_dir), resumes, "--overwrite" in words)
    stem = command.run_dir or f"runs/{job.job_name}-{'%j' if job.array is None else '%A'}"
    if job.array is not None:
        stem = f"{stem}/seed-%a"
    log = f"{stem}.log"
    ray = job.nodes > 1 or not command.trains
    run_dir = stem if command.trains else ""
    spec = JobSpec(*command[:3], run_dir, job.start_timeout_s, job.requeue, ray=ray)
    text = script(job, spec, log)
    if options.dry_run:
        print(text, end="")
        return 0
    if ray:
        check_installed("headrace launch slurm")
    check_cluster(job)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    before = {} if "%" in log else {Path(log): LogTail(Path(log))}
    number = submit(text)
    _say(f"job {number} is submitted; its output is in {log_of(log, number)}")
    if options.detach:
        _say(f"`scancel {number}` ends it, `squeue --job {number}` shows it")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a lost terminal changes nothing
    show: Callable[[str], None] = lambda text: print(text, end="", flush=True)  # noqa: E731
    try:
        follower = JobFollower(number, log, before, show, _say, job.num_jobs)
        return follower.to_the_end()
    except KeyboardInterrupt:
        cancelled(number, _say)
        return STATUS


_K8S = (
    "Create a RayJob, for which KubeRay's operator starts Ray in pods and runs a command of "
    "headrace, or any other program, in the first pod; follow it to its end, and delete it."
)


def k8s(argv: list[str]) -> int:
    """``headrace launch k8s``; the exit status is 0 if the command succeeded.

    Raises:
        ConfigError: the settings are invalid; nothing was created.
        LaunchFailed: the cluster rejected the job, doesn't answer, or can't start a pod.
    """
    flags, words = _divided(argv)
    job, options = parsed("headrace launch k8s", flags, _K8S, KubernetesJob, SubmitOptions)
    name = f"{job.job_name}-{secrets.token_hex(3)}"
    spec = _pod_spec(job, words, name)
    check_installed("headrace launch k8s")
    made = manifest(job, spec, name, importlib.metadata.version("ray"))
    if options.dry_run:
        print(made, end="")
        return 0
    cluster = Kubernetes(job.namespace)
    cluster.check(job.volume_claim)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster.create(made)
    except (LaunchFailed, KeyboardInterrupt):  # it may have been created all the same
        cluster.delete(name, _say)
        raise
    _say(f"rayjob {name} is made; its run is in {spec.run_dir or RUNS} of {job.volume_claim}")
    if options.detach:
        show, end = (cluster.by_hand(word, "rayjob", name) for word in ("get", "delete"))
        _say(f"{end} ends it, {show} shows it")
        return 0
    try:
        status = cluster.follow(name, _say)
    except Hopeless:
        cluster.delete(name, _say)
        raise
    except KeyboardInterrupt:
        status = STATUS
    cluster.delete(name, _say)
    return status


def _pod_spec(job: KubernetesJob, words: list[str], name: str) -> JobSpec:
    """Return the specification of the command of a RayJob of this name.

    Raises:
        ConfigError: the settings are invalid, or don't fit the job.
    """
    on_cluster = job.nodes > 1 or job.max_nodes is not None
    command = command_of(words, "python", on_cluster, has_seeds=False, sees_runs=False)
    check_one_line("run_dir", command.run_dir or "")
    if not command.grows and (job.max_nodes or 0) > job.nodes:
        raise ConfigError(
            f"k8s: max_nodes={job.max_nodes} must be left out with nodes={job.nodes}, whose cores "
            "the actors share, unless --num-actors asks for more actors than those cores and "
            "--min-actors lets some of them wait for others"
        )
    run_dir = os.path.join(RUNS, command.run_dir or name) if command.trains else ""
    if run_dir and not os.path.normpath(run_dir).startswith(f"{RUNS}/"):
        raise ConfigError(
            f"run_dir={command.run_dir!r} must be in {RUNS}, where the volume is (nearest: "
            f"{RUNS}/{os.path.basename(os.path.normpath(run_dir))})"
        )
    return JobSpec(*command[:3], run_dir)


def _divided(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the flags before ``--`` and the command after it."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _say(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)


LAUNCH: dict[str, Callable[[list[str]], int]] = {"slurm": slurm, "k8s": k8s}

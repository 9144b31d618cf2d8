"""Types of a run's settings as keywords, for editors and type checkers."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from headrace.config.setting_types import InfoNames, PlayedBy
from headrace.nn.network import Network


class Settings(TypedDict, total=False):
    """Fields of :class:`Config` that ``hr.train`` takes in addition to ``env`` and ``algo``."""

    tasks: tuple[Any, ...]
    env_kwargs: dict[str, Any]
    env_file: str | None
    automatic: tuple[str, ...]
    wrappers: tuple[Any, ...]
    engine: Literal["auto", "native", "envpool", "sync", "async", "threads"]
    transport: Literal["shm", "serial"]
    cluster: str | None
    min_actors: int | None
    num_learners: int
    num_actors: int | Literal["auto"]
    envs_per_actor: int | Literal["auto"]
    fragment_length: int | Literal["auto"]
    batch_size: int | Literal["auto"] | None
    total_steps: int
    stop_time_s: float | None
    stop_return: float | None
    scale_free: bool
    seed: int
    network: Network
    policies: PlayedBy
    opponents: str | None
    league: str | None
    snapshot_every_steps: int | None
    snapshot_win_rate: float | None
    exploit: str | None
    zero_sum: bool
    device: str
    precision: Literal["auto", "float32", "bfloat16"]
    stacked_frames: Literal["auto", "once", "whole"]
    inference: Literal["auto", "actor", "shared"]
    max_wait_ms: float
    compile: bool
    learner_threads: int | None
    cores_per_learner: int | None
    max_rollout_seconds: float | None
    preempt_fraction: float | None
    max_policy_lag: int | None
    weight_sync: str
    kl_threshold: float
    deterministic: bool
    checkpoint_interval: int
    checkpoint_interval_s: float
    keep_checkpoints: int
    eval_episodes: int
    eval_env_kwargs: dict[str, Any]
    eval_envs: dict[str, Any]
    eval_max_steps: int
    eval_timeout_s: float
    eval_deterministic: bool
    info_metrics: InfoNames
    eval_interval: int | None
    target_return: float | None
    run_dir: str | None
    init_from: str | None
    resume: bool
    overwrite: bool
    max_restarts: int | None
    actor_timeout_s: float
    learner_timeout_s: float
    log_interval_s: float
    log_iterations: bool | None

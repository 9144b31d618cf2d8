"""Maps setting names of other libraries to headrace's, as the tables of docs/migrating.md do."""

from __future__ import annotations

_SB3 = "Stable-Baselines3"
_CLEANRL = "CleanRL"
_RLLIB = "RLlib"
_SF = "Sample Factory"
_ACME = "Acme"
_NOTHING = "nothing: "  # prefix of reasons why a setting isn't needed

# name: (library, replacement here). Names that headrace uses itself are left out.
_BY_LIBRARY: dict[str, dict[str, str]] = {
    _SB3: {
        "RecurrentPPO": "hr.PPO with network=hr.Network(core='lstm')",
        "MaskablePPO": "hr.PPO, which finds action masks",
        "policy": "nothing: the network follows from the spaces",
        "make_vec_env": "hr.train, which makes the environments (hr.make_vec makes them alone)",
        "DummyVecEnv": "hr.train with transport='serial'",
        "SubprocVecEnv": "hr.train with engine='async'",
        "VecFrameStack": "wrappers=('FrameStackObservation:{\"stack_size\":4}',)",
        "n_envs": "num_actors and envs_per_actor",
        "n_steps": "fragment_length",
        "n_epochs": "epochs",
        "clip_range": "clip",
        "clip_range_vf": "value_clip",
        "gae_lambda": "lam",
        "ent_coef": "entropy_coef",
        "vf_coef": "value_coef",
        "target_kl": "kl_stop",
        "total_timesteps": "total_steps",
        "policy_kwargs": "network=hr.Network(hidden=(64, 64))",
        "net_arch": "network=hr.Network(hidden=(64, 64))",
        "VecNormalize": "nothing: scale_free, which is on, normalizes observations and values",
        "norm_obs": "normalize_observations",
        "norm_reward": "normalize_returns",
        "learning_starts": "nothing: algorithms train on the first rollouts",
        "EvalCallback": "eval_interval",
        "callback": "callbacks",
        "tensorboard_log": "nothing: run_dir holds TensorBoard files if tensorboard is installed",
        "reset_num_timesteps": "hr.resume",
        "verbose": "quiet",
    },
    _CLEANRL: {
        "num_envs": "num_actors and envs_per_actor",
        "num_steps": "fragment_length",
        "update_epochs": "epochs",
        "num_minibatches": "minibatches",
        "clip_coef": "clip",
        "ent_coef": "entropy_coef",
        "vf_coef": "value_coef",
        "gae_lambda": "lam",
        "target_kl": "kl_stop",
        "anneal_lr": "lr_schedule",
        "clip_vloss": "value_clip",
        "track": "callbacks",
        "wandb_project_name": "callbacks",
        "capture_video": "headrace evaluate --video",
    },
    _RLLIB: {
        "lr": "learning_rate",
        "lambda_": "lam",
        "entropy_coeff": "entropy_coef",
        "vf_loss_coeff": "value_coef",
        "clip_param": "clip",
        "grad_clip": "max_grad_norm",
        "framework": "nothing: networks are PyTorch modules",
        "num_gpus": "device",
        "num_workers": "num_actors",
        "num_env_runners": "num_actors",
        "num_rollout_workers": "num_actors",
        "env_config": "env_kwargs",
        "vtrace": "off_policy",
        "vtrace_clip_rho_threshold": "rho_bar",
        "vtrace_clip_pg_rho_threshold": "pg_rho_bar",
        "num_envs_per_env_runner": "envs_per_actor",
        "rollout_fragment_length": "fragment_length",
        "train_batch_size_per_learner": "batch_size",
        "num_gpus_per_learner": "device",
        "train_batch_size": "batch_size",
        "num_sgd_iter": "epochs",
        "sgd_minibatch_size": "minibatches",
        "use_lstm": "network=hr.Network(core='lstm')",
    },
    _SF: {
        "num_workers": "num_actors",
        "num_envs_per_worker": "envs_per_actor",
        "rollout": "fragment_length",
        "recurrence": "fragment_length",
        "num_epochs": "epochs",
        "num_batches_per_epoch": "minibatches",
        "use_rnn": "network=hr.Network(core='lstm')",
        "rnn_type": "network=hr.Network(core='lstm')",
        "rnn_size": "network=hr.Network(core_size=128)",
        "normalize_input": "normalize_observations",
        "exploration_loss_coeff": "entropy_coef",
        "value_loss_coeff": "value_coef",
        "train_for_env_steps": "total_steps",
        "train_for_seconds": "stop_time_s",
        "serial_mode": "transport='serial'",
        "with_pbt": "headrace pbt",
    },
    _ACME: {"discount": "gamma"},
}
# Algorithms of other libraries that headrace lacks.
_ALGORITHMS = (
    *("SAC", "DQN", "TD3", "DDPG", "TQC", "QRDQN", "TRPO", "ARS", "HER", "CrossQ"),
    *("C51", "RAINBOW", "RAINBOWDQN", "R2D2", "APEXDQN", "SIMPLEQ", "CQL", "MARWIL", "BC"),
    *("DREAMERV3", "PPG", "RPO", "PQN", "REDQ", "MPO", "VMPO", "ACKTR", "QMIX", "MADDPG"),
)


def meant(name: str) -> str | None:
    """Return the headrace setting for another library's name."""
    return next((names[name] for names in _BY_LIBRARY.values() if name in names), None)


def is_other_algorithm(name: str) -> bool:
    """Return whether a name is that of a well-known algorithm that headrace lacks."""
    return name.upper().replace("-", "").replace("_", "") in map(str.upper, _ALGORITHMS)


def hint(name: str, flags: bool = False) -> str:
    """Return a hint such as `` n_steps is Stable-Baselines3's name; use fragment_length.``, or "".

    Args:
        flags: write settings as on the command line.
    """
    use = meant(name)
    if use is None:
        return ""
    libraries = [library for library, names in _BY_LIBRARY.items() if name in names]
    owners = f"{' and '.join(libraries)}'s name"
    if use.startswith(_NOTHING):
        name_given = f"--{name.replace('_', '-')}" if flags else name
        return f" {name_given} is {owners}; it isn't needed: {use.removeprefix(_NOTHING)}."
    if flags:
        words = [f"--{w.replace('_', '-')}" if _is_setting(w) else w for w in use.split()]
        use, name = " ".join(words), f"--{name.replace('_', '-')}"
        if (nested := use.partition("hr.Network(")[2]) and use.startswith("network="):
            flag, _, value = nested.rstrip(")").partition("=")
            use = f"--{flag.replace('_', '-')} {value.strip('()').replace(',', '')}".replace(
                "'", ""
            )
    return f" {name} is {owners}; use {use}."


def _is_setting(word: str) -> bool:
    """Return whether a word is the bare name of a setting."""
    return word.replace("_", "").isalpha() and word not in ("and", "headrace", "pbt")


def libraries() -> dict[str, dict[str, str]]:
    """Return the names of each library with the corresponding headrace settings."""
    return {library: dict(names) for library, names in _BY_LIBRARY.items()}

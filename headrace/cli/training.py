"""``headrace train`` and ``headrace resume``: apply flags to default or saved settings."""

from __future__ import annotations

from headrace.api import check_trained, resume_config, run
from headrace.cli.flags import named
from headrace.cli.import_path import import_from_here, import_from_here_if_named
from headrace.config import Config
from headrace.config.algorithms import find
from headrace.errors import ConfigError
from headrace.processes import process_started
from headrace.recipes import RECIPES, take_flag, take_recipe
from headrace.rundir import checkpoint
from headrace.rundir.config_file import replaced

_OF_THE_RUN = ("run_dir", "resume", "overwrite", "init_from")  # what `resume RUN` says or excludes

_TRAIN = (
    "Train. Flags override the defaults, or with --resume the run's settings. --quiet "
    "prints nothing."
)
_RESUME = (
    "Continue a run. Flags change its settings; all others stay unchanged. --quiet prints nothing."
)
# One of these names the environment, or limits training on the default one, CartPole-v1.
_NAMES_ENV = {"--env-id", "--env", "--tasks", "--recipe", "--resume", "--total-steps"}
QUIET = "--quiet"  # print nothing
_TRUST = "--trust"  # import the code that the run names, though this user hasn't named it here
_OF_ANY = (
    "--trust imports code named by a run of another user. After a run directory, --help "
    "shows its own algorithm and settings."
)


def train(algorithm: str, argv: list[str]) -> None:
    """Run ``headrace train ALGORITHM [flags]``.

    Raises:
        ConfigError: no environment is given, or as :func:`config_of`.
        CheckpointError: as :func:`config_of`.
    """
    config, quiet = config_of(algorithm, _loud(argv)), QUIET in argv
    check_env_given(algorithm, argv)
    if config.resume:
        import_from_here_if_named(config.to_json())
    run(config, started=process_started(), quiet=quiet)


def check_env_given(algorithm: str, argv: list[str]) -> None:
    """Raise ConfigError unless a flag names the environment, a recipe, a run or a duration."""
    if _NAMES_ENV & {word.partition("=")[0].replace("_", "-") for word in argv}:
        return
    tuned = ", or a recipe, which has one: --recipe cartpole" if recipes_of(algorithm) else ""
    raise ConfigError(
        f"headrace train {algorithm} needs an environment: --env-id CartPole-v1{tuned}"
    )


def _loud(argv: list[str]) -> list[str]:
    return [word for word in argv if word != QUIET]


def config_of(algorithm: str, argv: list[str]) -> Config:
    """Return the settings of ``headrace train ALGORITHM [flags]``.

    Raises:
        ConfigError: a setting or recipe is wrong.
        CheckpointError: the run to resume isn't there, or was trained with another algorithm.
    """
    trust, argv = _TRUST in argv, [word for word in argv if word != _TRUST]
    if ":" in algorithm:
        import_from_here()
    kind = find(algorithm)
    default, _ = take_recipe(argv, algorithm, Config(algo=kind()))
    prog = f"headrace train {algorithm}"
    settings = named(prog, argv, default, recipes=recipes_of(algorithm), description=_TRAIN)
    if settings.pop("recipe", None) is not None:  # whose other arguments stay as they are
        for name in ("env_kwargs", "eval_env_kwargs"):
            if isinstance(settings.get(name), dict):
                settings[name] = getattr(default, name) | settings[name]
    if not settings.get("resume"):
        import_from_here()
        return replaced(default, settings)
    run_dir = settings.pop("run_dir", None)
    if run_dir is None:
        raise ConfigError("resume=True needs run_dir: which run? (or: headrace resume RUN)")
    if take_flag(argv, "--recipe")[0] is not None:
        raise ConfigError(
            f"--recipe can't be given with --resume: {run_dir} keeps the settings that it has, but "
            "for those that are named"
        )
    saved = checkpoint.read_config(checkpoint.find(run_dir))["config"]
    check_trained(run_dir, saved["algo"]["name"], kind)
    return resume_config(run_dir, trust, **settings)


def resume(run_dir: str, argv: list[str]) -> None:
    """Run ``headrace resume RUN [flags]``.

    Raises:
        ConfigError: a setting is wrong, or can't change.
        CheckpointError: there is no such run.
    """
    if run_dir in ("-h", "--help"):
        shown: dict[str, str] = {"positional": "RUN", "description": f"{_RESUME} {_OF_ANY}"}
        named("headrace resume", [run_dir], Config(), without=_OF_THE_RUN, **shown)
    trust, quiet = _TRUST in argv, QUIET in argv
    argv = [word for word in _loud(argv) if word != _TRUST]
    default, prog = resume_config(run_dir, trust), f"headrace resume {run_dir}"
    settings = named(prog, argv, default, without=_OF_THE_RUN, description=_RESUME)
    config = resume_config(run_dir, trust, **settings)
    import_from_here_if_named(config.to_json())
    run(config, started=process_started(), quiet=quiet)


def recipes_of(algorithm: str) -> list[str]:
    """Return the recipes for an algorithm."""

    def has(name: str) -> bool:
        try:
            RECIPES[name](algorithm)
        except KeyError:
            return False
        return True

    return [name for name in RECIPES if has(name)]

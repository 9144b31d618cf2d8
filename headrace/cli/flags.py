"""Command-line flags of a run's settings, in groups and in the order of importance."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import tyro

from headrace import schedules
from headrace.config import Config
from headrace.errors import ConfigError, nearest
from headrace.validation import owners
from headrace.validation.flag_rewrites import flags_of, names_of, rewritten
from headrace.validation.type_checks import ScheduleBase

_ENV = Annotated[str, tyro.conf.arg(name="env-id", aliases=("--env",))]

# Fields of Config in the groups of --help; what is in none of them comes last.
_GROUPS = {
    "run": (
        "The environment, the number of steps, and where results go.",
        "env tasks env_kwargs wrappers total_steps stop_time_s stop_return seed deterministic "
        "run_dir init_from resume overwrite",
    ),
    "algorithm": ("{algorithm}'s hyperparameters.", "scale_free"),
    "network": ("The policy.", ""),
    "evaluation": (
        "Evaluations, checkpoints and logs.",
        "eval_episodes eval_interval eval_env_kwargs eval_envs eval_deterministic eval_max_steps "
        "eval_timeout_s target_return "
        "info_metrics checkpoint_interval checkpoint_interval_s keep_checkpoints log_interval_s "
        "log_iterations",
    ),
    "sizes": (
        "Numbers of actors and environments, and sizes of rollouts and batches.",
        "num_actors envs_per_actor fragment_length batch_size",
    ),
    "infrastructure": ("Processes, machines and devices.", ""),
}


class Flag(NamedTuple):
    """A setting on the command line."""

    field: str
    hint: Any
    default: Any
    help: str

    @property
    def names(self) -> set[str]:
        """Return all its names on the command line."""
        return names_of(self.field, self.hint)


def named(
    prog: str,
    argv: Sequence[str],
    default: Config,
    *,
    without: Sequence[str] = (),
    recipes: Sequence[str] = (),
    positional: str = "",
    description: str = "",
) -> dict[str, Any]:
    """Parse arguments to settings by field: of a run, its algorithm and its network.

    A setting that is given the value it has already is named, too.

    Args:
        default: what is shown as defaults. without: fields that are no flags here.
        recipes: choices of ``--recipe``. positional: an argument that comes before the flags.
        description: comes first in ``--help``.

    Raises:
        ConfigError: a flag is unknown.
        SystemExit: help was shown (0), or tyro told what is wrong with an argument (2).
    """
    every = grouped(default, without, recipes, documented=False)
    known = {n: (f.field, f.hint) for flags in every.values() for f in flags for n in f.names}
    if argv and not argv[0].startswith("-") and not positional:
        raise ConfigError(
            f"{argv[0]!r} must come after a flag; an environment is --env-id {argv[0]}"
        )
    argv, scheduled = rewritten(argv, known, schedules.possible(type(default.algo)))
    given = {a.split("=")[0].replace("_", "-") for a in argv if a.startswith("--")}
    _check_known(given - {"--help"}, known, prog)
    groups = {name: [f for f in flags if f.names & given] for name, flags in every.items()}
    how: dict[str, Any] = {"prog": prog, "description": description, "args": argv}
    try:  # all flags would take tyro more than a tenth of a second
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = _found(default, groups, positional, **how)
    except SystemExit:  # help is asked for, or needed
        groups = grouped(default, without, recipes)
        found = _found(default, groups, positional, **how)
    named = {
        flag.field: getattr(getattr(found, group), flag.field)
        for group, flags in groups.items()
        for flag in flags
        if flag.names & given
    }
    return named | scheduled


def _check_known(given: set[str], known: Collection[str], prog: str) -> None:
    """Raise ConfigError for a flag that doesn't exist, with its algorithms or the nearest flag."""
    for flag in sorted(given - set(known)):
        having = owners.algorithms_with(flag[2:].replace("-", "_"))
        close = [name for name in known if name.startswith("--no-") == flag.startswith("--no-")]
        close = [name for name in close if len(name) > 2 and flag.endswith(name[1:])] or close
        hint = f" It is a setting of {', '.join(having)}." if having else nearest(flag, close, 1)
        raise ConfigError(f"{flag} is not a flag of {prog}.{hint}")


def _found(default: Config, groups: dict[str, list[Flag]], positional: str, **how: Any) -> Any:
    """Parse with tyro and these flags; ``how`` are arguments of ``tyro.cli``."""
    kinds = [(name, _group(default, name, flags)) for name, flags in groups.items() if flags]
    fields: list[Any] = [(n, kind, dataclasses.field(default_factory=kind)) for n, kind in kinds]
    if positional:
        about = tyro.conf.arg(metavar=positional, help="Directory of the run.")
        word = Annotated[str, tyro.conf.Positional, about]
        fields.insert(0, (positional, word))
    kind = dataclasses.make_dataclass("Settings", fields)
    return tyro.cli(kind, config=(tyro.conf.OmitArgPrefixes,), **how)


def grouped(
    default: Config,
    without: Sequence[str] = (),
    recipes: Sequence[str] = (),
    documented: bool = True,
) -> dict[str, list[Flag]]:
    """Return the flags by groups of ``--help``; arguments as for :func:`named`.

    Args:
        documented: with what each is for.
    """
    own = {f.field: f for f in _flags(default, documented) if f.field not in without}
    del own["algo"], own["network"]
    written = default.to_json()
    unset = default.env == Config.env  # a run needs one: this default is only Python's
    own["env"] = own["env"]._replace(hint=_ENV, default="none" if unset else written["env"])
    own["tasks"] = own["tasks"]._replace(default=tuple(written["tasks"]))
    own["wrappers"] = own["wrappers"]._replace(default=tuple(written["wrappers"]))
    groups = {name: [own.pop(f) for f in fields.split() if f in own]
              for name, (_, fields) in _GROUPS.items()}  # fmt: skip
    groups["algorithm"] = [*_flags(default.algo, documented), *groups["algorithm"]]
    groups["network"] = _flags(default.network, documented)
    groups["infrastructure"] += own.values()
    if recipes:
        hint: Any = Literal[tuple(recipes)]
        groups["run"].insert(0, Flag("recipe", hint | None, None, "Tuned settings to start from."))
    return groups


def parsed(prog: str, argv: Sequence[str], description: str, *kinds: type) -> list[Any]:
    """Parse dataclasses of settings from flags; each validates itself as in Python.

    Raises:
        SystemExit: as for :func:`named`.
        ConfigError: a setting is wrong.
    """
    plain = [_plain(kind.__name__, _flags(kind()), inspect.getdoc(kind) or "") for kind in kinds]
    fields: list[Any] = [
        (one.__name__, one, dataclasses.field(default_factory=one)) for one in plain
    ]
    found: Any = tyro.cli(
        dataclasses.make_dataclass("Settings", fields),
        prog=prog,
        description=description,
        args=rewritten(argv, flags_of(*kinds)).argv,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.UseAppendAction),
    )
    return [kind(**vars(getattr(found, kind.__name__))) for kind in kinds]


def _flags(settings: Any, documented: bool = True) -> list[Flag]:
    """Return a flag for each field of a dataclass."""
    kind = type(settings)
    hints, docs = get_type_hints(kind, include_extras=True), _docs(kind) if documented else {}
    return [
        Flag(f.name, *_shown(hints[f.name], getattr(settings, f.name)), docs.get(f.name, ""))
        for f in dataclasses.fields(kind)
    ]


def _shown(hint: Any, default: Any) -> tuple[Any, Any]:
    """Return type hint and default for tyro, which can't parse schedules."""
    if isinstance(default, ScheduleBase):
        return Annotated[float | str, tyro.conf.arg(metavar="FLOAT|POINTS")], str(default)
    return hint, default


def _docs(kind: type) -> dict[str, str]:
    """Return the strings below the fields of a dataclass and its bases."""
    docs = {}
    for cls in reversed([c for c in kind.__mro__ if dataclasses.is_dataclass(c)]):
        try:
            source = textwrap.dedent(inspect.getsource(cls))
        except OSError:  # a class that was typed in has no source
            continue
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    docs[line.target.id] = " ".join(text.value.split())
    return docs


def _same(value: Any) -> Any:
    return value


def _group(default: Config, name: str, flags: Sequence[Flag]) -> type:
    """Create a group of ``--help`` for tyro."""
    return _plain(name, flags, _GROUPS[name][0].format(algorithm=type(default.algo).__name__))


def _plain(name: str, flags: Sequence[Flag], doc: str) -> type:
    """Create a dataclass with these flags as fields, without validation."""
    fields: list[Any] = [
        (
            flag.field,
            Annotated[flag.hint, tyro.conf.arg(help=flag.help)],
            dataclasses.field(default_factory=functools.partial(_same, flag.default)),
        )
        for flag in flags
    ]
    return dataclasses.make_dataclass(name, fields, namespace={"__doc__": doc})

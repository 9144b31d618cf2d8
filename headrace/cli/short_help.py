"""Short help of ``headrace train ALGORITHM``: the settings that most runs need.

Names, defaults and texts are read from the source files of the settings. Importing them would load
torch, which takes two seconds.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[1]
_WIDTH, _COLUMN = 100, 27  # characters of a line, and where the texts begin
_SETTINGS = (
    *("env", "total_steps", "stop_time_s", "seed", "run_dir", "resume", "num_actors"),
    *(
        "envs_per_actor",
        "batch_size",
        "learning_rate",
        "gamma",
        "entropy_coef",
        "hidden",
        "device",
        "cluster",
    ),
)
_FLAGS = {"env": "env-id"}  # settings whose flag has another name
_RECIPE = "Tuned settings to start from, such as cartpole, atari or halfcheetah."


class Setting(NamedTuple):
    """A field of a dataclass, as its source file defines it."""

    name: str
    default: str
    text: str

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + _FLAGS.get(self.name, self.name).replace("_", "-")


def short_help(algorithm: str) -> str:
    """Return the help of a built-in algorithm."""
    settings = common_settings(algorithm)
    rows = [("--recipe NAME", _RECIPE)]
    rows += [(f"{one.flag} {_placeholder(one)}".rstrip(), _described(one)) for one in settings]
    lines = [f"usage: headrace train {algorithm} [flags]", "", *textwrap.wrap(_about(algorithm))]
    lines += ["", "The most common flags:", ""]
    for flag, text in rows:
        first, *more = textwrap.wrap(text, _WIDTH - _COLUMN)
        lines += [f"  {flag:<{_COLUMN - 3}} {first}", *(" " * _COLUMN + line for line in more)]
    lines += ["", f"All flags: headrace train {algorithm} --help-all"]
    return "\n".join(lines)


def common_settings(algorithm: str) -> list[Setting]:
    """Return the settings that the short help shows, in its order."""
    own = _algorithm_file(algorithm)
    files = [_ROOT / "config/run.py", _ROOT / "nn/network.py", _ROOT / "algos/common.py", own]
    known: dict[str, Setting] = {}
    for one in itertools.chain.from_iterable(map(_settings, files)):
        text = one.text or (known[one.name].text if one.name in known else "")
        known[one.name] = one._replace(text=text)  # an algorithm overrides shared defaults
    return [known[name] for name in _SETTINGS]


def _settings(file: Path) -> Iterator[Setting]:
    """Read the fields with a default of all classes in a file; the text may be empty."""
    for kind in ast.parse(file.read_text(encoding="utf-8")).body:
        body = kind.body if isinstance(kind, ast.ClassDef) else []
        for field, after in itertools.pairwise([*body, ast.Pass()]):
            match field:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    yield Setting(name, _shown(value), _text(after))


def _text(node: ast.stmt) -> str:
    """Return the text of a string that follows a field, else nothing."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def _shown(value: ast.expr) -> str:
    try:
        literal = ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value).lower()  # a named constant, such as AUTO
    return str(literal)


def _placeholder(setting: Setting) -> str:
    if setting.default in ("True", "False"):
        return ""
    return "N" if setting.default.isdigit() or setting.default == "auto" else "VALUE"


def _described(setting: Setting) -> str:
    if setting.name == "env":
        return f"{setting.text} (default with --recipe: its own; with --total-steps: CartPole-v1)"
    return f"{setting.text} (default: {setting.default})"


def _algorithm_file(algorithm: str) -> Path:
    return _ROOT / "algos" / f"{algorithm}.py"


def _about(algorithm: str) -> str:
    """Return the first line of the algorithm's file."""
    module = ast.parse(_algorithm_file(algorithm).read_text(encoding="utf-8"))
    return (ast.get_docstring(module) or "").partition("\n")[0]

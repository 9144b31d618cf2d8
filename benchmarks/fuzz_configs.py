"""Trains with random settings of valid types, and checks that each is accepted or rejected.

A trial changes a few settings of a short run on a small environment. If an error rejects a setting,
the run restarts with the nearest valid value, or without the setting. A trial fails if a run hangs,
crashes, fails without a one-line message, or rejects a value that a message suggested. The same
seed and number draw the same trial.

    python benchmarks/fuzz_configs.py --trials 300
    python benchmarks/fuzz_configs.py --seed 7 --trial 31   repeat one trial
    python benchmarks/fuzz_configs.py --trials 5000 --construct   check settings without training
"""

from __future__ import annotations

import ast
import dataclasses
import random
import re
import tempfile
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from fuzz_trials import Ended, ended, import_early

import headrace as hr
from headrace.cli import main as command
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.validation.ranges import Range

ALGORITHMS = {"ppo": hr.PPO, "appo": hr.APPO, "impala": hr.IMPALA, "impact": hr.IMPACT,
              "a2c": hr.A2C, "a3c": hr.A3C}  # fmt: skip
ENVS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1", "Taxi-v3", "Blackjack-v1")
SKIPPED = {
    "algo", "env", "tasks", "run_dir", "resume", "overwrite", "init_from", "cluster", "league",
    "opponents", "exploit", "policies", "total_steps", "compile", "env_file", "wrappers",
    "text_columns", "automatic",
}  # fmt: skip
COUNTED = {"num_actors", "num_learners", "min_actors", "learner_threads", "cores_per_learner",
           "eval_episodes", "epochs"}  # fmt: skip
SLOW = {
    "batch_size",
    "fragment_length",
    "replay_capacity",
    "envs_per_actor",
    "max_lag",
}  # settings whose largest values take minutes to fill
_LIMIT_S = 180.0
_REJECTED = re.compile(r"headrace: (?:--)?([a-z][\w-]*)[= ]")
_NEAREST = re.compile(r"\(nearest: ([^ ;,)]+)\)")
_MOST_TRIES = 20
EXTREMES = (-1.0, -0.5, 0.0, 1e-30, 2.0**20, 2.0**63, 1e30)
_SKIP = object()
GOOD = ("trained", "refused", "rejections")
Run = Callable[[str, str, dict[str, Any], Path], int]


@dataclass(frozen=True)
class Args:
    trials: int = 300
    """Number of trials."""
    seed: int = 0
    """Random seed of the trials."""
    trial: int | None = None
    """Repeat only this trial, and print its output."""
    construct: bool = False
    """Only construct the settings, with values that may be out of range; train nothing."""


def main(args: Args) -> int:
    """Run trials; returns 0 if none failed."""
    import_early()
    numbers = range(args.trials) if args.trial is None else [args.trial]
    ends: Counter[str] = Counter()
    for number in numbers:
        rng = random.Random(f"{args.seed} {number}")
        algorithm, env, settings = drawn(rng)
        run = run_flags if rng.random() < 0.4 and all_plain(settings) else run_keywords
        if args.construct:
            settings, run = with_extremes(settings, rng), run_constructor
        kind, output, rejections = trial(algorithm, env, settings, run)
        ends[kind] += 1
        ends["rejections"] += rejections
        if kind not in GOOD or args.trial is not None:
            how = f"{algorithm} {env} {settings} ({run.__name__})"
            print(f"--seed {args.seed} --trial {number}: {kind}: {how}")
            print("\n".join(f"    {line}" for line in output.splitlines()[-25:]), flush=True)
        if number % 25 == 24:
            print(f"after trial {number}: {dict(ends)}", flush=True)
    rejections = ends.pop("rejections")
    print(f"{sum(ends.values())} trials: {dict(ends)}; {rejections} settings were rejected")
    return int(bool(set(ends) - set(GOOD)))


def trial(algorithm: str, env: str, settings: dict[str, Any], run: Run) -> tuple[str, str, int]:
    """Train, following error messages. Return how it ended, the output, and the rejections."""
    now, nearest, output = dict(settings), set(), ""
    for rejections in range(_MOST_TRIES):
        with tempfile.TemporaryDirectory() as folder:
            end = ended(lambda: run(algorithm, env, now, Path(folder)), _LIMIT_S)
        output += end.output
        if end.problem or end.status == 0:
            return end.problem or "trained", output, rejections
        name, near = rejected(end, now), _NEAREST.search(end.output)
        if name in nearest and near is not None:  # else it conflicts with others
            return "rejects its nearest value", output, rejections
        if name is None:
            return "refused", output, rejections
        del now[name]
        if near is not None:
            now[name] = value_of(near[1])
            nearest.add(name)
    return "rejects too many values", output, _MOST_TRIES


def rejected(end: Ended, settings: dict[str, Any]) -> str | None:
    """Return the setting that an error message rejects; None if it is not one of the given."""
    found = _REJECTED.search(end.output)
    name = found[1].replace("-", "_") if found else None
    return name if name in settings else None


def value_of(text: str) -> Any:
    """Return the value that an error message shows."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def drawn(rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    """Return an algorithm, an environment and some settings."""
    algorithm, env = rng.choice(list(ALGORITHMS)), rng.choice(ENVS)
    hints: dict[str, Any] = {}
    for kind in (Config, ALGORITHMS[algorithm], hr.Network):
        known = typing.get_type_hints(kind, include_extras=True)
        names = {f.name for f in dataclasses.fields(kind) if f.init} - SKIPPED
        hints |= {name: known[name] for name in names}
    settings: dict[str, Any] = {}
    names = sorted(hints)
    for name in rng.sample(names, rng.randint(1, 6)):
        value = _value(hints[name], rng, None, small=name in COUNTED)
        if name in SLOW and value == 10**6:
            value = 10**4
        if value is not _SKIP:
            settings[name] = value
    sizes = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 8, "eval_episodes": 1}
    if rng.random() < 0.9:
        settings = sizes | settings
    if rng.random() < 0.9:  # other transports are slow to start
        settings.setdefault("transport", "serial")
    return algorithm, env, settings


def _value(hint: Any, rng: random.Random, limits: Range | None, small: bool) -> Any:
    """Return a value of a type within its range, or _SKIP."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = next((x for x in arguments[1:] if isinstance(x, Range)), limits)
        return _value(arguments[0], rng, found, small)
    if origin is Literal:
        return rng.choice(arguments)
    if type(None) in arguments or origin is typing.Union:
        return _value(rng.choice(arguments), rng, limits, small)
    if hint is type(None):
        return None
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return _number(
            rng, limits, [0, 1, 2, 3, 5] if small else [0, 1, 2, 3, 7, 8, 16, 33, 64, 10**6]
        )
    if hint is float:
        values = [0.0, 1e-9, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0, 2.0, 100.0, 1e6, rng.random()]
        return float(_number(rng, limits, values))
    if origin is tuple and arguments and arguments[0] is int:
        return tuple(rng.choice((1, 4, 16)) for _ in range(rng.randint(0, 3)))
    return _SKIP


def _number(rng: random.Random, limits: Range | None, values: list) -> Any:
    allowed = [x for x in values if limits is None or limits.holds(x)]
    return rng.choice(allowed or [limits.low if limits else 1])


def all_plain(settings: dict[str, Any]) -> bool:
    """Return whether all settings can be flags."""
    return all(isinstance(value, bool | int | float | str) for value in settings.values())


def with_extremes(settings: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Replace some numbers with values that may be out of range."""
    changed = dict(settings)
    for name, value in settings.items():
        if type(value) in (int, float) and rng.random() < 0.3:
            extreme = rng.choice(EXTREMES)
            changed[name] = extreme if isinstance(value, float) else int(extreme)
    return changed


def run_constructor(algorithm: str, env: str, settings: dict[str, Any], folder: Path) -> int:
    """Construct the settings of a run, and the sizes that follow from them."""
    return _status(lambda: _check(config_of(algorithm, env, settings, folder)))


def _check(config: Config) -> None:
    config.to_json()
    if config.is_sized:
        for name in ("per_learner", "num_credits", "lag_bound", "sync", "num_places"):
            getattr(config, name)


def run_keywords(algorithm: str, env: str, settings: dict[str, Any], folder: Path) -> int:
    """Train through Python; return 2 for a HeadraceError."""
    return _status(lambda: hr.train(config_of(algorithm, env, settings, folder)))


def config_of(algorithm: str, env: str, settings: dict[str, Any], folder: Path) -> Config:
    """Construct the settings of a run."""
    kind = ALGORITHMS[algorithm]
    of_algorithm = {f.name for f in dataclasses.fields(kind) if f.init}
    of_network = {f.name for f in dataclasses.fields(hr.Network) if f.init}

    def those(names: set[str]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name in names}

    algo, network = kind(**those(of_algorithm)), hr.Network(**those(of_network))
    rest = {k: v for k, v in settings.items() if k not in of_algorithm | of_network}
    where = str(folder / "run")
    return Config(env=env, algo=algo, network=network, total_steps=600, run_dir=where, **rest)


def _status(work: Callable[[], object]) -> int:
    """Call a function; print the first line of a HeadraceError, and return 2."""
    try:
        work()
    except HeadraceError as error:
        lines = str(error).splitlines()
        print(f"headrace: {lines[0] if lines else ''}")
        return 2 if lines else 99
    return 0


def run_flags(algorithm: str, env: str, settings: dict[str, Any], folder: Path) -> int:
    """Train through the command line."""
    words = ["train", algorithm, "--env-id", env, "--total-steps=600", f"--run-dir={folder}/run"]
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={value}")
    return int(command(words) or 0)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args)))

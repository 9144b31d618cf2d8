"""Finds the package that registers an environment id on import."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from typing import NamedTuple

import gymnasium

from headrace.errors import ConfigError


class Package(NamedTuple):
    """A package that registers environments on import."""

    module: str
    pip: str  # name on PyPI


_ROBOTICS = Package("gymnasium_robotics", "gymnasium-robotics")
_HIGHWAY = Package("highway_env", "highway-env")
_MEMORY = Package("memory_gym", "memory-gym")
_ALE = Package("ale_py", "ale-py")

_BEGINNINGS = {  # id prefixes, longer ones before their own prefixes
    "headrace/": Package("headrace_ssa", "headrace"),
    "ALE/": _ALE,
    "levels/": Package("headrace.envs.levels", "headrace"),
    "dmlab/": Package("headrace.envs.dmlab", "headrace"),
    "OpenSpiel/": Package("headrace.games.openspiel", "'headrace[openspiel]'"),
    "MiniGrid-": Package("minigrid", "minigrid"),
    "BabyAI-": Package("minigrid", "minigrid"),
    "MiniWorld-": Package("miniworld", "miniworld"),
    "Vizdoom": Package("vizdoom.gymnasium_wrapper", "vizdoom"),
    "dm_control/": Package("shimmy", "'shimmy[dm-control]'"),
    "bsuite/": Package("shimmy", "'shimmy[bsuite]'"),
    "popgym-": Package("popgym", "popgym"),
    "procgen-": Package("procgen", "procgen"),
    "PyFlyt/": Package("PyFlyt.gym_envs", "pyflyt"),
    "Meta-World/": Package("metaworld", "metaworld"),
    "FlappyBird-": Package("flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    "MinAtar/": Package("minatar.gym", "minatar"),
    "Panda": Package("panda_gym", "panda-gym"),
    "mo-": Package("mo_gymnasium", "mo-gymnasium"),
    "tetris_gymnasium/": Package("tetris_gymnasium.envs", "tetris-gymnasium"),
    "gym_pusht/": Package("gym_pusht", "gym-pusht"),
    **dict.fromkeys(
        ("Fetch", "HandReach", "HandManipulate", "AntMaze_", "PointMaze_", "AdroitHand",
         "FrankaKitchen-"), _ROBOTICS,
    ),
    **dict.fromkeys(
        ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-", "exit-",
         "lane-keeping-", "two-way-", "u-turn-"), _HIGHWAY,
    ),
    **dict.fromkeys(
        ("MortarMayhem", "MysteryPath", "SearingSpotlights", "Endless-"), _MEMORY,
    ),
}  # fmt: skip


def package_of(env_id: str) -> Package | None:
    """Return the package that is known to register an id, or None."""
    if "NoFrameskip-v" in env_id:
        return _ALE
    matches = (package for start, package in _BEGINNINGS.items() if env_id.startswith(start))
    return next(matches, None)


def is_installed(package: Package) -> bool:
    """Return whether the package can be found, without importing it."""
    return importlib.util.find_spec(package.module.partition(".")[0]) is not None


def import_namespaces() -> None:
    """Import installed packages whose ids have a namespace, as in ``ALE/``; ignores errors."""
    for start, package in _BEGINNINGS.items():
        if start.endswith("/") and is_installed(package):
            with contextlib.suppress(ConfigError):
                bring(start, package)


def bring(env_id: str, package: Package) -> None:
    """Import the package so that it registers ``env_id``.

    Raises:
        ConfigError: it isn't installed, or can't be imported.
    """
    if not is_installed(package):
        raise ConfigError(
            f"env={env_id!r} needs a package that isn't installed: pip install {package.pip}"
        )
    try:
        module = importlib.import_module(package.module)
        if env_id not in gymnasium.registry:  # some register on request only
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # others register everything again
                for name in dir(module):
                    if name.startswith("register_") and name.endswith("_envs"):
                        getattr(module, name)()
    except Exception as error:  # a package unknown to headrace
        remedy = f": pip install {package.pip}" if isinstance(error, ImportError) else ""
        raise ConfigError(
            f"env={env_id!r} needs {package.module}, which can't be imported here "
            f"({type(error).__name__}: {error}){remedy}"
        ) from error

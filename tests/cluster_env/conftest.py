"""Fixtures of the ClusterEnv tests: a Ray cluster, and environments that are closed at the end."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

from headrace.cluster_env import ClusterEnv, LocalConfig
from headrace.ray.cluster_env import RayConfig
from tests.cluster_env import parts

cloudpickle.register_pickle_by_value(parts)  # workers can't import it


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def place(request) -> Callable[..., Any]:
    """Parametrises tests with LocalConfig and RayConfig."""
    if request.param == "local":
        return LocalConfig
    if importlib.util.find_spec("ray") is None:  # importing it at the top would be too early
        pytest.skip("needs Ray")
    request.getfixturevalue("ray_cluster")
    return RayConfig


@pytest.fixture
def warned(recwarn) -> Callable[[str], bool]:
    """Return whether a warning with these words was raised."""
    return lambda words: any(words in str(warning.message) for warning in recwarn)


@pytest.fixture
def make() -> Iterator[Callable[..., ClusterEnv]]:
    """Creates a ClusterEnv of two local workers with one environment each by default."""
    made: list[ClusterEnv] = []

    def create(type: Any = "gymnasium", config: Any = None, **settings: Any) -> ClusterEnv:
        settings = {"envs_per_node": 1, "seed": 0, "type": type} | settings
        made.append(ClusterEnv(settings, config or LocalConfig(nodes=2)))
        return made[-1]

    yield create
    for envs in made:
        envs.close()

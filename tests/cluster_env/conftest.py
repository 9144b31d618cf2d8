"""What the tests of ClusterEnv share: one Ray cluster, and environments that are closed."""

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
    """LocalConfig or RayConfig, of which either has to pass."""
    if request.param == "local":
        return LocalConfig
    if importlib.util.find_spec("ray") is None:  # to import it here would be too early
        pytest.skip("needs Ray")
    request.getfixturevalue("ray_cluster")
    return RayConfig


@pytest.fixture
def warned(recwarn) -> Callable[[str], bool]:
    """Whether a warning with these words came so far."""
    return lambda words: any(words in str(warning.message) for warning in recwarn)


@pytest.fixture
def make() -> Iterator[Callable[..., ClusterEnv]]:
    """Makes a ClusterEnv of two local workers, of one environment each, unless told otherwise."""
    made: list[ClusterEnv] = []

    def create(type: Any = "gymnasium", config: Any = None, **settings: Any) -> ClusterEnv:
        settings = {"envs_per_node": 1, "seed": 0, "type": type} | settings
        made.append(ClusterEnv(settings, config or LocalConfig(nodes=2)))
        return made[-1]

    yield create
    for envs in made:
        envs.close()

"""Invalid settings raise a one-sentence error before any process starts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from worlds import CountingEnv

from headrace.cluster_env import ClusterEnv, LocalConfig
from headrace.errors import ConfigError
from headrace.ray.cluster_env import RayConfig
from tests.cluster_env.parts import CountingAgent

CART = {"env_name": "CartPole-v1"}


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    """Fails if anything is started while a setting is rejected."""

    def refuse(*_):
        raise AssertionError("a place was opened")

    monkeypatch.setattr(LocalConfig, "open", refuse)
    monkeypatch.setattr(RayConfig, "open", refuse)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (CART | {"envs_per_nod": 4}, "'envs_per_nod'. Did you mean 'envs_per_node'"),
        (CART | {"zzzz": 4}, "'zzzz'. Valid settings: type, env_name"),
        (CART | {"envs_per_node": 0}, "envs_per_node=0 must be 1 or more (nearest: 1)"),
        (
            CART | {"envs_per_node": 2.5},
            "envs_per_node=2.5 must be a whole number (an int)",
        ),
        (CART | {"kl_threshold": -1}, "kl_threshold=-1 must be 0 or more nats (nearest: 0.0)"),
        (CART | {"weight_sync": "evry"}, "weight_sync='evry' must be every, every-<k>"),
        (CART | {"engine": "snyc"}, "engine='snyc' must be 'auto', 'native'"),
        (CART | {"max_policy_lag": 0}, "max_policy_lag=0 must be 1 or more versions"),
        (CART | {"seed": -1}, "seed=-1 must be between 0 and 2147483647"),
        ({}, 'type="gymnasium" needs env_name, as in "CartPole-v1"'),
        ({"env_name": "CartPol-v1"}, "env='CartPol-v1' is unknown"),
        ({"type": 3}, "type=3 must be a string or a callable"),
    ],
    ids=str,
)
def test_a_bad_environment_setting_is_refused(settings, says):
    with pytest.raises(ConfigError, match=re.escape(says)) as error:
        ClusterEnv(settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [LocalConfig, RayConfig])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nodes": 0}, "nodes=0 must be 1 or more (nearest: 1)"),
        ({"nodes": 1.5}, "nodes=1.5 must be a whole number (an int), 1 or more (nearest: 2)"),
        ({"timeout_s": 0}, "timeout_s=0 must be above 0 seconds"),
        ({"start_timeout_s": -1.0}, "start_timeout_s=-1.0 must be above 0 seconds"),
        ({"max_restarts": -1}, "max_restarts=-1 must be 0 or more (nearest: 0)"),
    ],
    ids=str,
)
def test_a_bad_setting_of_a_place_is_refused(config, settings, says):
    with pytest.raises(ConfigError, match=re.escape(f"{config.__name__}: {says}")) as error:
        config(**settings)
    assert "\n" not in str(error.value)


def test_all_places_are_named_for_a_wrong_one():
    places = "a LocalConfig, RayConfig, SlurmConfig or KubernetesConfig"
    with pytest.raises(ConfigError, match=rf"^config=3 must be {places}$"):
        ClusterEnv({"env_name": "CartPole-v1"}, 3)


def test_a_bad_number_of_cores_is_refused():
    with pytest.raises(ConfigError, match=r"^RayConfig: cpus_per_node=-1 must be 0 or more "):
        RayConfig(cpus_per_node=-1)


# -- arguments, with workers that are up ----------------------------------------------------------


def test_bad_arguments_are_refused_and_the_environments_stay_usable(make, monkeypatch):
    monkeypatch.undo()
    envs, agent = make(CountingEnv, envs_per_node=2), CountingAgent()
    with pytest.raises(ConfigError, match=r"needs a reset\(\) before it"):
        envs.step(np.zeros(4, int))
    with pytest.raises(ConfigError, match=r"needs a full reset\(\) before it"):
        envs.reset(options={"reset_mask": np.ones(4, bool)})
    envs.reset(seed=1)
    node, sent = envs._head.pool, []
    monkeypatch.setattr(node, "send", lambda *_: sent.append(1))
    bad = [
        (lambda: envs.step(np.zeros(3, int)), r"actions for \[3\] environments, but there are 4"),
        (lambda: envs.step(1), r"actions for \[0\] environments, but there are 4"),
        (lambda: envs.collect(agent, 0), r"num_steps=0 must be 1 or more \(nearest: 1\)"),
        (lambda: envs.collect(agent, 2.0), "num_steps=2.0 must be a whole number"),
        (lambda: envs.collect_async(agent, 0), "fragment_length=0 must be 1 or more"),
        (lambda: envs.reset(seed=-1), r"seed=-1 must be 0 or more \(nearest: 0\)"),
        (lambda: envs.reset(seed=[0, 1, -2, 3]), r"seed=-2 must be 0 or more \(nearest: 0\)"),
        (lambda: envs.reset(seed=[1, 2, 3]), "seed has 3 values for 4 environments"),
    ]
    for mask in (np.ones(3, bool), np.ones(4, int), np.zeros(4, bool), np.ones((4, 1), bool)):
        use = lambda mask=mask: envs.reset(options={"reset_mask": mask})  # noqa: E731
        bad.append((use, r"options\['reset_mask'\] must be a bool array of shape \(4,\)"))
    for use, says in bad:
        with pytest.raises(ConfigError, match=says) as error:
            use()
        assert "\n" not in str(error.value)
    assert sent == []
    monkeypatch.undo()
    assert envs.step(np.zeros(4, int))[0][:, 2].tolist() == [1] * 4

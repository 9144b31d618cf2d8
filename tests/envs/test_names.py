"""Names of games: suggestions for unknown ones, and canonical names."""

from __future__ import annotations

import sys
import types

import pytest
from warm import run
from worlds import CountingGame, Matching

import headrace as hr
from headrace.envs.names import resolve
from headrace.envs.probe import probe
from headrace.envs.suggestions import newer_version
from headrace.errors import ConfigError


@pytest.fixture
def sea(monkeypatch, tmp_path):
    """A package of games, a module of classes, and a custom PettingZoo package."""
    (tmp_path / "seas").mkdir()
    (tmp_path / "seas/__init__.py").touch()
    for name in ("simple_wave_v3", "tide_v1"):
        (tmp_path / f"seas/{name}.py").write_text("def parallel_env(): ...\n")
    (tmp_path / "sea_games.py").write_text("from json import dumps\nclass Nape: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = types.ModuleType("pettingzoo")
    made = types.SimpleNamespace(make=CountingGame, entry_point="pettingzoo.sea.wave_v2:env")
    vars(registry).update(aec_registry={"sea/wave-v2": made}, parallel_registry={})
    monkeypatch.setitem(sys.modules, "pettingzoo", registry)
    yield
    for name in [x for x in sys.modules if x.partition(".")[0] in ("seas", "sea_games")]:
        del sys.modules[name]


@pytest.mark.usefixtures("sea")
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("seas:simple_wave", r"of this name\. Did you mean 'seas:simple_wave_v3'\?"),
        ("seas:simple_wave_v2", r"of this name\. Did you mean 'seas:simple_wave_v3'\?"),
        ("seas.simple_wave_v3", r"'module:Id-v0'\. Did you mean 'seas:simple_wave_v3'\?"),
        ("seas:nothing", r"the module 'seas' has neither .* of this name\."),
        ("sea_games:Nope", r"Did you mean 'sea_games:Nape'\?"),
        ("sea_games:dump", r"of this name\."),  # what it imports is another's
        ("pettingzoo:sea/wave", r"Did you mean 'pettingzoo:sea/wave_v2'\?"),
        ("seas:sea/wave_v2", "env='seas:sea/wave_v2' is unknown: the module 'seas' has neither.*"),
    ],
)
def test_of_an_unknown_name_the_nearest_of_its_module_is_told_as_it_is_to_be_typed(name, ends):
    with pytest.raises(ConfigError, match=f"{ends}$"):
        resolve(name)
    assert "seas" not in sys.modules or ":" in name  # what wasn't named as code isn't imported


MEANT = {
    "SSAConjunction-v0": "headrace/SSAConjunction-v0",
    "SSAConjunctionEnv": "headrace/SSAConjunction-v0",
    "simplesatellite": "headrace/SimpleSatellite-v0",
    "OrbitalDominance-v3": "headrace/OrbitalDominance-v0",
    "Pong-v99": "ALE/Pong-v5",
    "Cartpole-v2": "CartPole-v1', 'phys2d/CartPole-v1",
    "LunarLanderEnv": "LunarLander-v3",
}


def test_the_full_id_is_suggested_for_a_name_without_its_namespace(tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from headrace.errors import ConfigError\n"
        "from headrace.envs.names import resolve\n"
        "assert 'headrace_ssa' not in sys.modules\n"
        f"for name in {list(MEANT)}:\n"
        "    try: resolve(name)\n"
        "    except ConfigError as error: print(error)\n"
    )
    lines = run(tmp_path, "script.py").splitlines()
    ends = [line.rpartition("Did you mean ")[2] for line in lines]
    assert ends == [f"'{meant}'?" for meant in MEANT.values()]


def test_a_game_of_a_module_is_called_by_the_name_that_was_typed(monkeypatch):
    module = types.ModuleType("few_zoo")
    vars(module).update(env=lambda: Strange(), parallel_env=Strange)
    monkeypatch.setitem(sys.modules, "few_zoo", module)
    for name in ("few_zoo:env", "few_zoo:parallel_env"):
        with pytest.raises(ConfigError, match=f"{name} has no possible_agents"):
            probe(name, "sync", {}, 0)


class Strange(Matching):
    possible_agents = ()


@pytest.mark.parametrize(
    ("env_id", "newer"),
    [
        ("LunarLander-v2", "LunarLander-v3"),
        ("CartPole-v0", "CartPole-v1"),
        ("CartPole-v1", None),
        ("CartPole", None),
        ("NoSuchEnv-v1", None),
        ("module:Class", None),
        ("<lambda>", None),
    ],
)
def test_old_versions_are_recognised(env_id, newer):
    assert newer_version(env_id) == newer


def test_training_on_an_old_version_prints_a_warning(tmp_path, capsys):
    small = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
    hr.train(
        "CartPole-v0", "ppo", total_steps=16, run_dir=tmp_path / "run", eval_episodes=0, **small
    )
    text = "warning: CartPole-v0 is an old version; the newest is CartPole-v1"
    assert text in capsys.readouterr().out

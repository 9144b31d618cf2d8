"""Invalid values for every field of every settings dataclass.

The result is a usable setting, or a ConfigError of one line. ``pytest -s`` prints the counts.
"""

from __future__ import annotations

import dataclasses
import decimal
import json
import math
import random
import types
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import headrace as hr
from headrace.algos import ALGORITHMS
from headrace.cluster_env.settings import EnvConfig
from headrace.config import Config
from headrace.errors import ConfigError, HeadraceError
from headrace.rundir.atomic_files import json_text
from headrace.rundir.config_file import from_json
from headrace.studies.aaps.run import Aaps
from headrace.studies.plan.settings import Plan
from headrace.studies.scaling.settings import Scaling
from headrace.trainer.auto_sizes import choose
from headrace.validation.ranges import Range

SIZED: dict[str, Any] = {"num_actors": 2, "envs_per_actor": 8, "fragment_length": 8}
WITH: dict[type, dict[str, Any]] = {Config: SIZED, EnvConfig: {"env_name": "CartPole-v1"}}
OTHERS: list[type] = [
    hr.Network,
    EnvConfig,
    hr.KubernetesConfig,
    hr.LocalConfig,
    hr.RayConfig,
    hr.SlurmConfig,
    Plan,
    Scaling,
    Aaps,
]
KINDS: list[type] = [Config, *ALGORITHMS.values(), *OTHERS]


class Spiteful:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ENDLESS: dict[str, Any] = {}
ENDLESS["again"] = ENDLESS
VALUES: list[Any] = [
    0, 1, -1, 2, 3, 10**6, 10**18, -(10**18), 10**30, 10**400, 10**5000, 1.5, 0.0, -0.0, 0.5,
    math.nan, math.inf, -math.inf, 1e-30, 1e18, 1e30, -1e18, True, False, None,
    "", "abc", "auto", "1", "nan", "every-3", "every-" + "9" * 5000, "\0", "\ud800", "ä" * 300,
    "nowhere:nothing", ".x:y", "adaptive", "cuda:99", b"abc", 1j, decimal.Decimal("NaN"),
    [], [1], [math.nan], (), (64,), (1e18,), ("a", 2), {}, {"a": 1}, {1: 2}, {"a": object()},
    ENDLESS, set(), object(), Spiteful(), int, print, lambda: None, Path("x"), range(3),
    np.int64(3), np.float32(0.25), np.float64("nan"), np.bool_(True), np.zeros(3), np.array(1),
    hr.Network(), hr.PPO(), Config(),
]  # fmt: skip


def answer(made: Any, counts: Counter[str]) -> Any:
    """Return the object, or None after a one-line error; fail otherwise."""
    counts["tried"] += 1
    try:
        value = made()
    except ConfigError as error:
        text = str(error)
        assert "\n" not in text
        assert 10 < len(text) < 700, text
        counts["sentences"] += 1
        return None
    counts["accepted"] += 1
    return value


def use(config: Config) -> None:
    """Resolve the settings as every run does; automatic sizes may not fit the others."""
    settled = config.settled
    again = from_json(json.loads(json_text(config.to_json())))
    if isinstance(config.env, str) and (config.network.torso is None or "torso" not in config.env):
        assert dataclasses.replace(again, network=config.network) == config
    try:
        sized = choose(settled, None, cores=2)
    except ConfigError:
        assert not config.is_sized
        return
    assert all(size is None or size >= 1 for size in sized.sizes)
    assert sized.per_learner.num_credits >= 1
    assert sized.resolved_learner_threads >= 1
    assert sized.slots_per_actor >= 1
    assert sized.actor_restarts + sized.learner_restarts >= 0


def told(name: str, counts: Counter[str]) -> None:
    print(f"{name}: " + ", ".join(f"{n:,} {word}" for word, n in counts.items()) + ", 0 others")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr("headrace.envs.names.in_envpool", lambda name: False)  # imports for seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tried(kind: type, every: int) -> Counter[str]:
    """Yield each field with every n-th value, different for each field."""
    counts: Counter[str] = Counter()
    given = WITH.get(kind, {})
    for number, field in enumerate(dataclasses.fields(kind)):
        for value in VALUES[number % every :: every]:
            made = answer(lambda f=field, v=value: kind(**given | {f.name: v}), counts)
            if isinstance(made, Config):
                use(made)
    told(kind.__name__, counts)
    return counts


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_field_takes_a_value_or_refuses_it_in_one_sentence(kind):
    counts = tried(kind, every=4 if kind is Config else 5)
    assert counts["sentences"] > counts["accepted"] > 0


@pytest.mark.full
def test_each_field_takes_each_value_or_refuses_it_in_one_sentence():
    total: Counter[str] = sum((tried(kind, every=1) for kind in KINDS), Counter())
    told("all fields", total)


def valid(name: str, value: Any) -> bool:
    try:
        Config(**SIZED | {name: value})
    except ConfigError:
        return False
    return True


def combined(count: int) -> Counter[str]:
    """Yield random pairs and triples of settings, most of them valid."""
    chance, counts = random.Random(0), Counter[str]()
    good: dict[str, list[Any]] = {}
    for field in dataclasses.fields(Config):
        good[field.name] = [getattr(Config(**SIZED), field.name)]
        good[field.name] += [value for value in VALUES[::6] if valid(field.name, value)]
    algorithms = [cls() for cls in ALGORITHMS.values()]
    good["algo"] = [*algorithms, hr.IMPALA(replay_fraction=0.5), hr.APPO(max_lag=2**20)]
    good |= {"num_learners": [1, 2, 3, 1000], "device": ["cpu"], "transport": ["shm", "serial"]}
    good |= {"preempt_fraction": [None, 0.5], "target_return": [None, 5.0]}
    good["engine"] = ["auto", "async", "threads", "sync"]
    good["network"] = [hr.Network(), hr.Network(core="gru"), hr.Network(normalize_values=True)]
    for name in ("num_actors", "envs_per_actor", "fragment_length", "batch_size"):
        good[name] = ["auto", 1, 7, 64, 2**14]
    good["batch_size"] += [None, 10**6, 2**40]
    for _ in range(count):
        names = chance.sample(sorted(good), chance.randint(2, 4))
        values = {name: chance.choice(good[name]) for name in names}
        made = answer(lambda v=values: Config(**SIZED | v), counts)
        if made is not None:
            use(made)
    return counts


def test_settings_that_contradict_each_other_are_refused_in_one_sentence():
    counts = combined(100)
    told("pairs and triples", counts)
    assert min(counts.values()) > 10


@pytest.mark.full
def test_many_settings_that_contradict_each_other_are_refused_in_one_sentence():
    told("pairs and triples", combined(5_000))


def test_json_is_checked_as_python_is():
    counts: Counter[str] = Counter()
    written = json.dumps(Config(**SIZED).to_json())
    values = [-1, 1.5, 10**18, math.nan, "abc", None, True, [], {"a": 1}]
    for place in ("", "algo", "network"):
        names = json.loads(written)[place] if place else json.loads(written)
        for name in [*names, "unknown"]:
            for value in values:
                changed = json.loads(written)
                (changed[place] if place else changed)[name] = value
                answer(lambda c=changed: from_json(c), counts)
    told("JSON", counts)


CALLS = {
    "no environment": lambda: hr.train(),
    "unknown to train": lambda: hr.train("CartPole-v1", foo=1),
    "a callback alone": lambda: hr.train("CartPole-v1", callbacks=print),
    "algorithm by a wrong name": lambda: hr.train("CartPole-v1", "pop"),
    "unknown to APPO": lambda: hr.APPO(learning_rat=1),
    "unknown to Network": lambda: hr.Network(foo=1),
    "unknown to Config": lambda: Config(foo=1),
    "unknown to replace": lambda: dataclasses.replace(hr.PPO(), foo=1),
    "too many": lambda: Config(*range(99)),
    "twice": lambda: Config("CartPole-v1", env="CartPole-v1"),
    "one layer": lambda: hr.Network(hidden=64),
    "resume nothing": lambda: hr.resume(None),
    "resume a number": lambda: hr.resume(3),
    "load nothing": lambda: hr.load(None),
    "load without": lambda: hr.load(),
    "load half": lambda: hr.load("nowhere", which=3),
    "evaluate nothing": lambda: hr.evaluate(None, "CartPole-v1"),
    "evaluate a path": lambda: hr.evaluate("runs/a", "CartPole-v1"),
    "no environments": lambda: hr.make_vec("CartPole-v1", 0),
    "a word of environments": lambda: hr.make_vec("CartPole-v1", "8"),
    "no settings": lambda: hr.make_vec("CartPole-v1", 2, env_kwargs=3),
    "trainer of a name": lambda: hr.Trainer("CartPole-v1"),
    "learners of a name": lambda: hr.LearnerGroup(3),
    "cluster of a number": lambda: hr.ClusterEnv(3),
    "cluster of no place": lambda: hr.ClusterEnv({"env_name": "CartPole-v1"}, 3),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_public_function_refuses_wrong_arguments_in_one_sentence(case):
    with pytest.raises(HeadraceError) as error:
        CALLS[case]()
    assert "\n" not in str(error.value)


def test_a_class_is_named_by_errors_of_its_arguments():
    with pytest.raises(ConfigError, match="'foo' is unknown to Trainer"):
        hr.Trainer(foo=1)
    with pytest.raises(ConfigError, match=r"^Trainer: missing a required argument: 'config'"):
        hr.Trainer()


def test_an_unknown_keyword_names_the_nearest_setting():
    with pytest.raises(ConfigError, match=r"'learning_rat' is unknown to APPO.*'learning_rate'"):
        hr.APPO(learning_rat=1)
    with pytest.raises(ConfigError, match=r"belongs to the algorithm: APPO\(learning_rate="):
        Config(learning_rate=1)
    with pytest.raises(ConfigError, match=r"hidden=64 must be a sequence.*nearest: \(64,\)"):
        hr.Network(hidden=64)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: hr.APPO(learning_rate=None), "learning_rate=None must be a number, above 0"),
        (lambda: hr.APPO(optimizer_eps=-1), "optimizer_eps=-1 must be above 0 .*1e-05"),
        (lambda: hr.PPO(value_clip=math.nan), "value_clip=nan must be .*above 0, or None"),
        (lambda: hr.APPO(lr_schedule="cosin"), "'cosin' must be .*'linear', 'cosine'"),
        (lambda: Config(seed=1.5), "seed=1.5 must be a whole number .*nearest: 2"),
        (lambda: Config(snapshot_win_rate=1.5), r"snapshot_win_rate=1.5 .*nearest: 0\.99\)"),
        (lambda: Config(snapshot_win_rate=0), r"snapshot_win_rate=0 .*nearest: 0\.01\)"),
        (lambda: Config(learner_threads=-1), "learner_threads=-1 must be .*nearest: 1"),
        (lambda: Config(env_kwargs=3), "env_kwargs=3 must be a dict"),
        (lambda: Config(num_actors=True), "num_actors=True must be a whole number"),
        (lambda: Config(total_steps=10**18), "at most 1000000000000000 .*nearest: 10+"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_accepted_before_is_refused(made, words):
    with pytest.raises(ConfigError, match=words):
        made()


def test_numbers_of_numpy_and_lists_become_plain_ones():
    config = Config(seed=np.int64(3), kl_threshold=np.float32(0.5), run_dir=Path("a/b"))
    assert [type(x) for x in (config.seed, config.kl_threshold)] == [int, float]
    assert config.run_dir == "a/b"
    assert hr.Network(hidden=[32, np.int32(16)]).hidden == (32, 16)


def test_whole_numbers_of_float_settings_are_floats():
    algo = hr.A2C(entropy_coef=0, learning_rate=np.int64(1))
    config = Config(stop_time_s=15, kl_threshold=1, algo=algo)
    values = config.stop_time_s, config.kl_threshold, algo.entropy_coef, algo.learning_rate
    assert [(type(x), x) for x in values] == [(float, x) for x in (15.0, 1.0, 0.0, 1.0)]
    assert json.dumps(config.to_json()) == json.dumps(
        dataclasses.replace(config, stop_time_s=15.0).to_json()
    )
    assert from_json(config.to_json()) == config
    for whole in (10**400, -(10**400)):
        with pytest.raises(ConfigError, match=r"^stop_time_s=-?1000"):
            Config(stop_time_s=whole)
    assert hr.APPO(gamma=1, rho_bar=math.inf, c_bar=math.inf).gamma == 1


@dataclasses.dataclass(frozen=True)
class WholeNorm(hr.A2C):
    max_grad_norm: int = 1


def test_a_field_that_takes_fewer_numbers_than_that_of_its_base_keeps_their_type():
    assert type(WholeNorm(max_grad_norm=2).max_grad_norm) is int
    with pytest.raises(ConfigError, match=r"^max_grad_norm=0\.5 must be a whole number"):
        WholeNorm(max_grad_norm=0.5)
    with pytest.raises(ConfigError, match=r"^max_grad_norm=-1 "):
        WholeNorm(max_grad_norm=-1)


def limits(hint: Any) -> tuple[bool, bool]:
    """Return whether a number fits an annotation, and whether a range limits it."""
    extra: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, extra = hint.__origin__, hint.__metadata__
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if get_origin(hint) is tuple:
        return limits(get_args(hint)[0])
    own = any(isinstance(x, Range) for x in extra)
    inner = [limits(option) for option in options if get_origin(option) is Annotated]
    return bool({int, float} & set(options)) or any(n for n, _ in inner), own or any(
        r for _, r in inner
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_number_states_its_range_once(kind):
    for field in dataclasses.fields(kind):
        said = [
            limits(get_type_hints(base, include_extras=True)[field.name])
            for base in kind.__mro__
            if field.name in vars(base).get("__annotations__", {})
        ]
        if any(number for number, _ in said):
            assert sum(ranged for _, ranged in said) == 1, field.name

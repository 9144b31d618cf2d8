"""The page on the lesson runs from top to bottom, and its numbers are those of the formulas."""

from __future__ import annotations

import dataclasses
import doctest
import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch
from warm import run

import headrace as hr
import headrace.ops.returns
from headrace.cli import training
from headrace.errors import ConfigError
from headrace.ops.returns import vtrace

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/lesson.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|bash|pycon)\n(.*?)```", TEXT, re.DOTALL)

LOG_RATIO = torch.tensor([-0.5, -0.8, -0.4, -1.0, -0.6], dtype=torch.float64) - torch.tensor(
    [-0.9, -1.1, -0.7, -1.3, -1.0], dtype=torch.float64
)
REWARD = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
VALUE = torch.tensor([3.0, 2.8, 2.5, 2.0, 1.5, 0.0], dtype=torch.float64)


WARGAME = "runs/league"


def commands():
    lines = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
    assert all(line.startswith("headrace ") for line in lines)
    return [["-m", *shlex.split(line)] for line in lines]


def test_the_python_of_the_page_runs_as_one_script(tmp_path):
    script = [text for language, text in BLOCKS if language == "python" and WARGAME not in text]
    assert len(script) == 4
    (tmp_path / "script.py").write_text("\n".join(script))
    out = run(tmp_path, "script.py")
    assert "800 steps per rollout, 6 rollouts per update" in out
    returns = [float(x) for x in re.findall(r"steps \| return ([\d.-]+)", out)]
    assert len(returns) >= 2
    assert float(re.search(r"mean return ([\d.]+);", out)[1]) > 60  # random play brings 38
    checkpoints = tmp_path / "runs/lesson/checkpoints"
    assert (
        checkpoints / (checkpoints / "best").read_text().strip() / "policy.safetensors"
    ).exists()
    assert len(list(checkpoints.glob("step_*"))) >= 3


def test_the_commands_of_the_page_on_the_small_game_run(tmp_path):
    train, evaluate = [c for c in commands() if "runs/l" not in " ".join(c)]
    run(tmp_path, *train)
    assert "100 episodes: return" in run(tmp_path, *evaluate)


@pytest.mark.slow  # test_docs.py runs nearly the same commands of the wargame's own page
def test_the_commands_of_the_page_on_the_wargame_run(tmp_path):
    """Return the block with short games, few steps and few games of the league."""
    league = [c for c in commands() if "runs/league" in c]
    assert len(league) == 4
    for command in league:
        text = re.sub(r"(--total-steps) \S+", r"\1 20_000", shlex.join(command))
        line = shlex.split(re.sub(r"( league .+ --episodes) \d+", r"\1 4", text))
        short = ["--env-kwargs", '{"horizon": 4}'] if "train" in line else []
        run(tmp_path, *line, *short)
    assert (tmp_path / "runs/league/league/league.png").exists()
    assert (tmp_path / "runs/exploiter/summary.json").exists()
    assert (tmp_path / "runs/league/episode.mp4").exists()
    (match,) = [text for language, text in BLOCKS if language == "python" and WARGAME in text]
    (tmp_path / "match.py").write_text(match.replace("=100", "=2"))
    assert re.search(r"against pursuit: -?\d+.* ± ", run(tmp_path, "match.py"))


@pytest.mark.slow
def test_the_command_of_the_page_on_the_large_game_runs(tmp_path):
    [train] = [c for c in commands() if "headrace/SSAConjunction-v0" in c]
    run(tmp_path, *train)
    assert (tmp_path / "runs/large/summary.json").exists()


def test_the_batches_of_the_page_are_rounded_up_to_whole_rollouts():
    settings = {"num_actors": 32, "envs_per_actor": 16, "fragment_length": 50}
    algo = hr.APPO(max_lag=9)
    reason = r"whole rollouts \(fragment_length=50 \* envs_per_actor=16 steps\)"
    with pytest.warns(UserWarning, match=f"batch_size=4096 is rounded up to 4800, .* {reason}$"):
        large = hr.Config(algo=algo, batch_size=4096, **settings)
    assert (large.batch_size, large.rollouts_per_update) == (4800, 6)
    more = {"num_learners": 2, "num_actors": 64, "batch_size": 8192}
    assert "With `num_learners=2, num_actors=64, batch_size=8192`, each" in TEXT
    with pytest.warns(UserWarning, match=r"8192 is rounded up to 9600, .* for each of 2 learners"):
        large = dataclasses.replace(large, **more)
    assert large.batch_size == 9600
    assert (large.per_learner.num_actors, large.per_learner.batch_size) == (32, 4800)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hr.Config(algo=algo, batch_size=4800, **settings).batch_size == 4800
    with pytest.raises(ConfigError, match="batch_size=4096 must be a multiple of 25600"):
        hr.Config(algo=hr.PPO(), batch_size=4096, **settings)


LESSON = {  # its settings, by RLlib's names
    "lesson-satellite": (3, 4, 20, 240, 1),
    "lesson-conjunction": (32, 16, 50, 4096, 1),
    "lesson-conjunction-2-learners": (64, 16, 50, 8192, 2),
}


@pytest.mark.parametrize("name", LESSON)
def test_the_recipes_of_the_lesson_have_its_literal_values(name, monkeypatch):
    made = []
    monkeypatch.setattr(training, "run", lambda config, started, quiet=False: made.append(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no actor is idle, and no batch rounded
        training.train("appo", ["--recipe", name])
    (config,) = made
    workers, envs, fragment, batch, learners = LESSON[name]
    assert config.sizes[:3] == (workers, envs, fragment)
    unit = workers // config.num_actors * envs * fragment * learners
    assert config.batch_size == -(-batch // unit) * unit
    assert config.num_learners == learners
    algo, expected = config.algo, {"learning_rate": 5e-4, "gamma": 0.99, "entropy_coef": 0.01}
    expected |= {"max_grad_norm": 40.0, "off_policy": "vtrace", "rho_bar": 1.0, "pg_rho_bar": 1.0}
    expected |= {"epochs": 1, "minibatches": 1, "lr_schedule": "constant"}
    expected |= {"noise_color": 0.0, "normalize_advantage": False}
    assert {key: getattr(algo, key) for key in expected} == expected
    assert not config.scale_free


def test_the_recipe_and_the_page_have_the_same_settings():
    from headrace.recipes import recipe

    namespace = {"hr": hr}
    text = next(text for _, text in BLOCKS if "with hr.Trainer(config)" in text)
    exec(text.partition("with hr.Trainer")[0], namespace)
    ours, tuned = namespace["config"], recipe("satellite", "appo")
    assert ours.algo == tuned.algo
    assert ours.scale_free == tuned.scale_free
    for name in ("num_actors", "envs_per_actor", "fragment_length"):
        assert getattr(ours, name) == getattr(tuned, name)
    assert f"raise to {tuned.total_steps:_}" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_rollout_workers", "use num_actors."),
        ("num_envs_per_worker", "use envs_per_actor."),
        ("rollout_fragment_length", "use fragment_length."),
        ("train_batch_size", "use batch_size."),
        ("env_config", "use env_kwargs."),
        ("num_sgd_iter", r"use epochs. It belongs to the algorithm: APPO\(epochs=…\)"),
        ("vtrace_clip_rho_threshold", r"use rho_bar. It belongs to the algorithm"),
        ("num_gpus", "use device."),
    ],
)
def test_the_lessons_settings_are_reported_with_those_to_use(name, words):
    with pytest.raises(ConfigError, match=rf"'{name}' is unknown\. {name} is .*'s name; {words}"):
        hr.train("CartPole-v1", "appo", **{name: 1})


# -- V-trace ---------------------------------------------------------------------------------


def by_the_formula(log_ratio, gamma=0.99):
    """Compute V-trace as literal sums over all later steps, in float64."""
    rho, length = log_ratio.exp().clamp(max=1.0), len(REWARD)
    delta = rho * (REWARD + gamma * VALUE[1:] - VALUE[:-1])
    vs = [
        VALUE[s] + sum(gamma ** (t - s) * rho[s:t].prod() * delta[t] for t in range(s, length))
        for s in range(length)
    ]
    targets = torch.stack([*vs, VALUE[-1]])
    return targets[:-1], rho * (REWARD + gamma * targets[1:] - VALUE[:-1])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_example_gives_what_the_formula_gives(sign):
    none = torch.zeros(6, 1, dtype=torch.bool)
    stream = REWARD[:, None], VALUE[:, None], none[:5], none
    returns = vtrace(sign * LOG_RATIO[:, None], *stream, gamma=0.99)
    vs, advantage = by_the_formula(sign * LOG_RATIO)
    torch.testing.assert_close(returns.vs[:, 0], vs)
    torch.testing.assert_close(returns.pg_advantage[:, 0], advantage)
    printed = "tensor([[" + ", ".join(f"{x:.4f}" for x in vs) + "]])"
    assert printed in TEXT
    assert sign < 0 or printed in vtrace.__doc__


def test_the_sessions_of_the_page_and_of_the_docstring_print_what_they_show():
    page = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert (page.failed, page.attempted) == (0, 16)
    docstrings = doctest.testmod(headrace.ops.returns)
    assert docstrings.failed == 0
    assert docstrings.attempted == 7

"""Every algorithm with every kind of action, with and without recurrence and masks, learns.

``make test`` runs a selection in which every two settings meet; ``make test-full`` runs all.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest
from worlds import SpaceIdentityVectorEnv

import headrace as hr

SHORT = {"gamma": 0.3, "lam": 0.9}  # an action of the identity changes its own reward only
ALGOS = {
    "a2c": hr.A2C(learning_rate=1e-2, **SHORT),
    "a3c": hr.A3C(learning_rate=1e-2, optimizer="adam", **SHORT),
    "ppo": hr.PPO(learning_rate=5e-3, epochs=4, minibatches=4, **SHORT),
    "impala": hr.IMPALA(learning_rate=1e-2, **SHORT),
    "appo": hr.APPO(learning_rate=1e-2, epochs=2, minibatches=2, **SHORT),
    "impact": hr.IMPACT(learning_rate=5e-3, buffer_size=2, passes=4, **SHORT),
}
SPACES = ("discrete", "multidiscrete", "box", "dict", "multibinary", "box2d", "tuple")
CORES = (None, "lstm", "gru")
MASKS = (None, "obs", "info")


def has_mask(space: str) -> bool:
    return space not in ("box", "box2d", "multibinary")


EVERYTHING = [
    case
    for case in itertools.product(ALGOS, SPACES, CORES, MASKS)
    if case[3] is None or has_mask(case[1])
]


def pairs(case: tuple) -> set[tuple]:
    """Return every two settings of a case, with their positions."""
    return set(itertools.combinations(enumerate(case), 2))


def selection() -> list[tuple]:
    """Return cases of four spaces, chosen greedily for the most new pairs."""
    # GRU differs from LSTM in the core alone, other spaces in the distribution: make test-full.
    cases = [case for case in EVERYTHING if case[1] in SPACES[:4] and case[2] != "gru"]
    missing = set().union(*map(pairs, cases))
    chosen = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def share_of_optimum(case, tmp_path) -> float:
    algo, space, core, mask = case
    kwargs = {"action_space": space, "mask": mask}
    config = hr.Config(
        SpaceIdentityVectorEnv,
        ALGOS[algo],
        env_kwargs=kwargs,
        transport="serial",
        num_actors=1,
        envs_per_actor=16,
        fragment_length=16,
        total_steps=20_000 if algo in ("ppo", "impact") else 50_000,
        network=hr.Network((32,), core=core, core_size=32),
        run_dir=str(tmp_path / "run"),
        eval_episodes=0,
        log_interval_s=0.1,
    )
    with contextlib.closing(hr.Trainer(config)) as trainer:
        for result in trainer:
            if result.episode_return is not None and result.episode_return > 7.8:
                trainer.stop()
    result = hr.evaluate(trainer.policy, SpaceIdentityVectorEnv, 50, env_kwargs=kwargs)
    return result.mean / 8


def name(case) -> str:
    return "-".join(str(part) for part in case)


def test_the_selection_is_small():
    assert len(selection()) <= 25


@pytest.mark.parametrize("case", selection()[::8], ids=name)  # the full form has the others too
def test_a_selection_of_settings_learns_the_identity(case, tmp_path):
    assert share_of_optimum(case, tmp_path) >= 0.85


@pytest.mark.full
@pytest.mark.parametrize("case", EVERYTHING, ids=name)
def test_every_combination_of_settings_learns_the_identity(case, tmp_path):
    assert share_of_optimum(case, tmp_path) >= 0.85

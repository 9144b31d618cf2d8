"""benchmarks/book/clusterenv.py: cases, verdicts on stand-in runs, and its agents."""

from __future__ import annotations

import gymnasium
import pytest
import torch

import headrace as hr


@pytest.fixture
def book(benchmark):
    """The modules of the page, by the end of their name."""
    names = ("clusterenv", "clusterenv_judges", "clusterenv_runs", "experiment", "rows")
    return {name: benchmark(f"book.{name}") for name in names}


def test_a_sum_over_the_papers_environments_is_64_times_a_mean(book):
    cases = book["clusterenv"]._thresholds(book["experiment"].Form("full"))
    of_mean, of_sum = (
        [book["clusterenv"]._aaps(case).kl_thresholds[0] for case in cases if case["kl"] == kind]
        for kind in ("mean", "sum")
    )
    assert of_mean == pytest.approx([64 * value for value in of_sum])
    assert len(set(of_mean)) == 8


def runs(book, values, keys):
    """Return three runs of each setting with a return and fetches."""
    return book["rows"].Runs(
        tuple(
            book["rows"].Run(
                dict(zip(keys, setting, strict=True)) | {"seed": seed},
                {"final_return": reward + seed, "syncs_per_worker": fetches, "pulls": fetches,
                 "megabytes": fetches / 10},
            )
            for setting, (reward, fetches) in values.items()
            for seed in range(3)
        )
    )  # fmt: skip


def test_thresholds_have_to_keep_the_return_and_save_fetches(book):
    judges, keys = book["clusterenv_judges"], ("weight_sync", "kl", "threshold")
    values = {("every", "", 0.0): (0, 50), ("adaptive", "mean", 0.05): (-5, 20)}
    values |= {("adaptive", "mean", 0.8): (-190, 1), ("adaptive", "mean", 1.0): (-190, 1)}
    data = {"clusterenv_thresholds": runs(book, values, keys)}
    assert judges.learns("mean", (0.05,))(data).verdict.value == "in kind"
    assert judges.learns("mean", (0.8,))(data).verdict.value == "refuted"
    assert judges.delays(data).verdict.value == "in kind"
    assert judges.ordered("mean")(data).verdict.value == "in kind"
    assert judges.learns("mean", (0.2,))(data).verdict.value == "not run"


def test_savings_are_judged_at_equal_return(book):
    judge, keys = book["clusterenv_judges"].savings("appo"), ("algo", "weight_sync")
    for reward, fetches, expected in (
        (480, 30, "in kind"),
        (480, 340, "refuted"),
        (90, 30, "refuted"),
        (440, 30, "not reproduced"),
    ):
        values = {("appo", "every"): (490, 350), ("appo", "adaptive"): (reward, fetches)}
        assert judge({"clusterenv_updates": runs(book, values, keys)}).verdict.value == expected


def test_the_continuous_agent_shows_the_distribution_of_what_it_samples(book):
    torch.manual_seed(0)
    space = gymnasium.spaces.Box(-2.0, 2.0, (1,))
    policy = hr.Policy(gymnasium.spaces.Box(-1.0, 1.0, (3,)), space)
    agent, obs = book["clusterenv_runs"].GaussianAgent(policy), torch.rand(50, 3)
    with torch.no_grad():
        made = agent.act(obs)
        log_prob = agent.distribution(obs).log_prob(made["u"]).sum(-1)
    assert (abs(made["action"]) <= 2.0).all()
    torch.testing.assert_close(log_prob, made["log_prob"], rtol=1e-4, atol=1e-4)

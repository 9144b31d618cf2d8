"""The benchmarks of ClusterEnv and of weight synchronisation, with tiny settings."""

from __future__ import annotations

import csv
import math
import re

import pytest
import torch
from rich.console import Console


@pytest.mark.slow
def test_the_json_scheme_sends_all_weights_with_each_step(benchmark):
    scheme = benchmark("json_steps")
    agent = scheme.agent_for("CartPole-v1")
    workers = scheme.JsonWorkers("CartPole-v1", "auto", agent)
    try:
        for always in (0, 1, 0):
            with torch.no_grad():
                agent.policy[-1].bias.copy_(torch.tensor([50.0, 50.0]) * torch.eye(2)[always])
            rows = workers.step()
            assert len(rows) == scheme.WORKERS
            for one in rows:
                assert one["action"].tolist() == [always] * scheme.ENVS
                assert one["obs"].shape == (scheme.ENVS, 4)
                assert one["reward"].tolist() == [1.0] * scheme.ENVS
        num_weights = sum(value.numel() for value in agent.state_dict().values())
        assert workers.bytes_per_step > 2 * 8 * num_weights  # two workers, some digits each
    finally:
        workers.close()
    assert not any(process.is_alive() for process in workers._processes)


@pytest.mark.slow
def test_the_speeds_are_measured_and_compared(benchmark, tmp_path, capsys):
    aaps = benchmark("aaps")
    aaps.main(aaps.Arguments(repeats=1, seconds=0.1, num_steps=4, output=str(tmp_path)))
    with (tmp_path / "rates.csv").open() as file:
        rates = {row["name"]: float(row["sps_median"]) for row in csv.DictReader(file)}
    assert len(rates) == 11
    assert all(rate > 0 for rate in rates.values())
    printed = capsys.readouterr().out
    one, step = rates["loop: one process alone"], rates["loop: step(agent)"]
    assert f"step(agent) / twice one process: {step / (2 * one):.2f} " in printed
    ahead = rates["loop: step(agent), running ahead"] / (2 * one)
    assert f"step(agent), running ahead / twice one process: {ahead:.2f} " in printed
    found = re.search(r"(\d+\.\d\d) ms in one .* (\S+) ms in each worker and (\S+) ms in", printed)
    alone_ms, worker_ms, head_ms = map(float, found.groups())
    assert 0 < head_ms < worker_ms
    bound = float(re.search(r"without a pause: (\S+) of twice", printed)[1])
    assert bound == pytest.approx(2 * alone_ms / (2 * worker_ms + head_ms), rel=0.2)
    megabytes = rates["images: collect"] * 4 * 84 * 84 / 1e6
    assert f"images: collect: {megabytes:,.0f} MB/s" in printed
    assert (tmp_path / "rates.png").stat().st_size > 0


def test_rules_are_compared_with_the_first(benchmark):
    weight_sync = benchmark("weight_sync")
    case = {"target_return": 475.0}
    summary = {
        "episodic_return": 100.0, "evaluation": {"mean": 480.0}, "env_steps": 10, "updates": 2,
        "sync": {"pulls": 3, "bytes": 5_000_000, "divergence": 0.25}, "lag": {"mean": 1.5},
        "sps": 7.0,
    }  # fmt: skip
    found = weight_sync.results(summary, case)
    assert (found["reached"], found["pulls"], found["megabytes"], found["kl"]) == (True, 3, 5, 0.25)
    missed = weight_sync.results(summary | {"evaluation": None}, case)
    assert not missed["reached"]
    rows = [
        {"rule": "every", **found, "pulls": 30, "env_steps": 100, "kl": None},
        {"rule": "every", **missed, "pulls": 10, "env_steps": 300, "kl": None},
        {"rule": "adaptive", **found, "pulls": 4, "env_steps": 150},
        {"rule": "adaptive", **found, "pulls": 6, "env_steps": 350},
    ]
    every, adaptive = weight_sync.summarise(rows)
    assert (every["reached"], every["fewer_pulls"], every["more_steps"], every["kl"]) == (
        1, 1.0, 1.0, None,
    )  # fmt: skip
    assert (adaptive["fewer_pulls"], adaptive["more_steps"]) == (4.0, 1.25)
    assert adaptive["pulls_se"] == pytest.approx(math.sqrt(2.0) / math.sqrt(2.0))


@pytest.mark.slow
def test_the_rules_are_run_as_the_command_and_not_again(benchmark, tmp_path, monkeypatch):
    weight_sync = benchmark("weight_sync")
    args = weight_sync.Args(
        rules="every,adaptive:1.0",
        seeds=1,
        target_return=1.0,
        eval_interval=20_000,
        eval_episodes=1,
        output=tmp_path,
    )
    assert weight_sync.main(args) == 0
    with (tmp_path / "runs.csv").open() as file:
        every, adaptive = csv.DictReader(file)
    assert (every["reached"], adaptive["reached"]) == ("True", "True")
    assert int(adaptive["pulls"]) == 1  # one actor, and no drift reaches 1 nat
    assert int(every["pulls"]) > 3
    assert every["kl"] == ""
    monkeypatch.setattr(weight_sync, "measure", None)  # any call fails
    assert weight_sync.main(args) == 0
    weight_sync.report(weight_sync.Study(tmp_path, weight_sync.COLUMNS).rows, args, Console())


def test_transports_are_compared_in_pairs(benchmark, tmp_path, capsys, monkeypatch):
    transports = benchmark("transports")
    for case in ("cartpole", "pong", "empty"):
        for place in ("shm", "ray"):
            config = transports.config_of(case, 2, str(tmp_path), place)
            assert config.cluster == (None if place == "shm" else "ray")
            assert config.rollouts_per_update * config.rollout_steps == config.resolved_batch_size
            assert config.rollout_steps == {"cartpole": 16_384, "pong": 512, "empty": 1}[case]
    order = []

    def measure(config, seconds):
        order.append(config.cluster)
        return {"sps": [100.0, 80.0, 60.0, 120.0, 100.0, 70.0][len(order) - 1]}

    monkeypatch.setattr(transports, "measure", measure)
    found = transports.compare("cartpole", transports.Args(pairs=3, seconds=0.0))
    assert order == ["ray", None, None, "ray", "ray", None]
    assert found["ratios"] == [100 / 80, 120 / 60, 100 / 70]
    assert found["ratio"] == 100 / 70
    assert "median 1.43 of 1.25, 2.00, 1.43" in capsys.readouterr().out


def test_a_run_of_chaos_on_ray_counts_and_measures_right(benchmark):
    chaos = benchmark("chaos_ray")
    assert chaos.lost_in_all([0, 2, 3, 1, 1, 4]) == 6  # a restart went back to 1
    memory = [(0, t, 500.0 + t / 30 + (90.0 if t == 60 else 0.0)) for t in range(0, 300, 15)]
    assert chaos.slope(memory) == pytest.approx(2.0)

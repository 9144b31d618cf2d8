"""Benchmarks on several hosts: rows of the architectures, and creation of hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from types import SimpleNamespace

import pytest
from patience import PATIENCE_S

from headrace.errors import ConfigError
from headrace.studies.children import Children


@pytest.fixture
def architectures(benchmark):
    return benchmark("architectures")


def test_each_host_has_as_many_actors_and_the_batch_a_rollout_of_each(architectures):
    args = architectures.Args(num_envs=4, hosts=(1, 3), architectures=("A3C",), repeats=1)
    rows = {}
    for case in architectures.cases_of(args):
        rows[case["architecture"]] = architectures.config_of(case, "unused")
    assert list(rows) == [
        "A3C",
        *("A2C, sync trajectory, hosts: 1", "A2C, sync trajectory, hosts: 3"),
        *("IMPALA, hosts: 1", "IMPALA, hosts: 3"),
    ]
    for name, config in rows.items():
        actors = 12 if name.endswith("3") else 4
        assert (config.num_actors, config.envs_per_actor) == (actors, 1)
        assert config.resolved_batch_size == actors * args.fragment_length
        assert config.cluster == (None if name == "A3C" else "ray:10.99.0.1:6379")
        assert type(config.algo).__name__ == name.split(",")[0]
    assert "hosts" not in architectures.COLUMNS  # more rows don't make those that are there others


def test_sleeping_environments_of_more_hosts_give_more_and_busy_ones_share_the_cores(
    architectures,
):
    one = architectures.Args(num_envs=4)
    assert architectures.ideal_sps(one, "even", 3) == 3 * architectures.ideal_sps(one, "even")
    busy = architectures.Args(num_envs=10_000, cost="busy")
    assert architectures.ideal_sps(busy, "even", 3) == architectures.ideal_sps(busy, "even")


def test_the_summary_compares_with_as_many_environments_as_a_row_has(architectures):
    args = architectures.Args(num_envs=4, hosts=(2,), architectures=("IMPALA",))
    ideal = architectures.ideal_sps(args, "even")
    known = dict.fromkeys(architectures.RESULTS, 0.0)
    rows = [
        known | {"architecture": name, "task": "even", "sps": factor * ideal}
        for name, factor in (("IMPALA, hosts: 2", 1.8), ("IMPALA", 0.8))
    ]
    one, two, alone, _ = architectures.summarise(rows, args)
    assert (one["architecture"], two["architecture"]) == ("IMPALA", "IMPALA, hosts: 2")
    assert one["ratio_to_alone"] == pytest.approx(0.8)
    assert two["ratio_to_alone"] == pytest.approx(0.9)
    assert two["ratio_to_impala"] == pytest.approx(1.8 / 0.8)
    assert alone["ratio_to_alone"] == 1.0


def test_actors_that_are_not_spread_evenly_are_no_row(benchmark):
    check_spread = benchmark("hosts").check_spread

    def trainer(*nodes):
        homes = {actor: SimpleNamespace(node=node) for actor, node in enumerate(nodes)}
        return SimpleNamespace(source=SimpleNamespace(_queue=SimpleNamespace(homes=homes)))

    check_spread(trainer("host1", "host2", "host2", "host1"), 2)
    for nodes in (["host1", "host1"], ["host1", "host2", "host2"]):
        with pytest.raises(RuntimeError, match="evenly over 2 hosts"):
            check_spread(trainer(*nodes), 2)


def test_what_makes_no_hosts_is_told_in_a_sentence(benchmark, architectures, monkeypatch):
    with pytest.raises(ConfigError, match="--hosts 10 is invalid: choose 1 to 9 hosts"):
        architectures.cases_of(architectures.Args(hosts=(10,)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"--hosts .* needs root and the command ip \(Debian's"):
        benchmark("hosts").check_possible("--hosts")


def test_a_script_that_fails_is_told_with_what_it_said(benchmark, monkeypatch, tmp_path):
    hosts = benchmark("hosts")
    (tmp_path / "script.sh").write_text("echo $1 $2 $3: no namespaces here; exit 1")
    monkeypatch.setattr(hosts, "SCRIPT", str(tmp_path / "script.sh"))
    network = hosts.Network(tmp_path, {}, name="net")
    with pytest.raises(ConfigError, match="up net 3: no namespaces here"):
        network.do("up", "3")


def test_a_command_of_a_host_runs_after_what_stands_before_it_and_reads_what_it_is_told(benchmark):
    hosts = benchmark("hosts")
    words = ["bash", "-c", hosts.BOTH, "both", "3", "bash", "-c", "cat; echo first"]
    done = subprocess.run(
        [*words, "bash", "-c", 'cat; echo "$0"', "a b"],
        input="said ", capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout == "first\nsaid a b\n"
    failing = [*words[:4], "1", "false", "echo", "second"]
    done = subprocess.run(failing, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_host_joins_once_the_head_listens(benchmark):
    import socket

    hosts = benchmark("hosts")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = ["bash", "-c", hosts.AFTER_HEAD, "join", address, "echo", "joined"]
        waiting = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        assert waiting.poll() is None
        server.listen()
        assert waiting.communicate(timeout=PATIENCE_S)[0] == "joined\n"


def test_chaos_on_ray_begins_on_the_first_host_and_the_others_join(benchmark, tmp_path):
    chaos, joined = benchmark("chaos_ray"), []
    network = benchmark("hosts").Network(tmp_path, {}, name="net")
    network.run = lambda host, *words: (host, words)
    network.join = lambda host, cores: joined.append((host, cores))
    run = SimpleNamespace(run_dir=tmp_path, command=None)
    chaos.started(chaos.Args(), run, network)
    host, words = run.command
    assert (host, joined) == (1, [(2, 2), (3, 2), (4, 2)])
    assert "--head" in words[: words.index("train")]


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_actors_of_two_hosts_are_measured_and_the_hosts_are_gone(
    benchmark, architectures, monkeypatch
):
    hosts = benchmark("hosts")
    try:
        hosts.check_possible("--hosts")
    except ConfigError as error:
        pytest.skip(str(error))
    for name, value in hosts.variables().items():
        monkeypatch.setenv(name, value)
    args = architectures.Args(num_envs=1, hosts=(2,), seconds=0.5, warm_up_s=0.0)
    [case] = [
        one
        for one in architectures.cases_of(args)
        if (one["architecture"], one["task"], one["repeat"]) == ("IMPALA, hosts: 2", "even", 0)
    ]
    found = architectures.measure_apart(case, Children())
    assert found["env_steps"] > 0
    there = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert not re.findall(rf"^hc{os.getpid()}-\d", there, re.MULTILINE)

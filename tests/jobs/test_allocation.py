"""Messages of nodes and srun while Ray starts, from a script that replaces srun."""

from __future__ import annotations

import json

import pytest

from headrace.errors import LaunchFailed
from headrace.jobs.slurm import node
from headrace.jobs.slurm.allocation import Allocation

SRUN = """#!/bin/sh
echo "$SLURM_LABELIO$SLURM_UNBUFFEREDIO"
cat "$(dirname "$0")/first"
sleep {pause_s}
cat "$(dirname "$0")/second"
exec cat > /dev/null
"""
SCONTROL = """#!/bin/sh
[ "$2" = hostnames ] && echo "node1 node2" || echo NodeAddr=127.0.0.1
"""
EXITED = "srun: error: node2: task 1: Exited with exit code 2"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return an allocation of two nodes, for which srun prints this."""

    def begin(first: str | bytes, second: str = "", pause_s: float = 0.0) -> Allocation:
        (tmp_path / "first").write_bytes(first if isinstance(first, bytes) else first.encode())
        (tmp_path / "second").write_text(second)
        for name, text in {"srun": SRUN.format(pause_s=pause_s), "scontrol": SCONTROL}.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        return Allocation(gpus_per_node=0, start_timeout_s=60.0, shared=None)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    return begin


def test_a_node_whose_program_cannot_start_is_told_with_sruns_words_and_not_waited_for(cluster):
    words = "slurmstepd: error: execve(): /opt/python: No such file or directory\n" + EXITED
    with pytest.raises(LaunchFailed) as error, cluster(words + "\n"):
        pass
    assert str(error.value).startswith("srun could not start Ray on node2 (slurmstepd: error: exec")
    assert "on a file system that all nodes share?" in str(error.value)


def test_a_node_whose_program_ended_for_another_reason_is_no_matter_of_file_systems(cluster):
    words = "slurmstepd: error: Detected 1 oom_kill event\n" + EXITED
    with pytest.raises(LaunchFailed) as error, cluster(words + "\n"):
        pass
    assert str(error.value).startswith("srun could not start Ray on node2 (slurmstepd: error: Det")
    assert "file system" not in str(error.value)


def test_the_node_that_ended_first_is_named_though_others_follow(cluster):
    with (
        pytest.raises(LaunchFailed, match="Ray on node2 "),
        cluster(f"{EXITED}\n", EXITED.replace("node2", "node3") + "\n", 0.5),
    ):
        pass


def test_words_that_are_no_text_and_settings_of_srun_deafen_nobody(cluster, monkeypatch):
    for name in ("SLURM_LABELIO", "SLURM_UNBUFFEREDIO"):
        monkeypatch.setenv(name, "1")
    said = json.dumps({"node": "node2", "wrong": "node2 has no disk"})
    allocation = cluster(f"caf\351\n{said}\n".encode("latin-1"))
    with pytest.raises(LaunchFailed, match=r"^node2 has no disk$"), allocation:
        pass
    assert allocation._heard.other == ["caf\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("first_srun", [False, True])
def test_a_nodes_own_reason_comes_before_sruns(cluster, first_srun):
    said = json.dumps({"node": "node2", "wrong": "node2 has no disk"})
    lines = [f"{said}\n", f"{EXITED}\n"]
    first, second = reversed(lines) if first_srun else lines
    with pytest.raises(LaunchFailed, match=r"^node2 has no disk$"), cluster(first, second, 0.3):
        pass


@pytest.mark.parametrize("letter", ["a", '"', "ä", "\N{WAVE DASH}"])
def test_what_a_node_says_is_one_line_that_srun_does_not_break(capsys, letter):
    node.say(wrong=f"node1: {letter * 9999}")
    node.say(signal=15)
    long, short = capsys.readouterr().out.splitlines()
    assert 930 < len(long.encode()) <= 1000
    assert json.loads(long)["wrong"].startswith(f"node1: {letter * 100}")
    assert json.loads(short) == {"node": node._name(), "signal": 15}

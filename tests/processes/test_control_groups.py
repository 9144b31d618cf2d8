"""The number of cores respects the CPU quotas of control groups."""

from __future__ import annotations

import pytest

from headrace.processes import control_groups, hardware, num_cores


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Writes files of control groups; the process is in the group that ``of`` names."""
    monkeypatch.setattr(hardware, "cores", lambda: set(range(8)))
    monkeypatch.setattr(control_groups, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "_OF_PROCESS", tmp_path / "of_process")

    def write(of: str, files: dict[str, str]) -> None:
        (tmp_path / "of_process").write_text(of)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    return write


def test_without_groups_all_cores_of_the_affinity_count(groups):
    assert control_groups.cpu_quota() is None
    assert num_cores() == 8


@pytest.mark.parametrize(
    ("of", "files", "cores"),
    [
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "350000 100000"}, 3),  # rounded down
        ("0::/", {"cpu.max": "50000 100000"}, 1),  # but to 1 at least
        ("0::/", {"cpu.max": "1600000 100000"}, 8),  # more than there are
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "300000 100000"}, 2),
        ("0::/docker/0", {"cpu.max": "200000 100000"}, 2),  # the host's path, not seen here
        ("0::/a", {"b/cpu.max": "100000 100000"}, 8),  # another's
        ("0::/a", {"unified/a/cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "nonsense"}, 8),
    ],
)
def test_quotas_of_version_2_count(groups, of, files, cores):
    groups(of, files)
    assert num_cores() == cores


@pytest.mark.parametrize("name", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("100000", "100000", 1), ("-1", "100000", 8), ("250000", "100000", 2), ("20000", "50000", 1)],
)
def test_quotas_of_version_1_count(groups, name, quota, period, cores):
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": period}
    groups(f"4:{name}:/a:b/c\n3:memory:/d", {f"{name}/a:b/{k}": v for k, v in files.items()})
    assert num_cores() == cores

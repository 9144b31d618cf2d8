"""Time budgets of test files: a pytest plugin that prints a table at the end.

Wall-clock time depends on the machine and on other programs. So a file is compared with its budget
times the factor by which most files are slower. Files over budget are reported, but never fail.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

BUDGET_S = 10.0
BUDGETS_S = {
    "jobs/test_slurm.py": 280,
    "actors/test_hosts.py": 110,
    "launch/test_cluster_learners.py": 80,
    "jobs/test_pods.py": 60,
    "cluster_env/test_ray.py": 60,
    "launch/test_learner_group.py": 60,
    "jobs/test_kubernetes.py": 50,
    "launch/test_torchrun.py": 50,
    "docs/test_docs.py": 40,
    "reporting/test_browser.py": 40,
    "launch/test_group.py": 35,
    "actors/test_faults.py": 25,
    "actors/test_inference_server.py": 20,
    "cluster_env/test_cluster_faults.py": 20,
    "learner/test_hogwild.py": 20,
    "trainer/test_curriculum.py": 20,
    "trainer/test_schedules.py": 20,
    "actors/test_env_children.py": 15,
    "actors/test_weight_sync.py": 15,
    "docs/test_examples.py": 15,
    "envs/test_async.py": 15,
    "games/test_games.py": 15,
    "jobs/test_commands.py": 15,
    "jobs/test_following.py": 15,
    "trainer/test_first_look.py": 15,
    "trainer/test_tasks.py": 15,
    "trainer/test_trainer.py": 15,
    "cluster_env/test_order.py": 12,
    "cluster_env/test_runs_ahead.py": 12,
    "cluster_env/test_weights.py": 12,
    "envs/test_atari.py": 12,
    "games/test_league_runs.py": 12,
    "learner/test_elsewhere.py": 12,
    "trainer/test_custom_metrics.py": 12,
    "trainer/test_resume.py": 12,
}
"""Files that need more, in seconds on 2 cores that run three files at a time. Before raising a
budget, make the test faster, or move its long form to `make test-full`.
"""
TOTAL_S = 700.0
"""Budget of all files together, about 5 minutes if three run at a time."""
TOLERANCE = 1.5
"""Factor by which a file may exceed its budget, as its tests share two cores with others."""
FEWEST = 10
"""Minimum number of files with a separate budget to estimate the speed of a machine."""
NUM_SHOWN = 15
COLLECTED = "HEADRACE_TEST_SECONDS"
"""Environment variable of a file for the seconds, for a table of several runs."""


class Seconds:
    """Plugin, registered by `tests/conftest.py`."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report) -> None:
        self.by_file[report.nodeid.split("::")[0].removeprefix("tests/")] += report.duration

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if path := os.environ.get(COLLECTED):
            Path(path).write_text(json.dumps(self.by_file))
        elif len(self.by_file) > 1:
            terminalreporter.section("seconds by file")
            terminalreporter.line(table(self.by_file))


def budget_s(file: str) -> float:
    """Return the budget of a file in tests/."""
    return BUDGETS_S.get(file, BUDGET_S)


def slowdown(seconds: Mapping[str, float]) -> float:
    """Return the factor by which the machine is slower than budgets assume, at least 1.

    It is the median over files with a separate budget. So a single slower test doesn't affect it,
    but a busy machine does.
    """
    ratios = [seconds[file] / budget for file, budget in BUDGETS_S.items() if file in seconds]
    return max(1.0, statistics.median(ratios)) if len(ratios) >= FEWEST else 1.0


def table(seconds: Counter[str]) -> str:
    """Return lines with the slowest files, their budgets, and those that exceed them."""
    lines = [f"{'file':<46} {'seconds':>8} {'budget':>7}"]
    factor = slowdown(seconds)
    allowed = {file: TOLERANCE * factor * budget_s(file) for file in seconds}
    over = [file for file in seconds if seconds[file] > allowed[file]]
    shown = [file for file, _ in seconds.most_common(NUM_SHOWN)]
    for file in shown + sorted(set(over) - set(shown)):
        mark = "  OVER" if file in over else ""
        lines.append(f"{file:<46} {seconds[file]:8.1f} {budget_s(file):7.0f}{mark}")
    total = sum(seconds.values())
    lines.append(f"{f'all {len(seconds)} files':<46} {total:8.1f} {TOTAL_S:7.0f}")
    if factor > 1.0:
        lines.append(f"this machine takes {factor:.1f} times the budgets, which is allowed for")
    if over:
        limit = TOLERANCE * factor
        lines.append(
            f"WARNING: {len(over)} of {len(seconds)} files took more than {limit:.1f} times their "
            "budgets (tests/budget.py)"
        )
    elif total > factor * TOTAL_S:
        lines.append("WARNING: all files together are over budget (tests/budget.py)")
    else:
        lines.append("every file within its budget")
    return "\n".join(lines)

"""The table of seconds per file distinguishes slow tests from a slow machine."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import budget


@pytest.fixture
def seconds(monkeypatch) -> Counter[str]:
    """Seconds of the files with a separate budget on a machine that is 2.5 times slower."""
    monkeypatch.setattr(budget, "TOTAL_S", sum(budget.BUDGETS_S.values()))
    return Counter({file: 2.5 * allowed for file, allowed in budget.BUDGETS_S.items()})


def test_a_slow_machine_is_no_reason_for_a_warning(seconds):
    assert budget.slowdown(seconds) == 2.5
    assert budget.table(seconds).endswith("every file within its budget")


def test_a_file_that_grew_is_reported_on_any_machine(seconds):
    grown, *_ = seconds
    for machine in (0.5, 2.5):
        some = Counter({file: machine * budget.budget_s(file) for file in seconds})
        some[grown] = 1.6 * max(1.0, machine) * budget.budget_s(grown)
        assert budget.slowdown(some) == max(1.0, machine)
        lines = budget.table(some).splitlines()
        assert [line.split()[0] for line in lines if line.endswith("OVER")] == [grown]
        assert lines[-1].startswith(f"WARNING: 1 of {len(some)} files")


def test_a_few_files_do_not_tell_how_fast_a_machine_is(seconds):
    few = Counter(dict(seconds.most_common(budget.FEWEST - 1)))
    assert budget.slowdown(few) == 1.0
    assert f"WARNING: {len(few)} of {len(few)} files" in budget.table(few)

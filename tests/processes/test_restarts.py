"""The policy that decides which dead processes are restarted."""

from __future__ import annotations

import pytest

from headrace.errors import WorkerFailed
from headrace.processes.restarts import Death, RestartPolicy

TRACE = "Traceback (most recent call last):\n  in step\nValueError: bad"


def killed(key: str = "0", **about) -> Death:
    return Death(key, f"worker {key}", "exited with code -9", **about)


def failed(work: str, key: str = "0", began: bool = True) -> Death:
    return Death(key, f"worker {key}", "ValueError: bad", TRACE, work, began)


def test_processes_share_the_limit():
    policy = RestartPolicy(2, WorkerFailed)
    assert policy.restart(killed("0")) == "worker 0: exited with code -9 (restart 1/2)"
    assert policy.restart(killed("1")) == "worker 1: exited with code -9 (restart 2/2)"
    with pytest.raises(WorkerFailed) as error:
        policy.restart(killed("0"))
    expected = "worker 0: exited with code -9; max_restarts=2 restarts are used up"
    assert str(error.value) == expected
    assert policy.count == 2


def test_an_error_that_repeats_after_the_same_work_is_final():
    policy = RestartPolicy(10, WorkerFailed)
    policy.restart(failed("2 rollouts"))
    policy.restart(failed("3 rollouts"))
    policy.restart(failed("3 rollouts", key="1"))  # of another process
    with pytest.raises(WorkerFailed) as error:
        policy.restart(failed("3 rollouts"))
    assert str(error.value) == (
        "worker 0: ValueError: bad; its predecessor failed in the same way after 3 rollouts, so it "
        f"isn't restarted\n\nIts traceback:\n{TRACE}"
    )


@pytest.mark.parametrize(
    "death", [killed(work="2 rollouts"), failed(""), failed("0 rollouts", began=False)]
)
def test_a_death_that_need_not_repeat_is_made_good(death):
    policy = RestartPolicy(10, WorkerFailed)
    for _ in range(10):
        policy.restart(death)


def test_only_the_first_of_equal_tracebacks_is_shown():
    policy = RestartPolicy(10, WorkerFailed)
    assert policy.restart(failed("1")).endswith(f"(restart 1/10)\n{TRACE}")
    assert policy.restart(failed("2")).endswith("(restart 2/10)")


def test_a_process_that_never_came_up_is_final_where_that_is_asked_for():
    policy = RestartPolicy(10, WorkerFailed, unstarted=False)
    policy.restart(killed())
    with pytest.raises(WorkerFailed, match="exited with code -9; it never came up"):
        policy.restart(killed(began=False))


def test_processes_of_one_lost_host_count_once():
    policy = RestartPolicy(1, WorkerFailed)
    for key in range(5):
        policy.restart(killed(f"{key}", host="node2"))
    assert policy.count == 5
    with pytest.raises(WorkerFailed, match="used up"):
        policy.restart(killed("0", host="node2"))  # its replacement, too

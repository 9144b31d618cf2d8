"""Progress of a study, remaining time, and the command that continues a run."""

from __future__ import annotations

from unittest import mock

from headrace.rundir import countdown
from headrace.rundir.countdown import Countdown, continue_line


def test_the_time_left_follows_from_the_speed_since_the_start():
    with mock.patch.object(countdown.time, "monotonic", return_value=100.0) as clock:
        left = Countdown(8, done=2)
        assert left.text(2) == "[2/8]"  # parts of an earlier process tell no speed
        clock.return_value = 130.0
        assert left.text(3) == "[3/8, 0:02:30 left]"
        assert left.text(3, "38%") == "[38%, 0:02:30 left]"
        assert left.text(8) == "[8/8]"


def test_the_command_that_continues_a_run_quotes_its_path():
    assert continue_line("runs/a b", 50_000) == "headrace resume 'runs/a b' --total-steps 100_000"

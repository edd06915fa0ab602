"""The time in which a process ran, and by how much it was late."""

import pytest

from millstream.node.controller.broker_sessions import STEP_SECONDS, RunningTime


def test_time_passes_as_long_as_the_process_runs() -> None:
    running_time = RunningTime(100.0)
    for number in range(1, 11):
        assert running_time.tick(100.0 + number * STEP_SECONDS) == pytest.approx(number * STEP_SECONDS)
    assert running_time.now_s(100.0 + 10.5 * STEP_SECONDS) == pytest.approx(10.5 * STEP_SECONDS)
    assert running_time.lateness_s == pytest.approx(0.0)


def test_time_in_which_the_process_did_not_run_does_not_count() -> None:
    running_time = RunningTime(0.0)
    assert running_time.now_s(60.0) == pytest.approx(3 * STEP_SECONDS)
    assert running_time.tick(60.0) == pytest.approx(3 * STEP_SECONDS)
    assert running_time.tick(60.0 + STEP_SECONDS) == pytest.approx(4 * STEP_SECONDS)


def test_lateness_is_that_of_many_ticks() -> None:
    running_time = RunningTime(0.0)
    now_s = 30.0
    running_time.tick(now_s)
    assert running_time.lateness_s < 0.05, "one long pause says little"
    for _ in range(300):
        now_s += STEP_SECONDS + 0.3
        running_time.tick(now_s)
    assert running_time.lateness_s == pytest.approx(0.3, rel=0.1)
    for _ in range(300):
        now_s += STEP_SECONDS
        running_time.tick(now_s)
    assert running_time.lateness_s < 0.01

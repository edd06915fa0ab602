"""How fast requests may raise the epoch."""

from millstream.node.consensus.raft.settings import EPOCH_BURST, EPOCHS_PER_SECOND, EpochPace


def test_elections_one_after_the_other_pass() -> None:
    pace = EpochPace(0)
    assert all(pace.admits(1, now_ms) for now_ms in range(0, 60_000, 50))


def test_a_large_step_is_refused_and_costs_nothing() -> None:
    pace = EpochPace(0)
    assert not pace.admits(2**31 - 1, 0)
    assert pace.admits(EPOCH_BURST, 0)


def test_many_small_steps_are_refused_when_the_burst_is_used_up() -> None:
    pace = EpochPace(0)
    admitted = sum(pace.admits(100, now_ms) for now_ms in range(10_000))
    assert admitted == (EPOCH_BURST + 9 * EPOCHS_PER_SECOND) // 100


def test_an_epoch_that_is_not_raised_costs_nothing() -> None:
    pace = EpochPace(0)
    assert pace.admits(EPOCH_BURST, 0)
    assert pace.admits(0, 0)
    assert pace.admits(-5, 0)
    assert not pace.admits(1, 0)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    pace = EpochPace(1000)
    assert pace.admits(EPOCH_BURST, 1000)
    assert not pace.admits(1, 0)

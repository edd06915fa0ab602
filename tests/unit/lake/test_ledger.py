"""The ledger of offsets: what follows, what is refused, and what is listed."""

import pytest

from millstream.lake.errors import LakeError, StaleWriteError
from millstream.lake.ledger import Bookkeeping, LedgerEntry, LedgerState, OffsetRange, listed_ranges
from millstream.lake.row_crc import RowCrc


def entry(*ranges: OffsetRange, partitions: int = 2) -> LedgerEntry:
    return LedgerEntry("id", ranges, partitions)


FIRST = entry(OffsetRange(0, 5, 10, 5, 0, 0, 100, 11), OffsetRange(1, 0, 3, 2, 1, 0, 50, 22))
SECOND = entry(OffsetRange(0, 10, 20, 9, 0, 1, 7, 5))


def state_after(*entries: LedgerEntry) -> LedgerState:
    state = LedgerState()
    for each in entries:
        state = state.after(each, RowCrc(sum(one.rows for one in each.ranges), 1))
    return state


def test_a_ledger_adds_up_its_commits() -> None:
    state = state_after(FIRST, SECOND)
    assert state.totals[0] == OffsetRange(0, 5, 20, 14, 0, 1, 107, 16)
    assert state.end_of(1) == 3 and state.end_of(7) is None
    assert state.table == RowCrc(16, 2)


def test_a_ledger_survives_its_numbers() -> None:
    state = state_after(FIRST, SECOND)
    numbers = state.to_numbers()
    assert LedgerState.from_numbers(numbers.get) == state
    assert LedgerState.from_numbers(dict[str, int]().get) == LedgerState()
    numbers.pop("millstream.ledger.0.row_crc")
    with pytest.raises(LakeError, match=r"millstream\.ledger\.0\.row_crc is missing"):
        LedgerState.from_numbers(numbers.get)


def test_a_commit_keeps_the_numbers_that_it_changes() -> None:
    note = Bookkeeping(SECOND).note(state_after(FIRST), RowCrc(9, 5))
    assert "millstream.ledger.0.end" in note.numbers and "millstream.ledger.1.end" not in note.numbers
    assert LedgerEntry.from_json(note.entry) == SECOND


@pytest.mark.parametrize("begin", [5, 9, 11])
def test_what_does_not_follow_is_refused(begin: int) -> None:
    with pytest.raises(StaleWriteError, match="ends at offset 10"):
        state_after(FIRST, entry(OffsetRange(0, begin, 30)))


def test_more_partitions_are_a_new_generation() -> None:
    state = state_after(FIRST)
    assert (state.generation, state.generation_with(2), state.generation_with(3)) == (0, 0, 1)
    grown = state.after(entry(OffsetRange(2, 0, 1), partitions=3), RowCrc())
    assert (grown.generation, grown.generation_with(3)) == (1, 1)


def test_all_ranges_or_those_that_have_not_expired() -> None:
    state = state_after(FIRST, SECOND)
    ranges, faults = listed_ranges(state, [SECOND, FIRST])
    assert ranges == [FIRST.ranges[0], SECOND.ranges[0], FIRST.ranges[1]] and not faults
    assert listed_ranges(state, [SECOND]) == (ranges, [])
    assert listed_ranges(state, []) == ([state.totals[0], state.totals[1]], [])


def test_a_hole_and_wrong_sums_are_found() -> None:
    third = entry(OffsetRange(0, 20, 30, 10))
    state = state_after(FIRST, SECOND, third)
    _, faults = listed_ranges(state, [third, FIRST])
    assert faults == [
        "partition 0: a commit ends at offset 10, and the next one begins at 20",
        "partition 0: the sums of the commits are not those of the table",
    ]
    wrong = entry(OffsetRange(0, 20, 30, 11))
    _, faults = listed_ranges(state, [wrong, SECOND, FIRST])
    assert faults == ["partition 0: the sums of the commits are not those of the table"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"topic_id": "x", "ranges": [[1]], "partitions": 1}'])
def test_an_entry_that_cannot_be_read(text: str) -> None:
    with pytest.raises(LakeError, match="cannot be read"):
        LedgerEntry.from_json(text)

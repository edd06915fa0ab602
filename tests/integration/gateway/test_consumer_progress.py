"""Progress through partitions, without a cluster: whatever happens, records come in order and none is left out."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.records.record import Record
from millstream.gateway.consumers.fetches import FetchedPartition
from millstream.gateway.consumers.progress import Progress
from millstream.raw_client import TopicPartition

PLACES = [TopicPartition("t", number) for number in range(3)]


def shown(offset: int) -> bool:
    """Every fourth offset of these logs is a marker of a transaction."""
    return offset % 4 != 3


def part_from(position: int, count: int) -> FetchedPartition:
    offsets = range(position, position + count)
    return FetchedPartition(
        [Record(None, bytes(10), (), 0, offset) for offset in offsets if shown(offset)], position + count
    )


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 400), st.booleans()), max_size=40),
)
def test_records_come_in_order_and_none_is_left_out(steps: list[tuple[int, int, int, bool]]) -> None:
    progress = Progress()
    seen: dict[TopicPartition, list[int]] = {place: [] for place in PLACES}
    for place in PLACES:
        progress.begin(place, 0, None)
    for count, max_records, max_bytes, is_sent in steps:
        for place, position in progress.to_fetch().items():
            part = part_from(position, count)
            if part.records:
                progress[place].ahead = part
            else:
                progress[place].skip(part.next_offset)
        batch = progress.collect(max_records, max_bytes)
        assert len(batch.records) <= max_records
        assert batch.bytes <= max_bytes or len(batch.records) == 1
        assert progress.hand_out(batch)
        if is_sent:
            for place, record in batch.records:
                seen[place].append(record.offset)
        else:
            progress.take_back(batch)
    for place in PLACES:
        assert seen[place] == [offset for offset in range(progress[place].position) if shown(offset)]


def test_a_batch_of_what_was_moved_or_lost_is_void() -> None:
    progress = Progress()
    progress.begin(PLACES[0], 0, None)
    progress[PLACES[0]].ahead = part_from(0, 3)
    batch = progress.collect(10, 1_000)
    progress[PLACES[0]].seek(1)
    assert not progress.hand_out(batch)
    progress[PLACES[0]].seek(0)
    progress.drop(PLACES[:1])
    assert not progress.hand_out(batch)
    progress.take_back(batch)


def test_progress_is_open_until_its_records_are_handed_out() -> None:
    progress = Progress()
    progress.begin(PLACES[0], 5, 5)
    held = progress[PLACES[0]]
    held.skip(8)
    assert not held.is_open and held.reached == 8
    held.ahead = part_from(8, 2)
    assert progress.hand_out(progress.collect(1, 1_000))
    assert held.is_open and held.reached == 9
    held.skip(12)
    assert held.is_open, "a marker behind does not settle what was handed out"
    held.settled = 12
    held.seek(5)
    assert not held.is_open and held.reached == 12

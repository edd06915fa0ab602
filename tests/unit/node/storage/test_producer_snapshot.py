from struct import pack

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.node.storage.file_formats import DamagedFileError
from millstream.node.storage.log.producer_snapshots import decode_snapshot, encode_snapshot
from millstream.node.storage.log.producer_state import ProducerEntry, ProducerState


def test_bytes_are_kafkas() -> None:
    state = ProducerState()
    state.append(1000, 3, 10, 4, 54, 1_700_000_000_000, True)
    entry = pack(">qhiqiqiq", 1000, 3, 14, 54, 4, 1_700_000_000_000, -1, 50)
    entries = pack(">i", 1) + entry
    assert encode_snapshot(state.entries.values()) == pack(">hI", 1, crc32c(entries)) + entries


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 60), st.integers(0, 30_000), st.integers(0, (1 << 31) - 1), st.integers(0, 5000)),
        max_size=8,
        unique_by=lambda fields: fields[0],
    )
)
def test_a_snapshot_is_encoded_and_decoded(producers: list[tuple[int, int, int, int]]) -> None:
    state = ProducerState()
    for producer_id, epoch, sequence, delta in producers:
        state.append(producer_id, epoch, sequence, delta, 10_000 + delta, 5, False)
    found = decode_snapshot(encode_snapshot(state.entries.values()))
    assert [(entry.producer_id, entry.epoch, entry.last_batch, entry.next_sequence) for entry in found] == [
        (entry.producer_id, entry.epoch, entry.last_batch, entry.next_sequence) for entry in state.entries.values()
    ]


def test_a_producer_that_only_ended_a_transaction() -> None:
    state = ProducerState()
    state.end_transaction(4, 2, 9, 77, 20, committed=True)
    (found,) = decode_snapshot(encode_snapshot(state.entries.values()))
    assert (found.epoch, found.coordinator_epoch, found.last_timestamp, found.last_batch) == (2, 9, 77, None)


@given(st.integers(0, 55), st.integers(1, 255))
def test_any_flipped_bit_is_found(position: int, flip: int) -> None:
    entry = ProducerEntry(7, 1)
    entry.add(1, 0, 0, 5, 6)
    data = bytearray(encode_snapshot([entry]))
    data[position] ^= flip
    with pytest.raises(DamagedFileError):
        decode_snapshot(bytes(data))


@given(st.binary(max_size=80))
def test_junk_is_told(data: bytes) -> None:
    with pytest.raises(DamagedFileError):
        decode_snapshot(data)

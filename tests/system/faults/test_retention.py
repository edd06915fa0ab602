"""Segments that are deleted while someone reads them."""

import struct
import time

from millstream.formats.model.errors import ErrorCode
from millstream.testing import EmbeddedBroker
from tests.system.faults.conftest import TOPIC, number, read_numbers, write_numbers
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire, batch, decode, fetch_fields, values


def test_a_slow_reader_gets_whole_what_is_deleted_meanwhile(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire, Wire(broker.bootstrap_servers) as slow:
        wire.create_topic(TOPIC, 1, segment_bytes=str(32 << 20))
        write_numbers(wire, 30, size=900_000)
        fields = fetch_fields([(TOPIC, 0, 0)], partition_max_bytes=50 << 20)
        slow.send("fetch", 12, **fields)
        (size,) = struct.unpack(">i", slow.receive_exactly(4))  # most of the response is still in the file
        assert size > 25_000_000
        records = [{"partition_index": 0, "offset": -1}]
        wire.call("delete_records", 2, topics=[{"name": TOPIC, "partitions": records}], timeout_ms=1000)
        wire.call("delete_topics", 6, topics=[{"name": TOPIC}], timeout_ms=1000)
        wait_until(lambda: not (broker.data_dir / f"{TOPIC}-0").exists())
        _, response = decode("fetch", 12, slow.receive_exactly(size))
        found = values(response.responses[0].partitions[0].records)
        assert found == [number(value, 900_000) for value in range(30)]


def test_readers_and_writers_go_on_while_old_segments_go(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 1, segment_bytes="1048576", retention_bytes="2097152")
        start, total = 0, 0
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while start < 20 and time.monotonic() < deadline:
            write_numbers(wire, 5, first=total, size=100_000)
            total += 5
            row = wire.fetch(TOPIC, start)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                start = wire.fetch(TOPIC, total).log_start_offset
            else:
                assert row.error_code == 0
                assert int(values(row.records)[0].rstrip(b"\x00")) == start
        assert start >= 20, "retention removed nothing"
        # A segment may go between the question where the log starts and the reading.
        start = wire.fetch(TOPIC, total).log_start_offset
    broker.restart()
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.fetch(TOPIC, total).log_start_offset >= start
        first = wire.fetch(TOPIC, total).log_start_offset
    assert read_numbers(broker.bootstrap_servers, first_offset=first) == list(range(first, total))


def test_records_older_than_their_time_go(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 1, retention_ms="1000")
        row = wire.produce(TOPIC, batch(b"old", timestamp=int(time.time() * 1000) - 60_000))
        assert row.error_code == 0
        wait_until(lambda: wire.fetch(TOPIC, 1).log_start_offset == 1)
        assert wire.produce(TOPIC, batch(b"new")).base_offset == 1


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come about in a minute"
        time.sleep(0.1)

"""Brokers whose data outlives them, and helpers that write and read it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.wire import Wire, batch, values

TOPIC = "data"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A running broker; tests kill and start it as they like."""
    with EmbeddedBroker({"log.retention.check.interval.ms": 200}, data_dir=tmp_path / "data") as running:
        yield running


def number(value: int, size: int = 8) -> bytes:
    return b"%d" % value + bytes(size)


def write_numbers(
    wire: Wire, count: int, *, first: int = 0, topic: str = TOPIC, size: int = 8, partition: int = 0
) -> None:
    """One batch per number, each acknowledged."""
    for value in range(first, first + count):
        row = wire.produce(topic, batch(number(value, size)), partition)
        assert row.error_code == 0, row


def read_numbers(address: str, topic: str = TOPIC, partition: int = 0, first_offset: int = 0) -> list[int]:
    """Every record of a partition."""
    found: list[int] = []
    offset = first_offset
    with Wire(address) as wire:
        while True:
            row = wire.fetch(topic, offset, partition)
            assert row.error_code == 0, row.error_code
            got = values(row.records)
            if not got:
                assert offset == row.high_watermark
                return found
            # A fetch begins with the batch that holds the offset; here every batch is one record.
            found += [int(value.rstrip(b"\x00")) for value in got]
            offset += len(got)

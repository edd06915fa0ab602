"""Damaged files before a start: all before the damage is kept, and the log says what was cut."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.model.errors import ErrorCode
from millstream.records.batch import iterate_headers
from millstream.testing import EmbeddedBroker
from tests.faults.conftest import TOPIC, read_numbers, write_numbers
from tests.wire import Wire, batch

COUNT = 50
News = Callable[[], str]


@pytest.fixture
def segment(broker: EmbeddedBroker) -> Path:
    """The only segment of a log with `COUNT` batches, of a broker that was killed."""
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
        wire.create_topic("bystander")
        write_numbers(wire, COUNT)
        write_numbers(wire, COUNT, topic="bystander")
    broker.kill()
    return broker.data_dir / f"{TOPIC}-0" / f"{0:020d}.log"


def start_and_check(broker: EmbeddedBroker, kept: int) -> None:
    broker.start()
    assert read_numbers(broker.bootstrap_servers) == list(range(kept))
    assert read_numbers(broker.bootstrap_servers, "bystander") == list(range(COUNT))
    with Wire(broker.bootstrap_servers) as wire:  # and it takes more
        write_numbers(wire, 5, first=kept)
    assert read_numbers(broker.bootstrap_servers) == list(range(kept + 5))
    broker.restart()
    assert read_numbers(broker.bootstrap_servers) == list(range(kept + 5))


@pytest.mark.parametrize("lost", [1, 20, 61, 70])
def test_a_torn_tail(broker: EmbeddedBroker, segment: Path, log_since: News, lost: int) -> None:
    os.truncate(segment, segment.stat().st_size - lost)
    start_and_check(broker, COUNT - 1)
    assert "segment_cut" in log_since()


@pytest.mark.parametrize("tail", [b"\x00" * 5000, b"\xff" * 10, b"garbage" * 1000, b"\x00"])
def test_bytes_after_the_end(broker: EmbeddedBroker, segment: Path, log_since: News, tail: bytes) -> None:
    with segment.open("ab") as file:
        file.write(tail)
    start_and_check(broker, COUNT)
    news = log_since()
    assert "segment_cut" in news and str(len(tail)) in news


@pytest.mark.parametrize(("damaged", "at"), [(0, 8), (7, 16), (25, 40), (COUNT - 1, 65)])
def test_a_flipped_bit_in_the_active_segment(
    broker: EmbeddedBroker, segment: Path, log_since: News, damaged: int, at: int
) -> None:
    data = bytearray(segment.read_bytes())
    position = [position for position, _ in iterate_headers(data)][damaged]
    data[position + at] ^= 4
    segment.write_bytes(data)
    start_and_check(broker, damaged)
    assert "segment_cut" in log_since()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["missing", "empty", "noise", "zeros", "torn"])
def test_indexes_that_are_missing_or_wrong(broker: EmbeddedBroker, clean: bool, how: str) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 1, segment_bytes="1048576")
        for value in range(30):
            assert wire.produce(TOPIC, batch(b"%d" % value + bytes(100_000), timestamp=1000 + value)).error_code == 0
    if clean:
        broker.stop()
    else:
        broker.kill()
    directory = broker.data_dir / f"{TOPIC}-0"
    assert len(list(directory.glob("*.log"))) > 1
    for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        if how == "missing":
            index.unlink()
        elif how == "torn":
            os.truncate(index, max(index.stat().st_size - 3, 0))
        else:
            index.write_bytes({"empty": b"", "noise": b"\xa5" * 1003, "zeros": bytes(1200)}[how])
    broker.start()
    assert read_numbers(broker.bootstrap_servers) == list(range(30))
    with Wire(broker.bootstrap_servers) as wire:
        for value in (0, 7, 15, 29):
            row = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1000 + value}]
            answer = wire.call("list_offsets", 7, replica_id=-1, topics=[{"name": TOPIC, "partitions": row}])
            assert answer.topics[0].partitions[0].offset == value
            assert read_numbers(broker.bootstrap_servers, first_offset=value)[0] == value


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_segment_and_files_that_do_not_belong_there(broker: EmbeddedBroker, clean: bool) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC)
        write_numbers(wire, COUNT)
    if clean:
        broker.stop()
    else:
        broker.kill()
    directory = broker.data_dir / f"{TOPIC}-0"
    (directory / f"{COUNT:020d}.log").touch()
    for stray in (
        "notes.txt",
        "x.log",
        "12.index",
        "00000000000000000999.log.tmp",
        "00000000000000000001.index",
        ".hidden",
    ):
        (directory / stray).write_bytes(b"what is this?")
    (directory / "a-directory").mkdir()
    (broker.data_dir / "lost+found").mkdir()
    (broker.data_dir / "no-number-").mkdir()
    (broker.data_dir / "readme").write_text("hello")
    broker.start()
    assert read_numbers(broker.bootstrap_servers) == list(range(COUNT))
    with Wire(broker.bootstrap_servers) as wire:
        write_numbers(wire, 5, first=COUNT)
    assert read_numbers(broker.bootstrap_servers) == list(range(COUNT + 5))
    broker.restart()
    assert read_numbers(broker.bootstrap_servers) == list(range(COUNT + 5))


def test_checkpoints_snapshots_and_epochs_of_noise(broker: EmbeddedBroker, segment: Path) -> None:
    noise = b"\x00noise\n" * 10
    for path in broker.data_dir.glob("*checkpoint*"):
        path.write_bytes(noise)
    for pattern in ("*.snapshot", "leader-epoch-checkpoint"):
        for path in segment.parent.glob(pattern):
            path.write_bytes(noise)
    start_and_check(broker, COUNT)


class Sealed:
    """A log of three segments, in whose first the sixth batch gets a flipped bit."""

    damaged = 5

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        with Wire(broker.bootstrap_servers) as wire:
            wire.create_topic(TOPIC, 2, segment_bytes="1048576")
            write_numbers(wire, 25, size=100_000)
            write_numbers(wire, 10, partition=1)

    def damage(self) -> None:
        path = self.broker.data_dir / f"{TOPIC}-0" / f"{0:020d}.log"
        with path.open("r+b") as file:
            position = [position for position, _ in iterate_headers(file.read())][self.damaged]
            file.seek(position + 5000)
            file.write(b"\x01")

    def check(self) -> None:
        """The reader is told; everything else is served."""
        with Wire(self.broker.bootstrap_servers) as wire:
            for _ in range(2):
                row = wire.fetch(TOPIC, self.damaged)
                assert row.error_code == ErrorCode.CORRUPT_MESSAGE
                assert not row.records
            before = wire.fetch(TOPIC, 0, partition_max_bytes=10 << 20)
            assert before.error_code == 0
            headers = [header for _, header in iterate_headers(before.records)]
            assert [header.base_offset for header in headers] == list(range(self.damaged))
            assert wire.fetch(TOPIC, self.damaged + 1).error_code == 0
        address = self.broker.bootstrap_servers
        assert read_numbers(address, first_offset=self.damaged + 1) == list(range(self.damaged + 1, 25))
        assert read_numbers(address, partition=1) == list(range(10))


def test_a_flipped_bit_in_a_sealed_segment_of_a_running_broker(broker: EmbeddedBroker) -> None:
    sealed = Sealed(broker)
    assert read_numbers(broker.bootstrap_servers) == list(range(25))
    sealed.damage()
    sealed.check()


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_in_a_sealed_segment_before_a_start(broker: EmbeddedBroker, clean: bool) -> None:
    sealed = Sealed(broker)
    if clean:
        broker.stop()
    else:
        broker.kill()
    sealed.damage()
    broker.start()
    sealed.check()
    with Wire(broker.bootstrap_servers) as wire:
        write_numbers(wire, 1, first=25, size=100_000)

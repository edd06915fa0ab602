"""A full disk: the producer is told, nothing that was acknowledged is lost, reads go on, and so do writes once there is
room."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.testing import EmbeddedBroker
from tests.system.faults.conftest import TOPIC, number, read_numbers
from tests.waiting import until
from tests.wire import Wire, batch

DISK_MB = 16


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    mount = tmp_path / "disk"
    mount.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(mount)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {getattr(error, 'stderr', error)!r}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(path: Path) -> None:
    """Takes all the room there is."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def produce_some(wire: Wire, acked: list[int], attempts: int) -> set[int]:
    """Sends the next numbers; returns the error codes that came."""
    codes = set()
    for _ in range(attempts):
        code = wire.produce(TOPIC, batch(number(len(acked), 50_000))).error_code
        codes.add(code)
        if code == 0:
            acked.append(len(acked))
    return codes


def test_the_disk_fills_up_and_is_freed(small_disk: Path) -> None:
    filler = small_disk / "filler"
    acked: list[int] = []
    settings = {"log.flush.offset.checkpoint.interval.ms": 100}
    with EmbeddedBroker(settings, data_dir=small_disk / "data") as broker, Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 1, segment_bytes="1048576")
        wire.create_topic("other")
        wire.produce("other", batch(b"7"))
        assert produce_some(wire, acked, 30) == {0}

        fill(filler)
        assert produce_some(wire, acked, 20) <= {0, ErrorCode.KAFKA_STORAGE_ERROR}
        assert produce_some(wire, acked, 3) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert read_numbers(broker.bootstrap_servers) == acked
        assert read_numbers(broker.bootstrap_servers, "other") == [7]
        # What changes metadata is refused once its log finds no room either, and the connection lives.
        wanted = {"num_partitions": 10, "replication_factor": 1}
        for attempt in range(20):
            topics = [{"name": f"new-{attempt}", **wanted}]
            (row,) = wire.call("create_topics", 7, topics=topics, timeout_ms=1000).topics
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        until(lambda: broker.log_file.read_text().count("checkpoint_failed") > 1)  # maintenance came by, twice
        assert broker.running

        filler.unlink()
        assert produce_some(wire, acked, 10) == {0}  # by itself, without a restart
        wire.create_topic("new")
        assert read_numbers(broker.bootstrap_servers) == acked

        fill(filler)
        produce_some(wire, acked, 20)
        broker.kill()
        filler.unlink()
        broker.start()
        assert read_numbers(broker.bootstrap_servers)[: len(acked)] == acked


def test_a_clean_stop_on_a_full_disk_loses_nothing(small_disk: Path) -> None:
    acked: list[int] = []
    with EmbeddedBroker(data_dir=small_disk / "data") as broker:
        with Wire(broker.bootstrap_servers) as wire:
            wire.create_topic(TOPIC)
            produce_some(wire, acked, 20)
            fill(small_disk / "filler")
        broker.stop()
        (small_disk / "filler").unlink()
        broker.start()
        assert read_numbers(broker.bootstrap_servers) == acked

"""Damaged files before a start: all before the damage is kept, and the log says what was cut.

Each kind of damage has a topic of its own; all are done to one broker between its kill and its next start.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.batch import iterate_headers
from millstream.testing import EmbeddedBroker
from tests.system.faults.conftest import TOPIC, read_numbers, write_numbers
from tests.wire import Wire, batch

COUNT = 50
Damage = Callable[[Path], None]
"""Takes a partition's directory."""


def first_segment(directory: Path) -> Path:
    return directory / f"{0:020d}.log"


def tear(lost: int) -> Damage:
    return lambda directory: os.truncate(first_segment(directory), first_segment(directory).stat().st_size - lost)


def append(tail: bytes) -> Damage:
    def damage(directory: Path) -> None:
        with first_segment(directory).open("ab") as file:
            file.write(tail)

    return damage


def flip(number: int, at: int) -> Damage:
    """A bit of this batch, at this place in it."""

    def damage(directory: Path) -> None:
        data = bytearray(first_segment(directory).read_bytes())
        data[[position for position, _ in iterate_headers(data)][number] + at] ^= 4
        first_segment(directory).write_bytes(data)

    return damage


def litter(directory: Path) -> None:
    (directory / f"{COUNT:020d}.log").touch()
    for stray in ("notes.txt", "x.log", "12.index", f"{999:020d}.log.tmp", f"{1:020d}.index", ".hidden"):
        (directory / stray).write_bytes(b"what is this?")
    (directory / "a-directory").mkdir()


def overwrite(*patterns: str) -> Damage:
    def damage(directory: Path) -> None:
        for pattern in patterns:
            for path in directory.glob(pattern):
                path.write_bytes(b"\x00noise\n" * 10)

    return damage


CUT: dict[str, tuple[Damage, int]] = {
    "torn-1": (tear(1), COUNT - 1),
    "torn-20": (tear(20), COUNT - 1),
    "torn-61": (tear(61), COUNT - 1),
    "torn-70": (tear(70), COUNT - 1),
    "torn-1000": (tear(1000), COUNT - 13),
    "zeros": (append(bytes(5000)), COUNT),
    "one-zero": (append(b"\x00"), COUNT),
    "ones": (append(b"\xff" * 10), COUNT),
    "garbage": (append(b"garbage" * 1000), COUNT),
    "length-of-the-first": (flip(0, 8), 0),
    "magic": (flip(7, 16), 7),
    "time": (flip(25, 40), 25),
    "record-of-the-last": (flip(COUNT - 1, 65), COUNT - 1),
}
KEPT_WHOLE: dict[str, Damage] = {
    "litter": litter,
    "noise-in-epochs": overwrite("leader-epoch-checkpoint"),
    "noise-in-snapshots": overwrite("*.snapshot"),
    "nothing": lambda directory: None,
}


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that was killed, damaged in every way, and started."""
    with EmbeddedBroker(data_dir=tmp_path_factory.mktemp("damage") / "data") as broker:
        with Wire(broker.bootstrap_servers) as wire:
            for name in (*CUT, *KEPT_WHOLE):
                wire.create_topic(name)
                write_numbers(wire, COUNT, topic=name)
        broker.kill()
        for name, (damage, _) in CUT.items():
            damage(broker.data_dir / f"{name}-0")
        for name, damage in KEPT_WHOLE.items():
            damage(broker.data_dir / f"{name}-0")
        for path in broker.data_dir.glob("*checkpoint*"):
            path.write_bytes(b"\x00noise\n" * 10)
        (broker.data_dir / "lost+found").mkdir()
        (broker.data_dir / "no-number-").mkdir()
        (broker.data_dir / "readme").write_text("hello")
        broker.start()
        yield broker
        assert "Traceback" not in broker.log_file.read_text()


def check(broker: EmbeddedBroker, topic: str, kept: int) -> None:
    assert read_numbers(broker.bootstrap_servers, topic) == list(range(kept))
    with Wire(broker.bootstrap_servers) as wire:  # and it takes more
        write_numbers(wire, 5, first=kept, topic=topic)
    assert read_numbers(broker.bootstrap_servers, topic) == list(range(kept + 5))


@pytest.mark.parametrize("topic", CUT)
def test_a_log_is_cut_at_the_damage_and_not_before(repaired: EmbeddedBroker, topic: str) -> None:
    check(repaired, topic, CUT[topic][1])
    said = [
        line for line in repaired.log_file.read_text().splitlines() if "segment_cut" in line and f"/{topic}-0/" in line
    ]
    assert len(said) == 1 and f"next_offset={CUT[topic][1]}" in said[0]


@pytest.mark.parametrize("topic", KEPT_WHOLE)
def test_what_does_not_harm_the_records_costs_none(repaired: EmbeddedBroker, topic: str) -> None:
    check(repaired, topic, COUNT)
    assert f"/{topic}-0/" not in "".join(x for x in repaired.log_file.read_text().splitlines() if "segment_cut" in x)


def test_after_the_repair_a_clean_stop_and_start_change_nothing(repaired: EmbeddedBroker) -> None:
    before = {name: read_numbers(repaired.bootstrap_servers, name) for name in (*CUT, *KEPT_WHOLE)}
    repaired.restart()
    assert {name: read_numbers(repaired.bootstrap_servers, name) for name in before} == before
    assert "clean=True" in repaired.log_file.read_text()


# Indexes


def rewrite(data: bytes | None) -> Damage:
    def damage(directory: Path) -> None:
        for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
            if data is None:
                index.unlink()
            else:
                index.write_bytes(data)

    return damage


def tear_indexes(directory: Path) -> None:
    for index in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        os.truncate(index, max(index.stat().st_size - 3, 0))


INDEXES: dict[str, Damage] = {
    "missing": rewrite(None),
    "empty": rewrite(b""),
    "noise": rewrite(b"\xa5" * 1003),
    "zeros": rewrite(bytes(1200)),
    "torn": tear_indexes,
}


@pytest.mark.parametrize("clean", [True, False])
def test_indexes_that_are_missing_or_wrong_are_made_again(broker: EmbeddedBroker, clean: bool) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        for name in INDEXES:
            wire.create_topic(name, 1, segment_bytes="1048576", retention_ms="-1")
            for value in range(15):
                assert wire.produce(name, batch(b"%d" % value + bytes(100_000), timestamp=1000 + value)).error_code == 0
    if clean:
        broker.stop()
    else:
        broker.kill()
    for name, damage in INDEXES.items():
        directory = broker.data_dir / f"{name}-0"
        assert len(list(directory.glob("*.log"))) > 1
        damage(directory)
    broker.start()
    with Wire(broker.bootstrap_servers) as wire:
        for name in INDEXES:
            assert read_numbers(broker.bootstrap_servers, name) == list(range(15))
            for value in (0, 7, 14):
                row = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1000 + value}]
                response = wire.call("list_offsets", 7, replica_id=-1, topics=[{"name": name, "partitions": row}])
                assert response.topics[0].partitions[0].offset == value, name
                assert read_numbers(broker.bootstrap_servers, name, first_offset=value)[0] == value


# Sealed segments


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
        flip(self.damaged, 5000)(self.broker.data_dir / f"{TOPIC}-0")

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
        address = self.broker.bootstrap_servers
        assert read_numbers(address, first_offset=self.damaged + 1) == list(range(self.damaged + 1, 25))
        assert read_numbers(address, partition=1) == list(range(10))


def test_a_flipped_bit_in_a_sealed_segment_live_and_after_any_start(broker: EmbeddedBroker) -> None:
    sealed = Sealed(broker)
    assert read_numbers(broker.bootstrap_servers) == list(range(25))
    sealed.damage()
    sealed.check()
    broker.restart()
    sealed.check()
    broker.kill()
    broker.start()
    sealed.check()
    with Wire(broker.bootstrap_servers) as wire:
        write_numbers(wire, 1, first=25, size=100_000)


def test_a_flipped_bit_in_a_sealed_segment_that_was_never_read_before_a_kill(broker: EmbeddedBroker) -> None:
    sealed = Sealed(broker)
    broker.kill()
    sealed.damage()
    broker.start()
    sealed.check()

"""The walk over records, compiled and plain: what is a batch, and what is not."""

import importlib
import random
from typing import Any

import pytest

from millstream.formats.records import walking
from millstream.formats.records.batch import HEADER_SIZE
from millstream.formats.records.record import Record, build_batch
from millstream.formats.records.varint import MalformedRecordError


@pytest.fixture(params=["plain", "compiled"])
def walk(request: pytest.FixtureRequest) -> Any:
    if request.param == "plain":
        return walking
    return pytest.importorskip("millstream.formats.records._walking")


def records(*given: Record) -> bytes:
    return bytes(build_batch(list(given))[HEADER_SIZE:])


GOOD = records(
    Record(b"key", b"value", (("header", b"x"), ("null", None)), timestamp=5),
    Record(None, None, timestamp=1 << 40),
    Record(b"", bytes(300)),
)


def test_whole_records_pass_the_check(walk: Any) -> None:
    assert walk.check_records(GOOD, 0, len(GOOD), 3, 2, False, 10) == []
    assert walk.check_records(memoryview(b"before" + GOOD), 6, 6 + len(GOOD), 3, 2, True, 10) == [1]
    keyless = records(*[Record(None, b"v")] * 700)
    assert walk.check_records(keyless, 0, len(keyless), 700, 699, True, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (GOOD, 2),  # bytes are left over
        (GOOD, 4),  # one is missing
        (GOOD[:-1], 3),
        (b"\x80" * 6, 1),
        (b"\xff\xff\xff\xff\x7f" + bytes(20), 1),  # a size larger than its type
        (b"\x01", 1),  # a size of -1
        (b"\x0c\0\0\x02\x01\x01\x00", 1),  # an offset outside of the batch
        (b"\x0c\0\0\0\x7e\x01\0", 1),  # a key that is longer than its record
        (b"\x0c\0\0\0\x01\x01\x02", 1),  # a header that is not there
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", 1),  # a header without a name
        (b"\x0e\0\0\0\x01\x01\0\0", 1),  # a byte behind the last field
        (b"\x0a\0\0\0\x01\x01\0", 1),  # a field behind the last byte
    ],
)
def test_malformed_records_are_refused(walk: Any, data: bytes, count: int) -> None:
    with pytest.raises(MalformedRecordError):
        walk.check_records(data, 0, len(data), count, count - 1, False, 1)


def test_places_outside_of_the_bytes(walk: Any) -> None:
    with pytest.raises(MalformedRecordError):
        walk.check_records(b"", 0, 0, 1, 0, False, 1)
    assert walk.check_records(b"", 0, 0, 0, 0, False, 1) == []


def test_both_say_the_same_of_damaged_records() -> None:
    compiled: Any = pytest.importorskip("millstream.formats.records._walking")
    chance = random.Random(13)
    verdicts = set()
    for _ in range(4000):
        data = bytearray(GOOD)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        said = []
        for each in (walking, compiled):
            try:
                said.append(each.check_records(bytes(data), 0, len(data), 3, 2, True, 10))
            except MalformedRecordError:
                said.append(None)
        assert said[0] == said[1], data.hex()
        verdicts.add(said[0] is None)
    assert verdicts == {True, False}


def test_the_position_of_an_offset_is_found(walk: Any) -> None:
    starts = [walk.seek_offset(GOOD, 0, len(GOOD), 3, wanted) for wanted in range(4)]
    assert [number for _, number in starts] == [0, 1, 2, 3]
    assert starts[0][0] == 0 and starts[3][0] == len(GOOD)
    for position, number in starts[:3]:
        walk.check_records(GOOD, position, len(GOOD), 3 - number, 2, False, 1)
    with pytest.raises(MalformedRecordError):
        walk.seek_offset(GOOD, 0, len(GOOD), 4, 9)


def test_the_first_record_of_a_time_is_found(walk: Any) -> None:
    data = records(*[Record(b"k", b"v", timestamp=time) for time in (5, 9, 3, 9, 1 << 50)])
    found = [walk.find_time(data, 0, len(data), 5, least - 5, 0) for least in (-1, 6, 10, (1 << 50) + 1)]
    assert found == [(0, 0), (1, 4), (4, (1 << 50) - 5), None]
    assert walk.find_time(data, 0, len(data), 5, -5, 2) == (2, -2)
    assert walk.find_time(b"", 0, 0, 0, 0, 0) is None and walk.latest_time(b"", 0, 0, 0) is None
    assert walk.latest_time(data, 0, len(data), 5) == (4, (1 << 50) - 5)
    four = walk.seek_offset(data, 0, len(data), 5, 4)[0]
    assert walk.latest_time(data, 0, four, 4) == (1, 4), "the first of those that are as late"
    with pytest.raises(MalformedRecordError):
        walk.latest_time(GOOD, 0, len(GOOD), 4)
    with pytest.raises(MalformedRecordError):
        walk.find_time(GOOD, 0, len(GOOD), 4, 1 << 60, 0)


def test_records_without_a_known_schema_id_are_found(walk: Any) -> None:
    prefix = b"\0\0\0\x01\x00"
    data = records(
        Record(prefix, prefix + b"body"),
        Record(None, None),
        Record(b"\0\0\0\x02", b"\x01" + prefix),
        Record(b"\0\xff\xff\xff\xff", b"\0\xff\xff\xff\xff"),
    )
    assert walk.schema_faults(data, 0, 4, False, (256,), 10) == ([(2, -1), (3, 0xFFFFFFFF)], False)
    assert walk.schema_faults(data, 0, 4, True, (1, 256, 0xFFFFFFFF), 10) == ([(2, -1)], False)
    assert walk.schema_faults(data, 0, 2, False, (), 10) == ([(0, 256)], True)
    assert walk.schema_faults(data, 0, 4, False, (), 1) == ([(0, 256)], False)


def test_the_variable_chooses_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.formats.records import compiled

    monkeypatch.setenv("MILLSTREAM_COMPILED", "refuse")
    assert importlib.reload(compiled).check_records is walking.check_records
    monkeypatch.undo()
    importlib.reload(compiled)

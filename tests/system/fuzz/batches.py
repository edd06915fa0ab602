"""Record batches a broker must not trust: headers that lie under a right checksum, noise that says it is compressed."""

import gzip
import random
from collections.abc import Callable

from millstream.formats.records.batch import HEADER, HEADER_SIZE, seal
from millstream.formats.records.compression import Codec
from tests.wire import batch, now_ms

Header = list[int]

# Places of the header's fields.
_LENGTH, _MAGIC, _ATTRIBUTES, _DELTA, _FIRST_TIME, _MAX_TIME, _PRODUCER = 1, 3, 5, 6, 7, 8, 9
_PRODUCER_EPOCH, _SEQUENCE, _COUNT = 10, 11, 12
_INT32 = (-(2**31), -2, -1, 0, 1, 2**31 - 2, 2**31 - 1)
_INT64 = (-(2**63), -2, -1, 0, 1, 2**31, 2**63 - 1)
_INT16 = (-(2**15), -2, -1, 0, 1, 7, 8, 16, 32, 48, 64, 2**15 - 1)
_PRODUCERS = 20
_BOMB = gzip.compress(bytes(32 << 20))


def good(chance: random.Random) -> bytes:
    values = [chance.randbytes(chance.randrange(0, 60)) for _ in range(chance.randrange(1, 4))]
    return batch(*values, codec=Codec(chance.randrange(5)))


def idempotent(chance: random.Random) -> bytes:
    return batch(
        b"v",
        producer_id=chance.randrange(_PRODUCERS),
        producer_epoch=chance.randrange(3),
        base_sequence=chance.choice((0, 1, 2, 3, 2**31 - 1)),
    )


def _lie(change: Callable[[Header, random.Random], None]) -> Callable[[random.Random], bytes]:
    def make(chance: random.Random) -> bytes:
        data = bytearray(good(chance))
        fields = list(HEADER.unpack_from(data))
        change(fields, chance)
        HEADER.pack_into(data, 0, *fields)
        seal(data, 0, len(data))
        return bytes(data)

    return make


def _wrong_count(fields: Header, chance: random.Random) -> None:
    fields[chance.choice((_COUNT, _DELTA))] = chance.choice(_INT32)


def _many_records_in_few_bytes(fields: Header, chance: random.Random) -> None:
    fields[_COUNT] = chance.choice((1000, 1_000_000))
    fields[_DELTA] = fields[_COUNT] - 1


def _wrong_length(fields: Header, chance: random.Random) -> None:
    fields[_LENGTH] = chance.choice((*_INT32, 48, 49, fields[_LENGTH] - 1, fields[_LENGTH] + 1))


def _wrong_times(fields: Header, chance: random.Random) -> None:
    fields[chance.choice((_FIRST_TIME, _MAX_TIME))] = chance.choice((*_INT64, now_ms() + 7_200_000))


def _wrong_attributes(fields: Header, chance: random.Random) -> None:
    fields[_ATTRIBUTES] = chance.choice(_INT16)


def _wrong_producer(fields: Header, chance: random.Random) -> None:
    fields[_PRODUCER] = chance.choice((-(2**63), -2, 0, 5, 2**63 - 1))
    fields[_PRODUCER_EPOCH] = chance.choice(_INT16)
    fields[_SEQUENCE] = chance.choice(_INT32)


def _wrong_magic(fields: Header, chance: random.Random) -> None:
    fields[_MAGIC] = chance.choice((-128, -1, 0, 1, 3, 127))


def _false_codec(chance: random.Random) -> bytes:
    """Says it is compressed, and is noise, or a bomb."""
    content = _BOMB if chance.random() < 0.02 else chance.randbytes(chance.randrange(0, 200))
    data = bytearray(batch(b"x"))[:HEADER_SIZE] + content
    fields = list(HEADER.unpack_from(data))
    fields[_LENGTH] = len(data) - 12
    fields[_ATTRIBUTES] = 1 if content is _BOMB else chance.randrange(0, 8)
    HEADER.pack_into(data, 0, *fields)
    seal(data, 0, len(data))
    return bytes(data)


def _false_checksum(chance: random.Random) -> bytes:
    data = bytearray(good(chance))
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 11, 12, 17, 60, 61, 62, 200)))


def _torn(chance: random.Random) -> bytes:
    data = good(chance)
    return data[: chance.randrange(len(data))]


def _several(chance: random.Random) -> bytes:
    return b"".join(hostile(chance) for _ in range(chance.randrange(2, 5)))


_HOSTILE: tuple[Callable[[random.Random], bytes], ...] = (
    _lie(_wrong_count),
    _lie(_many_records_in_few_bytes),
    _lie(_wrong_length),
    _lie(_wrong_times),
    _lie(_wrong_attributes),
    _lie(_wrong_producer),
    _lie(_wrong_magic),
    idempotent,
    _false_codec,
    _false_checksum,
    _noise,
    _torn,
    _several,
    good,
)


def hostile(chance: random.Random) -> bytes:
    return chance.choice(_HOSTILE)(chance)


def records(chance: random.Random) -> bytes:
    return good(chance) if chance.random() < 0.4 else hostile(chance)

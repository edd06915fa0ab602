"""The key map: which records of the dirty part of a log are superseded, in bounded memory. In Python; `_loops` is
compiled.

Records are numbered in the order of the log, and one byte for each says what the copy needs to know. So the copy
decompresses no batch of the dirty part that is kept or removed as a whole. Keys are compared directly, or by 128 bits
of BLAKE2b if they are long; a digest is an int, which never equals a key. Dicts take 120 to 150 bytes a key where a
table in arrays would take 27, and are more than twice as fast; keys that do not fit are left to the next pass. There
are many small dicts, because a dict that grows or is freed stops the whole process: some 20 ms for 400,000 keys.
"""

from collections.abc import Callable
from hashlib import blake2b

from millstream.formats.records.batch import Bytes
from millstream.formats.records.varint import MalformedRecordError, read_varint
from millstream.node.storage.cleaner.errors import UncleanableError

LIVE, DEAD, TOMBSTONE = 0, 1, 2
"""The byte of a record: the latest of its key; superseded or without a key; the latest, and a tombstone."""

LONGEST_KEY_BYTES = 32
"""Longer keys are replaced by their digest."""
DIGEST_BYTES = 16

Key = bytes | int

DIGEST_OBJECT_BYTES = 12
"""Bytes of the int of a digest, beyond the constant part that is counted for every key."""

SHARDS = 256
"""A power of two: the low bits of a key's hash choose its dict."""
SHARD_MASK = SHARDS - 1

_KEY_BYTES = 16 + 33 + 32 + 54
"""Bytes of a key beside its own: rounding, the head of a bytes object, an int, and three slots of a dict (which
doubles when two thirds are taken)."""


def digest(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=DIGEST_BYTES).digest(), "big")


class KeyMap:
    __slots__ = ("_latest", "_limit_bytes", "_table_bytes", "fates", "next_offset")

    def __init__(self, limit_bytes: int, start_offset: int, most_records: int) -> None:
        """`most_records` is an upper bound, for the compiled version; this map grows as needed."""
        self._limit_bytes = limit_bytes
        self._latest: list[dict[Key, int]] = [{} for _ in range(SHARDS)]
        """The number of the latest record of each key, in the dict of the key's hash."""
        self.fates = bytearray()
        """One byte for each record, by its number."""
        self.next_offset = start_offset
        """The offset up to which the log is mapped."""
        self._table_bytes = 0

    @property
    def key_count(self) -> int:
        return sum(map(len, self._latest))

    @property
    def used_bytes(self) -> int:
        return self._table_bytes + len(self.fates)

    def has_room(self, records: int, content_bytes: int) -> bool:
        """Whether a batch fits if all its keys are new. The first batch always does, so that there is progress."""
        if not self.fates:
            return True
        key_bytes = min(content_bytes, records * LONGEST_KEY_BYTES)
        return self.used_bytes + key_bytes + records * (_KEY_BYTES + 1) <= self._limit_bytes

    def map_records(self, data: Bytes, position: int, content_end: int, count: int) -> None:
        """Add the records of the next batch, which end at `content_end`, to the map."""
        data = bytes(data)
        shards, fates = self._latest, self.fates
        number = len(fates)
        fates += bytes(count)
        new_key_bytes = new_keys = 0
        try:
            for number in range(number, number + count):  # noqa: B020
                byte = data[position]
                if byte < 0x80:
                    end = position + 1 + (byte >> 1)
                    position += 2
                elif (second := data[position + 1]) < 0x80:
                    end = position + 2 + ((byte & 0x7F | second << 7) >> 1)
                    position += 3
                else:
                    size, position = read_varint(data, position)
                    end = position + size
                    position += 1
                while data[position] >= 0x80:  # the time
                    position += 1
                position += 1
                while data[position] >= 0x80:  # the offset
                    position += 1
                position += 1
                byte = data[position]
                if byte < 0x80 and not byte & 1:
                    position += 1
                    size = byte >> 1
                else:
                    size, position = read_varint(data, position)
                    if size < 0:
                        fates[number] = DEAD  # compaction removes records without a key
                        position = end
                        continue
                key: Key = data[position : position + size]
                position += size
                if position >= end:
                    raise UncleanableError("a key reaches past the end of its record")
                if size > LONGEST_KEY_BYTES:
                    key = digest(key)  # type: ignore[arg-type]
                    size = DIGEST_OBJECT_BYTES
                latest = shards[hash(key) & SHARD_MASK]
                previous = latest.get(key)
                if previous is None:
                    new_keys += 1
                    new_key_bytes += size
                else:
                    fates[previous] = DEAD
                latest[key] = number
                if data[position] & 1 and read_varint(data, position)[0] < 0:
                    fates[number] = TOMBSTONE
                position = end
        except (IndexError, MalformedRecordError) as error:
            raise UncleanableError(f"a record is malformed: {error}") from error
        finally:
            self._table_bytes += new_key_bytes + new_keys * _KEY_BYTES
        if position != content_end:
            raise UncleanableError("the records of a batch do not end where it does")

    def fates_by_key(self, data: Bytes, position: int, content_end: int, count: int) -> bytearray:
        """The bytes for the records of a batch that is older than the map: superseded if the map has their key.

        The loop is the one of `map_records`; a shared function would cost a call for each record.
        """
        data = bytes(data)
        shards, fates = self._latest, bytearray(count)
        try:
            for number in range(count):
                byte = data[position]
                if byte < 0x80:
                    end = position + 1 + (byte >> 1)
                    position += 2
                elif (second := data[position + 1]) < 0x80:
                    end = position + 2 + ((byte & 0x7F | second << 7) >> 1)
                    position += 3
                else:
                    size, position = read_varint(data, position)
                    end = position + size
                    position += 1
                while data[position] >= 0x80:  # the time
                    position += 1
                position += 1
                while data[position] >= 0x80:  # the offset
                    position += 1
                position += 1
                byte = data[position]
                if byte < 0x80 and not byte & 1:
                    position += 1
                    size = byte >> 1
                else:
                    size, position = read_varint(data, position)
                if size < 0:
                    fates[number] = DEAD
                else:
                    key: Key = data[position : position + size]
                    position += size
                    if position >= end:
                        raise UncleanableError("a key reaches past the end of its record")
                    if size > LONGEST_KEY_BYTES:
                        key = digest(key)  # type: ignore[arg-type]
                    if key in shards[hash(key) & SHARD_MASK]:
                        fates[number] = DEAD
                    elif data[position] & 1 and read_varint(data, position)[0] < 0:
                        fates[number] = TOMBSTONE
                position = end
        except (IndexError, MalformedRecordError) as error:
            raise UncleanableError(f"a record is malformed: {error}") from error
        if position != content_end:
            raise UncleanableError("the records of a batch do not end where it does")
        return fates

    def forget(self, yield_interpreter: Callable[[], None]) -> None:
        """Free the memory in small steps."""
        for shard in self._latest:
            shard.clear()
            yield_interpreter()

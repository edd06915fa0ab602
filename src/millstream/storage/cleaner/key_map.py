"""Which records of the dirty part of a log are superseded, and which keys it has: bounded in memory.

Records are numbered in the order of the log, so that one byte each says what the copy needs to know of it; the copy
then opens no batch of the dirty part that stays or goes as a whole. Keys are compared themselves, or by 128 bits of
BLAKE2b where they are long; a digest is kept as an int, which never equals a key. Dicts take some 120 to 150 bytes
a key where a table in arrays would take 27, and are more than twice as fast: what does not fit is left to the next
pass. They are many and small, because a dict that grows, and one that is freed, holds up the whole process: some 20 ms
for 400,000 keys.
"""

from collections.abc import Callable
from hashlib import blake2b

LIVE, DEAD, TOMBSTONE = 0, 1, 2
"""What the byte of a record says: the latest of its key; superseded or without a key; the latest, and a deletion."""

LONGEST_KEY_BYTES = 32
"""Longer keys are known by their digest."""
DIGEST_BYTES = 16

Key = bytes | int

SHARDS = 256
"""A power of two: the low bits of a key's hash say in which dict it is."""
SHARD_MASK = SHARDS - 1

_KEY_BYTES = 16 + 33 + 32 + 54
"""Of a key beside its own bytes: rounding up, what a bytes object has on top, an int, and three slots of a dict (it
grows when two thirds are taken, to twice its size)."""


def digest(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=DIGEST_BYTES).digest(), "big")


class KeyMap:
    __slots__ = ("_limit_bytes", "_table_bytes", "fates", "latest", "next_offset")

    def __init__(self, limit_bytes: int, start_offset: int) -> None:
        self._limit_bytes = limit_bytes
        self.latest: list[dict[Key, int]] = [{} for _ in range(SHARDS)]
        """The number of the latest record of each key, in the dict of the key's hash."""
        self.fates = bytearray()
        """What becomes of each record, by its number."""
        self.next_offset = start_offset
        """The offset up to which the log is mapped."""
        self._table_bytes = 0

    @property
    def key_count(self) -> int:
        return sum(map(len, self.latest))

    @property
    def used_bytes(self) -> int:
        return self._table_bytes + len(self.fates)

    def has_room(self, records: int, content_bytes: int) -> bool:
        """Whether a batch fits, all of whose keys may be new; the first batch always does, or there is no progress."""
        if not self.fates:
            return True
        key_bytes = min(content_bytes, records * LONGEST_KEY_BYTES)
        return self.used_bytes + key_bytes + records * (_KEY_BYTES + 1) <= self._limit_bytes

    def note_growth(self, new_key_bytes: int, new_keys: int) -> None:
        self._table_bytes += new_key_bytes + new_keys * _KEY_BYTES

    def forget(self, breathe: Callable[[], None]) -> None:
        """Free the memory, a little at a time."""
        for shard in self.latest:
            shard.clear()
            breathe()

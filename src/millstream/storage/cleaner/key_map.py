"""Which records of the dirty part of a log are superseded, and which keys it has: bounded in memory.

Records are numbered in the order of the log, so that one byte each says what the copy needs to know of it; the copy
then opens no batch of the dirty part that stays or goes as a whole. Keys are compared themselves, or by 128 bits of
BLAKE2b where they are long; a digest is kept as an int, which never equals a key. A dict takes some 120 to 160 bytes
a key where a table in arrays would take 27, and is more than twice as fast: what does not fit is left to the next
pass.
"""

from hashlib import blake2b
from sys import getsizeof

LIVE, DEAD, TOMBSTONE = 0, 1, 2
"""What the byte of a record says: the latest of its key; superseded or without a key; the latest, and a deletion."""

LONGEST_KEY_BYTES = 32
"""Longer keys are known by their digest."""
DIGEST_BYTES = 16

Key = bytes | int

_OBJECT_BYTES = 16 + 33 + 32
"""Of a key and its number beside the key's own bytes: rounding up, what a bytes object has on top, an int."""
_SLOT_BYTES = 20
"""Of one slot of a dict's table: a place in its index, and two thirds of an entry."""


def digest(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=DIGEST_BYTES).digest(), "big")


class KeyMap:
    __slots__ = ("_limit_bytes", "_object_bytes", "fates", "latest", "next_offset")

    def __init__(self, limit_bytes: int, start_offset: int) -> None:
        self._limit_bytes = limit_bytes
        self.latest: dict[Key, int] = {}
        """The number of the latest record of each key."""
        self.fates = bytearray()
        """What becomes of each record, by its number."""
        self.next_offset = start_offset
        """The offset up to which the log is mapped."""
        self._object_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._object_bytes + getsizeof(self.latest) + len(self.fates)

    def has_room(self, records: int, content_bytes: int) -> bool:
        """Whether a batch fits, all of whose keys may be new; the first batch always does, or there is no progress."""
        if not self.fates:
            return True
        table = getsizeof(self.latest)
        slots, keys = table // _SLOT_BYTES, len(self.latest) + records
        grown = 1
        while keys * 3 > slots * grown * 2:
            grown *= 2
        if grown > 1:
            table += table * grown  # while it grows there are two
        key_bytes = min(content_bytes, records * LONGEST_KEY_BYTES)
        needed = self._object_bytes + table + len(self.fates) + key_bytes + records * (_OBJECT_BYTES + 1)
        return needed <= self._limit_bytes

    def note_growth(self, new_key_bytes: int, new_keys: int) -> None:
        self._object_bytes += new_key_bytes + new_keys * _OBJECT_BYTES

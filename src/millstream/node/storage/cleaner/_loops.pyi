"""See `key_map.KeyMap` and `records.kept_records`."""

from millstream.formats.records.batch import Bytes
from millstream.node.storage.cleaner import key_map

class KeyMap(key_map.KeyMap): ...

def kept_records(
    data: Bytes, position: int, fates: bytes | bytearray, drops_tombstones: bool, shift_ms: int
) -> tuple[bytearray, int, int]: ...

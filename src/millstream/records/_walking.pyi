from collections.abc import Sequence

from millstream.records.batch import Bytes

def check_records(
    data: Bytes, position: int, end: int, count: int, last_offset_delta: int, needs_keys: bool, most: int
) -> list[int]: ...
def seek_offset(data: Bytes, position: int, end: int, count: int, wanted: int) -> tuple[int, int]: ...
def schema_faults(
    data: Bytes, position: int, count: int, of_keys: bool, known: Sequence[int], most: int
) -> tuple[list[tuple[int, int]], bool]: ...

"""What the compiled module offers: the same as `_pure`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

class RowCollector:
    def __init__(self, columns: frozenset[str], max_rows: int, max_bytes: int) -> None: ...
    def add(
        self,
        records: bytes | bytearray | memoryview,
        *,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        start: int,
        stop: int,
    ) -> None: ...
    def take(self) -> list[tuple[int, dict[str, pa.Array]]]: ...

def encode_records(
    keys: pa.Array, values: pa.Array, headers: pa.Array | None, timestamps: pa.Array, max_bytes: int
) -> Iterator[tuple[bytearray, int, int, int]]: ...
def partition_by_key(keys: pa.Array, count: int) -> np.ndarray[Any, np.dtype[np.int32]]: ...

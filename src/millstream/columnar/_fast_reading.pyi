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

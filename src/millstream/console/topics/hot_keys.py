"""Which partitions and keys carry a topic's traffic: the newest reports that brokers wrote, read from their topic."""

import json
import time
from typing import Any

from millstream.console.messages.reading import Allowance, Range, RecordReader
from millstream.console.topics.hot_key_reports import REPORT_TOPIC

_RECENT_MS = 120_000


def newest_reports(reader: RecordReader, topic: str, *, now_ms: int | None = None) -> list[dict[str, Any]]:
    """The last report of each broker that was not taken back; of the last minutes, else of all that is kept."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    ranges = reader.ranges(REPORT_TOPIC)
    recent = reader.starts_at(REPORT_TOPIC, now_ms - _RECENT_MS, ranges)
    for starts in (recent, {index: span.start for index, span in ranges.items()}):
        spans = {index: Range(starts[index], span.end) for index, span in ranges.items()}
        page = reader.forwards(REPORT_TOPIC, spans, 1 << 62, allowance=Allowance(seconds=3))
        found: dict[bytes, bytes | None] = {
            record.key: record.value
            for record in page.records
            if record.key is not None and record.key.rpartition(b"/")[0] == topic.encode()
        }
        if found:
            return [json.loads(value) for value in found.values() if value is not None]
    return []

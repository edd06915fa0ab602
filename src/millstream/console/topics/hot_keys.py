"""Which partitions and keys carry a topic's traffic: the reports that brokers write, read and put together.

Each broker reports on the partitions it leads, so the newest report of each is taken and rates are added up.
"""

import json
import time
from collections.abc import Iterable
from typing import Any

from millstream.console.messages.reading import Allowance, Range, RecordReader

REPORT_TOPIC = "__millstream_hot_keys"
_RECENT_MS = 120_000
_SHARES = (
    ("record_share", "records_per_second"),
    ("record_share_at_least", "records_per_second"),
    ("byte_share", "bytes_per_second"),
    ("byte_share_at_least", "bytes_per_second"),
)


def merged(reports: Iterable[dict[str, Any]], top: int) -> dict[str, Any]:
    """One document of several brokers' reports: rates are summed, a key's shares weighed by them."""
    rows = list(reports)
    totals = {rate: sum(row[rate] for row in rows) for rate in ("records_per_second", "bytes_per_second")}
    keys: dict[Any, dict[str, Any]] = {}
    for row in rows:
        weights = {rate: row[rate] / total if total else 1 / len(rows) for rate, total in totals.items()}
        for key in row["keys"]:
            name = (key.get("key"), key.get("key_base64"))
            known = keys.setdefault(name, {part: key[part] for part in ("key", "key_base64") if part in key})
            for share, rate in _SHARES:
                known[share] = round(known.get(share, 0.0) + key[share] * weights[rate], 4)
    hottest = sorted(keys.values(), key=lambda key: -max(key["record_share_at_least"], key["byte_share_at_least"]))
    partitions = sorted(
        (part for row in rows for part in row["partitions"]), key=lambda part: -float(part["bytes_per_second"])
    )
    return {
        "topic": rows[0]["topic"],
        "time_ms": max(row["time_ms"] for row in rows),
        "half_life_s": max(row["half_life_s"] for row in rows),
        **totals,
        "partition_count": sum(row["partition_count"] for row in rows),
        "partitions": partitions[:top],
        "sampled_records": sum(row["sampled_records"] for row in rows),
        "keys": hottest[:top],
    }


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


def key_text(key: dict[str, Any]) -> str:
    if "key_base64" in key:
        return f"base64:{key['key_base64']}"
    return "(no key)" if key["key"] is None else str(key["key"])

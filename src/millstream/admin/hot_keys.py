"""Merges hot-key reports of several brokers into one document.

Each broker reports on the partitions that it leads. The newest report of each broker is used, and rates are added up.
"""

from collections.abc import Iterable
from typing import Any

REPORT_TOPIC = "__millstream_hot_keys"
_SHARES = (
    ("record_share", "records_per_second"),
    ("record_share_at_least", "records_per_second"),
    ("byte_share", "bytes_per_second"),
    ("byte_share_at_least", "bytes_per_second"),
)


def merged(reports: Iterable[dict[str, Any]], top: int) -> dict[str, Any]:
    """Merges reports into one document: rates are added, and shares of keys are weighted by them."""
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


def key_text(key: dict[str, Any]) -> str:
    if "key_base64" in key:
        return f"base64:{key['key_base64']}"
    return "(no key)" if key["key"] is None else str(key["key"])

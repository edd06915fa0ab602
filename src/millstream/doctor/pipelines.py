"""Why a pipeline is slow: one sentence with its evidence, from the progress of one query.

Pure: takes the document that a pipeline publishes (`admin/pipeline_status.py`), which is that of `status --json`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_SMALL_BATCH_MS = 1000
_LARGE_STATE_BYTES = 512 << 20
_FEW_ROWS = 1000
_PARTS = {
    "addBatch": "computing and writing rows",
    "latestOffset": "asking the brokers for the newest offsets",
    "getBatch": "preparing the read",
    "queryPlanning": "planning by Spark",
    "walCommit": "writing offsets to the checkpoint",
    "commitOffsets": "writing commits to the checkpoint",
    "commitBatch": "committing to the sinks",
}


def why_slow(query: Mapping[str, Any]) -> str:
    """One sentence. The order of the checks is from the cause that hides the others to the mildest."""
    if query.get("error"):
        return f"It does not run: {query['error']}."
    batch_ms = query.get("batch_ms")
    lag = sum(source.get("lag") or 0 for source in query.get("sources") or ())
    rate = float(query.get("rows_in_per_second") or 0.0)
    if not query.get("active", True):
        return "It has ended" + (f" with {lag:,} records not read." if lag else ", and has read all records.")
    if batch_ms is None:
        return "No batch is complete yet, so nothing is known."
    rows = sum(source.get("rows") or 0 for source in query.get("sources") or ())
    if lag <= max(rows, _FEW_ROWS):
        return _on_time(query, batch_ms, lag)
    waits = f"{lag:,} records wait"
    if rate:
        waits += f", {_span(lag / rate)} of work at {rate:,.0f} rows/s"
    name, part_ms = _longest(query)
    trigger_ms = query.get("trigger_ms") or 0
    if trigger_ms > 2 * batch_ms:
        return f"It waits for its trigger: a batch takes {batch_ms:,} ms, one begins every {trigger_ms:,} ms; {waits}."
    if (query.get("state_bytes") or 0) > _LARGE_STATE_BYTES:
        size = f"{query['state_bytes'] / (1 << 30):,.1f} GB in {query.get('state_rows') or 0:,} rows"
        return f"Its state is large, {size}, and a batch takes {batch_ms:,} ms; {waits}."
    if rows and rows < _FEW_ROWS and batch_ms < _SMALL_BATCH_MS:
        return (
            f"Its batches are small: {rows:,} rows in {batch_ms:,} ms, most of it the cost of any batch; {waits}. "
            "Raise max_records_per_trigger."
        )
    if part_ms:
        return f"Most of a batch is {name}: {part_ms:,} of {batch_ms:,} ms for {rows:,} rows; {waits}."
    return f"A batch of {rows:,} rows takes {batch_ms:,} ms; {waits}."


def _on_time(query: Mapping[str, Any], batch_ms: int, lag: int) -> str:
    delay = watermark_delay_s(query)
    if delay is not None and delay > 3600 and query.get("state_rows"):
        return (
            f"It reads without lag; its watermark is {_span(delay)} behind the clock, so windows wait for newer event "
            "times."
        )
    return f"It is not slow: {lag:,} records wait, and a batch takes {batch_ms:,} ms."


def watermark_delay_s(query: Mapping[str, Any], now: datetime | None = None) -> float | None:
    """How far the watermark is behind the clock, when the progress was reported."""
    text = query.get("watermark")
    if not text:
        return None
    at = now or datetime.fromtimestamp((query.get("updated_ms") or 0) / 1000, UTC)
    return max(0.0, (at - datetime.fromisoformat(str(text))).total_seconds())


def _longest(query: Mapping[str, Any]) -> tuple[str, int]:
    known = {name: int(ms) for name, ms in (query.get("durations_ms") or {}).items() if name in _PARTS}
    if not known:
        return "", 0
    name = max(known, key=lambda each: known[each])
    return _PARTS[name], known[name]


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"

"""How transactions are shown: tables for people, documents for scripts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from millstream.cli.cluster_reading import Place
from millstream.cli.terminal import note, print_table
from millstream.cli.txn_admin import Listed, OpenIn, Transaction

NO_TIMEOUT_MS = (1 << 31) - 1
"""Of a producer that takes part in two-phase commits."""
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000


def listed_document(row: Listed) -> dict[str, Any]:
    return {
        "transactional_id": row.transactional_id,
        "coordinator": row.coordinator,
        "producer_id": row.producer_id,
        "state": row.state,
    }


def show_listed(rows: Sequence[Listed]) -> None:
    if not rows:
        note("no transactions")
        return
    print_table(
        ("transactional id", "state", "producer", "coordinator"),
        [(row.transactional_id, row.state, row.producer_id, row.coordinator) for row in rows],
    )


def transaction_document(transaction: Transaction, open_in: Mapping[Place, OpenIn], now_ms: int) -> dict[str, Any]:
    started = transaction.started_ms
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "open_since_ms": started,
        "open_for_ms": None if started is None else max(0, now_ms - started),
        "coordinator": transaction.coordinator,
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "start_offset": row.start_offset if row is not None else None,
                "last_written_ms": row.last_written_ms if row is not None else None,
            }
            for topic, number in transaction.partitions
            for row in (open_in.get((topic, number)),)
        ],
    }


def show_transaction(transaction: Transaction, open_in: Mapping[Place, OpenIn], now_ms: int) -> None:
    print(
        f"{transaction.transactional_id}  {transaction.state}  producer {transaction.producer_id}"
        f" epoch {transaction.producer_epoch}  {_patience(transaction.timeout_ms)}"
        f"  coordinator {transaction.coordinator}"
    )
    started = transaction.started_ms
    if started is not None:
        print(f"open since {moment(started)}, {age(now_ms - started)}")
    if not transaction.partitions:
        note("it is in no partition")
        return
    rows = []
    for topic, number in transaction.partitions:
        row = open_in.get((topic, number))
        rows.append(
            (topic, number, None, None)
            if row is None
            else (topic, number, row.start_offset, f"{age(now_ms - row.last_written_ms)} ago")
        )
    print_table(("topic", "partition", "from offset", "last written"), rows)


def open_document(row: OpenIn, now_ms: int) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "coordinator_epoch": row.coordinator_epoch,
        "start_offset": row.start_offset,
        "last_written_ms": row.last_written_ms,
        "silent_for_ms": max(0, now_ms - row.last_written_ms),
    }


def show_hanging(rows: Sequence[OpenIn], now_ms: int) -> None:
    if not rows:
        note("no hanging transactions")
        return
    print_table(
        ("topic", "partition", "start offset", "producer", "epoch", "last written"),
        [
            (
                row.topic,
                row.partition,
                row.start_offset,
                row.producer_id,
                row.producer_epoch,
                f"{moment(row.last_written_ms)}, {age(now_ms - row.last_written_ms)} ago",
            )
            for row in rows
        ],
    )
    first = rows[0]
    print(
        "end one with: millstream txn abort"
        f" --topic {first.topic} --partition {first.partition} --start-offset {first.start_offset}"
    )


def _patience(timeout_ms: int) -> str:
    return "waits for its end, whenever that is" if timeout_ms == NO_TIMEOUT_MS else f"timeout {age(timeout_ms)}"


def moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(timespec="seconds")


def age(ms: int) -> str:
    """350 ms, 12 s, 5 m 3 s, 2 h 10 m, 3 d 4 h"""
    if ms < _SECOND:
        return f"{max(0, ms)} ms"
    if ms < _MINUTE:
        return f"{ms // _SECOND} s"
    if ms < _HOUR:
        return _two(ms, _MINUTE, "m", _SECOND, "s")
    if ms < _DAY:
        return _two(ms, _HOUR, "h", _MINUTE, "m")
    return _two(ms, _DAY, "d", _HOUR, "h")


def _two(ms: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = ms % large // small
    return f"{ms // large} {large_name}" + (f" {rest} {small_name}" if rest else "")

"""Reports on tables: what is read, and when a report is old."""

from millstream.admin.tables import STALE_AFTER_MS, TableStatus, _status


def test_a_report_and_back() -> None:
    status = TableStatus(topic="t", topic_id="i", format="delta", state="running", lag_seconds=1.5, updated_ms=1000)
    assert _status(status.to_json()) == status
    assert _status(status.to_json()[:-1] + b', "later": 1}') == status
    assert [_status(value) for value in (b"", b"[]", b"{}", b"\xff")] == [None] * 4


def test_an_old_report_shows_that_no_server_runs() -> None:
    running = TableStatus(topic="t", topic_id="i", format="delta", state="running", updated_ms=1000)
    assert running.state_at(1000 + STALE_AFTER_MS) == "running"
    assert running.state_at(1001 + STALE_AFTER_MS) == "no server"
    failed = TableStatus(topic="t", topic_id="i", format="delta", state="failed", updated_ms=1000)
    assert failed.state_at(1001 + STALE_AFTER_MS) == "failed"

"""The status of topics that are tables: what `millstream table serve` reports, for `table status` and the console.

The server writes a report for each table to a compacted topic, after each commit and every few seconds. So each
client of the cluster can see it, on any machine. A report that is not renewed shows that no server runs.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from millstream.admin.report_topic import read_reports
from millstream.raw_client import Cluster

STATUS_TOPIC: Final = "millstream-tables"
STALE_AFTER_MS: Final = 60_000
RUNNING, FAILED, STARTING, STOPPED, NO_SERVER = "running", "failed", "starting", "stopped", "no server"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The table of one topic."""

    topic: str
    topic_id: str
    format: str
    location: str = ""
    mode: str = "append"
    state: str = STARTING
    error: str | None = None
    lag_seconds: float | None = None
    """The age of the oldest record that is not in the table; 0 if all are."""
    lag_records: int | None = None
    rows: int = 0
    """In the table."""
    dead_letters: int = 0
    commits: int = 0
    """Of this server."""
    last_commit_ms: int | None = None
    last_compaction_ms: int | None = None
    last_vacuum_ms: int | None = None
    server: str = ""
    updated_ms: int = 0

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def state_at(self, now_ms: int) -> str:
        """The state; `no server` if the report is old."""
        if self.state in (RUNNING, STARTING) and now_ms - self.updated_ms > STALE_AFTER_MS:
            return NO_SERVER
        return self.state


_KNOWN = frozenset(each.name for each in fields(TableStatus))


def table_statuses(cluster: Cluster) -> dict[str, TableStatus]:
    """The newest report of each table, by topic."""
    found: dict[str, TableStatus] = {}
    for topic, value in read_reports(cluster, STATUS_TOPIC):
        status = None if value is None else _status(value)
        if status is None:
            found.pop(topic, None)
        else:
            found[topic] = status
    return found


def _status(value: bytes) -> TableStatus | None:
    """None for a record of another program. Fields of later versions are left out."""
    try:
        document: dict[str, Any] = json.loads(value)
        return TableStatus(**{name: each for name, each in document.items() if name in _KNOWN})
    except (ValueError, TypeError, AttributeError):
        return None

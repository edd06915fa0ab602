"""`millstream table serve`: keeps all topics with `millstream.table` as tables, with one Spark session.

A thread for each table copies batch after batch (`Copier`); Spark runs the batches of a few tables at a time. The main
thread looks for topics that come, change and go. A table that fails is tried again, with growing pauses, and does not
stop the others; its status has the reason.

Status: a report for each table in a topic (`admin.tables`), and Prometheus metrics.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import KafkaException, Producer

from millstream.admin.tables import FAILED, RUNNING, STARTING, STATUS_TOPIC, STOPPED, TableStatus
from millstream.client.connection import Connection
from millstream.common.prometheus import Family, Page
from millstream.raw_client import Cluster, WireError
from millstream.tables.copier import Copier, CopyOptions, Plan, RunBatch
from millstream.tables.dead_letters import make_topic
from millstream.tables.settings import TopicTable, find_tables

_POLL_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
_HEARTBEAT_SECONDS: Final = 5.0
_ATTEMPTS_ONCE: Final = 3
"""With `once`, a table that fails is tried this often."""
_log = logging.getLogger("millstream.tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of a server."""

    copy: CopyOptions
    interval_s: float = 10.0
    """Between two commits of a table."""
    discover_s: float = 10.0
    parallel: int = 4
    """Batches that run at the same time."""
    once: bool = False
    """End when all tables have what their topics have now."""


class Reports:
    """The newest status of each table: written to the topic, and shown as metrics. Thread safe."""

    def __init__(self, cluster: Cluster, connection: Connection, show: Callable[[TableStatus], None]) -> None:
        self._lock = threading.Lock()
        self._statuses: dict[str, TableStatus] = {}
        self._sent: dict[str, float] = {}
        self._show = show
        make_topic(cluster, STATUS_TOPIC, {"cleanup.policy": "compact"})
        self._producer = Producer(connection.librdkafka(linger_ms=5, acks="all"))
        self._server = f"{socket.gethostname()}:{os.getpid()}"

    def put(self, status: TableStatus) -> None:
        """Keeps the status; sends it if it changed in more than its lag, or some seconds after the last one."""
        status = replace(status, server=self._server, updated_ms=time.time_ns() // 1_000_000)
        with self._lock:
            before = self._statuses.get(status.topic)
            self._statuses[status.topic] = status
            is_due = time.monotonic() - self._sent.get(status.topic, -_HEARTBEAT_SECONDS) >= _HEARTBEAT_SECONDS
            if not is_due and before is not None and _is_same(before, status):
                return
            self._sent[status.topic] = time.monotonic()
        self._send(status.topic, status.to_json())
        if before is None or not _is_same(before, status):
            self._show(status)

    def remove(self, topic: str) -> None:
        with self._lock:
            self._statuses.pop(topic, None)
            self._sent.pop(topic, None)
        self._send(topic, None)

    def _send(self, topic: str, value: bytes | None) -> None:
        try:
            self._producer.produce(STATUS_TOPIC, value, topic.encode())
            self._producer.poll(0)
        except (BufferError, KafkaException) as error:
            _log.warning("the status of %s cannot be sent: %s", topic, error)

    def close(self) -> None:
        self._producer.flush(10)

    @property
    def statuses(self) -> list[TableStatus]:
        with self._lock:
            return list(self._statuses.values())

    def metrics(self) -> str:
        page = Page()
        for status in self.statuses:
            for name, family in _FAMILIES.items():
                value = _value(name, status)
                if value is not None:
                    page.add(family, value, status.topic, status.format)
        return b"".join(page.chunks()).decode()


def _is_same(before: TableStatus, after: TableStatus) -> bool:
    """Whether nothing has changed that is worth a report at once."""
    plain = {"lag_seconds": None, "lag_records": None, "updated_ms": 0}
    return replace(before, **plain) == replace(after, **plain)  # type: ignore[arg-type]


_LABELS = ("topic", "format")
_FAMILIES = {
    "lag_seconds": Family(
        "millstream_table_lag_seconds", "gauge", "Age of the oldest record that is not in the table.", _LABELS
    ),
    "lag_records": Family(
        "millstream_table_lag_records", "gauge", "Offsets of the topic that are not in the table.", _LABELS
    ),
    "rows": Family("millstream_table_rows", "gauge", "Rows in the table.", _LABELS),
    "dead_letters": Family(
        "millstream_table_dead_letters_total", "counter", "Records that could not become rows.", _LABELS
    ),
    "commits": Family("millstream_table_commits_total", "counter", "Commits since the server started.", _LABELS),
    "failed": Family("millstream_table_failed", "gauge", "1 if the last attempt failed.", _LABELS),
}


def _value(name: str, status: TableStatus) -> float | None:
    if name == "failed":
        return float(status.state == FAILED)
    found: float | None = getattr(status, name)
    return found


class Worker:
    """Keeps one table, in a thread of its own."""

    def __init__(
        self,
        table: TopicTable,
        options: ServeOptions,
        cluster: Cluster,
        run: RunBatch,
        places: threading.Semaphore,
        reports: Reports,
    ) -> None:
        self.table = table
        self._options = options
        self._run_batch = run
        self._places = places
        self._reports = reports
        self._copier = Copier(table, options.copy, cluster)
        self._ended = threading.Event()
        self._status = TableStatus(
            topic=table.topic,
            topic_id=table.topic_id,
            format=table.format,
            mode="upsert" if table.is_upsert else "append",
            state=STARTING,
        )
        self.is_done = False
        """With `once`: whether the table has everything."""
        self._thread = threading.Thread(target=self._run, name=f"table {table.topic}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The running batch is finished first."""
        self._ended.set()

    def join(self) -> None:
        self._thread.join()

    @property
    def has_failed(self) -> bool:
        return self._status.state == FAILED

    def _run(self) -> None:
        pause_s, failures = _FIRST_PAUSE_SECONDS, 0
        self._report()
        while not self._ended.is_set():
            try:
                waited_s = self._step()
                pause_s, failures = _FIRST_PAUSE_SECONDS, 0
            except Exception as error:  # whatever happens to one table must not end the others
                if self._ended.is_set():
                    break
                _log.warning("table of %s: %s", self.table.topic, _reason(error))
                _log.debug("the whole error", exc_info=True)
                self._copier.forget()
                self._report(state=FAILED, error=_reason(error))
                failures += 1
                self.is_done = self._options.once and failures >= _ATTEMPTS_ONCE
                waited_s, pause_s = pause_s, min(pause_s * 2, _MAX_PAUSE_SECONDS)
            if self.is_done:
                break
            self._ended.wait(waited_s)

    def _step(self) -> float:
        """One batch, if there is something to copy. Returns the time until the next one."""
        wanted = self._copier.next_plan()
        if self._copier.is_current(wanted):
            self._report_running(wanted)
            self.is_done = self._options.once
            return min(_POLL_SECONDS, self._options.interval_s)
        began = time.monotonic()
        with self._places:
            if self._ended.is_set():
                return 0.0
            self._copier.copy(self._run_batch, wanted)
            self._copier.maintain()
        self._report_running(self._copier.next_plan(), last_commit_ms=time.time_ns() // 1_000_000)
        if wanted.ends != wanted.latest:
            return 0.0  # there is more
        return 0.0 if self._options.once else max(0.0, self._options.interval_s - (time.monotonic() - began))

    def _report_running(self, found: Plan, last_commit_ms: int | None = None) -> None:
        copier = self._copier
        oldest = copier.oldest_ms(found)
        state = copier.state
        self._report(
            state=RUNNING,
            error=None,
            lag_seconds=0.0 if oldest is None else max(0.0, time.time() - oldest / 1000),
            lag_records=copier.lag_records(found),
            rows=state.table.rows,
            dead_letters=sum(each.dead_letters for each in state.totals.values()),
            commits=copier.commits,
            last_commit_ms=last_commit_ms or self._status.last_commit_ms,
            last_compaction_ms=copier.compacted_ms,
            last_vacuum_ms=copier.vacuumed_ms,
        )

    def _report(self, **changes: object) -> None:
        self._status = replace(self._status, location=self._copier.location, **changes)  # type: ignore[arg-type]
        self._reports.put(self._status)

    def report_end(self) -> None:
        if self._status.state != FAILED:
            self._report(state=STOPPED)


def _reason(error: Exception) -> str:
    """The last line of an error that a Spark task raised, else the text of the error."""
    text = str(error).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("millstream.") and "Error: " in line]
    return (causes[-1].split("Error: ", 1)[1] if causes else lines[0])[:1000]


class TableServer:
    """Finds topics that are tables, and starts and ends their workers."""

    def __init__(
        self,
        options: ServeOptions,
        run: RunBatch,
        show: Callable[[TableStatus], None] = lambda status: None,
    ) -> None:
        self._options = options
        self._run_batch = run
        copy = options.copy
        self._cluster = Cluster(copy.bootstrap, dict(copy.settings), client_id="millstream-tables")
        self.reports = Reports(self._cluster, Connection(copy.bootstrap, dict(copy.settings)), show)
        self._places = threading.Semaphore(options.parallel)
        self._workers: dict[str, Worker] = {}
        self._ended = threading.Event()

    def run(self) -> bool:
        """Runs until `end`, or with `once` until all is copied. Whether no table has failed."""
        try:
            while not self._ended.is_set():
                try:
                    self._look()
                except WireError as error:
                    _log.warning("topics cannot be listed: %s", error)
                if self._options.once and all(each.is_done for each in self._workers.values()):
                    break
                self._ended.wait(0.2 if self._options.once else self._options.discover_s)
        finally:
            good = self._stop()
        return good

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        """Starts workers of new tables, and ends those of topics that are gone, changed or made again."""
        found = find_tables(self._cluster)
        for topic, worker in list(self._workers.items()):
            if found.get(topic) != worker.table:
                worker.end()
                worker.join()
                del self._workers[topic]
                if topic not in found:
                    self.reports.remove(topic)
        for topic, table in found.items():
            if topic not in self._workers:
                self._workers[topic] = Worker(
                    table, self._options, self._cluster, self._run_batch, self._places, self.reports
                )

    def _stop(self) -> bool:
        workers = list(self._workers.values())
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.join()
            with suppress(Exception):
                worker.report_end()
        self.reports.close()
        self._cluster.close()
        return not any(worker.has_failed for worker in workers)

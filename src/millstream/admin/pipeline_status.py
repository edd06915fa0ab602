"""The status of pipelines in a topic of the cluster, so that the console shows pipelines of any machine.

The topic `__millstream_pipelines` is compacted; the key is the name of a pipeline, the value a JSON document: the run,
its queries as `pipeline status --json` has them, and the graph. A running pipeline writes it when something changed, at
most every two seconds. It needs CREATE on the topic once, and WRITE; without them the pipeline runs all the same, says
so once, and the console shows only what its consumer groups tell.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.raw_client import EARLIEST, LATEST, Cluster, ErrorCode, RefusedError, TopicPartition, WireError
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import idempotent_producer

TOPIC = "__millstream_pipelines"
_EVERY_SECONDS = 2.0
_TIMEOUT_SECONDS = 10.0
_FETCH_BYTES = 4 << 20
_NO_RIGHT = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(4 << 20)}


class StatusPublisher:
    """Writes the newest document of a pipeline in a thread. A failure ends it without an error: it is only a report.

    `tell` gets one sentence when that happens, in the thread.
    """

    def __init__(
        self,
        bootstrap: str,
        connection: Mapping[str, str],
        pipeline: str,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._bootstrap, self._connection, self._pipeline = bootstrap, connection, pipeline
        self._newest: dict[str, Any] | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._tell = tell
        self._thread = threading.Thread(target=self._run, name="publish-status", daemon=True)
        self._thread.start()

    def show(self, document: dict[str, Any]) -> None:
        with self._changed:
            self._newest = document
            self._changed.notify()

    def close(self) -> None:
        """Writes the last document."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout=2 * _TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            with Cluster(
                self._bootstrap, self._connection, client_id=f"pipeline-{self._pipeline}", timeout_s=_TIMEOUT_SECONDS
            ) as cluster:
                self._write_all(cluster)
        except WireError as error:
            self._tell(f"the console does not show this run, only its lag (the run goes on): {_reason(error)}")

    def _write_all(self, cluster: Cluster) -> None:
        document = self._next()
        if document is None:
            return
        if TOPIC not in _seen(cluster):
            _make_topic(cluster)
        producer_id, epoch = idempotent_producer(cluster)
        producer = Producer(cluster, delivery_timeout_s=_TIMEOUT_SECONDS)
        try:
            sequence = 0
            while document is not None:
                now = time.time_ns() // 1_000_000
                value = json.dumps({**document, "published_ms": now}, default=str).encode()
                record = Record(self._pipeline.encode(), value, (), now)
                batch = build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
                producer.send(TopicPartition(TOPIC, 0), batch, 1)
                producer.flush()
                sequence += 1
                document = self._next(wait_s=_EVERY_SECONDS)
        finally:
            producer.close()

    def _next(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        """The newest document that was not written; None when it is closed and all is written."""
        with self._changed:
            if wait_s and not self._is_closed:
                self._changed.wait_for(lambda: self._is_closed, wait_s)
            self._changed.wait_for(lambda: self._newest is not None or self._is_closed)
            found, self._newest = self._newest, None
            return found


class _CreateError(WireError):
    """The topic does not exist, or may not be seen, and may not be created."""


def _seen(cluster: Cluster) -> Collection[str]:
    try:
        return cluster.topics([TOPIC])
    except RefusedError as error:
        if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return ()
        raise


def _make_topic(cluster: Cluster) -> None:
    try:
        cluster.create_topic(TOPIC, 1, -1, _CONFIGS)
    except RefusedError as error:
        if error.code in _NO_RIGHT:
            raise _CreateError from error
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _reason(error: WireError) -> str:
    """Which right is missing, or what else is wrong."""
    if isinstance(error, _CreateError):
        return f"it may not create the topic {TOPIC}. It needs CREATE on it once, or an existing topic; and WRITE"
    if isinstance(error, RefusedError) and error.code in _NO_RIGHT:
        return f"it may not write to the topic {TOPIC}. It needs WRITE on it"
    return f"its status was not written to the topic {TOPIC}: {error}"


class PublishedStatuses:
    """The newest document of each pipeline. `refresh` reads what is new; blocking, and not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._next: int | None = None
        self.documents: dict[str, dict[str, Any]] = {}

    def refresh(self) -> None:
        """Raises WireError. Without the topic there are no documents."""
        partition = TopicPartition(TOPIC, 0)
        if self._next is None:
            if TOPIC not in self._cluster.topics([TOPIC]):
                return
            self._next = self._cluster.offsets({partition: EARLIEST})[partition].offset
        end = self._cluster.offsets({partition: LATEST})[partition].offset
        if end < self._next:  # the topic was created again
            self._next, self.documents = 0, {}
        while self._next < end:
            fetched = self._cluster.fetch(partition, self._next, max_bytes=_FETCH_BYTES, max_wait_ms=100)
            following = self._take(bytes(fetched.data))
            if following <= self._next:
                return
            self._next = following

    def _take(self, data: bytes) -> int:
        """Takes the records of fetched batches. Returns the next offset."""
        following = 0
        for header, records in read_batches(data):
            following = header.last_offset + 1
            for record in [] if header.is_control else records:
                self._take_record(record)
        return following

    def _take_record(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", "replace")
        try:
            document = json.loads(record.value) if record.value else None
        except ValueError:
            return  # not written by a pipeline
        if isinstance(document, dict):
            self.documents[name] = document
        else:
            self.documents.pop(name, None)

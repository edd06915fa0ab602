"""Produces complete batches: many partitions, several requests in flight per broker, in order per partition.

The caller sets producer id, epoch and sequence of each batch, so the broker recognises a batch that is sent again: it
is written once, in order, through lost connections and leader changes. One thread per broker sends. `send` blocks
while the buffer is full. `send` and `flush` raise the first error that is not retriable. Up to 64 KiB for one broker
are sent by `flush` in its own thread: to start a thread would take longer than the request.
"""

import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import field
from typing import Any, NamedTuple
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client.cluster import Cluster
from millstream.raw_client.connection import Connection, Sent
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import (
    ConnectionLostError,
    RefusedError,
    UnreachableError,
    WireError,
    advice,
    error_code,
)
from millstream.raw_client.model import TopicPartition

MAX_BUFFERED_BYTES = 32 << 20
MAX_REQUEST_BYTES = 4 << 20
SENT_BY_FLUSH_BYTES = 64 << 10
IN_FLIGHT = 5
"""Per broker and per partition: the number of batches that a broker remembers of a producer."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.02, 0.5
_RETRIABLE = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


@dataclass(slots=True)
class Written:
    """The offsets written to one partition. Records of other producers may be between them."""

    first_offset: int
    last_offset: int
    records: int


class _Batch(NamedTuple):
    data: bytearray
    records: int


@dataclass(slots=True)
class _PartitionQueue:
    """The batches of one partition that are not acknowledged. The first `in_flight` of them are sent."""

    topic_partition: TopicPartition
    waiting: deque[_Batch] = field(default_factory=deque)
    in_flight: int = 0
    stalled: bool = False
    """A batch in flight failed. Nothing is sent until all responses are there, then all again from the first."""
    leader: int | None = None
    topic_id: UUID | None = None
    not_before: float = 0.0
    pause_s: float = _FIRST_PAUSE_SECONDS
    failing_since: float | None = None
    reason: str = ""
    written: Written | None = None


class _Request(NamedTuple):
    sent: Sent
    queues: list[_PartitionQueue]


class Producer:
    """Writes batches. After `flush`, `written` has their offsets."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str | None = None,
        acks: int = -1,
        at_most: int | None = None,
        delivery_timeout_s: float = 120.0,
    ) -> None:
        """`at_most`: the newest version of Produce to use (see Transactions.max_produce_version)."""
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._acks = acks
        self._at_most = at_most
        self._timeout_s = delivery_timeout_s
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._senders: dict[int, threading.Thread] = {}
        self._flushing: int | None = None
        """The broker to which a thread in `flush` sends, in place of one of `_senders`."""
        self._changed = threading.Condition()
        self._buffered = 0
        self._failure: Exception | None = None
        self._closed = False

    @property
    def written(self) -> dict[TopicPartition, Written]:
        return {
            topic_partition: queue.written
            for topic_partition, queue in self._queues.items()
            if queue.written is not None
        }

    def send(self, topic_partition: TopicPartition, data: bytearray, records: int) -> None:
        """Queues one batch. Blocks while the buffer is full."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = _PartitionQueue(topic_partition)
            self._find_leader(queue)
            self._queues[topic_partition] = queue
        with self._changed:
            while self._buffered >= MAX_BUFFERED_BYTES and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            queue.waiting.append(_Batch(data, records))
            self._buffered += len(data)
            if self._senders:
                self._ensure_sender(queue)
            elif self._buffered > SENT_BY_FLUSH_BYTES:
                self._ensure_senders()
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all batches are written."""
        self._send_here()
        with self._changed:
            while self._failure is None and any(queue.waiting for queue in self._queues.values()):
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Stops the threads. Batches that were not flushed are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._senders.values():
            thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_here(self) -> None:
        """Sends what is queued from this thread, if it goes to one broker that has no thread yet."""
        with self._changed:
            leaders = {queue.leader for queue in self._queues.values() if queue.waiting}
            node = next(iter(leaders)) if len(leaders) == 1 and not self._senders else None
            if node is None or self._flushing is not None:
                self._ensure_senders()
                return
            self._flushing = node
        try:
            self._send_to(node, once=True)
        except BaseException:  # an interrupt: the responses are not read
            self._fail(UnreachableError("the write was interrupted"))
            raise
        finally:
            with self._changed:
                self._flushing = None
                self._ensure_senders()  # for what must be sent again

    def _ensure_senders(self) -> None:
        for queue in self._queues.values():
            if queue.waiting:
                self._ensure_sender(queue)

    def _ensure_sender(self, queue: _PartitionQueue) -> None:
        """Starts a thread for the leader of this partition."""
        node = queue.leader
        if node is not None and node not in self._senders and node != self._flushing and not self._done():
            thread = threading.Thread(target=self._send_to, args=(node,), name=f"produce-{node}", daemon=True)
            self._senders[node] = thread
            thread.start()

    def _find_leader(self, queue: _PartitionQueue) -> None:
        spent_s = time.monotonic() - queue.failing_since if queue.failing_since is not None else 0.0
        leader = self._cluster.leader_of(queue.topic_partition, Deadline(max(1.0, self._timeout_s - spent_s)))
        if queue.topic_id not in (None, leader.topic_id):
            raise RefusedError(
                f"topic {queue.topic_partition.topic!r} was deleted and created again", ErrorCode.UNKNOWN_TOPIC_ID
            )
        queue.leader, queue.topic_id = leader.node_id, leader.topic_id

    # The thread of one broker

    def _send_to(self, node: int, *, once: bool = False) -> None:
        """`once`: ends when there is nothing to send, and after an error."""
        while not self._done():
            try:
                with ExitStack() as stack:
                    self._exchange(node, stack, once)
            except (ConnectionLostError, UnreachableError) as error:
                self._lost(node, error)
            except RefusedError as error:
                if (
                    error.code is ErrorCode.BROKER_NOT_AVAILABLE
                ):  # it is not in the cluster any more: another broker leads
                    self._lost(node, error)
                else:
                    self._fail(error)
            except Exception as error:  # callers that wait must get any error
                self._fail(error)
            if once:
                return

    def _done(self) -> bool:
        return self._closed or self._failure is not None

    def _exchange(self, node: int, stack: ExitStack, once: bool) -> None:
        """Sends requests and reads responses, until the producer is closed or the connection is lost."""
        connection: Connection | None = None
        in_flight: deque[_Request] = deque()
        while True:
            queues = self._pick(node, may_wait=not in_flight and not once) if len(in_flight) < IN_FLIGHT else []
            if not in_flight and (self._done() or (once and not queues)):
                return
            if queues:
                if connection is None:
                    deadline = Deadline(self._cluster.timeout_s, once=True)  # another broker may lead by now
                    connection = stack.enter_context(self._cluster.connection(node, deadline))
                in_flight.append(_Request(self._send_request(connection, queues), queues))
            elif in_flight:
                assert connection is not None
                request = in_flight[0]
                response = connection.receive(request.sent, self._request_timeout_s)
                in_flight.popleft()
                self._handle_response(request, response)

    @property
    def _request_timeout_s(self) -> float:
        return float(self._cluster.settings.request_timeout_s)

    def _pick(self, node: int, *, may_wait: bool) -> list[_PartitionQueue]:
        """Partitions of this broker with a batch to send, counted as in flight. Waits for some if `may_wait`."""
        with self._changed:
            while not self._done():
                now = time.monotonic()
                ready: list[_PartitionQueue] = []
                size, pause_s = 0, _MAX_PAUSE_SECONDS
                for queue in self._queues_of(node):
                    if queue.not_before > now:
                        pause_s = min(pause_s, queue.not_before - now)
                    elif not queue.stalled and queue.in_flight < min(IN_FLIGHT, len(queue.waiting)):
                        batch = queue.waiting[queue.in_flight]
                        if ready and size + len(batch.data) > MAX_REQUEST_BYTES:
                            break
                        size += len(batch.data)
                        ready.append(queue)
                if ready or not may_wait:
                    for queue in ready:
                        queue.in_flight += 1
                    return ready
                self._changed.wait(pause_s)
        return []

    def _queues_of(self, node: int) -> list[_PartitionQueue]:
        return [queue for queue in list(self._queues.values()) if queue.leader == node]

    def _send_request(self, connection: Connection, queues: list[_PartitionQueue]) -> Sent:
        topics: dict[str, dict[str, Any]] = {}
        for queue in queues:
            topic = topics.setdefault(
                queue.topic_partition.topic,
                {"name": queue.topic_partition.topic, "topic_id": queue.topic_id, "partition_data": []},
            )
            data = queue.waiting[queue.in_flight - 1].data
            topic["partition_data"].append({"index": queue.topic_partition.partition, "records": data})
        at_most = self._at_most
        if any(queue.topic_id is None or not queue.topic_id.int for queue in queues):
            at_most = min(12, at_most or 12)  # older versions use names instead of topic ids
        timeout_s = self._request_timeout_s
        fields = {
            "transactional_id": self._transactional_id,
            "acks": self._acks,
            "timeout_ms": int(timeout_s * 1000),
            "topic_data": list(topics.values()),
        }
        return connection.send("produce", fields, timeout_s, at_most=at_most)

    # Responses

    def _handle_response(self, request: _Request, response: Message) -> None:
        rows = {}
        for topic in response.responses:
            for row in topic.partition_responses:
                rows[getattr(topic, "name", None) or topic.topic_id, row.index] = row
        lost = []
        with self._changed:
            for queue in request.queues:
                topic_partition = queue.topic_partition
                row = rows.get((topic_partition.topic, topic_partition.partition)) or rows.get(
                    (queue.topic_id, topic_partition.partition)
                )
                if row is None:
                    self._fail(WireError(f"{topic_partition}: it is missing in the broker's response to a produce"))
                    return
                self._handle_row(queue, row)
                if queue.stalled and not queue.in_flight:
                    lost.append(queue)
            self._changed.notify_all()
        self._look_up(lost)

    def _handle_row(self, queue: _PartitionQueue, row: Message) -> None:
        code = error_code(row.error_code)
        queue.in_flight -= 1
        if queue.stalled:
            return  # it is sent again, from the first that failed
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._note_written(queue, row.base_offset)
        elif code.retriable or code in _RETRIABLE:
            self._stall(queue, f"{queue.topic_partition} {advice(code)} ({code.name})")
        else:
            self._fail(self._refusal(queue, code, row.error_message))

    def _note_written(self, queue: _PartitionQueue, base_offset: int) -> None:
        batch = queue.waiting.popleft()
        self._buffered -= len(batch.data)
        queue.pause_s, queue.failing_since = _FIRST_PAUSE_SECONDS, None
        if base_offset < 0:  # the broker remembers the batch, but not its offset
            if self._transactional_id is not None:  # the offsets may be needed to end it
                self._fail(
                    WireError(
                        f"{queue.topic_partition}: the broker does not have the offset of a batch that was sent twice"
                    )
                )
            return
        last = base_offset + batch.records - 1
        if queue.written is None:
            queue.written = Written(base_offset, last, batch.records)
        else:
            queue.written.last_offset = max(queue.written.last_offset, last)
            queue.written.records += batch.records

    def _stall(self, queue: _PartitionQueue, reason: str) -> None:
        now = time.monotonic()
        queue.stalled, queue.reason = True, reason
        queue.failing_since = queue.failing_since or now
        queue.not_before = now + queue.pause_s
        queue.pause_s = min(queue.pause_s * 2, _MAX_PAUSE_SECONDS)
        if now - queue.failing_since > self._timeout_s:
            self._fail(UnreachableError(f"{reason}; tried for {self._timeout_s:g} s (kafka.delivery.timeout.ms)"))

    def _lost(self, node: int, error: WireError) -> None:
        """All batches in flight to this broker must be sent again."""
        with self._changed:
            queues = [queue for queue in self._queues_of(node) if queue.waiting]
            # Stalled partitions with nothing in flight are being looked up by the thread of their previous leader.
            queues = [queue for queue in queues if queue.in_flight or not queue.stalled]
            for queue in queues:
                queue.in_flight = 0
                self._stall(queue, str(error))
            self._changed.notify_all()
        self._look_up(queues)

    def _look_up(self, queues: list[_PartitionQueue]) -> None:
        """Finds the new leaders of partitions with nothing in flight. They continue with their first batch."""
        for queue in queues:
            self._cluster.refresh_leader(queue.topic_partition.topic)
        for queue in queues:
            pause_s = queue.not_before - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            try:
                self._find_leader(queue)
            except WireError as error:
                self._fail(error)
                return
            with self._changed:
                queue.stalled = False
                self._ensure_sender(queue)
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _refusal(self, queue: _PartitionQueue, code: ErrorCode, message: str | None) -> RefusedError:
        if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            size = len(queue.waiting[0].data)
            text = f"{queue.topic_partition}: a batch of {size} bytes is above the topic's max.message.bytes: raise it"
            return RefusedError(text, code)
        what = f"{queue.topic_partition}: {message}" if message else f"{queue.topic_partition} {advice(code)}"
        return RefusedError(what, code)

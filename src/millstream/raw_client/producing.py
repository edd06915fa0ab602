"""Produce of ready batches: many partitions, several requests in flight per broker, order kept per partition.

The caller has stamped each batch with producer id, epoch and sequence, so whatever is sent again is recognised by the
broker: a batch is written once, in order, through lost connections and changes of leaders. One thread per broker sends;
`send` blocks while too much waits. The first failure that no repetition heals is raised by `send` and `flush`.
"""

import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

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
IN_FLIGHT = 5
"""Per broker and per partition: as many batches as a broker remembers of a producer."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_ASK_AGAIN = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


@dataclass(slots=True)
class Written:
    """What was written to one partition: the offsets span it, others' records may lie between."""

    first_offset: int
    last_offset: int
    records: int


class _Batch(NamedTuple):
    data: bytearray
    records: int


@dataclass(slots=True)
class _PartitionQueue:
    """One partition's way to its leader: what waits, in order; the first `in_flight` of it have been sent."""

    place: TopicPartition
    waiting: deque[_Batch] = field(default_factory=deque)
    in_flight: int = 0
    stalled: bool = False
    """One of those in flight failed: nothing more is sent until all are answered, then all again from the first."""
    leader: int | None = None
    topic_id: UUID | None = None
    not_before: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    troubled_since: float | None = None
    trouble: str = ""
    written: Written | None = None


class _Request(NamedTuple):
    sent: Sent
    lanes: list[_PartitionQueue]


class Producer:
    """Writes stamped batches; `written` after `flush` says where they are."""

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
        self._patience_s = delivery_timeout_s
        self._lanes: dict[TopicPartition, _PartitionQueue] = {}
        self._senders: dict[int, threading.Thread] = {}
        self._changed = threading.Condition()
        self._buffered = 0
        self._failure: Exception | None = None
        self._closed = False

    @property
    def written(self) -> dict[TopicPartition, Written]:
        return {place: lane.written for place, lane in self._lanes.items() if lane.written is not None}

    def send(self, place: TopicPartition, data: bytearray, records: int) -> None:
        """Queues one batch; returns at once unless too much waits already."""
        lane = self._lanes.get(place)
        if lane is None:
            lane = _PartitionQueue(place)
            self._find_leader(lane)
            self._lanes[place] = lane
        with self._changed:
            while self._buffered >= MAX_BUFFERED_BYTES and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            lane.waiting.append(_Batch(data, records))
            self._buffered += len(data)
            self._ensure_sender(lane)
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits until all is written."""
        with self._changed:
            while self._failure is None and any(lane.waiting for lane in self._lanes.values()):
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Ends the threads; what was not flushed is given up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._senders.values():
            thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _ensure_sender(self, lane: _PartitionQueue) -> None:
        """A thread for the leader of this lane."""
        node = lane.leader
        if node is not None and node not in self._senders:
            thread = threading.Thread(target=self._send_to, args=(node,), name=f"produce-{node}", daemon=True)
            self._senders[node] = thread
            thread.start()

    def _find_leader(self, lane: _PartitionQueue) -> None:
        spent_s = time.monotonic() - lane.troubled_since if lane.troubled_since is not None else 0.0
        leader = self._cluster.leader_of(lane.place, Deadline(max(1.0, self._patience_s - spent_s)))
        if lane.topic_id not in (None, leader.topic_id):
            raise RefusedError(f"topic {lane.place.topic!r} was deleted and created anew", ErrorCode.UNKNOWN_TOPIC_ID)
        lane.leader, lane.topic_id = leader.node_id, leader.topic_id

    # The thread of one broker

    def _send_to(self, node: int) -> None:
        while not self._done():
            try:
                with ExitStack() as stack:
                    self._converse(node, stack)
            except (ConnectionLostError, UnreachableError) as error:
                self._lost(node, error)
            except RefusedError as error:
                if error.code is ErrorCode.BROKER_NOT_AVAILABLE:  # it is not in the cluster: somebody else leads
                    self._lost(node, error)
                else:
                    self._fail(error)
            except Exception as error:  # whoever waits must hear of it, whatever it is
                self._fail(error)

    def _done(self) -> bool:
        return self._closed or self._failure is not None

    def _converse(self, node: int, stack: ExitStack) -> None:
        """Sends what there is and reads the answers, until the producer is closed or the connection breaks."""
        connection: Connection | None = None
        on_the_way: deque[_Request] = deque()
        while True:
            lanes = self._pick(node, may_wait=not on_the_way) if len(on_the_way) < IN_FLIGHT else []
            if self._done() and not on_the_way:
                return
            if lanes:
                if connection is None:
                    once = Deadline(self._cluster.timeout_s, once=True)  # rather than wait, ask who leads now
                    connection = stack.enter_context(self._cluster.connection(node, once))
                on_the_way.append(_Request(self._send_request(connection, lanes), lanes))
            elif on_the_way:
                assert connection is not None
                request = on_the_way[0]
                answer = connection.receive(request.sent, self._request_timeout_s)
                on_the_way.popleft()
                self._answered(request, answer)

    @property
    def _request_timeout_s(self) -> float:
        return float(self._cluster.settings.request_timeout_s)

    def _pick(self, node: int, *, may_wait: bool) -> list[_PartitionQueue]:
        """Lanes of this broker with something to send, counted as in flight; waits for some if it may."""
        with self._changed:
            while not self._done():
                now = time.monotonic()
                ready: list[_PartitionQueue] = []
                size, pause_s = 0, _LONGEST_PAUSE_S
                for lane in self._lanes_of(node):
                    if lane.not_before > now:
                        pause_s = min(pause_s, lane.not_before - now)
                    elif not lane.stalled and lane.in_flight < min(IN_FLIGHT, len(lane.waiting)):
                        batch = lane.waiting[lane.in_flight]
                        if ready and size + len(batch.data) > MAX_REQUEST_BYTES:
                            break
                        size += len(batch.data)
                        ready.append(lane)
                if ready or not may_wait:
                    for lane in ready:
                        lane.in_flight += 1
                    return ready
                self._changed.wait(pause_s)
        return []

    def _lanes_of(self, node: int) -> list[_PartitionQueue]:
        return [lane for lane in list(self._lanes.values()) if lane.leader == node]

    def _send_request(self, connection: Connection, lanes: list[_PartitionQueue]) -> Sent:
        topics: dict[str, dict[str, Any]] = {}
        for lane in lanes:
            topic = topics.setdefault(
                lane.place.topic, {"name": lane.place.topic, "topic_id": lane.topic_id, "partition_data": []}
            )
            data = lane.waiting[lane.in_flight - 1].data
            topic["partition_data"].append({"index": lane.place.partition, "records": data})
        at_most = self._at_most
        if any(lane.topic_id is None or not lane.topic_id.int for lane in lanes):
            at_most = min(12, at_most or 12)  # before topic ids, versions go by name
        timeout_s = self._request_timeout_s
        fields = {
            "transactional_id": self._transactional_id,
            "acks": self._acks,
            "timeout_ms": int(timeout_s * 1000),
            "topic_data": list(topics.values()),
        }
        return connection.send("produce", fields, timeout_s, at_most=at_most)

    # Answers

    def _answered(self, request: _Request, answer: Message) -> None:
        rows = {}
        for topic in answer.responses:
            for row in topic.partition_responses:
                rows[getattr(topic, "name", None) or topic.topic_id, row.index] = row
        lost = []
        with self._changed:
            for lane in request.lanes:
                place = lane.place
                row = rows.get((place.topic, place.partition)) or rows.get((lane.topic_id, place.partition))
                if row is None:
                    self._fail(WireError(f"{place}: the broker's answer to a produce leaves it out"))
                    return
                self._judge(lane, row)
                if lane.stalled and not lane.in_flight:
                    lost.append(lane)
            self._changed.notify_all()
        self._look_up(lost)

    def _judge(self, lane: _PartitionQueue, row: Message) -> None:
        code = error_code(row.error_code)
        lane.in_flight -= 1
        if lane.stalled:
            return  # it goes again, from the first that failed
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._note_written(lane, row.base_offset)
        elif code.retriable or code in _ASK_AGAIN:
            self._stall(lane, f"{lane.place} {advice(code)} ({code.name})")
        else:
            self._fail(self._refusal(lane, code, row.error_message))

    def _note_written(self, lane: _PartitionQueue, base_offset: int) -> None:
        batch = lane.waiting.popleft()
        self._buffered -= len(batch.data)
        lane.pause_s, lane.troubled_since = _FIRST_PAUSE_S, None
        if base_offset < 0:  # a broker that remembers the batch, but not where it is
            if self._transactional_id is not None:  # whose end may depend on that
                self._fail(WireError(f"{lane.place}: the broker does not say where a batch is that it has already"))
            return
        last = base_offset + batch.records - 1
        if lane.written is None:
            lane.written = Written(base_offset, last, batch.records)
        else:
            lane.written.last_offset = max(lane.written.last_offset, last)
            lane.written.records += batch.records

    def _stall(self, lane: _PartitionQueue, trouble: str) -> None:
        now = time.monotonic()
        lane.stalled, lane.trouble = True, trouble
        lane.troubled_since = lane.troubled_since or now
        lane.not_before = now + lane.pause_s
        lane.pause_s = min(lane.pause_s * 2, _LONGEST_PAUSE_S)
        if now - lane.troubled_since > self._patience_s:
            self._fail(UnreachableError(f"{trouble}; tried for {self._patience_s:g} s (kafka.delivery.timeout.ms)"))

    def _lost(self, node: int, error: WireError) -> None:
        """All that was on its way to this broker has to go again."""
        with self._changed:
            lanes = [lane for lane in self._lanes_of(node) if lane.waiting]
            # What is stalled without anything on its way is being looked up, by the thread of the leader before.
            lanes = [lane for lane in lanes if lane.in_flight or not lane.stalled]
            for lane in lanes:
                lane.in_flight = 0
                self._stall(lane, str(error))
            self._changed.notify_all()
        self._look_up(lanes)

    def _look_up(self, lanes: list[_PartitionQueue]) -> None:
        """Who leads now, for lanes of which nothing is on its way; then they go on from their first batch."""
        for lane in lanes:
            self._cluster.refresh_leader(lane.place.topic)
        for lane in lanes:
            pause_s = lane.not_before - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            try:
                self._find_leader(lane)
            except WireError as error:
                self._fail(error)
                return
            with self._changed:
                lane.stalled = False
                self._ensure_sender(lane)
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _refusal(self, lane: _PartitionQueue, code: ErrorCode, message: str | None) -> RefusedError:
        if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            size = len(lane.waiting[0].data)
            text = f"{lane.place}: a batch of {size} bytes is more than the topic's max.message.bytes: raise that"
            return RefusedError(text, code)
        what = f"{lane.place}: {message}" if message else f"{lane.place} {advice(code)}"
        return RefusedError(what, code)

"""Transaction markers: sends them to the leaders of a transaction's partitions, and writes them on the leader.

`TransactionMarkers` is the coordinator's side. Each broker gets one request at a time; markers that arrive meanwhile go
into the next request. Partitions that this broker leads are written directly. A failed marker is retried at the current
leader until it is written. A request to a broker that lost the leadership is cancelled. A marker that arrives twice is
harmless. Partitions of deleted topics need no marker.

`MarkerWriter` is the leader's side: it appends the marker, and reports success when the marker is committed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from millstream.common.background_tasks import BackgroundTasks
from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, TopicName, TopicPartition
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.records import NO_LEADER
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from millstream.node.replicas.acknowledgement import may_acknowledge, when_acknowledged
from millstream.node.replicas.partition_table import PartitionTable

_REQUEST_TIMEOUT_SECONDS = 35.0
"""Longer than MARKER_TIMEOUT_SECONDS of the leader."""
_RETRY_SECONDS = 0.1
_MAX_MARKERS_PER_REQUEST = 2000

_log = logging.getLogger("millstream.transactions")

MarkerResults = Coroutine[Any, Any, dict[TopicPartition, ErrorCode]]
"""The result of a marker for each partition, when it is committed there."""


class Writer(Protocol):
    """Writes markers to the partitions that this broker leads."""

    def write(self, marker: Marker, partitions: Sequence[TopicPartition]) -> MarkerResults:
        """The result for each partition, when the marker is committed there."""
        ...


@dataclass(slots=True, eq=False)
class _PendingMarkers:
    """The markers of one transaction that are not written yet."""

    marker: Marker
    is_wanted: Callable[[], bool]
    on_done: Callable[[], None]
    remaining: dict[TopicPartition, None]
    is_logged: bool = False

    def done(self, at: TopicPartition) -> None:
        if at in self.remaining:
            del self.remaining[at]
            if not self.remaining and self.is_wanted():
                self.on_done()


_Work = dict[tuple[_PendingMarkers, TopicPartition], None]
"""Markers to write; in order, each once."""


class _Destination:
    """A broker with a request in flight: the markers sent to it, and those for the next request."""

    def __init__(self) -> None:
        self.next: _Work = {}
        self.sent: _Work = {}
        self.request: asyncio.Future[Message] | None = None

    def remove_moved(self, has_moved: "Callable[[TopicPartition], bool]") -> _Work:
        """Removes and returns the markers for partitions that another broker leads now."""
        moved: _Work = {}
        for work in (self.sent, self.next):
            for each in [each for each in work if has_moved(each[1])]:
                del work[each]
                moved[each] = None
        if not self.sent and self.request is not None:
            self.request.cancel()
        return moved


class TransactionMarkers:
    def __init__(self, view: ClusterView, writer: Writer, peers: BrokerChannels, environment: Environment) -> None:
        self._view = view
        self._writer = writer
        self._peers = peers
        self._loop = environment.loop
        self._destinations: dict[int, _Destination] = {}
        self._waiting: _Work = {}
        """Markers without a leader, and markers to retry."""
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._is_closed = False

    def send(
        self,
        marker: Marker,
        partitions: Sequence[TopicPartition],
        is_wanted: Callable[[], bool],
        on_done: Callable[[], None],
    ) -> None:
        """Calls `on_done` when the marker is written to all partitions. Stops when `is_wanted` returns False."""
        if not partitions:
            on_done()
            return
        pending = _PendingMarkers(marker, is_wanted, on_done, dict.fromkeys(partitions))
        self._dispatch(dict.fromkeys((pending, at) for at in partitions))

    def follow(self, delta: MetadataDelta) -> None:
        """Follows changes of leaders, and deleted topics."""
        if not (delta.changed or delta.deleted):
            return
        moved: _Work = {}
        for broker_id, destination in self._destinations.items():
            moved |= destination.remove_moved(lambda at, known=broker_id: self._leader(at) != known)  # type: ignore[misc]
        self._dispatch(moved)
        if self._waiting:
            self._retry()

    def _leader(self, at: TopicPartition) -> int | None:
        state = self._view.image.partition(at)
        return None if state is None else state.leader

    def close(self) -> None:
        self._is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._tasks.cancel()

    # Dispatching

    def _dispatch(self, work: _Work) -> None:
        local: dict[_PendingMarkers, list[TopicPartition]] = {}
        for pending, at in work:
            if self._is_closed or not pending.is_wanted():
                continue
            leader = self._leader(at)
            if leader is None:
                _log.info("marker_dropped partition=%s reason=deleted", at)
                pending.done(at)
            elif leader == NO_LEADER:
                self._retry_later({(pending, at): None})
            elif leader == self._view.node_id:
                local.setdefault(pending, []).append(at)
            else:
                self._to_broker(leader, pending, at)
        for pending, partitions in local.items():
            self._in_background(self._write_local(pending, partitions))

    def _retry_later(self, work: _Work) -> None:
        self._waiting |= work
        if self._retry_timer is None and self._waiting and not self._is_closed:
            self._retry_timer = self._loop.call_later(_RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        work, self._waiting = self._waiting, {}
        self._dispatch(work)

    def _apply_results(
        self,
        pending: _PendingMarkers,
        partitions: Sequence[TopicPartition],
        results: "Mapping[TopicPartition, ErrorCode]",
    ) -> None:
        """Applies the results of one transaction's markers: those that were not written are retried."""
        again: _Work = {}
        for at in partitions:
            error = results.get(at, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error == ErrorCode.NONE:
                pending.done(at)
                continue
            if not pending.is_logged:
                pending.is_logged = True
                _log.info("marker_refused partition=%s marker=%s error=%s", at, pending.marker, error.name)
            if error == ErrorCode.INVALID_PRODUCER_EPOCH:
                pending.done(at)  # a later epoch was written there, so the transaction has ended in the partition
            else:
                again[pending, at] = None
        self._retry_later(again)

    # On this broker

    async def _write_local(self, pending: _PendingMarkers, partitions: list[TopicPartition]) -> None:
        results: Mapping[TopicPartition, ErrorCode] = {}
        try:
            results = await self._writer.write(pending.marker, partitions)
        except Exception:
            _log.exception("marker_not_written producer_id=%d", pending.marker.producer_id)
        self._apply_results(pending, partitions, results)

    # On other brokers

    def _to_broker(self, broker_id: int, pending: _PendingMarkers, at: TopicPartition) -> None:
        destination = self._destinations.get(broker_id)
        if destination is None:
            destination = self._destinations[broker_id] = _Destination()
            self._in_background(self._send_all(broker_id, destination))
        destination.next[pending, at] = None

    async def _send_all(self, broker_id: int, destination: _Destination) -> None:
        try:
            while destination.next:
                self._choose(destination)
                if destination.sent:
                    await self._send(broker_id, destination)
        finally:
            del self._destinations[broker_id]

    def _choose(self, destination: _Destination) -> None:
        """Chooses the markers of the next request. The response has one row for a producer, so the request has one
        marker of each."""
        chosen: dict[int, _PendingMarkers] = {}
        destination.sent = {}
        for each in list(destination.next):
            pending = each[0]
            if not pending.is_wanted():
                del destination.next[each]
            elif len(destination.sent) >= _MAX_MARKERS_PER_REQUEST:
                break
            elif chosen.setdefault(pending.marker.producer_id, pending) is pending:
                del destination.next[each]
                destination.sent[each] = None

    async def _send(self, broker_id: int, destination: _Destination) -> None:
        fields = {
            "markers": [_fields(pending.marker, ats) for pending, ats in _by_transaction(destination.sent).items()]
        }
        request = asyncio.ensure_future(
            self._peers.request(broker_id, "write_txn_markers", fields, timeout_s=_REQUEST_TIMEOUT_SECONDS),
            loop=self._loop,
        )
        destination.request = request
        results: dict[int, dict[TopicPartition, ErrorCode]] = {}
        try:
            await asyncio.wait((request,))
            if not request.cancelled():
                results = {row.producer_id: _results(row) for row in request.result().markers}
        except OSError as error:
            _log.info("markers_not_sent broker=%d error=%s", broker_id, error)
            sent, destination.sent = destination.sent, {}
            self._retry_later(sent)
            return
        finally:
            request.cancel()
            destination.request = None
        sent, destination.sent = destination.sent, {}
        for pending, ats in _by_transaction(sent).items():  # without those that moved to another broker
            self._apply_results(pending, ats, results.get(pending.marker.producer_id, {}))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, loop=self._loop)


def _by_transaction(work: _Work) -> dict[_PendingMarkers, list[TopicPartition]]:
    by_transaction: dict[_PendingMarkers, list[TopicPartition]] = {}
    for pending, at in work:
        by_transaction.setdefault(pending, []).append(at)
    return by_transaction


def _fields(marker: Marker, partitions: Sequence[TopicPartition]) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.committed,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
    }


def _results(row: Message) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(TopicName(topic.name), each.partition_index): ErrorCode(each.error_code)
        for topic in row.topics
        for each in topic.partitions
    }


MARKER_TIMEOUT_SECONDS = 30.0
"""The limit for a marker to be replicated. The coordinator then sends it again, which is harmless."""


class GroupOffsets(Protocol):
    """The group coordinator: ends transactions in the partitions of `__consumer_offsets`, and in its state."""

    async def end_transaction(self, index: int, marker: Marker) -> None:
        """Returns when the marker is committed in the partition of that index; KafkaError if it is not."""
        ...


class MarkerWriter:
    def __init__(self, partitions: PartitionTable, groups: GroupOffsets, environment: Environment) -> None:
        self._partitions = partitions
        self._groups = groups
        self._environment = environment

    def write(self, marker: Marker, partitions: Sequence[TopicPartition]) -> MarkerResults:
        """The result of the marker for each partition; partitions that this broker does not lead are refused.

        All appends happen before this returns; the result waits until they are committed.
        """
        results = dict.fromkeys(partitions, ErrorCode.NONE)
        waiting: dict[TopicPartition, Awaitable[KafkaError | None]] = {}
        for at in results:
            try:
                committed = self._begin(at, marker)
            except KafkaError as error:
                results[at] = error.code
            else:
                if committed is not None:
                    waiting[at] = committed
        return self._finish(results, waiting)

    async def _finish(
        self, results: dict[TopicPartition, ErrorCode], waiting: dict[TopicPartition, Awaitable[KafkaError | None]]
    ) -> dict[TopicPartition, ErrorCode]:
        for at, committed in waiting.items():
            failure = await committed
            if failure is not None:
                results[at] = failure.code
        return results

    def _begin(self, at: TopicPartition, marker: Marker) -> Awaitable[KafkaError | None] | None:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a marker needs a producer id and an epoch")
        if at.topic == CONSUMER_OFFSETS_TOPIC:
            return asyncio.ensure_future(self._end_in_groups(at.partition, marker), loop=self._environment.loop)
        return self._append(at, marker)

    def _append(self, at: TopicPartition, marker: Marker) -> "asyncio.Future[KafkaError | None] | None":
        """Appends the marker. Returns a future if it is not acknowledged at once: for replication and, with
        `flush.before.ack`, for the disk. A marker that is lost after its transaction is complete would never be written
        again."""
        partition = self._partitions.find_led(at.topic, at.partition)
        if partition.is_mirror:
            return None  # a topic that became a mirror: its markers come from the source
        partition.check_enough_in_sync()
        end = partition.append_marker(marker, self._environment.clock.now_ms()).last_offset + 1
        if may_acknowledge(partition, end):
            return None
        loop = self._environment.loop
        safe: asyncio.Future[KafkaError | None] = loop.create_future()

        def resolve(error: KafkaError | None) -> None:
            if not safe.done():
                timer.cancel()
                safe.set_result(error)

        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the marker in {at} is not committed yet")
        timer = loop.call_later(MARKER_TIMEOUT_SECONDS, resolve, late)
        when_acknowledged(partition, end, resolve)
        return safe

    async def _end_in_groups(self, index: int, marker: Marker) -> KafkaError | None:
        try:
            await self._groups.end_transaction(index, marker)
        except KafkaError as error:
            return error
        return None

"""Sends the markers of decided transactions to the leaders of their partitions, until all have been written.

What leaders on other brokers are to write goes in one request at a time to each, with all that gathered meanwhile;
partitions that this broker leads are written to directly. Whatever fails is tried again, at the leader there is then:
a decided outcome is carried out, however long that takes. Partitions of a topic that is gone need no marker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from millstream.broker.cluster_view import ClusterView
from millstream.broker.peer_requests import PeerRequests
from millstream.environment import Environment
from millstream.metadata.image import MetadataDelta
from millstream.metadata.records import NO_LEADER
from millstream.model.errors import ErrorCode
from millstream.model.identifiers import TopicName, TopicPartition
from millstream.model.transactions import Marker
from millstream.protocol.schema import Message

_REQUEST_S = 35.0
"""Longer than the leader may take to have a marker replicated."""
_AGAIN_S = 0.1
_MOST_IN_ONE_REQUEST = 2000
_NEVER_WRITTEN = frozenset((ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))

_log = logging.getLogger("millstream.transactions")


class Writer(Protocol):
    """Who writes markers to the partitions that this broker leads."""

    def write(self, marker: Marker, partitions: Sequence[TopicPartition]) -> Awaitable[dict[TopicPartition, ErrorCode]]:
        """What became of the marker in each partition, once it is committed there."""
        ...


@dataclass(slots=True, eq=False)
class _Round:
    """One transaction's markers."""

    marker: Marker
    is_wanted: Callable[[], bool]
    on_done: Callable[[], None]
    left: dict[TopicPartition, None] = field(default_factory=dict)

    def done(self, at: TopicPartition) -> None:
        if at in self.left:
            del self.left[at]
            if not self.left and self.is_wanted():
                self.on_done()


_Work = list[tuple[_Round, TopicPartition]]


class TransactionMarkers:
    def __init__(self, view: ClusterView, writer: Writer, peers: PeerRequests, environment: Environment) -> None:
        self._view = view
        self._writer = writer
        self._peers = peers
        self._loop = environment.loop
        self._gathered: dict[int, _Work] = {}
        """For each broker to which a request is under way: what goes to it next."""
        self._homeless: _Work = []
        """Partitions without a leader, and those that have to be tried again."""
        self._again: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._is_closed = False

    def send(
        self,
        marker: Marker,
        partitions: Sequence[TopicPartition],
        is_wanted: Callable[[], bool],
        on_done: Callable[[], None],
    ) -> None:
        """Calls `on_done` when the marker is in all partitions; nothing more happens once it is not wanted any more."""
        if not partitions:
            on_done()
            return
        this = _Round(marker, is_wanted, on_done, dict.fromkeys(partitions))
        self._dispatch([(this, at) for at in partitions])

    def follow(self, delta: MetadataDelta) -> None:
        """Leaders may have changed, or topics may be gone."""
        if self._homeless and (delta.changed or delta.deleted or delta.brokers):
            self._try_again()

    def close(self) -> None:
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
        for task in tuple(self._tasks):
            task.cancel()

    # Where to

    def _dispatch(self, work: _Work) -> None:
        image = self._view.image
        here: dict[_Round, list[TopicPartition]] = {}
        for this, at in work:
            if self._is_closed or not this.is_wanted():
                continue
            state = image.partition(at)
            if state is None:
                _log.info("marker_dropped partition=%s reason=deleted", at)
                this.done(at)
            elif state.leader == NO_LEADER:
                self._later([(this, at)])
            elif state.leader == self._view.node_id:
                here.setdefault(this, []).append(at)
            else:
                self._to_broker(state.leader, this, at)
        for this, partitions in here.items():
            self._in_background(self._write_here(this, partitions))

    def _later(self, work: _Work) -> None:
        self._homeless += work
        if self._again is None and not self._is_closed:
            self._again = self._loop.call_later(_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        work, self._homeless = self._homeless, []
        self._dispatch(work)

    # Here

    async def _write_here(self, this: _Round, partitions: list[TopicPartition]) -> None:
        try:
            results = await self._writer.write(this.marker, partitions)
        except Exception:
            _log.exception("marker_not_written producer_id=%d", this.marker.producer_id)
            results = {}
        self._take([(this, at) for at in partitions], results)

    def _take(self, work: _Work, results: dict[TopicPartition, ErrorCode]) -> None:
        again: _Work = []
        for this, at in work:
            error = results.get(at, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error in _NEVER_WRITTEN:
                # The partition has seen a later epoch: this transaction is over there, and needs no marker any more.
                _log.warning("marker_refused partition=%s marker=%s error=%s", at, this.marker, error.name)
            if error == ErrorCode.NONE or error in _NEVER_WRITTEN:
                this.done(at)
            else:
                again.append((this, at))
        if again:
            self._later(again)

    # Elsewhere

    def _to_broker(self, broker_id: int, this: _Round, at: TopicPartition) -> None:
        gathered = self._gathered.get(broker_id)
        if gathered is not None:
            gathered.append((this, at))
            return
        self._gathered[broker_id] = [(this, at)]
        self._in_background(self._send_all(broker_id))

    async def _send_all(self, broker_id: int) -> None:
        gathered = self._gathered[broker_id]
        try:
            while gathered:
                work = gathered[:_MOST_IN_ONE_REQUEST]
                del gathered[:_MOST_IN_ONE_REQUEST]
                await self._send(broker_id, work)
        finally:
            del self._gathered[broker_id]

    async def _send(self, broker_id: int, work: _Work) -> None:
        rounds: dict[_Round, list[TopicPartition]] = {}
        for this, at in work:
            if this.is_wanted():
                rounds.setdefault(this, []).append(at)
        if not rounds:
            return
        # The answer names producers, not rounds: one round for each producer in a request.
        by_producer: dict[int, _Round] = {}
        for this in rounds:
            by_producer.setdefault(this.marker.producer_id, this)
        sent = list(by_producer.values())
        rest: _Work = [(this, at) for this, ats in rounds.items() if this not in sent for at in ats]
        fields = {"markers": [_fields(this.marker, rounds[this]) for this in sent]}
        try:
            answer = await self._peers.request(broker_id, "write_txn_markers", fields, timeout_s=_REQUEST_S)
        except OSError as error:
            _log.info("markers_not_sent broker=%d error=%s", broker_id, error)
            self._later([(this, at) for this in sent for at in rounds[this]] + rest)
            return
        results = {row.producer_id: _results(row) for row in answer.markers}
        for this in sent:
            self._take([(this, at) for at in rounds[this]], results.get(this.marker.producer_id, {}))
        self._dispatch(rest)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work, loop=self._loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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

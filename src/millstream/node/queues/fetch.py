"""ShareFetch (78) and ShareAcknowledge (79), and the share sessions of members.

A ShareFetch first applies its acknowledgements, then acquires available records of the session's partitions. Without
records it waits. An append, released records or due records wake it; nothing polls. Difference to Kafka: a request with
acknowledgements gets its response at once, not when there are records.

A share session (KIP-932) has the partitions that a member of a share group fetches from this broker, and the epoch that
orders its requests. It ends with its connection; then the member's records are released.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

from millstream.config import group_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.ordered_set import OrderedSet
from millstream.formats.protocol.fetch import ShareFetchResponse, SharePartitionResult
from millstream.formats.protocol.primitives import Locate
from millstream.formats.protocol.schema import Message
from millstream.node.environment import Environment
from millstream.node.groups.core.group import MAX_TEXT_LENGTH
from millstream.node.queues.core.partition import AckRange
from millstream.node.queues.core.runs import Acknowledgement
from millstream.node.queues.core.state import ShareKey
from millstream.node.queues.leader import SharePartitionLeader
from millstream.node.queues.partitions import SharePartitions
from millstream.node.server.request import Context, Response
from millstream.node.server.service import Peer

FIRST_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = (1 << 31) - 1
_PARTITIONS_PER_SESSION = 20_000
_PARTITIONS_IN_ALL = 250_000

PartitionId = tuple[UUID, int]


class ShareSession:
    __slots__ = ("closed", "epoch", "group_id", "member_id", "on_lost", "partitions", "peer", "touched")

    def __init__(self, group_id: str, member_id: str, peer: Peer) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.peer = peer
        self.closed = False
        self.epoch = 1
        """The epoch of the next request."""
        self.partitions: OrderedDict[PartitionId, None] = OrderedDict()
        """The partitions of the session, in the order in which they are served."""
        self.touched: set[PartitionId] = set()
        """Partitions of which the member may hold records, also removed ones."""
        self.on_lost: Callable[[], None] = lambda: None

    def served(self, partitions: Iterable[PartitionId]) -> None:
        """Partitions with records go to the end, behind those without."""
        for each in partitions:
            if each in self.partitions:
                self.partitions.move_to_end(each)


class ShareSessions:
    def __init__(self, slots: int, on_lost: Callable[[ShareSession], None]) -> None:
        """`on_lost` is called with each session whose connection ended."""
        self._slots = slots
        self._on_lost = on_lost
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._followed = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, peer: Peer) -> ShareSession:
        """A new session, which replaces an earlier one of the member. The member keeps its records."""
        earlier = self._sessions.get((group_id, member_id))
        if earlier is None and len(self._sessions) >= self._slots:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"this broker has {self._slots} share sessions")
        session = ShareSession(group_id, member_id, peer)
        if earlier is not None:
            self._remove(earlier)
            session.touched = earlier.touched
        session.on_lost = lambda: self._lost(session)
        peer.on_close.add(session.on_lost)
        self._sessions[group_id, member_id] = session
        return session

    def resume(self, group_id: str, member_id: str, epoch: int, peer: Peer) -> ShareSession:
        """The session that a request continues."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member_id} has no share session here")
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"share session epoch {epoch}, expected {session.epoch}"
            )
        session.epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        if session.peer is not peer:
            session.peer.on_close.discard(session.on_lost)
            session.peer = peer
            peer.on_close.add(session.on_lost)
        return session

    def follow(
        self, session: ShareSession, partitions: Iterable[PartitionId], forgotten: Iterable[PartitionId]
    ) -> None:
        """Changes the partitions of a session; SHARE_SESSION_LIMIT_REACHED if there are too many."""
        before = len(session.partitions)
        for each in forgotten:
            session.partitions.pop(each, None)
        for each in partitions:
            session.partitions.setdefault(each)
        count = len(session.partitions)
        self._followed += count - before
        if count > _PARTITIONS_PER_SESSION or (count > before and self._followed > _PARTITIONS_IN_ALL):
            self._followed -= count
            session.partitions.clear()  # the member gets the error, and starts a new session
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"{count} partitions are more than a share session can have now"
            )

    def close(self, group_id: str, member_id: str) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member_id} has no share session here")
        self._remove(session)
        return session

    def _remove(self, session: ShareSession) -> None:
        session.peer.on_close.discard(session.on_lost)
        self._end(session)

    def _lost(self, session: ShareSession) -> None:
        if self._sessions.get((session.group_id, session.member_id)) is session:
            self._end(session)
            self._on_lost(session)

    def _end(self, session: ShareSession) -> None:
        session.closed = True
        self._followed -= len(session.partitions)
        del self._sessions[session.group_id, session.member_id]


_RECORD_LIMIT = 1
"""The acquire mode in which `max_records` is exact."""

_WRONG_LEADER = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))

Failures = dict[PartitionId, KafkaError | None]


class ShareFetchHandlers:
    def __init__(
        self,
        shared: SharePartitions,
        environment: Environment,
        node_id: int,
        locate: Locate,
        *,
        session_slots: int,
        max_bytes: int,
        may_read: Callable[[Peer, UUID], bool] | None = None,
    ) -> None:
        """`may_read` returns whether a client may read a topic; None if there is no authorizer."""
        self._may_read = may_read
        self._shared = shared
        self._environment = environment
        self._node_id = node_id
        self._locate = locate
        self._max_bytes = max_bytes
        self.sessions = ShareSessions(session_slots, self._lost)
        self.waiting = 0
        """Fetches in progress; most of them wait for records."""

    # ShareFetch

    async def share_fetch(self, request: Message, context: Context) -> Response:
        rows: dict[PartitionId, SharePartitionResult] = {}
        try:
            _check_request(request)
            session = self._session(request, context, rows)
        except KafkaError as error:
            return ShareFetchResponse(error.code, error.message)
        config = self._shared.config_of(request.group_id)
        acknowledged = await self._acknowledge(request, session)
        response = ShareFetchResponse(lock_timeout_ms=config[group_config.SHARE_RECORD_LOCK_DURATION_MS])
        if request.share_session_epoch == FINAL_EPOCH:
            await self._release(session)
        elif not request.is_renew_ack and request.max_bytes > 0:  # with 0 it acknowledges only, as in Kafka
            waiting = _PendingShareFetch(self, request, session, context)
            self.waiting += 1
            try:
                await waiting.run(rows, waits=not acknowledged and request.min_bytes > 0)
            finally:
                self.waiting -= 1
                waiting.leave()
        for at, failure in acknowledged.items():
            row = rows.setdefault(at, SharePartitionResult(at[1]))
            if failure is not None:
                row.acknowledge_error, row.acknowledge_message = failure.code, failure.message
        other_leaders: dict[int, None] = {}
        for at, row in rows.items():
            if row.error in _WRONG_LEADER or row.acknowledge_error in _WRONG_LEADER:
                row.leader_id, row.leader_epoch = self._shared.leader(at)
                other_leaders[row.leader_id] = None
            else:
                row.leader_id = self._node_id
            response.topics.setdefault(at[0], []).append(row)
        response.endpoints = self._locate(other_leaders, context.peer.listener)
        return response

    def _session(
        self, request: Message, context: Context, rows: dict[PartitionId, SharePartitionResult]
    ) -> ShareSession:
        """The session that the request opens, continues or closes. Errors of single partitions go to `rows`."""
        epoch = request.share_session_epoch
        if epoch == FINAL_EPOCH:
            return self.sessions.close(request.group_id, request.member_id)
        if epoch == FIRST_EPOCH:
            if any(partition.acknowledgement_batches for _, partition in _partitions(request)):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "a share session cannot begin with acknowledgements")
            session = self.sessions.open(request.group_id, request.member_id, context.peer)
        else:
            session = self.sessions.resume(request.group_id, request.member_id, epoch, context.peer)
        known: list[PartitionId] = []
        for at, _ in _partitions(request):
            try:
                self._check_may_read(context.peer, at)
                self._shared.find(ShareKey(request.group_id, *at))
                known.append(at)
                if (
                    epoch == FIRST_EPOCH
                    and (leader := self._shared.loaded(ShareKey(request.group_id, *at))) is not None
                ):
                    leader.recheck_state()
            except KafkaError as error:
                rows[at] = SharePartitionResult(at[1], error.code, error.message)
        self.sessions.follow(
            session,
            known,
            ((topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions),
        )
        return session

    async def collect(
        self, session: ShareSession, request: Message, rows: dict[PartitionId, SharePartitionResult]
    ) -> list[SharePartitionLeader]:
        """Acquires available records, once for each partition; returns the partitions that were visited."""
        left_bytes = min(request.max_bytes, self._max_bytes)
        left_records = request.max_records
        strict = request.share_acquire_mode == _RECORD_LIMIT
        visited = []
        served: list[PartitionId] = []
        for at in list(session.partitions):
            try:
                self._check_may_read(session.peer, at)
                leader = await self._shared.get(ShareKey(session.group_id, *at))
                visited.append(leader)
                if left_records <= 0 or (left_bytes <= 0 and served):
                    continue
                taken = await leader.acquire(
                    session.member_id, max(left_bytes, 0), left_records, strict=strict, at_least_one=not served
                )
            except KafkaError as error:
                rows[at] = SharePartitionResult(at[1], error.code, error.message)
                continue
            if taken is None:
                continue
            session.touched.add(at)
            served.append(at)
            left_bytes -= taken.records.length
            left_records -= taken.total
            rows[at] = SharePartitionResult(
                at[1],
                leader_epoch=leader.partition.leader_epoch,
                records=taken.records,
                acquired=taken.acquired,  # type: ignore[arg-type]
            )
        session.served(served)
        return visited

    def loaded(self, session: ShareSession) -> list[SharePartitionLeader]:
        found = (self._shared.loaded(ShareKey(session.group_id, *at)) for at in session.partitions)
        return [leader for leader in found if leader is not None]

    def _check_may_read(self, peer: Peer, at: PartitionId) -> None:
        if self._may_read is not None and not self._may_read(peer, at[0]):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")

    # ShareAcknowledge

    async def share_acknowledge(self, request: Message, context: Context) -> Response:
        try:
            _check_request(request)
            if request.share_session_epoch == FINAL_EPOCH:
                session = self.sessions.close(request.group_id, request.member_id)
            elif request.share_session_epoch == FIRST_EPOCH:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a share session begins with a fetch")
            else:
                session = self.sessions.resume(
                    request.group_id, request.member_id, request.share_session_epoch, context.peer
                )
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message}
        acknowledged = await self._acknowledge(request, session)
        if request.share_session_epoch == FINAL_EPOCH:
            await self._release(session)
        config = self._shared.config_of(request.group_id)
        topics: dict[Any, list[dict[str, Any]]] = {}
        other_leaders: dict[int, None] = {}
        for at, failure in acknowledged.items():
            leader_id, leader_epoch = self._node_id, 0
            row: dict[str, Any] = {"partition_index": at[1]}
            if failure is not None:
                row |= {"error_code": failure.code, "error_message": failure.message}
                if failure.code in _WRONG_LEADER:
                    leader_id, leader_epoch = self._shared.leader(at)
                    other_leaders[leader_id] = None
            row["current_leader"] = {"leader_id": leader_id, "leader_epoch": leader_epoch}
            topics.setdefault(at[0], []).append(row)
        return {
            "acquisition_lock_timeout_ms": config[group_config.SHARE_RECORD_LOCK_DURATION_MS],
            "responses": [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()],
            "node_endpoints": [each._asdict() for each in self._locate(other_leaders, context.peer.listener)],
        }

    async def _acknowledge(self, request: Message, session: ShareSession) -> Failures:
        results: Failures = {}
        may_renew = self._may_renew(request.group_id)
        for at, partition in _partitions(request):
            if not partition.acknowledgement_batches:
                continue
            try:
                self._check_may_read(session.peer, at)
                ranges = acknowledged_ranges(partition.acknowledgement_batches, request.is_renew_ack)
                if not may_renew and any(kind == Acknowledgement.RENEW for _, _, kind in ranges):
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "renewals are disabled for this group")
                leader = await self._shared.get(ShareKey(session.group_id, *at))
                await leader.acknowledge(session.member_id, ranges)
                results[at] = None
            except KafkaError as error:
                results[at] = error
        return results

    def _may_renew(self, group_id: str) -> bool:
        return bool(self._shared.config_of(group_id)[group_config.SHARE_RENEW_ACKNOWLEDGE_ENABLE])

    # Closing of sessions

    async def _release(self, session: ShareSession) -> None:
        for at in tuple(session.touched):
            leader = self._shared.loaded(ShareKey(session.group_id, *at))
            if leader is not None:
                await leader.release(session.member_id)

    async def give_back(self, session: ShareSession, rows: dict[PartitionId, SharePartitionResult]) -> None:
        """Releases the records of a response that cannot be sent."""
        for at, row in list(rows.items()):
            if not row.acquired:
                continue
            del rows[at]
            leader = self._shared.loaded(ShareKey(session.group_id, *at))
            if leader is not None:
                ranges = [(first, last, int(Acknowledgement.RELEASE)) for first, last, _ in row.acquired]
                with suppress(KafkaError):  # already released with all records of the member
                    await leader.acknowledge(session.member_id, ranges)

    def _lost(self, session: ShareSession) -> None:
        self._shared.in_background(self._release(session))


class _PendingShareFetch:
    """One ShareFetch, from its arrival to its response."""

    def __init__(self, handlers: ShareFetchHandlers, request: Message, session: ShareSession, context: Context) -> None:
        self._handlers = handlers
        self._request = request
        self._session = session
        self._peer = context.peer
        self._wakeup = asyncio.Event()
        self._watched: OrderedSet[SharePartitionLeader] = OrderedSet()
        self._peer.on_close.add(self.wake)

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self, rows: dict[PartitionId, SharePartitionResult], waits: bool) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._request.max_wait_ms / 1000
        self._watch(self._handlers.loaded(self._session))
        while not (self._peer.closed or self._session.closed):
            self._wakeup.clear()
            self._watch(await self._handlers.collect(self._session, self._request, rows))
            if self._peer.closed or self._session.closed:
                await self._handlers.give_back(self._session, rows)
                return
            left = until - loop.time()
            if rows or not waits or left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await self._wakeup.wait()
            except TimeoutError:
                return

    def _watch(self, partitions: list[SharePartitionLeader]) -> None:
        """Registered before the first attempt, so that no event is missed."""
        for leader in partitions:
            leader.waiters.add(self)
            leader.partition.waiters.add(self)
        self._watched.update(dict.fromkeys(partitions))

    def leave(self) -> None:
        self._peer.on_close.discard(self.wake)
        for leader in self._watched:
            leader.waiters.discard(self)
            leader.partition.waiters.discard(self)


def _partitions(request: Message) -> Iterable[tuple[PartitionId, Message]]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield (topic.topic_id, partition.partition_index), partition


def _check_request(request: Message) -> None:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the group id is missing")
    if not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the member id is missing")
    if max(len(request.group_id), len(request.member_id)) > MAX_TEXT_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"an id is longer than {MAX_TEXT_LENGTH} characters")
    if request.share_session_epoch < FINAL_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "the epoch is negative")


def acknowledged_ranges(batches: Iterable[Message], renewals: bool) -> list[AckRange]:
    """The ranges of offsets with one acknowledgement each; INVALID_REQUEST if the request is malformed."""
    ranges: list[AckRange] = []
    expected = -1
    highest = Acknowledgement.RENEW if renewals else Acknowledgement.REJECT
    for batch in batches:
        first, last, kinds = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first < 0 or first > last or first < expected:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"offsets {first} to {last} are out of order")
        if first == expected:  # Kafka has its own error for this
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"offset {first} is acknowledged twice")
        if not kinds or len(kinds) not in (1, last - first + 1):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(kinds)} acknowledgements for {first} to {last}")
        if min(kinds) < 0 or max(kinds) > highest:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"acknowledgement {max(kinds)} is not allowed")
        expected = last
        if len(kinds) == 1:
            ranges.append((first, last, kinds[0]))
            continue
        begin = 0
        for at in range(1, len(kinds) + 1):
            if at == len(kinds) or kinds[at] != kinds[begin]:
                ranges.append((first + begin, first + at - 1, kinds[begin]))
                begin = at
    return ranges

"""Copies the partitions that one other broker leads: one connection, one fetch in flight, one incremental session.

Whatever the leader does (it hangs, stops in the middle of a response, no longer leads), the logs here stay sound. Only
whole batches with right checksums are appended, only at the offset of the request, and only in the leader epoch of the
request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import MAX_FETCHED_PARTITIONS, MalformedMessage
from millstream.formats.protocol.replica_fetch import (
    FIRST_VERSION,
    Fetched,
    FetchHead,
    FetchRow,
    ReplicaFetchResponse,
    encode_request,
    parse_response,
)
from millstream.formats.protocol.schema import Message
from millstream.formats.records.batch import LOG_OVERHEAD, PLACEMENT
from millstream.node.environment import Environment
from millstream.node.replicas.core.follower import FollowerPosition, PartitionFollower, Reaction
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.throttle import ReplicaThrottle
from millstream.node.server.channel import Channel
from millstream.node.storage.log.tiered_part import TierStart

FIRST_BACKOFF_SECONDS = 0.02
"""Doubled up to `replica.fetch.backoff.ms`. After a leader change, one of the nodes may not know it yet."""
_MAX_RECONNECT_SECONDS = 0.25
"""The longest pause before the next connection to a leader: replication continues soon after a network failure."""
_LATEST, _EARLIEST = -1, -2
_MAX_SESSION_EPOCH = (1 << 31) - 1
_THROTTLE_PAUSE_SECONDS = 0.2
_TIER_PAUSE_SECONDS = 3600.0
"""Until the tier was read, or could not be: that ends the pause."""
_OPENED_AT_ONCE = 32
_ROWS_AT_ONCE = MAX_FETCHED_PARTITIONS // 2
"""Positions in one request: a leader refuses more than MAX_FETCHED_PARTITIONS. The others follow in the next
request."""
_log = logging.getLogger("millstream.replication")

Key = tuple[bytes, int]
"""Topic id and partition, as on the wire."""
T = TypeVar("T")


class Node(Protocol):
    """The node of a fetcher."""

    @property
    def node_id(self) -> int: ...

    @property
    def config(self) -> BrokerConfig: ...

    def broker_epoch(self) -> int: ...

    def cluster_id(self) -> str | None: ...

    def address_of(self, broker_id: int) -> tuple[str, int]:
        """The address of a broker for other brokers; OSError if there is no such broker."""
        ...

    def connection_lost(self, broker_id: int) -> None:
        """An established connection to a broker was closed by the other side."""

    def connection_made(self, broker_id: int) -> None: ...

    @property
    def tier_start(self) -> Callable[[Partition], Awaitable[TierStart]]:
        """Where a follower continues whose offset its leader has only in the tier."""
        ...


class _Followed:
    """A partition of this fetcher."""

    __slots__ = ("backoff_s", "not_before", "partition", "sent")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sent: FollowerPosition | None = None
        """The position in the session at the leader; None if it is not in the session."""
        self.not_before = 0.0
        self.backoff_s = FIRST_BACKOFF_SECONDS


class ReplicaFetcher:
    def __init__(self, leader_id: int, node: Node, throttle: ReplicaThrottle, environment: Environment) -> None:
        self.leader_id = leader_id
        self._node = node
        self._throttle = throttle
        self._environment = environment
        self._loop = environment.loop
        self._followed: dict[Key, _Followed] = {}
        self._moved: dict[Key, _Followed] = {}
        """Partitions whose position may be new to the session at the leader."""
        self._resting: dict[Key, _Followed] = {}
        """Partitions that are paused."""
        self._forgotten: dict[Key, None] = {}
        """Partitions to remove from the session."""
        self._session_id = 0
        self._session_epoch = 0
        self._channel: Channel | None = None
        self._version = 0
        self._in_flight: asyncio.Future[Any] | None = None
        self._deadline = 0.0
        """When the fetch in flight times out."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._restarts = BackgroundTasks()
        self._closed = False
        self._task = asyncio.ensure_future(self._run(), loop=environment.loop)

    # What is followed

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, partition: Partition) -> None:
        key = _key(partition)
        self._forgotten.pop(key, None)
        self._resting.pop(key, None)
        known = self._followed.get(key)
        followed = self._followed[key] = self._moved[key] = _Followed(partition)
        followed.sent = known.sent if known is not None else None
        self._interrupt()

    def remove(self, partition: Partition) -> None:
        key = _key(partition)
        self._moved.pop(key, None)
        self._resting.pop(key, None)
        followed = self._followed.pop(key, None)
        if followed is not None and followed.sent is not None:
            self._forgotten[key] = None

    @property
    def partitions(self) -> list[Partition]:
        return [followed.partition for followed in self._followed.values()]

    def follows(self, partition: Partition) -> bool:
        return _key(partition) in self._followed

    def _interrupt(self) -> None:
        """Cancels the fetch in flight, which the leader may park for half a second, for a new partition."""
        if not self._changed.is_set():
            self._changed.set()
            pending = self._in_flight
            if pending is not None:
                self._loop.call_soon(self._cancel, pending)

    def _cancel(self, pending: "asyncio.Future[Any]") -> None:
        if not pending.done():
            pending.cancel()

    def close(self) -> None:
        self._closed = True
        self._task.cancel()
        self._restarts.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._disconnect()

    # The loop

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_SECONDS
        while not self._closed:
            try:
                if await self._fetch_once():
                    backoff_s = FIRST_BACKOFF_SECONDS
                continue
            except OSError as error:
                _log.info("fetch_failed leader=%d error=%s", self.leader_id, error)
                pause_s = backoff_s
                backoff_s = min(2 * backoff_s, self._longest_backoff_s(), _MAX_RECONNECT_SECONDS)
            except Exception:
                _log.exception("fetcher_failed leader=%d", self.leader_id)
                pause_s = self._longest_backoff_s()
            self._disconnect()
            await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Ends early when a partition is added."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _longest_backoff_s(self) -> float:
        return max(self._node.config[cluster.REPLICA_FETCH_BACKOFF_MS] / 1000, FIRST_BACKOFF_SECONDS)

    async def _fetch_once(self) -> bool:
        """One fetch and its response; False if there was nothing to fetch or it was cancelled."""
        self._changed.clear()
        now = self._loop.time()
        rows, forgotten = self._rows(now)
        if all(followed.sent is None for followed in self._followed.values()):
            await self._pause(self._idle_s(now))
            return False
        config = self._node.config
        timeout_s = (config[cluster.REPLICA_SOCKET_TIMEOUT_MS] + config[cluster.REPLICA_FETCH_WAIT_MAX_MS]) / 1000
        response = await self._fetch(encode_request(self._head(now), rows, forgotten), now, timeout_s)
        if response is None:
            return False
        if response.error:
            self._begin_session()
            if response.error not in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            ):
                raise ConnectionError(f"the leader refused the fetch: {ErrorCode(response.error).name}")
            return True
        self._session_id = response.session_id
        self._session_epoch = 1 if self._session_epoch == _MAX_SESSION_EPOCH else self._session_epoch + 1
        unserved = self._handle(response)
        if response.session_id == 0:
            self._begin_session()  # the leader has no room for a session: the next request has all partitions again
        for followed, sent, reaction in unserved:
            if reaction is Reaction.REQUEST_RANGE:
                await self._request_range(followed, sent)
            else:
                self._start_from_tier(followed, sent)
        return True

    async def _fetch(self, body: bytearray, now: float, timeout_s: float) -> ReplicaFetchResponse | None:
        channel = self._connected()
        if not self._version:
            version = await self._unless_cancelled(channel.best_version("fetch", timeout_s=timeout_s))
            if version is None:
                return None
            if version < FIRST_VERSION:
                raise ConnectionError(f"the leader supports Fetch only up to version {version}")
            self._version = version
            self._node.connection_made(self.leader_id)
        coming = channel.begin("fetch", self._version, body)
        if coming is None:
            raise ConnectionError("the connection to the leader is lost")
        self._deadline = now + timeout_s
        if self._watchdog is None:
            self._watchdog = self._loop.call_at(self._deadline, self._watch)
        frame = await self._unless_cancelled(coming)
        if frame is None:
            return None
        try:
            return parse_response(frame, channel.body_position("fetch", self._version, frame))
        except MalformedMessage as error:
            raise ConnectionError(f"the leader's response cannot be read: {error}") from None

    def _watch(self) -> None:
        """One timer for all fetches: there may be thousands before it is due."""
        self._watchdog = None
        pending = self._in_flight
        if pending is None or pending.done():
            return
        if self._loop.time() < self._deadline:
            self._watchdog = self._loop.call_at(self._deadline, self._watch)
        elif not isinstance(pending, asyncio.Task):  # a task has its own timeout
            pending.set_exception(TimeoutError(f"broker {self.leader_id} did not respond to a fetch in time"))

    def _connected(self) -> Channel:
        if self._channel is None:
            host, port = self._node.address_of(self.leader_id)
            environment = self._environment
            client_id = f"broker-{self._node.node_id}-fetcher"
            self._channel = Channel(
                host,
                port,
                environment.broker_network,
                environment.loop,
                client_id=client_id,
                login=environment.broker_login,
            )
            self._channel.on_lost = lambda: self._node.connection_lost(self.leader_id)
        return self._channel

    async def _unless_cancelled(self, request: "Coroutine[Any, Any, T] | asyncio.Future[T]") -> T | None:
        """The response; None if the request was cancelled because a partition was added."""
        pending: asyncio.Future[T] = asyncio.ensure_future(request)
        self._in_flight = pending
        try:
            return await pending
        except asyncio.CancelledError:
            if self._closed or not pending.cancelled():
                raise
            # The leader still has the request: only a new connection can overtake it.
            self._disconnect()
            return None
        finally:
            if not pending.done():
                pending.cancel()
            self._in_flight = None

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._version = 0
        self._begin_session()

    # Requests

    def _head(self, now: float) -> FetchHead:
        config, node = self._node.config, self._node
        # Paused and unopened partitions should not wait for records of the others.
        longest_ms = max(1, int(self._idle_s(now) * 1000))
        return FetchHead(
            node.cluster_id(),
            node.node_id,
            node.broker_epoch(),
            min(config[cluster.REPLICA_FETCH_WAIT_MAX_MS], longest_ms),
            config[cluster.REPLICA_FETCH_MIN_BYTES],
            config[cluster.REPLICA_FETCH_RESPONSE_MAX_BYTES],
            self._session_id,
            self._session_epoch,
        )

    def _rows(self, now: float) -> tuple[dict[bytes, list[FetchRow]], dict[bytes, list[int]]]:
        """The changes of the session: partitions with a new position, and partitions to remove."""
        for key, followed in [item for item in self._resting.items() if item[1].not_before <= now]:
            del self._resting[key]
            self._moved[key] = followed
        if self._throttle.is_exceeded():
            self._hold_up()
        rows: dict[bytes, list[FetchRow]] = {}
        partition_max_bytes = self._node.config[cluster.REPLICA_FETCH_MAX_BYTES]
        moved, self._moved = self._moved, {}
        openings = told = 0
        for key, followed in moved.items():
            if told >= _ROWS_AT_ONCE:
                self._moved[key] = followed
                continue
            if followed.partition.opened_log is None:
                openings += 1
                if openings > _OPENED_AT_ONCE:
                    self._moved[key] = followed  # opening a log reads a few files on the event loop
                    continue
            position = self._position(followed)
            if position is None or position == followed.sent:
                continue
            followed.sent = position
            told += 1
            self._forgotten.pop(key, None)
            rows.setdefault(key[0], []).append((key[1], *position, partition_max_bytes))
        forgotten: dict[bytes, list[int]] = {}
        if self._session_epoch:
            for topic_id, index in self._forgotten:
                forgotten.setdefault(topic_id, []).append(index)
        self._forgotten.clear()
        return rows, forgotten

    def _position(self, followed: _Followed) -> FollowerPosition | None:
        partition = followed.partition
        try:
            follower = partition.follower
        except (KafkaError, OSError) as error:
            _log.error("log_not_opened partition=%s error=%s", partition.topic_partition, error)
            self._rest(followed, self._longest_backoff_s())
            return None
        return follower.position() if follower is not None and follower.leader_id == self.leader_id else None

    def _hold_up(self) -> None:
        for followed in self._followed.values():
            at = followed.partition.topic_partition
            if (
                self._throttle.is_throttled(at.topic, at.partition)
                and self._node.node_id not in followed.partition.in_sync()
            ):
                self._throttle.pauses += 1
                self._rest(followed, _THROTTLE_PAUSE_SECONDS)

    def _rest(self, followed: _Followed, seconds: float) -> None:
        """Pauses a partition, and removes it from the session meanwhile."""
        key = _key(followed.partition)
        if self._followed.get(key) is not followed:
            return
        followed.not_before = self._loop.time() + seconds
        self._moved.pop(key, None)
        self._resting[key] = followed
        if followed.sent is not None:
            followed.sent = None
            self._forgotten[key] = None

    def _back_off(self, followed: _Followed) -> None:
        self._rest(followed, followed.backoff_s)
        followed.backoff_s = min(2 * followed.backoff_s, self._longest_backoff_s())

    def _idle_s(self, now: float) -> float:
        """Time until the next paused partition is due."""
        if self._moved:
            return 0.001
        return max(0.001, min((followed.not_before - now for followed in self._resting.values()), default=3600.0))

    def _begin_session(self) -> None:
        # The next request names the old session once more, so that the leader can remove it.
        self._session_epoch = 0
        self._forgotten.clear()
        for key, followed in self._followed.items():
            followed.sent = None
            if key not in self._resting:
                self._moved[key] = followed

    # Responses

    def _handle(self, response: ReplicaFetchResponse) -> list[tuple[_Followed, FollowerPosition, Reaction]]:
        """Handles a response; returns the partitions whose offset the leader does not have on its disk."""
        unserved: list[tuple[_Followed, FollowerPosition, Reaction]] = []
        for topic_id, rows in response.topics:
            for row in rows:
                key = topic_id, row.partition
                followed = self._followed.get(key)
                if followed is None or followed.sent is None:
                    continue
                sent, follower = followed.sent, followed.partition.follower
                self._moved[key] = followed
                if follower is None or follower.leader_id != self.leader_id or not follower.is_current(sent):
                    continue  # the request was of another leadership
                reaction = self._take(followed, follower, row)
                if reaction in (Reaction.REQUEST_RANGE, Reaction.START_FROM_TIER):
                    unserved.append((followed, sent, reaction))
                elif reaction is Reaction.BACK_OFF:
                    self._back_off(followed)
                else:
                    followed.backoff_s = FIRST_BACKOFF_SECONDS
        return unserved

    def _take(self, followed: _Followed, follower: PartitionFollower, row: Fetched) -> Reaction:
        partition = followed.partition
        if row.error:
            _log.info(
                "fetch_refused partition=%s leader=%d epoch=%d error=%s",
                partition.topic_partition,
                self.leader_id,
                follower.leader_epoch,
                ErrorCode(row.error).name,
            )
            return follower.refused(row.error)
        try:
            if row.diverging_epoch is not None:
                before = partition.log.log_end_offset
                end = follower.diverged(*row.diverging_epoch)
                if end < before:
                    _log.warning(
                        "log_truncated partition=%s from=%d to=%d leader=%d epoch=%d",
                        partition.topic_partition,
                        before,
                        end,
                        self.leader_id,
                        follower.leader_epoch,
                    )
                partition.followed()
                return Reaction.CONTINUE if end < before else Reaction.BACK_OFF
            if row.records:
                self._append(partition, row.records)
            follower.advanced(row.high_watermark, row.log_start_offset)
            partition.followed()
            start = min(row.log_start_offset, follower.high_watermark)
            if start > partition.log.log_start_offset:
                partition.log.delete_records_before(start)
        except (KafkaError, OSError) as error:
            _log.error(
                "append_failed partition=%s leader=%d error=%s", partition.topic_partition, self.leader_id, error
            )
            return Reaction.BACK_OFF
        return Reaction.CONTINUE

    def _append(self, partition: Partition, records: memoryview) -> None:
        log, now_ms = partition.log, self._environment.clock.now_ms()
        at = partition.topic_partition
        if self._throttle.is_throttled(at.topic, at.partition):
            self._throttle.record(len(records))
        partition.traffic.replica_received_bytes += len(records)
        for piece in ranges_in_segments(records, log.config.segment_bytes):
            log.append_as_follower(piece, now_ms=now_ms)

    async def _request_range(self, followed: _Followed, sent: FollowerPosition) -> None:
        """The leader does not have the offset: get the range of its log."""
        partition = followed.partition
        ends: list[int] = []
        for timestamp in (_LATEST, _EARLIEST):
            offset = await self._list_offset(partition, sent.leader_epoch, timestamp)
            if offset is None:
                self._back_off(followed)
                return
            ends.append(offset)
        follower = partition.follower
        if follower is None or not follower.is_current(sent):
            return
        end, start = ends
        before = partition.log.log_end_offset
        try:
            after = follower.leader_range(start, end, self._environment.clock.now_ms())
        except (KafkaError, OSError) as error:
            _log.error("log_not_reset partition=%s error=%s", partition.topic_partition, error)
            self._rest(followed, self._longest_backoff_s())
            return
        self._moved[_key(partition)] = followed
        partition.followed()
        _log.warning(
            "out_of_range partition=%s from=%d to=%d leader=%d start=%d end=%d",
            partition.topic_partition,
            before,
            after,
            self.leader_id,
            start,
            end,
        )
        if before == after:
            self._back_off(followed)

    def _start_from_tier(self, followed: _Followed, sent: FollowerPosition) -> None:
        """The leader has the offset only in the tier: other partitions do not wait for the object store."""
        self._rest(followed, _TIER_PAUSE_SECONDS)
        self._restarts.start(self._restart_from_tier(followed, sent), loop=self._loop)

    async def _restart_from_tier(self, followed: _Followed, sent: FollowerPosition) -> None:
        """Takes epochs and producers from the tier, and continues at the end of the tier."""
        partition = followed.partition
        pause_s = 0.0
        try:
            start = await self._node.tier_start(partition)
            follower = partition.follower
            if follower is None or follower.leader_id != self.leader_id or not follower.is_current(sent):
                return
            if start.offset <= sent.offset:
                pause_s = followed.backoff_s  # the tier was read before the leader's last change of it
            else:
                partition.log.restart_from_tier(start, self._environment.clock.now_ms())
                follower.restarted()
                partition.followed()
                _log.warning("started_from_tier partition=%s offset=%d", partition.topic_partition, start.offset)
        except (KafkaError, OSError) as error:
            _log.error("not_started_from_tier partition=%s error=%s", partition.topic_partition, error)
            pause_s = self._longest_backoff_s()
        self._rest(followed, pause_s)
        self._interrupt()

    async def _list_offset(self, partition: Partition, leader_epoch: int, timestamp: int) -> int | None:
        at = partition.topic_partition
        row = {"partition_index": at.partition, "current_leader_epoch": leader_epoch, "timestamp": timestamp}
        fields = {
            "replica_id": self._node.node_id,
            "topics": [{"name": at.topic, "partitions": [row]}],
        }
        timeout_s = self._node.config[cluster.REPLICA_SOCKET_TIMEOUT_MS] / 1000
        response: Message | None = await self._unless_cancelled(
            self._connected().request("list_offsets", fields, timeout_s=timeout_s)
        )
        if response is None or not response.topics or not response.topics[0].partitions:
            return None
        found = response.topics[0].partitions[0]
        return None if found.error_code else int(found.offset)


def _key(partition: Partition) -> Key:
    return partition.topic_id.bytes, partition.topic_partition.partition


def ranges_in_segments(records: memoryview, segment_bytes: int) -> Iterable[memoryview]:
    """The whole batches of a response, whose last one may be cut short; in ranges that fit into a segment."""
    start = position = 0
    while position + LOG_OVERHEAD <= len(records):
        end = position + LOG_OVERHEAD + PLACEMENT.unpack_from(records, position)[1]
        if end > len(records) or end <= position:
            break
        if end - start > segment_bytes and position > start:
            yield records[start:position]
            start = position
        position = end
    if position > start:
        yield records[start:position]

"""Copies the partitions that one other broker leads: one connection, one fetch in flight, one incremental session.

Whatever the leader does — hangs, dies in the middle of an answer, leads no longer — leaves clean logs here: only whole
batches whose checksums hold are appended, and only if they follow on what the log had when they were asked for, in the
leadership in which they were asked for.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Protocol
from uuid import UUID

from millstream.broker.partition import Partition
from millstream.broker.replica_throttle import ReplicaThrottle
from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.environment import Environment
from millstream.model.errors import ErrorCode, KafkaError
from millstream.net.channel import Channel
from millstream.protocol.schema import Message
from millstream.records.batch import LOG_OVERHEAD, PLACEMENT
from millstream.replication.follower import FollowerPosition, PartitionFollower, Reaction

FIRST_BACKOFF_S = 0.02
"""Doubled up to `replica.fetch.backoff.ms`. When a leader has changed, one of us may not have heard of it yet."""
_LATEST, _EARLIEST = -1, -2
_log = logging.getLogger("millstream.replication")

Key = tuple[UUID, int]


class Node(Protocol):
    """What a fetcher needs to know of the node it copies to."""

    @property
    def node_id(self) -> int: ...

    @property
    def config(self) -> BrokerConfig: ...

    def broker_epoch(self) -> int: ...

    def cluster_id(self) -> str | None: ...

    def address_of(self, broker_id: int) -> tuple[str, int]:
        """Where a broker listens for other brokers; OSError if there is no such broker now."""
        ...


class _Followed:
    """A partition of this fetcher."""

    __slots__ = ("backoff_s", "not_before", "partition", "sent")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sent: FollowerPosition | None = None
        """What the session at the leader says of it; None if it does not speak of it."""
        self.not_before = 0.0
        self.backoff_s = FIRST_BACKOFF_S


class ReplicaFetcher:
    def __init__(self, leader_id: int, node: Node, throttle: ReplicaThrottle, environment: Environment) -> None:
        self.leader_id = leader_id
        self._node = node
        self._throttle = throttle
        self._environment = environment
        self._loop = environment.loop
        self._followed: dict[Key, _Followed] = {}
        self._forgotten: dict[Key, None] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._channel: Channel | None = None
        self._asked: asyncio.Task[Message] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._task = asyncio.ensure_future(self._run(), loop=environment.loop)

    # What is followed

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, partition: Partition) -> None:
        key = partition.topic_id, partition.topic_partition.partition
        self._forgotten.pop(key, None)
        known = self._followed.get(key)
        sent = known.sent if known is not None else None
        followed = self._followed[key] = _Followed(partition)
        followed.sent = sent
        self._interrupt()

    def remove(self, partition: Partition) -> None:
        key = partition.topic_id, partition.topic_partition.partition
        followed = self._followed.pop(key, None)
        if followed is not None and followed.sent is not None:
            self._forgotten[key] = None

    def follows(self, partition: Partition) -> bool:
        return (partition.topic_id, partition.topic_partition.partition) in self._followed

    def _interrupt(self) -> None:
        """A fetch may wait at the leader for half a second, and a new partition should not wait with it."""
        if not self._changed.is_set():
            self._changed.set()
            asked = self._asked
            if asked is not None:
                self._loop.call_soon(self._give_up, asked)

    def _give_up(self, asked: "asyncio.Task[Message]") -> None:
        if not asked.done():
            asked.cancel()

    def close(self) -> None:
        self._closed = True
        self._task.cancel()
        self._hang_up()

    # The loop

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._closed:
            try:
                if await self._fetch_once():
                    backoff_s = FIRST_BACKOFF_S
            except OSError as error:
                _log.info("fetch_failed leader=%d error=%s", self.leader_id, error)
                self._hang_up()
                await self._pause(backoff_s)
                backoff_s = min(2 * backoff_s, self._longest_backoff_s())
            except Exception:
                _log.exception("fetcher_failed leader=%d", self.leader_id)
                self._hang_up()
                await self._pause(self._longest_backoff_s())

    async def _pause(self, seconds: float) -> None:
        """Ends early when there is something new to follow."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _longest_backoff_s(self) -> float:
        return max(self._node.config[cluster.REPLICA_FETCH_BACKOFF_MS] / 1000, FIRST_BACKOFF_S)

    async def _fetch_once(self) -> bool:
        """One fetch and what follows from it; False if there was nothing to ask or it was given up."""
        self._changed.clear()
        now = self._loop.time()
        wanted = self._positions(now)
        if not wanted:
            await self._pause(self._idle_s(now))
            return False
        fields = self._request(wanted)
        config = self._node.config
        timeout_s = (config[cluster.REPLICA_SOCKET_TIMEOUT_MS] + config[cluster.REPLICA_FETCH_WAIT_MAX_MS]) / 1000
        answer = await self._ask("fetch", fields, timeout_s)
        if answer is None:
            return False
        if answer.error_code:
            self._begin_session()
            if answer.error_code not in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            ):
                raise ConnectionError(f"the leader refused: {ErrorCode(answer.error_code).name}")
            return True
        self._answered(answer)
        await self._handle(answer)
        return True

    async def _ask(self, api: str, fields: dict[str, Any], timeout_s: float) -> Message | None:
        """The answer; None if the request was given up because there is more to ask for."""
        if self._channel is None:
            host, port = self._node.address_of(self.leader_id)
            environment = self._environment
            client_id = f"broker-{self._node.node_id}-fetcher"
            self._channel = Channel(host, port, environment.network, environment.loop, client_id=client_id)
        self._asked = asyncio.ensure_future(self._channel.request(api, fields, timeout_s=timeout_s))
        try:
            return await self._asked
        except asyncio.CancelledError:
            if self._closed or not self._asked.cancelled():
                raise
            # The leader still holds on to the request: only a new connection gets ahead of it.
            self._hang_up()
            return None
        finally:
            if not self._asked.done():
                self._asked.cancel()
            self._asked = None

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._begin_session()

    # Requests

    def _positions(self, now: float) -> dict[Key, tuple[_Followed, FollowerPosition]]:
        """Where to fetch next in all partitions that are not made to wait."""
        wanted: dict[Key, tuple[_Followed, FollowerPosition]] = {}
        is_exceeded = self._throttle.is_exceeded()
        for key, followed in self._followed.items():
            if followed.not_before > now:
                continue
            partition = followed.partition
            if is_exceeded and self._is_held_up(partition):
                continue
            try:
                follower = partition.follower
            except (KafkaError, OSError) as error:
                _log.error("log_not_opened partition=%s error=%s", partition.topic_partition, error)
                self._back_off(followed, longest=True)
                continue
            if follower is not None and follower.leader_id == self.leader_id:
                wanted[key] = followed, follower.position()
        return wanted

    def _is_held_up(self, partition: Partition) -> bool:
        at = partition.topic_partition
        return self._throttle.is_throttled(at.topic, at.partition) and self._node.node_id not in partition.in_sync()

    def _idle_s(self, now: float) -> float:
        waiting = [followed.not_before - now for followed in self._followed.values() if followed.not_before > now]
        longest = 0.2 if self._followed else 3600.0
        return max(0.001, min([*waiting, longest]))

    def _request(self, wanted: dict[Key, tuple[_Followed, FollowerPosition]]) -> dict[str, Any]:
        config, node = self._node.config, self._node
        partition_max_bytes = config[cluster.REPLICA_FETCH_MAX_BYTES]
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for key, (followed, position) in wanted.items():
            if followed.sent == position:
                continue  # the session knows
            topics.setdefault(key[0], []).append(
                {
                    "partition": key[1],
                    "current_leader_epoch": position.leader_epoch,
                    "fetch_offset": position.offset,
                    "last_fetched_epoch": position.last_fetched_epoch,
                    "log_start_offset": position.log_start_offset,
                    "partition_max_bytes": partition_max_bytes,
                }
            )
        forgotten: dict[UUID, list[int]] = {}
        if self._session_epoch:
            for topic_id, index in (*self._forgotten, *self._left_out(wanted)):
                forgotten.setdefault(topic_id, []).append(index)
        for followed, position in wanted.values():
            followed.sent = position
        self._forgotten.clear()
        return {
            "cluster_id": node.cluster_id(),
            "replica_id": node.node_id,
            "replica_state": {"replica_id": node.node_id, "replica_epoch": node.broker_epoch()},
            "max_wait_ms": config[cluster.REPLICA_FETCH_WAIT_MAX_MS],
            "min_bytes": config[cluster.REPLICA_FETCH_MIN_BYTES],
            "max_bytes": config[cluster.REPLICA_FETCH_RESPONSE_MAX_BYTES],
            "isolation_level": 0,
            "session_id": self._session_id,
            "session_epoch": self._session_epoch,
            "topics": [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()],
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in forgotten.items()
            ],
            "rack_id": "",
        }

    def _left_out(self, wanted: dict[Key, tuple[_Followed, FollowerPosition]]) -> Iterable[Key]:
        """Partitions that wait: until they are asked for again, the session must not speak of them."""
        for key, followed in self._followed.items():
            if followed.sent is not None and key not in wanted:
                followed.sent = None
                yield key

    # The session

    def _begin_session(self) -> None:
        # The old one is named once more, so that the leader can forget it.
        self._session_epoch = 0
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.sent = None

    def _answered(self, answer: Message) -> None:
        self._session_id = answer.session_id
        if answer.session_id == 0:
            self._session_epoch = 0  # the leader has no room for a session: the next request is a full one again
        else:
            self._session_epoch = 1 if self._session_epoch == (1 << 31) - 1 else self._session_epoch + 1

    # Answers

    async def _handle(self, answer: Message) -> None:
        out_of_range: list[tuple[_Followed, FollowerPosition]] = []
        for topic in answer.responses:
            for row in topic.partitions:
                followed = self._followed.get((topic.topic_id, row.partition_index))
                if followed is None or followed.sent is None:
                    continue
                sent = followed.sent
                follower = followed.partition.follower
                if follower is None or follower.leader_id != self.leader_id or not follower.is_current(sent):
                    continue  # the answer is to a question of another leadership
                reaction = self._take(followed, follower, row)
                if reaction is Reaction.ASK_RANGE:
                    out_of_range.append((followed, sent))
                elif reaction is Reaction.BACK_OFF:
                    self._back_off(followed)
                else:
                    followed.backoff_s = FIRST_BACKOFF_S
        if self._session_id == 0:
            for followed in self._followed.values():
                followed.sent = None
        for followed, sent in out_of_range:
            await self._ask_range(followed, sent)

    def _take(self, followed: _Followed, follower: PartitionFollower, row: Message) -> Reaction:
        partition = followed.partition
        if row.error_code:
            _log.info(
                "fetch_refused partition=%s leader=%d epoch=%d error=%s",
                partition.topic_partition,
                self.leader_id,
                follower.leader_epoch,
                ErrorCode(row.error_code).name,
            )
            return follower.refused(row.error_code)
        try:
            diverging = row.diverging_epoch
            if diverging.epoch >= 0 or diverging.end_offset >= 0:
                before = partition.log.log_end_offset
                end = follower.diverged(diverging.epoch, diverging.end_offset)
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
                self._append(partition, memoryview(row.records))
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
        for piece in _pieces(records, log.config.segment_bytes):
            log.append_as_follower(piece, now_ms=now_ms)

    def _back_off(self, followed: _Followed, *, longest: bool = False) -> None:
        pause_s = self._longest_backoff_s() if longest else followed.backoff_s
        followed.not_before = self._loop.time() + pause_s
        followed.backoff_s = min(2 * pause_s, self._longest_backoff_s())

    async def _ask_range(self, followed: _Followed, sent: FollowerPosition) -> None:
        """The leader has nothing at our offset: find out what it has."""
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
            self._back_off(followed, longest=True)
            return
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

    async def _list_offset(self, partition: Partition, leader_epoch: int, timestamp: int) -> int | None:
        at = partition.topic_partition
        row = {"partition_index": at.partition, "current_leader_epoch": leader_epoch, "timestamp": timestamp}
        fields = {
            "replica_id": self._node.node_id,
            "topics": [{"name": at.topic, "partitions": [row]}],
        }
        answer = await self._ask("list_offsets", fields, self._node.config[cluster.REPLICA_SOCKET_TIMEOUT_MS] / 1000)
        if answer is None or not answer.topics or not answer.topics[0].partitions:
            return None
        found = answer.topics[0].partitions[0]
        return None if found.error_code else int(found.offset)


def _pieces(records: memoryview, segment_bytes: int) -> Iterable[memoryview]:
    """The whole batches of an answer, whose last one may be cut short; in pieces that fit into a segment."""
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

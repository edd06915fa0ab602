"""Offsets of logs (ListOffsets, from the leaders) and committed offsets of groups without members."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import ConnectionLostError, RetriableError, WireError, error_code, refusal
from millstream.raw_client.model import TopicPartition
from millstream.raw_client.pool import ConnectionPool
from millstream.raw_client.routing import CoordinatorKind, Leader, Routing

EARLIEST = -2
LATEST = -1


class OffsetAndTime(NamedTuple):
    offset: int
    """-1 if no record has this time or a later one."""
    timestamp: int
    """Of the record at the offset, in ms; -1 for EARLIEST and LATEST."""
    leader_epoch: int = -1


class LogOffsets:
    def __init__(self, routing: Routing, pool: ConnectionPool) -> None:
        self._routing = routing
        self._pool = pool

    def find(
        self, wanted: Mapping[TopicPartition, int], deadline: Deadline, read_committed: bool
    ) -> dict[TopicPartition, OffsetAndTime]:
        """The offsets of all partitions. Repeated where the leader has moved."""
        found: dict[TopicPartition, OffsetAndTime] = {}
        deadline.retry(lambda: self._find_rest(wanted, found, deadline, read_committed))
        return {topic_partition: found[topic_partition] for topic_partition in wanted}

    def _find_rest(
        self,
        wanted: Mapping[TopicPartition, int],
        found: dict[TopicPartition, OffsetAndTime],
        deadline: Deadline,
        read_committed: bool,
    ) -> None:
        unknown = {
            topic_partition.topic
            for topic_partition in wanted
            if topic_partition not in found and not self._routing.knows(topic_partition.topic)
        }
        if unknown:
            self._routing.refresh(unknown, deadline)
        by_leader: dict[int, dict[TopicPartition, Leader]] = {}
        failure: WireError | None = None
        for topic_partition in wanted:
            if topic_partition not in found:
                try:
                    leader = self._routing.leader(topic_partition, deadline)
                except RetriableError as error:
                    failure = error
                else:
                    by_leader.setdefault(leader.node_id, {})[topic_partition] = leader
        for led in by_leader.values():
            try:
                failure = self._call(wanted, led, found, deadline, read_committed) or failure
            except ConnectionLostError as error:
                for topic_partition, leader in led.items():
                    self._routing.lost(leader, topic_partition.topic)
                failure = error
        if failure is not None:
            raise failure

    def _call(
        self,
        wanted: Mapping[TopicPartition, int],
        led: Mapping[TopicPartition, Leader],
        found: dict[TopicPartition, OffsetAndTime],
        deadline: Deadline,
        read_committed: bool,
    ) -> RetriableError | None:
        topics: dict[str, list[dict[str, int]]] = {}
        for topic_partition, leader in led.items():
            row = {
                "partition_index": topic_partition.partition,
                "current_leader_epoch": leader.epoch,
                "timestamp": wanted[topic_partition],
            }
            topics.setdefault(topic_partition.topic, []).append(row)
        fields = {
            "replica_id": -1,
            "isolation_level": int(read_committed),
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            "timeout_ms": 0,
        }
        (address,) = {leader.address for leader in led.values()}
        response = self._pool.call(address, "list_offsets", fields, deadline)
        failure: RetriableError | None = None
        for topic in response.topics:
            for row in topic.partitions:
                topic_partition = TopicPartition(topic.name, row.partition_index)
                code = error_code(row.error_code)
                if code == ErrorCode.NONE:
                    found[topic_partition] = OffsetAndTime(row.offset, row.timestamp, row.leader_epoch)
                    continue
                classified = self._routing.classify(str(topic_partition), topic_partition.topic, code, deadline)
                if not isinstance(classified, RetriableError):
                    raise classified
                failure = classified
        return failure


CallCoordinator = Callable[..., Message]
_LAST_WITH_NAMES = 9
"""Later versions use topic ids. With names no metadata is needed."""
_NO_OFFSET = -1


def commit_offsets(ask: CallCoordinator, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    if not offsets:
        return
    rows: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
        rows.setdefault(topic, []).append(row)
    response = ask(
        group,
        CoordinatorKind.GROUP,
        "offset_commit",
        at_most=_LAST_WITH_NAMES,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": name, "partitions": found} for name, found in rows.items()],
    )
    for topic in response.topics:
        for row in topic.partitions:
            _check_commit(group, TopicPartition(topic.name, row.partition_index), row.error_code)


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str
    """A text of the member that committed it."""


def committed_offsets(
    ask: CallCoordinator, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, CommittedOffset]:
    if not partitions:
        return {}
    indexes: dict[str, list[int]] = {}
    for topic, partition in partitions:
        indexes.setdefault(topic, []).append(partition)
    topics = [{"name": name, "partition_indexes": found} for name, found in indexes.items()]
    response = ask(
        group,
        CoordinatorKind.GROUP,
        "offset_fetch",
        at_most=_LAST_WITH_NAMES,
        groups=[{"group_id": group, "topics": topics}],
        group_id=group,
        topics=topics,
        require_stable=True,
    )
    of_group = response.groups[0] if response.groups else response
    if of_group.error_code:
        raise refusal(f"group {group!r}", error_code(of_group.error_code))
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in of_group.topics:
        for row in topic.partitions:
            topic_partition = TopicPartition(topic.name, row.partition_index)
            _check_commit(group, topic_partition, row.error_code)
            if row.committed_offset != _NO_OFFSET:
                found[topic_partition] = CommittedOffset(row.committed_offset, row.metadata or "")
    return found


def _check_commit(group: str, topic_partition: TopicPartition, number: int) -> None:
    if number:
        code = error_code(number)
        about_group = code.name.startswith(("GROUP", "INVALID_GROUP")) or code.name in _OF_MEMBERS
        raise refusal(f"group {group!r}" if about_group else f"offset of group {group!r} for {topic_partition}:", code)


_OF_MEMBERS = frozenset({"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"})

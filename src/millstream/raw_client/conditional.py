"""Conditional append (KIP-27): writes records only if the end of the partition is the expected one.

One batch is in flight at a time, from an idempotent producer: an attempt whose response was lost is sent again until
its result is known, and counts once. If the result does not become known in time, `append` raises, and the next one has
another producer id: a later batch is never taken for an earlier one.

A broker that does not check conditions would append in any case. So the feature is looked up on the leader's connection
before anything is sent, and the response must have the end of the partition.
"""

import threading
from collections.abc import Sequence

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import Cursor, MalformedMessage
from millstream.formats.protocol.produce import (
    CONDITIONAL_APPEND,
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_ID,
    encode_conditional,
    end_in_response,
)
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.formats.records.batch import MAX_SEQUENCE
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client.cluster import Cluster
from millstream.raw_client.connection import Connection
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import (
    ConnectionLostError,
    RefusedError,
    RetriableError,
    SetupError,
    WireError,
    error_code,
    refusal,
)
from millstream.raw_client.model import TopicPartition
from millstream.raw_client.routing import Leader
from millstream.raw_client.transactions import idempotent_producer

_PRODUCE = "produce"


class UnexpectedEndError(RefusedError):
    """The partition's end is not the expected one: nothing was written. `end_offset` is the end now."""

    def __init__(self, partition: TopicPartition, expected: int, end_offset: int) -> None:
        super().__init__(
            f"{partition}: its end is {end_offset}, not {expected}; read the records before it, and decide again",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
        self.expected = expected
        self.end_offset = end_offset


class ConditionalProducer:
    """Thread safe. Appends of several threads are sent one after the other."""

    def __init__(self, cluster: Cluster, timeout_s: float | None = None) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s or cluster.timeout_s
        self._lock = threading.Lock()
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    def close(self) -> None:
        """Closes the connections of the cluster."""
        self._cluster.close()

    def append(self, partition: TopicPartition, records: Sequence[Record], expected: int) -> int:
        """Writes the records as one batch at the offset `expected`, and returns the partition's new end.

        Raises UnexpectedEndError if the partition ends elsewhere, and other errors of the raw client. Only after
        UnreachableError it is not known whether the records were written.
        """
        with self._lock:
            if self._producer is None:
                self._producer = idempotent_producer(self._cluster)
                self._sequences.clear()
            sequence = self._sequences.get(partition, 0)
            batch = build_batch(
                records, producer_id=self._producer[0], producer_epoch=self._producer[1], base_sequence=sequence
            )
            append = _Append(self._cluster, partition, batch, expected, Deadline(self._timeout_s))
            try:
                end = append.deadline.retry(append.attempt)
            except (UnexpectedEndError, SetupError):
                raise  # nothing was written, and the sequence is free
            except BaseException:
                self._producer = None
                raise
            self._sequences[partition] = (sequence + len(records)) & MAX_SEQUENCE
            return end


class _Append:
    """One batch, sent until its result is known."""

    def __init__(
        self, cluster: Cluster, partition: TopicPartition, batch: bytearray, expected: int, deadline: Deadline
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._batch = batch
        self._expected = expected
        self.deadline = deadline
        self._epoch = -1
        """The newest leader epoch to which the batch was sent."""
        self._is_in_doubt = False
        """Whether an attempt was sent and had no response: it may still be on its way."""

    def attempt(self) -> int:
        partition = self._partition
        leader = self._cluster.leader_of(partition, self.deadline)
        try:
            if leader.epoch < self._epoch:
                # A leader that was replaced may refuse what the newer one has written.
                raise RetriableError(str(partition), ErrorCode.NOT_LEADER_OR_FOLLOWER)
            with self._cluster.connection(leader.node_id, self.deadline) as connection:
                return self._send(connection, leader)
        except (ConnectionLostError, RetriableError):
            self._cluster.refresh_leader(partition.topic)
            raise

    def _send(self, connection: Connection, leader: Leader) -> int:
        partition = self._partition
        if CONDITIONAL_APPEND not in connection.supported:
            raise SetupError(
                f"{connection.address} does not support conditional append: it has no feature {CONDITIONAL_APPEND}"
            )
        version = connection.version_of(_PRODUCE, None if leader.topic_id.int else FIRST_WITH_TOPIC_ID - 1)
        if version < FIRST_FLEXIBLE:
            raise SetupError(f"{connection.address}: Produce has no tagged fields in version {version}")
        by_id = version >= FIRST_WITH_TOPIC_ID
        topic = leader.topic_id.bytes if by_id else partition.topic.encode()
        timeout_s = min(self.deadline.left_s, self._cluster.settings.request_timeout_s)
        timeout_ms = int(timeout_s * 1000)
        body = encode_conditional(topic, partition.partition, self._batch, self._expected, timeout_ms, version)
        self._epoch = leader.epoch
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, True
        sent = connection.send_body(request_schema(_PRODUCE), version, body, timeout_s)
        frame, position = connection.receive_frame(sent, timeout_s)
        try:
            row = response_schema(_PRODUCE).read(Cursor(frame, position), version).responses[0].partition_responses[0]
            end = end_in_response(frame, position, version)
        except (MalformedMessage, IndexError) as error:
            raise WireError(f"{connection.address}: its response to a conditional append is malformed") from error
        code = error_code(row.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and end is not None:
            if end < self._expected and was_in_doubt:
                # The earlier attempt is written if it arrives when the partition has grown to the expected end.
                raise RetriableError(str(partition), ErrorCode.REQUEST_TIMED_OUT)
            raise UnexpectedEndError(partition, self._expected, end)
        if code.retriable:
            raise RetriableError(str(partition), code)
        if code is not ErrorCode.NONE:
            raise refusal(str(partition), code, row.error_message)
        if end is None:
            raise WireError(f"{connection.address} wrote the records to {partition}, but did not check the condition")
        return end

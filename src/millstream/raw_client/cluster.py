"""`Cluster`: sends requests to the right broker, and repeats them when leaders or coordinators have moved.

    with Cluster("localhost:9092") as cluster:
        ends = cluster.offsets({TopicPartition("orders", 0): LATEST})

Thread safe. Each call takes `timeout_s` at most (a fetch in addition its wait for records), then raises an error with
the last reason. Requests with retriable errors are repeated until then; other errors are raised at once.
"""

import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.raw_client.connection import Connection
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import ConnectionLostError, RetriableError, UnreachableError, error_code, refusal
from millstream.raw_client.fetching import Fetched, Fetcher, FetchTarget
from millstream.raw_client.model import Address, BrokerInfo, TopicInfo, TopicPartition, parse_bootstrap
from millstream.raw_client.offsets import CommittedOffset, LogOffsets, OffsetAndTime, commit_offsets, committed_offsets
from millstream.raw_client.pool import ConnectionPool, Connector
from millstream.raw_client.routing import CoordinatorKind, Coordinators, Leader, Routing, retriable_code
from millstream.raw_client.settings import parse_settings

_EXISTING_WAIT_MS = 500


class Cluster:
    """A client of a cluster. `settings` have the names of Kafka's Java client or of librdkafka."""

    def __init__(
        self,
        bootstrap: str,
        settings: Mapping[str, str] = {},
        *,
        client_id: str = "millstream",
        timeout_s: float = 30.0,
    ) -> None:
        self.bootstrap = bootstrap
        self._given = (bootstrap, dict(settings), client_id, timeout_s)
        self.settings = parse_settings(settings, client_id, timeout_s)
        self.timeout_s = self.settings.call_timeout_s
        self._pool = ConnectionPool(Connector(self.settings))
        weakref.finalize(self, self._pool.close)  # closes connections when the object is garbage
        self._routing = Routing(parse_bootstrap(bootstrap), self._pool)
        self._fetcher = Fetcher(self._routing, self._pool)
        self._coordinators = Coordinators(self._routing, self._pool)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Pickled as its settings: another process gets a new client."""
        return _remake, self._given

    def __repr__(self) -> str:
        return f"<Cluster at {self.bootstrap}>"

    @property
    def given_settings(self) -> Mapping[str, str]:
        """The settings as they were given, for another client to the same cluster. They may have secrets."""
        return self._given[1]

    @property
    def user(self) -> str:
        """The user of SASL; empty without SASL, and with a token."""
        return "" if self.settings.sasl is None else self.settings.sasl.username

    def close(self) -> None:
        """Closes idle connections at once, and others when their request is done."""
        self._pool.close()

    # Metadata

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """Topics, all or those given. Topics that do not exist are absent."""
        deadline = Deadline(self.timeout_s)
        return deadline.retry(lambda: self._routing.refresh(names, deadline))

    def partitions_of(self, topic: str) -> int:
        """The number of partitions of a topic."""
        deadline = Deadline(self.timeout_s)

        def attempt() -> int:
            self._routing.forget(topic)
            return len(self._routing.topic(topic, deadline).partitions)

        return deadline.retry(attempt)

    def only(self, address: str) -> "Cluster":
        """A client with the same settings for one address only, such as a broker that is not in the metadata."""
        _, settings, client_id, timeout_s = self._given
        return Cluster(address, settings, client_id=client_id, timeout_s=timeout_s)

    def brokers(self) -> list[BrokerInfo]:
        """The brokers that are not fenced."""
        self.topics(())
        return self._routing.brokers()

    def leader_of(self, partition: TopicPartition, deadline: Deadline | None = None) -> Leader:
        """The leader of a partition, as last known. Waits while there is none."""
        limit = deadline or Deadline(self.timeout_s)
        return limit.retry(lambda: self._routing.leader(partition, limit))

    def refresh_leader(self, topic: str) -> None:
        """The leader of a partition of this topic has moved: the next call reads the metadata again."""
        self._routing.forget(topic)

    # Reading

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = True
    ) -> dict[TopicPartition, OffsetAndTime]:
        """The offset at EARLIEST, LATEST or a time in ms of each partition; -1 if there is no record since that time.

        With `read_committed`, LATEST is the last stable offset, otherwise the high watermark.
        """
        return LogOffsets(self._routing, self._pool).find(wanted, Deadline(self.timeout_s), read_committed)

    def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int,
        min_bytes: int = 1,
        read_committed: bool = True,
        topic_id: UUID | None = None,
    ) -> Fetched:
        """Record batches from `offset` on. The first may start before it. Empty if there are none within `max_wait_ms`.

        With `topic_id`, a topic that was created again is refused with UNKNOWN_TOPIC_ID.
        """
        return self._fetcher.fetch(
            FetchTarget(partition, offset, max_bytes, max_wait_ms, min_bytes, read_committed, topic_id),
            Deadline(self.timeout_s + max_wait_ms / 1000),
        )

    def fetch_existing(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool = True,
        topic_id: UUID | None = None,
    ) -> Fetched:
        """As `fetch`, for an offset that was before the end: after an empty response it sends the request again. A
        consumer quota makes such responses, and records that come from a slow tier. Empty only if the partition ends
        there now. UnreachableError if no records come within the timeout."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            found = self.fetch(
                partition,
                offset,
                max_bytes=max_bytes,
                max_wait_ms=_EXISTING_WAIT_MS,
                read_committed=read_committed,
                topic_id=topic_id,
            )
            end = found.last_stable_offset if read_committed else found.high_watermark
            if len(found.data) or 0 <= end <= offset:
                return found
            if time.monotonic() > deadline:
                raise UnreachableError(f"{partition}: no records came from offset {offset} on", late=True)

    # Groups

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for a group without members."""
        commit_offsets(self.call_coordinator, group, offsets)

    def committed_offsets(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of a group. Partitions without one are absent."""
        found = committed_offsets(self.call_coordinator, group, partitions)
        return {partition: committed.offset for partition, committed in found.items()}

    def committed_metadata(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of a group with their metadata. Partitions without one are absent."""
        return committed_offsets(self.call_coordinator, group, partitions)

    # Any request

    def call(
        self,
        api: str,
        /,
        *,
        node: int | None = None,
        at_most: int | None = None,
        within_s: float | None = None,
        once: bool = False,
        **fields: Any,
    ) -> Message:
        """Sends any request, to a broker or to any, in the newest version that both sides have (`at_most` this one).

        Only failed connections are retried, and none with `once`. The caller checks the error codes of the response.
        """
        deadline = Deadline((within_s or self.timeout_s) + fields.get("timeout_ms", 0) / 1000, once=once)
        if node is None:
            return deadline.retry(lambda: self._routing.call_any(api, fields, deadline, at_most))
        return deadline.retry(lambda: self._call_node(node, api, fields, deadline, at_most))

    def call_every_broker(self, api: str, /, **fields: Any) -> dict[int, Message]:
        """The responses of all brokers that are not fenced, by node id. Repeated while a coordinator is loading."""
        responses: dict[int, Message] = {}
        for broker in self.brokers():
            deadline = Deadline(self.timeout_s)

            def attempt(node: int = broker.node_id, deadline: Deadline = deadline) -> Message:
                response = self._call_node(node, api, fields, deadline)
                code = retriable_code(response)
                if code is not None:
                    raise RetriableError(f"the coordinator on broker {node}", code)
                return response

            responses[broker.node_id] = deadline.retry(attempt)
        return responses

    def coordinator_of(self, key: str, kind: CoordinatorKind) -> Address:
        """The address of the coordinator of a group or transactional id."""
        deadline = Deadline(self.timeout_s)
        return deadline.retry(lambda: self._coordinators.find(key, kind, deadline))

    def call_coordinator(
        self, key: str, kind: CoordinatorKind, api: str, /, *, at_most: int | None = None, **fields: Any
    ) -> Message:
        """Sends a request to the coordinator of a group or transactional id. Repeated while it is loading or moving.

        The caller checks the other error codes of the response.
        """
        deadline = Deadline(self.timeout_s + fields.get("timeout_ms", 0) / 1000)
        return deadline.retry(lambda: self._coordinators.call(key, kind, api, fields, deadline, at_most))

    def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until all partitions have a leader. -1 leaves a number to the broker."""
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replication, "configs": rows}
        fields = {"topics": [topic | {"assignments": []}], "timeout_ms": int(self.timeout_s * 1000)}
        deadline = Deadline(self.timeout_s)
        uncertain = False

        def attempt() -> None:
            nonlocal uncertain
            (row,) = self._routing.call_any("create_topics", fields, deadline).topics
            code = error_code(row.error_code)
            if code.retriable:
                uncertain = True  # it may have been created, then the next attempt gets TOPIC_ALREADY_EXISTS
                raise RetriableError(f"topic {name!r}", code)
            if row.error_code and not (uncertain and code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise refusal(f"topic {name!r}", code, row.error_message)

        deadline.retry(attempt)
        for index in range(self.partitions_of(name)):
            self.leader_of(TopicPartition(name, index))

    @contextmanager
    def connection(self, node: int, deadline: Deadline | None = None) -> Iterator[Connection]:
        """A connection to a broker for the caller alone, for several requests in flight. Raises ConnectionLostError."""
        limit = deadline or Deadline(self.timeout_s)
        address = limit.retry(lambda: self._routing.address_of(node, limit))
        with self._pool.borrow(address, self._pool.wait_s(limit)) as connection:
            yield connection

    def _call_node(
        self, node: int, api: str, fields: dict[str, Any], deadline: Deadline, at_most: int | None = None
    ) -> Message:
        address = self._routing.address_of(node, deadline)
        try:
            return self._pool.call(address, api, fields, deadline, at_most)
        except ConnectionLostError as error:
            self._routing.note_failure(address)
            deadline.note(error)
            self._routing.refresh((), deadline)  # it may have another address now
            raise


def _remake(bootstrap: str, settings: Mapping[str, str], client_id: str, timeout_s: float) -> Cluster:
    return Cluster(bootstrap, settings, client_id=client_id, timeout_s=timeout_s)

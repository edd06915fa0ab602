"""A cluster as a program sees it: questions go to the right broker, and again when leaders or coordinators moved.

    with Cluster("localhost:9092") as cluster:
        ends = cluster.offsets({TopicPartition("orders", 0): LATEST})

Thread safe. Each call takes `timeout_s` at most (a fetch besides as long as it is told to wait for records), then
raises with the last reason. Refusals that pass by themselves are asked again until then; others are raised at once.
"""

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
from millstream.raw_client.errors import ConnectionLostError, RetriableError, error_code, refusal
from millstream.raw_client.fetching import Fetched, Fetcher, Wanted
from millstream.raw_client.model import Address, BrokerInfo, TopicInfo, TopicPartition, parse_bootstrap
from millstream.raw_client.offsets import LogOffsets, OffsetAndTime, commit_offsets, committed_offsets
from millstream.raw_client.pool import ConnectionPool, Connector
from millstream.raw_client.routing import CoordinatorKind, Coordinators, Leader, Routing, retriable_code
from millstream.raw_client.settings import parse_settings


class Cluster:
    """One per process and settings. `settings` has the names of Kafka's Java client or of librdkafka."""

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
        weakref.finalize(self, self._pool.close)  # one that is dropped leaves no connections behind
        self._routing = Routing(parse_bootstrap(bootstrap), self._pool)
        self._fetcher = Fetcher(self._routing, self._pool)
        self._coordinators = Coordinators(self._routing, self._pool)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """In another process it is a new one, with the same settings."""
        return _remake, self._given

    def __repr__(self) -> str:
        return f"<Cluster at {self.bootstrap}>"

    def close(self) -> None:
        """Closes the connections that are not in use; those in use when they are done."""
        self._pool.close()

    # What there is

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """Topics as they are now, all of them or those named; names that do not exist are absent."""
        deadline = Deadline(self.timeout_s)
        return deadline.retry(lambda: self._routing.refresh(names, deadline))

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has now."""
        deadline = Deadline(self.timeout_s)

        def ask() -> int:
            self._routing.forget(topic)
            return len(self._routing.topic(topic, deadline).partitions)

        return deadline.retry(ask)

    def only(self, address: str) -> "Cluster":
        """Another one with the same settings that asks this address alone: a broker that the metadata does not name."""
        _, settings, client_id, timeout_s = self._given
        return Cluster(address, settings, client_id=client_id, timeout_s=timeout_s)

    def brokers(self) -> list[BrokerInfo]:
        """The brokers that are up now."""
        self.topics(())
        return self._routing.brokers()

    def leader_of(self, partition: TopicPartition, deadline: Deadline | None = None) -> Leader:
        """Who leads the partition, as last heard; waits while nobody does."""
        patient = deadline or Deadline(self.timeout_s)
        return patient.retry(lambda: self._routing.leader(partition, patient))

    def refresh_leader(self, topic: str) -> None:
        """Whoever was told that a leader has moved says so here; the next call asks anew."""
        self._routing.forget(topic)

    # Reading

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = True
    ) -> dict[TopicPartition, OffsetAndTime]:
        """The offset at EARLIEST, LATEST or a time in ms, per partition; -1 if nothing was written since that time.

        With `read_committed`, LATEST is where the first open transaction begins, or the end if there is none.
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
        """Record batches from `offset` on: the first may begin before it. Empty if none came within `max_wait_ms`.

        With `topic_id`, a topic that was created anew since is refused (UNKNOWN_TOPIC_ID) instead of read.
        """
        return self._fetcher.fetch(
            Wanted(partition, offset, max_bytes, max_wait_ms, min_bytes, read_committed, topic_id),
            Deadline(self.timeout_s + max_wait_ms / 1000),
        )

    # Groups

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits for a group that has no members of its own, so that its progress shows in every tool."""
        commit_offsets(self.call_coordinator, group, offsets)

    def committed_offsets(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """What the group committed; partitions without a commit are absent."""
        return committed_offsets(self.call_coordinator, group, partitions)

    # Anything else

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
        """Any request, in the newest version that both sides know (`at_most` that one), to a broker or to any.

        Only connections are tried again, and not even they with `once`; the error codes in the answer are the caller's.
        """
        deadline = Deadline((within_s or self.timeout_s) + fields.get("timeout_ms", 0) / 1000, once=once)
        if node is None:
            return deadline.retry(lambda: self._routing.call_any(api, fields, deadline, at_most))
        return deadline.retry(lambda: self._ask_node(node, api, fields, deadline, at_most))

    def call_every_broker(self, api: str, /, **fields: Any) -> dict[int, Message]:
        """The answers of all brokers that are up, by node id; one whose coordinator loads is asked again."""
        answers: dict[int, Message] = {}
        for broker in self.brokers():
            deadline = Deadline(self.timeout_s)

            def ask(node: int = broker.node_id, deadline: Deadline = deadline) -> Message:
                answer = self._ask_node(node, api, fields, deadline)
                passing = retriable_code(answer)
                if passing is not None:
                    raise RetriableError(f"the coordinator on broker {node}", passing)
                return answer

            answers[broker.node_id] = deadline.retry(ask)
        return answers

    def coordinator_of(self, key: str, kind: CoordinatorKind) -> Address:
        """Where the coordinator of a group or transactional id is."""
        deadline = Deadline(self.timeout_s)
        return deadline.retry(lambda: self._coordinators.find(key, kind, deadline))

    def call_coordinator(
        self, key: str, kind: CoordinatorKind, api: str, /, *, at_most: int | None = None, **fields: Any
    ) -> Message:
        """A request to the coordinator of a group or transactional id, found and asked again while it loads or moves.

        Other error codes in the answer are the caller's.
        """
        deadline = Deadline(self.timeout_s + fields.get("timeout_ms", 0) / 1000)
        return deadline.retry(lambda: self._coordinators.ask(key, kind, api, fields, deadline, at_most))

    def create_topic(
        self, name: str, partitions: int = -1, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until it can be written to; -1 leaves a number to the broker."""
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replication, "configs": rows}
        fields = {"topics": [topic | {"assignments": []}], "timeout_ms": int(self.timeout_s * 1000)}
        deadline = Deadline(self.timeout_s)
        uncertain = False

        def ask() -> None:
            nonlocal uncertain
            (row,) = self._routing.call_any("create_topics", fields, deadline).topics
            code = error_code(row.error_code)
            if code.retriable:
                uncertain = True  # it may exist by now, and the next try says so
                raise RetriableError(f"topic {name!r}", code)
            if row.error_code and not (uncertain and code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise refusal(f"topic {name!r}", code, row.error_message)

        deadline.retry(ask)
        for index in range(self.partitions_of(name)):
            self.leader_of(TopicPartition(name, index))

    @contextmanager
    def connection(self, node: int, deadline: Deadline | None = None) -> Iterator[Connection]:
        """A connection to a broker for the caller alone, for requests in flight; it raises ConnectionLostError."""
        patient = deadline or Deadline(self.timeout_s)
        address = patient.retry(lambda: self._routing.address_of(node, patient))
        with self._pool.borrow(address, self._pool.wait_s(patient)) as connection:
            yield connection

    def _ask_node(
        self, node: int, api: str, fields: dict[str, Any], deadline: Deadline, at_most: int | None = None
    ) -> Message:
        address = self._routing.address_of(node, deadline)
        try:
            return self._pool.ask(address, api, fields, deadline, at_most)
        except ConnectionLostError as error:
            self._routing.note_failure(address)
            deadline.note(error)
            self._routing.refresh((), deadline)  # it may be back at another address
            raise


def _remake(bootstrap: str, settings: Mapping[str, str], client_id: str, timeout_s: float) -> Cluster:
    return Cluster(bootstrap, settings, client_id=client_id, timeout_s=timeout_s)

"""Transactions as single requests: start, add partitions, commit or abort.

A transaction is not bound to the process that started it: every process with its identity (transactional id, producer
id, epoch) can write in it or end it. Both versions of Kafka's transactions are supported. From version 2 on (KIP-890)
brokers add the partitions, and each end returns the identity of the next transaction.
"""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client.cluster import Cluster
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.errors import RefusedError, RetriableError, WireError, error_code, refusal
from millstream.raw_client.model import TopicPartition
from millstream.raw_client.routing import CoordinatorKind

EPOCH_PER_TRANSACTION = 2
"""The `transaction.version` from which each transaction has its own epoch."""
DEFAULT_MAX_TIMEOUT_MS = 900_000
"""The default of the broker setting `transaction.max.timeout.ms`."""
FENCED_CODES = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Error codes for an identity that has no open transaction any more."""
_TWO_PHASE_VERSION = 6
_THREADS = 8
_BROKER_RESOURCE = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """The producer of a transaction."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EndResult:
    """The result of one end of a transaction: `refused` is None, or the error."""

    identity: Identity
    refused: WireError | None


def idempotent_producer(cluster: Cluster) -> tuple[int, int]:
    """A producer id and epoch for writing without transactions. Repeated while a new broker has none yet."""

    def attempt() -> tuple[int, int]:
        response = cluster.call(
            "init_producer_id",
            at_most=_TWO_PHASE_VERSION - 1,
            transactional_id=None,
            transaction_timeout_ms=0,
            producer_id=-1,
            producer_epoch=-1,
        )
        code = error_code(response.error_code)
        if code.retriable:
            raise RetriableError("a producer id", code)
        if code is not ErrorCode.NONE:
            raise refusal("a producer id", code)
        return response.producer_id, response.producer_epoch

    return Deadline(cluster.timeout_s).retry(attempt)


class Transactions:
    """Transactions of one cluster. Thread safe."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int | None = None) -> None:
        """`timeout_ms` is for transactions that are not two-phase. None: the maximum of the brokers."""
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._version: int | None = None
        self._two_phase: bool | None = None
        self._describes = False

    @property
    def version(self) -> int:
        """The `transaction.version` of the cluster: 1 (also for 0) or 2."""
        if self._version is None:
            with self._cluster.connection(self._cluster.brokers()[0].node_id) as connection:
                level = connection.features.get("transaction.version", 0)
                self._two_phase = self._two_phase_possible(level, connection.version_of("init_producer_id"))
                self._describes = connection.knows("describe_transactions")
            self._version = EPOCH_PER_TRANSACTION if level >= EPOCH_PER_TRANSACTION else 1
        return self._version

    @staticmethod
    def _two_phase_possible(level: int, init_version: int) -> bool | None:
        """None: the broker supports it, and the first request shows whether it is allowed."""
        return None if level >= EPOCH_PER_TRANSACTION and init_version >= _TWO_PHASE_VERSION else False

    @property
    def two_phase(self) -> bool | None:
        """Whether transactions have no timeout (KIP-939). None until the first one has started."""
        return self._two_phase

    @property
    def max_produce_version(self) -> int | None:
        """The newest version of Produce for this transaction version."""
        return None if self.version >= EPOCH_PER_TRANSACTION else 11

    def take(self, transactional_id: str, *, two_phase: bool = True) -> Identity:
        """Fences other producers of this id and aborts its open transaction. Returns the identity of the new producer.

        Transactions have no timeout if the brokers allow that and `two_phase` is set.
        """
        if self.version and two_phase and self._two_phase is not False:
            try:
                identity = self._init(transactional_id, 0, two_phase=True)
            except RefusedError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    raise
                self._two_phase = False  # or the id itself is not allowed, which the next request shows
            else:
                self._two_phase = True
                return identity
        return self._init(transactional_id, self.timeout_ms, two_phase=False)

    @property
    def timeout_ms(self) -> int:
        """The timeout of transactions that are not two-phase."""
        if self._timeout_ms is None:
            self._timeout_ms = self._max_timeout_ms()
        return self._timeout_ms

    def _max_timeout_ms(self) -> int:
        node = self._cluster.brokers()[0].node_id
        resource = {
            "resource_type": _BROKER_RESOURCE,
            "resource_name": str(node),
            "configuration_keys": ["transaction.max.timeout.ms"],
        }
        response = self._cluster.call("describe_configs", node=node, resources=[resource])
        values = [int(each.value) for row in response.results for each in row.configs or () if each.value]
        return values[0] if values else DEFAULT_MAX_TIMEOUT_MS  # without permission to read it: the default

    def _init(self, transactional_id: str, timeout_ms: int, *, two_phase: bool) -> Identity:
        response = self._cluster.call_coordinator(
            transactional_id,
            CoordinatorKind.TRANSACTION,
            "init_producer_id",
            at_most=None if two_phase else _TWO_PHASE_VERSION - 1,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            enable2_pc=two_phase,
            keep_prepared_txn=False,
        )
        code = error_code(response.error_code)
        if code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            text = f"a transaction timeout of {timeout_ms} ms is more than the brokers' transaction.max.timeout.ms:"
            raise RefusedError(f"{text} set kafka.transaction.timeout.ms lower", code)
        if code is not ErrorCode.NONE:
            raise refusal(f"transactional id {transactional_id!r}", code)
        return Identity(transactional_id, response.producer_id, response.producer_epoch)

    def add_partitions(self, identity: Identity, partitions: Collection[TopicPartition]) -> None:
        """Adds partitions before they are written to. From version 2 on the brokers do it."""
        if self.version >= EPOCH_PER_TRANSACTION or not partitions:
            return
        topics: dict[str, list[int]] = {}
        for topic_partition in partitions:
            topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)
        named: list[dict[str, Any]] = [{"name": name, "partitions": numbers} for name, numbers in topics.items()]
        Deadline(self._cluster.timeout_s).retry(lambda: self._add(identity, named))

    def _add(self, identity: Identity, topics: list[dict[str, Any]]) -> None:
        response = self._cluster.call_coordinator(
            identity.transactional_id,
            CoordinatorKind.TRANSACTION,
            "add_partitions_to_txn",
            at_most=3,
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                code, what = error_code(row.partition_error_code), f"{topic.name}-{row.partition_index} in {identity}"
                if code.retriable:  # the previous transaction is still ending, or the coordinator is moving
                    raise RetriableError(what, code)
                if code is not ErrorCode.NONE:
                    raise refusal(what, code)

    def end(self, identity: Identity, *, commit: bool) -> Identity | None:
        """Ends the transaction. Idempotent. Returns the identity of the next one, None before version 2."""
        response = self._cluster.call_coordinator(
            identity.transactional_id,
            CoordinatorKind.TRANSACTION,
            "end_txn",
            at_most=None if self.version >= EPOCH_PER_TRANSACTION else 4,
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise refusal(f"the {'commit' if commit else 'abort'} of {identity}", code)
        if self.version < EPOCH_PER_TRANSACTION:
            return None
        return Identity(identity.transactional_id, response.producer_id, response.producer_epoch)

    def end_all(self, identities: Collection[Identity], *, commit: bool) -> list[EndResult]:
        """Ends many transactions in parallel. Errors are in the results."""

        def one(identity: Identity) -> EndResult:
            try:
                self.end(identity, commit=commit)
                return EndResult(identity, None)
            except WireError as error:
                return EndResult(identity, error)

        if len(identities) <= 1:
            return [one(each) for each in identities]
        with ThreadPoolExecutor(min(_THREADS, len(identities)), "millstream-end") as threads:
            return list(threads.map(one, identities))

    def init_all(self, ids: Iterable[str]) -> None:
        """`take` for many ids in parallel: fences their producers and aborts their transactions."""
        wanted = list(ids)
        if wanted:
            with ThreadPoolExecutor(min(_THREADS, len(wanted)), "millstream-take") as threads:
                list(threads.map(self.take, wanted))

    def ids_in_use(self, prefix: str, states: Collection[str] = ("Ongoing",)) -> set[str]:
        """Transactional ids with this prefix in one of these states, on all coordinators."""
        found: set[str] = set()
        for broker in self._cluster.brokers():
            listed = Deadline(self._cluster.timeout_s).retry(partial(self._list, broker.node_id, states))
            found |= {each for each in listed if each.startswith(prefix)}
        return found

    def is_known(self, transactional_id: str) -> bool:
        """Whether a coordinator knows this id. False for brokers before Kafka 3.0, which have no request for that."""
        return (
            bool(self.version)
            and self._describes
            and Deadline(self._cluster.timeout_s).retry(partial(self._describe, transactional_id))
        )

    def _describe(self, transactional_id: str) -> bool:
        response = self._cluster.call_coordinator(
            transactional_id,
            CoordinatorKind.TRANSACTION,
            "describe_transactions",
            transactional_ids=[transactional_id],
        )
        code = error_code(response.transaction_states[0].error_code)
        if code.retriable:
            raise RetriableError(f"transactional id {transactional_id!r}", code)
        if code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
            raise refusal(f"transactional id {transactional_id!r}", code)
        return code is ErrorCode.NONE

    def _list(self, node: int, states: Collection[str]) -> list[str]:
        response = self._cluster.call(
            "list_transactions",
            node=node,
            state_filters=list(states),
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern=None,
        )
        code, what = error_code(response.error_code), f"the list of transactions of broker {node}"
        if code.retriable:  # the coordinator is loading
            raise RetriableError(what, code)
        if code is not ErrorCode.NONE:
            raise refusal(what, code)
        return [row.transactional_id for row in response.transaction_states]

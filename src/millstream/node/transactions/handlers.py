"""Handlers of the transaction APIs.

InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), WriteTxnMarkers (27), DescribeProducers
(61), DescribeTransactions (65), ListTransactions (66). AddPartitionsToTxn has two forms: up to version 3 a client adds
partitions to its transaction; from version 4 on brokers add or verify partitions of several transactions.
"""

import asyncio
from collections.abc import Callable, Iterable

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, ProducerIdentity, TopicName, TopicPartition
from millstream.formats.protocol.wire_types import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTransactions,
    AddPartitionsToTxnRequestTransactionsTopics,
    AddPartitionsToTxnRequestV3AndBelowTopics,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseResultsByTransactionTopicResults,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponseTopics,
    DescribeProducersResponseTopicsPartitions,
    DescribeProducersResponseTopicsPartitionsActiveProducers,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionStates,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionStates,
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestMarkers,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseMarkers,
    WriteTxnMarkersResponseMarkersTopicsPartitions,
)
from millstream.node.coordination.core.expression import Expression
from millstream.node.coordination.core.state_machine import KnownEpochs
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, check_topic_name
from millstream.node.replicas.local_partition import Role
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionDirectory, PartitionTable
from millstream.node.server.request import Context
from millstream.node.transactions.coordinator import ProducerIds, TransactionCoordinator
from millstream.node.transactions.core.shard import STATES_BY_LABEL, TransactionFilter
from millstream.node.transactions.core.transaction import EPOCH_PER_TRANSACTION, Transaction
from millstream.node.transactions.markers import MarkerResults, MarkerWriter

_FIRST_WITH_PRODUCER_FENCED = 2
_FIRST_BY_BROKERS = 4
_FIRST_END_WITH_EPOCHS = 5
"""From this version on EndTxn raises the epoch, and returns it to the client."""

Results = dict[TopicPartition, ErrorCode]
_Topics = Iterable[AddPartitionsToTxnRequestTransactionsTopics | AddPartitionsToTxnRequestV3AndBelowTopics]


class TransactionHandlers:
    def __init__(
        self, coordinator: TransactionCoordinator, groups: GroupCoordinator, image: Callable[[], MetadataImage]
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._image = image

    # Partitions

    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, context: Context
    ) -> AddPartitionsToTxnResponse:
        version = context.version
        if version >= _FIRST_BY_BROKERS:
            results = await asyncio.gather(*(self._by_broker(row) for row in request.transactions))
            return {
                "results_by_transaction": [
                    {"transactional_id": row.transactional_id, "topic_results": _rows(row.topics, each)}
                    for row, each in zip(request.transactions, results, strict=True)
                ]
            }
        client = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        partitions = _partitions(request.v3_and_below_topics)
        codes = self._refused(partitions, are_internal_refused=True)
        if not codes:
            transactional_id = request.v3_and_below_transactional_id
            code = await self._added(transactional_id, client, partitions, client_version=0)
            codes = dict.fromkeys(partitions, _code(code, version))
        return {
            "results_by_transaction": [],
            "results_by_topic_v3_and_below": _rows(request.v3_and_below_topics, codes),
        }

    async def _by_broker(self, row: AddPartitionsToTxnRequestTransactions) -> Results:
        partitions = _partitions(row.topics)
        refused = self._refused(partitions)
        if refused:
            return refused
        return await self._coordinator.verify(
            row.transactional_id, row.producer_id, row.producer_epoch, partitions, adds=not row.verify_only
        )

    def _refused(self, partitions: Iterable[TopicPartition], *, are_internal_refused: bool = False) -> Results:
        """If one partition cannot be added, none is. Empty if all can."""
        image = self._image()
        results = {}
        for at in partitions:
            code = ErrorCode.OPERATION_NOT_ATTEMPTED
            if are_internal_refused and at.topic in INTERNAL_TOPICS:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED  # only brokers write there; AddOffsetsToTxn is for groups
            elif image.partition(at) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results[at] = code
        return {} if all(code == ErrorCode.OPERATION_NOT_ATTEMPTED for code in results.values()) else results

    async def _added(
        self,
        transactional_id: str,
        client: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> ErrorCode:
        try:
            await self._coordinator.add_partitions(transactional_id, client, partitions, client_version=client_version)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    async def add_offsets_to_txn(self, request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse:
        client = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            await self._groups.ensure_topic()
            at = TopicPartition(CONSUMER_OFFSETS_TOPIC, self._groups.partition_of(request.group_id))
        except KafkaError as error:
            return {"error_code": error.code}
        code = await self._added(request.transactional_id, client, (at,), client_version=0)
        return {"error_code": _code(code, context.version)}

    # EndTxn

    async def end_txn(self, request: EndTxnRequest, context: Context) -> EndTxnResponse:
        with_epochs = context.version >= _FIRST_END_WITH_EPOCHS
        try:
            client = await self._coordinator.end(
                request.transactional_id,
                ProducerIdentity(request.producer_id, request.producer_epoch),
                committed=request.committed,
                client_version=EPOCH_PER_TRANSACTION if with_epochs else 0,
            )
        except KafkaError as error:
            return {"error_code": _code(error.code, context.version)}
        return {"producer_id": client.producer_id, "producer_epoch": client.epoch}

    # Administration

    async def describe_transactions(
        self, request: DescribeTransactionsRequest, context: Context
    ) -> DescribeTransactionsResponse:
        return {
            "transaction_states": [await self._described(each) for each in dict.fromkeys(request.transactional_ids)]
        }

    async def _described(self, transactional_id: str) -> DescribeTransactionsResponseTransactionStates:
        try:
            transaction = await self._coordinator.describe(transactional_id)
        except KafkaError as error:
            return {
                "transactional_id": transactional_id,
                "error_code": error.code,
                "transaction_state": "",
                "transaction_timeout_ms": 0,
                "transaction_start_time_ms": 0,
                "producer_id": 0,
                "producer_epoch": 0,
                "topics": [],
            }
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(transaction.partitions):
            topics.setdefault(topic, []).append(index)
        return {
            "transactional_id": transactional_id,
            "producer_id": transaction.producer_id,
            "transaction_state": transaction.state.label,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.start_ms,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
        }

    async def list_transactions(self, request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
        unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES_BY_LABEL]
        states = [STATES_BY_LABEL[name] for name in request.state_filters if name in STATES_BY_LABEL]
        text = request.transactional_id_pattern
        try:
            found = await self._coordinator.select(
                TransactionFilter(
                    states=frozenset(states) if request.state_filters else None,
                    producer_ids=frozenset(request.producer_id_filters),
                    longer_than_ms=request.duration_filter,
                    pattern=Expression(text, "TransactionalIdPattern") if text else None,
                )
            )
        except KafkaError as error:
            return {"error_code": error.code, "unknown_state_filters": unknown, "transaction_states": []}
        return {"unknown_state_filters": unknown, "transaction_states": [_row(each) for each in found]}


def _row(transaction: Transaction) -> ListTransactionsResponseTransactionStates:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": transaction.state.label,
    }


def _code(code: ErrorCode, version: int) -> ErrorCode:
    """Old clients only know INVALID_PRODUCER_EPOCH for a fenced producer."""
    if code == ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _partitions(topics: _Topics) -> list[TopicPartition]:
    return [TopicPartition(TopicName(topic.name), index) for topic in topics for index in topic.partitions]


def _rows(topics: _Topics, results: Results) -> list[AddPartitionsToTxnResponseResultsByTransactionTopicResults]:
    """The rows of the response, in the order of the request."""
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": results[TopicPartition(TopicName(topic.name), index)],
                }
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


class ProducerHandlers:
    def __init__(self, partitions: PartitionTable, cluster: PartitionDirectory) -> None:
        self._table = partitions
        self._cluster = cluster

    def describe_producers(self, request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
        """Followers respond too: hanging transactions may be searched on any replica."""
        topics: list[DescribeProducersResponseTopics] = []
        for topic in request.topics:
            rows: list[DescribeProducersResponseTopicsPartitions] = []
            # Each partition once: the response is much longer than the request.
            for index in dict.fromkeys(topic.partition_indexes):
                try:
                    found = self._producers(self._find(topic.name, index))
                    rows.append({"partition_index": index, "active_producers": found})
                except (KafkaError, OSError) as error:
                    code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
                    rows.append(
                        {
                            "partition_index": index,
                            "error_code": code,
                            "error_message": str(error),
                            "active_producers": [],
                        }
                    )
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    def _find(self, topic: str, index: int) -> Partition:
        check_topic_name(topic)
        name = topic.encode()
        if index not in self._table.by_name.get(name, {}) and self._cluster.state_in_metadata(name, False, index):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node has no replica of the partition")
        partition = self._table.find(topic, index)
        if partition.role is Role.OFFLINE:
            raise partition.not_leader()
        return partition

    @staticmethod
    def _producers(partition: Partition) -> list[DescribeProducersResponseTopicsPartitionsActiveProducers]:
        return [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.last_timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.transaction_start,
            }
            for entry in partition.log.producers.entries.values()
        ]


class TxnMarkerHandlers:
    def __init__(self, writer: MarkerWriter, epochs: KnownEpochs) -> None:
        self._writer = writer
        self._epochs = epochs

    async def write_txn_markers(self, request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
        """Responds for each producer. If a partition has several markers, its first error counts."""
        highest = self._epochs.highest_coordinator_epoch()
        # All are appended before the first is awaited.
        appended = [(row, self._written(row, highest)) for row in request.markers]
        results: dict[int, dict[TopicPartition, ErrorCode]] = {}
        try:
            for row, outcome in appended:
                known = results.setdefault(row.producer_id, {})
                for at, error in (await outcome).items():
                    known[at] = known.get(at) or error
        except BaseException:  # cancelled: the interpreter warns of coroutines that were never awaited
            for _, outcome in appended:
                outcome.close()
            raise
        return {"markers": [_marker_row(producer_id, outcomes) for producer_id, outcomes in results.items()]}

    def _written(self, row: WriteTxnMarkersRequestMarkers, highest: int) -> MarkerResults:
        if row.coordinator_epoch > highest:
            return _markers_refused(row)
        return self._writer.write(_marker(row), _marker_partitions(row))


async def _markers_refused(row: WriteTxnMarkersRequestMarkers) -> dict[TopicPartition, ErrorCode]:
    """For an unknown coordinator epoch. Coordinators, also Kafka's, retry the marker after this error."""
    return dict.fromkeys(_marker_partitions(row), ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _marker(row: WriteTxnMarkersRequestMarkers) -> Marker:
    return Marker(
        row.producer_id, row.producer_epoch, row.coordinator_epoch, row.transaction_result, row.transaction_version
    )


def _marker_partitions(row: WriteTxnMarkersRequestMarkers) -> list[TopicPartition]:
    return [TopicPartition(TopicName(topic.name), index) for topic in row.topics for index in topic.partition_indexes]


def _marker_row(producer_id: int, outcomes: dict[TopicPartition, ErrorCode]) -> WriteTxnMarkersResponseMarkers:
    topics: dict[str, list[WriteTxnMarkersResponseMarkersTopicsPartitions]] = {}
    for at, error in outcomes.items():
        topics.setdefault(at.topic, []).append({"partition_index": at.partition, "error_code": error})
    return {
        "producer_id": producer_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }


_FIRST_INIT_WITH_PRODUCER_FENCED = 4


class ProducerIdHandlers:
    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def init_producer_id(self, request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
        try:
            expected = _expected(request)
            if request.transactional_id is None:
                # An idempotent producer raises its epoch itself; a requested id is always new.
                return {"producer_id": await self._producer_ids.take(), "producer_epoch": 0}
            return await self._transactional(request, expected)
        except KafkaError as error:
            code = error.code
            if code == ErrorCode.PRODUCER_FENCED and context.version < _FIRST_INIT_WITH_PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH  # the only error that these clients know
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}

    async def _transactional(
        self, request: InitProducerIdRequest, expected: ProducerIdentity | None
    ) -> InitProducerIdResponse:
        assert request.transactional_id is not None
        begun = await self._transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            expected,
            two_phase_commit=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
        )
        fields: InitProducerIdResponse = {
            "producer_id": begun.producer.producer_id,
            "producer_epoch": begun.producer.epoch,
        }
        if begun.ongoing is not None:
            fields["ongoing_txn_producer_id"] = begun.ongoing.producer_id
            fields["ongoing_txn_producer_epoch"] = begun.ongoing.epoch
        return fields


def _expected(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """The producer id and epoch that the client had."""
    if request.producer_id != -1 and request.producer_epoch != -1:
        return ProducerIdentity(request.producer_id, request.producer_epoch)
    if request.producer_id != request.producer_epoch:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id needs an epoch, and an epoch needs a producer id")
    return None

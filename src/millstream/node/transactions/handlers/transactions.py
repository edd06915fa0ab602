"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), DescribeTransactions (65), ListTransactions (66).

AddPartitionsToTxn has two forms: up to version 3 a client adds partitions to its own transaction; from version 4 on
brokers add or verify those of several.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity, TopicName, TopicPartition
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.core.expression import Expression
from millstream.node.groups.group_coordinator import GROUP_TOPIC, GroupCoordinator
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.topic_names import INTERNAL_TOPICS
from millstream.node.server.request import Context, Response
from millstream.node.transactions.core.transaction import EPOCH_PER_TRANSACTION, Transaction
from millstream.node.transactions.core.transaction_list import STATES_BY_LABEL, TransactionFilter
from millstream.node.transactions.transaction_coordinator import TransactionCoordinator

_FIRST_WITH_PRODUCER_FENCED = 2
_FIRST_BY_BROKERS = 4
_FIRST_END_WITH_EPOCHS = 5
"""EndTxn of this version raises the epoch, and tells the client."""

Results = dict[TopicPartition, ErrorCode]


class TransactionHandlers:
    def __init__(
        self, coordinator: TransactionCoordinator, groups: GroupCoordinator, image: Callable[[], MetadataImage]
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._image = image

    # Partitions

    async def add_partitions_to_txn(self, request: Message, context: Context) -> Response:
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
        told = self._refused(partitions, are_internal_refused=True)
        if not told:
            transactional_id = request.v3_and_below_transactional_id
            code = await self._added(transactional_id, client, partitions, client_version=0)
            told = dict.fromkeys(partitions, _code(code, version))
        return {"results_by_topic_v3_and_below": _rows(request.v3_and_below_topics, told)}

    async def _by_broker(self, row: Message) -> Results:
        partitions = _partitions(row.topics)
        refused = self._refused(partitions)
        if refused:
            return refused
        return await self._coordinator.verify(
            row.transactional_id, row.producer_id, row.producer_epoch, partitions, adds=not row.verify_only
        )

    def _refused(self, partitions: Iterable[TopicPartition], *, are_internal_refused: bool = False) -> Results:
        """All or nothing: if one of them cannot be added, none is. Empty if all can."""
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

    async def add_offsets_to_txn(self, request: Message, context: Context) -> Response:
        client = ProducerIdentity(request.producer_id, request.producer_epoch)
        try:
            await self._groups.ensure_topic()
            at = TopicPartition(GROUP_TOPIC, self._groups.partition_of(request.group_id))
        except KafkaError as error:
            return {"error_code": error.code}
        code = await self._added(request.transactional_id, client, (at,), client_version=0)
        return {"error_code": _code(code, context.version)}

    # The end

    async def end_txn(self, request: Message, context: Context) -> Response:
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

    # For tools

    async def describe_transactions(self, request: Message, context: Context) -> Response:
        return {
            "transaction_states": [await self._described(each) for each in dict.fromkeys(request.transactional_ids)]
        }

    async def _described(self, transactional_id: str) -> dict[str, Any]:
        try:
            transaction = await self._coordinator.describe(transactional_id)
        except KafkaError as error:
            return {"transactional_id": transactional_id, "error_code": error.code, "transaction_state": ""}
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(transaction.partitions):
            topics.setdefault(topic, []).append(index)
        return {
            **_row(transaction),
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.start_ms,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
        }

    async def list_transactions(self, request: Message, context: Context) -> Response:
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


def _row(transaction: Transaction) -> dict[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": transaction.state.label,
    }


def _code(code: ErrorCode, version: int) -> ErrorCode:
    """Clients of long ago know only one word for a producer that was fenced."""
    if code == ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _partitions(topics: Iterable[Message]) -> list[TopicPartition]:
    return [TopicPartition(TopicName(topic.name), index) for topic in topics for index in topic.partitions]


def _rows(topics: Iterable[Message], results: Results) -> list[dict[str, Any]]:
    """As they were asked for."""
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

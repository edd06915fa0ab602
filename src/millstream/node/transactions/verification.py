"""Verifies with the coordinator that a partition belongs to a transaction, before its first batch (KIP-890).

Without this, a delayed batch could arrive after the end of its transaction, and open a transaction that no coordinator
knows. With `adds` the request also adds the partitions, as transaction version 2 does.

A coordinator on this broker is called directly. Another broker gets one request at a time; verifications that arrive
meanwhile go into the next request.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from millstream.common.background_tasks import BackgroundTasks
from millstream.common.lazy_dataclass import dataclass
from millstream.config.table import transactions as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.schema import Message
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.environment import Environment
from millstream.node.metadata.records import NO_LEADER
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC

_VERSION = 5
_REQUEST_TIMEOUT_SECONDS = 10.0

_log = logging.getLogger("millstream.transactions")

Results = dict[TopicPartition, ErrorCode]


class LocalCoordinator(Protocol):
    """The transaction coordinator on this broker, for the transactional ids that it coordinates."""

    def partition_of(self, transactional_id: str) -> int: ...

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Results:
        """The result for each partition; NONE if the transaction has it."""
        ...


@dataclass(slots=True)
class _PendingVerification:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    adds: bool
    response: "asyncio.Future[Results]"

    def all(self, error: ErrorCode) -> Results:
        return dict.fromkeys(self.partitions, error)


class TransactionVerification:
    def __init__(
        self, view: ClusterView, local: LocalCoordinator, peers: BrokerChannels, environment: Environment
    ) -> None:
        self._view = view
        self._local = local
        self._peers = peers
        self._loop = environment.loop
        self._queued: dict[int, list[_PendingVerification]] = {}
        """For each broker with a request in flight: the verifications for the next request."""
        self._tasks = BackgroundTasks()

    def close(self) -> None:
        self._tasks.cancel()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Results:
        """The coordinator's result for each partition.

        While the last transaction is still ending, the request is retried for a short time: a retry by the client would
        take much longer. An outdated epoch gets INVALID_PRODUCER_EPOCH, which producers expect.
        """
        config = self._view.config
        until = self._loop.time() + config[settings.ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MAX_MS] / 1000
        while True:
            results = await self._verify_once(transactional_id, producer_id, producer_epoch, partitions, adds)
            if ErrorCode.CONCURRENT_TRANSACTIONS not in results.values() or self._loop.time() >= until:
                break
            await asyncio.sleep(config[settings.ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS] / 1000)
        return {
            at: ErrorCode.INVALID_PRODUCER_EPOCH if error == ErrorCode.PRODUCER_FENCED else error
            for at, error in results.items()
        }

    async def _verify_once(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        adds: bool,
    ) -> Results:
        try:
            index = self._local.partition_of(transactional_id)
            state = self._view.image.partition(TopicPartition(TRANSACTION_STATE_TOPIC, index))
            if state is None or state.leader == NO_LEADER:
                return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if state.leader == self._view.node_id:
                return await self._local.verify(transactional_id, producer_id, producer_epoch, partitions, adds=adds)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        response: asyncio.Future[Results] = self._loop.create_future()
        pending = _PendingVerification(transactional_id, producer_id, producer_epoch, partitions, adds, response)
        queued = self._queued.get(state.leader)
        if queued is not None:
            queued.append(pending)
        else:
            self._queued[state.leader] = [pending]
            self._tasks.start(self._send_queued(state.leader), loop=self._loop)
        return await response

    # Coordinators on other brokers

    async def _send_queued(self, broker_id: int) -> None:
        queued = self._queued[broker_id]
        try:
            while queued:
                # A request has each transaction once; the others wait for the next request.
                batch: dict[str, _PendingVerification] = {}
                rest = [each for each in queued if batch.setdefault(each.transactional_id, each) is not each]
                queued[:] = rest
                await self._send(broker_id, batch)
        finally:
            del self._queued[broker_id]
            for pending in queued:
                _resolve(pending, pending.all(ErrorCode.NETWORK_EXCEPTION))

    async def _send(self, broker_id: int, batch: dict[str, _PendingVerification]) -> None:
        fields = {"transactions": [_fields(each) for each in batch.values()]}
        failure = ErrorCode.NETWORK_EXCEPTION
        try:
            response = await self._peers.request(
                broker_id, "add_partitions_to_txn", fields, timeout_s=_REQUEST_TIMEOUT_SECONDS, version=_VERSION
            )
        except OSError as error:
            _log.info("coordinator_not_reached broker=%d error=%s", broker_id, error)
        else:
            failure = ErrorCode(response.error_code)
            if failure == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                failure = ErrorCode.INVALID_TXN_STATE  # this broker is not authorized; the client is not at fault
            if failure == ErrorCode.NONE:
                for row in response.results_by_transaction:
                    pending = batch.get(row.transactional_id)
                    if pending is not None:
                        # A partition that is missing in the response is not in the transaction.
                        _resolve(pending, pending.all(ErrorCode.INVALID_TXN_STATE) | _results(row))
                failure = ErrorCode.INVALID_TXN_STATE
        finally:
            for pending in batch.values():
                _resolve(pending, pending.all(failure))


def for_producer(error: ErrorCode, version: int) -> ErrorCode:
    """The error for a client's version of Produce, from the coordinator's error.

    All producers retry NOT_ENOUGH_REPLICAS; not all of them retry the coordinator's errors.
    """
    if error in _RETRIABLE or (error == ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_PRODUCE_THAT_ADDS):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error


FIRST_PRODUCE_THAT_ADDS = 12
"""The first version of Produce that adds its partitions to the transaction."""
_FIRST_WITH_ABORTABLE = 11
_RETRIABLE = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def _resolve(pending: _PendingVerification, results: Results) -> None:
    if not pending.response.done():
        pending.response.set_result(results)


def _fields(pending: _PendingVerification) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, index in pending.partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "transactional_id": pending.transactional_id,
        "producer_id": pending.producer_id,
        "producer_epoch": pending.producer_epoch,
        "verify_only": not pending.adds,
        "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
    }


def _results(row: Message) -> Results:
    return {
        TopicPartition(TopicName(topic.name), each.partition_index): ErrorCode(each.partition_error_code)
        for topic in row.topic_results
        for each in topic.results_by_partition
    }

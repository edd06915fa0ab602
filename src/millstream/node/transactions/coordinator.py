"""The transaction coordinator: runs operations on an id's partition of `__transaction_state`; producer ids.

The internal topic is created when it is first needed. The epoch of a coordinator is the leader epoch of its partition;
partitions refuse markers with an earlier epoch. The outcome of a transaction is committed first, then its markers are
written, then it is complete. A new coordinator continues from the state in the log.

The state machine is `core/shard.py`, its runtime `coordination/runtime.py`; markers are sent by `markers.py`.
`ProducerIds` has the producer ids of this broker, in blocks from the controller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.table import transactions as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity, TopicPartition
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.controller_link import ControllerLink
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.coordination.core.state_machine import CoordinatorResult
from millstream.node.coordination.runtime import CoordinatorRuntime, CoordinatorShards, java_hash
from millstream.node.environment import Environment
from millstream.node.metadata.features import transaction_version
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.opening_limits import replay_limits
from millstream.node.transactions.core.shard import (
    DecisionsHeld,
    TransactionFilter,
    TransactionSettings,
    TransactionShard,
)
from millstream.node.transactions.core.transaction import (
    EPOCH_PER_TRANSACTION,
    NO_TIMEOUT_MS,
    ProducerIdNeeded,
    ProducerStart,
    StartedProducer,
    Transaction,
)
from millstream.node.transactions.markers import TransactionMarkers


class ProducerIds:
    """New producer ids, in blocks that the controller allocates to this broker."""

    def __init__(self, link: ControllerLink, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        """`broker_epoch` returns the current epoch of this broker's registration."""
        self._link = link
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._next = self._end = 0
        self._refill = asyncio.Lock()

    async def take(self) -> int:
        """A new producer id; COORDINATOR_LOAD_IN_PROGRESS if there is none now."""
        async with self._refill:
            if self._next == self._end:
                own = {"broker_id": self._broker_id, "broker_epoch": self._broker_epoch()}
                block = await self._link.request("allocate_producer_ids", own)
                if block.error_code:
                    # The broker is not registered now; the producer must retry.
                    raise KafkaError(
                        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no producer ids are available now; try again"
                    )
                self._next = block.producer_id_start
                self._end = block.producer_id_start + block.producer_id_len
            taken = self._next
            self._next += 1
            return taken


_log = logging.getLogger("millstream.transactions")


class DecisionHold:
    """The hold of a backup (`millstream.transaction.hold`): decisions of transactions wait while it is on. Each new
    value starts one hold, for the time in the value. So the hold of a backup that was killed ends too."""

    def __init__(self) -> None:
        self._seen = ""
        self._until_s = 0.0

    def is_on(self, value: str, now_s: float) -> bool:
        if value != self._seen:
            self._seen = value
            self._until_s = now_s + settings.hold_ms(value) / 1000
        return now_s < self._until_s


class TransactionShards(CoordinatorShards):
    """The runtimes of the partitions of `__transaction_state` that this broker leads."""

    def __init__(self, view: ClusterView, partitions: PartitionTable, environment: Environment) -> None:
        super().__init__(TRANSACTION_STATE_TOPIC, partitions, environment, self._new_transaction_runtime, _log)
        self._view = view
        self._hold = DecisionHold()
        self.on_decided: Callable[[CoordinatorRuntime, Transaction], None] = lambda runtime, decided: None
        """Called with each transaction whose outcome was decided, by an operation or in the log that was loaded."""

    def _new_transaction_runtime(self, partition: Partition) -> CoordinatorRuntime:
        shard = TransactionShard(self._shard_settings)
        runtime = CoordinatorRuntime(
            partition, shard, self._environment, limits=lambda: replay_limits(self._view.config)
        )
        shard.on_decided = lambda decided: self.on_decided(runtime, decided)
        return runtime

    def _shard_settings(self) -> TransactionSettings:
        config = self._view.config
        return TransactionSettings(
            transaction_version=transaction_version(self._view.image),
            expiration_ms=config[settings.TRANSACTIONAL_ID_EXPIRATION_MS],
            abort_interval_ms=config[settings.TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS],
            expiry_interval_ms=config[settings.TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS],
            decisions_held=self._hold.is_on(config[settings.TRANSACTION_HOLD], self._environment.loop.time()),
        )


def shard_of(runtime: CoordinatorRuntime) -> TransactionShard:
    assert isinstance(runtime.state, TransactionShard)
    return runtime.state


_MAX_ENDING_WAIT_SECONDS = 0.1
"""How long a request waits for the end of the last transaction, counted from its decision. Markers rarely take longer,
but a retry of the client does. If they take longer, the client gets CONCURRENT_TRANSACTIONS.
"""
_DECISION_HOLD_CHECK_SECONDS = 0.02
"""The interval at which a request that would decide a transaction checks whether the hold of a backup is over."""
_FIRST_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 2.0

R = TypeVar("R")


class _EndingTransaction(NamedTuple):
    """A transaction whose markers are being written."""

    done: "asyncio.Future[None]"
    since_s: float


class TransactionCoordinator:
    """Runs operations of transactional ids that this broker coordinates, and completes their transactions."""

    def __init__(
        self,
        view: ClusterView,
        partitions: PartitionTable,
        internal_topics: InternalTopics,
        producer_ids: ProducerIds,
        markers: TransactionMarkers,
        environment: Environment,
    ) -> None:
        self._view = view
        self._internal_topics = internal_topics
        self._producer_ids = producer_ids
        self._markers = markers
        self._environment = environment
        self._shards = TransactionShards(view, partitions, environment)
        self._shards.on_decided = self._on_decided
        self._shards.on_closed = self._on_closed
        self._ending: dict[str, _EndingTransaction] = {}
        """Transactional ids whose transaction is ending, for requests that wait for it."""
        self._background = BackgroundTasks()

    # The partition of a transactional id

    async def ensure_topic(self) -> None:
        """Creates `__transaction_state` unless it exists; COORDINATOR_NOT_AVAILABLE if that fails."""
        if TRANSACTION_STATE_TOPIC in self._view.image.topics:
            return
        config = self._view.config
        await self._internal_topics.ensure(
            TRANSACTION_STATE_TOPIC,
            config[settings.TRANSACTION_STATE_LOG_NUM_PARTITIONS],
            config[settings.TRANSACTION_STATE_LOG_REPLICATION_FACTOR],
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": str(config[settings.TRANSACTION_STATE_LOG_MIN_ISR]),
                "segment.bytes": str(config[settings.TRANSACTION_STATE_LOG_SEGMENT_BYTES]),
            },
        )

    def partition_of(self, transactional_id: str) -> int:
        """The partition of TRANSACTION_STATE_TOPIC whose leader coordinates the transactions of that id."""
        topic = self._view.image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{TRANSACTION_STATE_TOPIC} does not exist yet")
        return java_hash(transactional_id) % len(topic.partitions)

    # Operations

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        *,
        two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> StartedProducer:
        """The producer id and epoch for a client that starts, or that continues after an error."""
        config = self._view.config
        if two_phase_commit and not config[settings.TRANSACTION_TWO_PHASE_COMMIT_ENABLE]:
            # Kafka's error, so that clients cannot find out the brokers' settings.
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is disabled")
        if keep_prepared and self._version < EPOCH_PER_TRANSACTION:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "KeepPreparedTxn needs transaction.version 2")
        longest_ms = config[settings.TRANSACTION_MAX_TIMEOUT_MS]
        if not two_phase_commit and not 0 < timeout_ms <= longest_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction timeout of {timeout_ms} ms is not from 1 to {longest_ms} ms",
            )

        def operation(shard: TransactionShard, now_ms: int, new_id: int | None) -> CoordinatorResult[StartedProducer]:
            start = ProducerStart(
                transactional_id=transactional_id,
                timeout_ms=NO_TIMEOUT_MS if two_phase_commit else timeout_ms,
                expected=expected,
                keep_prepared=keep_prepared,
                new_producer_id=new_id,
            )
            return shard.start_producer(start, now_ms)

        return await self._retry_while_ending(transactional_id, lambda: self._run_with_id(transactional_id, operation))

    async def add_partitions(
        self,
        transactional_id: str,
        client: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Returns when the partitions are part of the transaction; KafkaError if they cannot be."""
        wanted = frozenset(partitions)

        def operation(shard: TransactionShard, now_ms: int) -> CoordinatorResult[None]:
            return shard.add_partitions(transactional_id, client, wanted, client_version, now_ms)

        await self._retry_while_ending(transactional_id, lambda: self._run(transactional_id, operation))

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """For leaders of partitions: whether these are part of the transaction. With `adds` they are added to it."""
        client = ProducerIdentity(producer_id, producer_epoch)
        try:
            if adds:
                await self.add_partitions(transactional_id, client, partitions, client_version=EPOCH_PER_TRANSACTION)
                return dict.fromkeys(partitions, ErrorCode.NONE)
            return await self._run(
                transactional_id,
                lambda shard, now_ms: CoordinatorResult(shard.verify(transactional_id, client, partitions)),
            )
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)

    async def end(
        self, transactional_id: str, client: ProducerIdentity, *, committed: bool, client_version: int
    ) -> ProducerIdentity:
        """Decides the outcome. Returns the producer id and epoch that the client has from now on; the markers are
        written later."""

        def operation(shard: TransactionShard, now_ms: int, new_id: int | None) -> CoordinatorResult[ProducerIdentity]:
            return shard.end(transactional_id, client, committed, client_version, now_ms, new_id)

        return await self._retry_while_ending(transactional_id, lambda: self._run_with_id(transactional_id, operation))

    async def describe(self, transactional_id: str) -> Transaction:
        """TRANSACTIONAL_ID_NOT_FOUND if it is not known."""

        def describe(shard: TransactionShard, now_ms: int) -> CoordinatorResult[Transaction]:
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"the transactional id {transactional_id!r} is not known"
                )
            return CoordinatorResult(transaction)

        return await self._run(transactional_id, describe)

    def all_loaded(self) -> list[Transaction]:
        """The transactions of the shards that are loaded now, without waiting."""
        return [each for runtime in self._shards.all_loaded() for each in shard_of(runtime).transactions.values()]

    async def select(self, filter_: TransactionFilter) -> list[Transaction]:
        """The transactions of all shards of this broker that match the filter."""
        now_ms = self._environment.clock.now_ms()
        found: list[Transaction] = []
        for index in self._shards.led_partitions():
            try:
                runtime = await self._shards.loaded(index)
                shard = shard_of(runtime)
                found += await runtime.resolved(
                    [each for each in shard.transactions.values() if filter_.matches(each, now_ms)]
                )
                await asyncio.sleep(0)  # let other tasks run
            except KafkaError as error:
                if error.code != ErrorCode.NOT_COORDINATOR:
                    raise  # otherwise another broker leads it now, and responds for it
        return found

    async def _run(
        self, transactional_id: str, operation: "Callable[[TransactionShard, int], CoordinatorResult[R]]"
    ) -> R:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        runtime = await self._shards.loaded(self.partition_of(transactional_id))
        shard = shard_of(runtime)
        while True:
            with suppress(DecisionsHeld):
                return await runtime.run(lambda now_ms: operation(shard, now_ms))
            await asyncio.sleep(_DECISION_HOLD_CHECK_SECONDS)  # bounded: a hold ends by itself

    async def _run_with_id(
        self, transactional_id: str, operation: "Callable[[TransactionShard, int, int | None], CoordinatorResult[R]]"
    ) -> R:
        """As `_run`, for operations that may need a new producer id. It is allocated only then."""
        try:
            return await self._run(transactional_id, lambda shard, now_ms: operation(shard, now_ms, None))
        except ProducerIdNeeded:
            pass
        new_id = await self._producer_ids.take()
        return await self._run(transactional_id, lambda shard, now_ms: operation(shard, now_ms, new_id))

    async def _retry_while_ending(self, transactional_id: str, operation: "Callable[[], Awaitable[R]]") -> R:
        """Retries an operation that found the last transaction ending, for a limited time."""
        loop = self._environment.loop
        arrived_s = loop.time()
        while True:
            try:
                return await operation()
            except KafkaError as error:
                ending = self._ending.get(transactional_id)
                if error.code != ErrorCode.CONCURRENT_TRANSACTIONS or ending is None:
                    raise
                wait_s = min(arrived_s, ending.since_s) + _MAX_ENDING_WAIT_SECONDS - loop.time()
                if wait_s <= 0:
                    raise
            await asyncio.wait((ending.done,), timeout=wait_s)

    @property
    def _version(self) -> int:
        return transaction_version(self._view.image)

    # Ending transactions

    def _on_decided(self, runtime: CoordinatorRuntime, decided: Transaction) -> None:
        loop = self._environment.loop
        self._ending.setdefault(decided.transactional_id, _EndingTransaction(loop.create_future(), loop.time()))
        # Markers are sent only when the decision is committed.
        runtime.when_settled(partial(self._send_markers, runtime, decided))

    def _send_markers(self, runtime: CoordinatorRuntime, decided: Transaction) -> None:
        if not runtime.is_closed:
            self._markers.send(
                decided.marker(runtime.leader_epoch),
                sorted(decided.partitions),
                lambda: not runtime.is_closed,
                lambda: self._in_background(self._complete(runtime, decided)),
            )

    async def _complete(self, runtime: CoordinatorRuntime, decided: Transaction) -> None:
        """Writes the completed transaction; retries while this broker leads the shard."""
        pause_s = _FIRST_RETRY_SECONDS
        while not runtime.is_closed:
            try:
                await runtime.load()
                response = runtime.run_now(lambda now_ms: shard_of(runtime).complete(decided, now_ms))
                self._ended(decided.transactional_id)
                await runtime.resolved(response)
                return
            except KafkaError as error:
                if error.code == ErrorCode.NOT_COORDINATOR:
                    return  # the next coordinator sends the markers again, and completes it
                _log.warning("not_completed transactional_id=%s error=%s", decided.transactional_id, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_RETRY_SECONDS)

    def _on_closed(self, runtime: CoordinatorRuntime) -> None:
        """Wakes requests that wait for transactions of this shard: the next coordinator completes those."""
        if runtime.is_loaded:
            for transaction in shard_of(runtime).transactions.values():
                if transaction.is_decided:
                    self._ended(transaction.transactional_id)

    def _ended(self, transactional_id: str) -> None:
        ending = self._ending.pop(transactional_id, None)
        if ending is not None:
            ending.done.set_result(None)

    # Life cycle

    def start(self) -> None:
        self._shards.start()

    def follow(self, delta: MetadataDelta) -> None:
        """Follows changes of topics and their leaders."""
        self._shards.follow(delta)
        self._markers.follow(delta)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.start(work, loop=self._environment.loop)

    def close(self) -> None:
        """Closes all shards. Waiting requests get NOT_COORDINATOR."""
        self._shards.close()
        self._markers.close()

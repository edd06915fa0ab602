"""The shards of the transaction coordinator: one for each partition of `__transaction_state` that this broker leads.

They are loaded in the background when the broker begins to lead, so that what an earlier coordinator decided is carried
out whether a client asks or not, and given up when it leads no longer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.broker.cluster_view import ClusterView
from millstream.broker.coordinator_shell import CoordinatorShell
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.config.table import transactions as settings
from millstream.coordinator.transaction.transaction import Transaction
from millstream.coordinator.transaction.transaction_shard import TransactionSettings, TransactionShard
from millstream.environment import Environment
from millstream.metadata.features import transaction_version
from millstream.metadata.image import MetadataDelta
from millstream.metadata.topic_names import TRANSACTION_STATE_TOPIC
from millstream.model.errors import ErrorCode, KafkaError
from millstream.model.identifiers import TopicName

STATE_TOPIC = TopicName(TRANSACTION_STATE_TOPIC)
_LOAD_PATIENCE_SECONDS = 5.0
"""How long a request waits for its shard to load before the client is told to come again."""
_LOADS_AT_ONCE = 4
_AGAIN_S = 2.0

_log = logging.getLogger("millstream.transactions")


class TransactionShards:
    def __init__(self, view: ClusterView, partitions: PartitionTable, environment: Environment) -> None:
        self._view = view
        self._partitions = partitions
        self._environment = environment
        self.on_decided: Callable[[CoordinatorShell, Transaction], None] = lambda shell, decided: None
        """Told of transactions whose outcome was decided, or was found decided in the log."""
        self.on_given_up: Callable[[CoordinatorShell], None] = lambda shell: None
        self._shells: dict[int, CoordinatorShell] = {}
        self._background: set[asyncio.Future[None]] = set()
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._is_closed = False

    def led(self) -> list[int]:
        """The partitions of STATE_TOPIC that this broker leads."""
        partitions = self._partitions.by_name.get(STATE_TOPIC.encode(), {})
        return [index for index, partition in partitions.items() if partition.is_leader]

    async def loaded(self, index: int) -> CoordinatorShell:
        """The shard of a partition, ready; KafkaError if it is not, or is somebody else's."""
        shell = self._shell(index)
        if shell.is_loaded:
            return shell
        try:
            async with asyncio.timeout(_LOAD_PATIENCE_SECONDS):
                await shell.load()
        except TimeoutError:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{STATE_TOPIC}-{index} is loading") from None
        except Exception as error:
            self._give_up(index, shell)  # the next request begins anew
            if isinstance(error, KafkaError) and error.code == ErrorCode.NOT_COORDINATOR:
                raise
            _log.error("shard_not_loaded partition=%s-%d error=%r", STATE_TOPIC, index, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{STATE_TOPIC}-{index}: {error}") from None
        return shell

    def _shell(self, index: int) -> CoordinatorShell:
        shell = self._shells.get(index)
        if shell is not None and shell.is_current:
            return shell
        if shell is not None:
            self._give_up(index, shell)
        partition = self._partitions.by_name.get(STATE_TOPIC.encode(), {}).get(index)
        if partition is None or not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "another broker coordinates this transactional id")
        return self._new_shell(index, partition)

    def _new_shell(self, index: int, partition: Partition) -> CoordinatorShell:
        shard = TransactionShard(self._shard_settings)
        shell = CoordinatorShell(partition, shard, self._environment)
        shell.on_lost = lambda: self._lost(index, shell)
        shard.on_decided = lambda decided: self.on_decided(shell, decided)
        self._shells[index] = shell
        return shell

    def _shard_settings(self) -> TransactionSettings:
        config = self._view.config
        return TransactionSettings(
            transaction_version=transaction_version(self._view.image),
            expiration_ms=config[settings.TRANSACTIONAL_ID_EXPIRATION_MS],
            abort_interval_ms=config[settings.TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS],
            expiry_interval_ms=config[settings.TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS],
        )

    def _give_up(self, index: int, shell: CoordinatorShell) -> None:
        if self._shells.get(index) is shell:
            del self._shells[index]
        shell.close()
        self.on_given_up(shell)

    def _lost(self, index: int, shell: CoordinatorShell) -> None:
        self._give_up(index, shell)
        self._in_background(self._load(index))

    # Life

    def start(self) -> None:
        """Takes over what this broker leads: each shard is loaded in the background."""
        for index, shell in tuple(self._shells.items()):
            if not shell.is_current:
                self._give_up(index, shell)
        for index in self.led():
            if index not in self._shells:
                self._shell(index)
                self._in_background(self._load(index))

    async def _load(self, index: int) -> None:
        """As often as it takes, while it is ours."""
        while not self._is_closed:
            try:
                async with self._loads:
                    await self.loaded(index)
                return
            except KafkaError as error:
                if error.code == ErrorCode.NOT_COORDINATOR:
                    return
            await asyncio.sleep(_AGAIN_S)

    def follow(self, delta: MetadataDelta) -> None:
        """The topic came, went, or has other leaders."""
        if any(topic.name == STATE_TOPIC for topic in delta.deleted.values()):
            self._give_up_all()
        if STATE_TOPIC in delta.created or STATE_TOPIC in delta.changed:
            self.start()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work, loop=self._environment.loop)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _give_up_all(self) -> None:
        for index, shell in tuple(self._shells.items()):
            self._give_up(index, shell)

    def close(self) -> None:
        """Gives all shards up; whoever waits is told to look elsewhere."""
        self._is_closed = True
        self._give_up_all()


def shard_of(shell: CoordinatorShell) -> TransactionShard:
    assert isinstance(shell.state, TransactionShard)
    return shell.state

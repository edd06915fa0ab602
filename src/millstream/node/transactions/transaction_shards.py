"""The shards of the transaction coordinator: one for each partition of `__transaction_state` that this broker leads."""

import logging
from collections.abc import Callable

from millstream.config.table import transactions as settings
from millstream.formats.model.identifiers import TopicName
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.coordination.coordinator_shards import CoordinatorShards
from millstream.node.coordination.coordinator_shell import CoordinatorShell
from millstream.node.environment import Environment
from millstream.node.metadata.features import transaction_version
from millstream.node.metadata.topic_names import TRANSACTION_STATE_TOPIC
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.opening_limits import replay_limits
from millstream.node.transactions.core.transaction import Transaction
from millstream.node.transactions.core.transaction_shard import TransactionSettings, TransactionShard

STATE_TOPIC = TopicName(TRANSACTION_STATE_TOPIC)
_log = logging.getLogger("millstream.transactions")


class TransactionShards(CoordinatorShards):
    def __init__(self, view: ClusterView, partitions: PartitionTable, environment: Environment) -> None:
        super().__init__(STATE_TOPIC, partitions, environment, self._new_transaction_shell, _log)
        self._view = view
        self.on_decided: Callable[[CoordinatorShell, Transaction], None] = lambda shell, decided: None
        """Told of transactions whose outcome was decided, or was found decided in the log."""

    def _new_transaction_shell(self, partition: Partition) -> CoordinatorShell:
        shard = TransactionShard(self._shard_settings)
        shell = CoordinatorShell(partition, shard, self._environment, limits=lambda: replay_limits(self._view.config))
        shard.on_decided = lambda decided: self.on_decided(shell, decided)
        return shell

    def _shard_settings(self) -> TransactionSettings:
        config = self._view.config
        return TransactionSettings(
            transaction_version=transaction_version(self._view.image),
            expiration_ms=config[settings.TRANSACTIONAL_ID_EXPIRATION_MS],
            abort_interval_ms=config[settings.TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS],
            expiry_interval_ms=config[settings.TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS],
        )


def shard_of(shell: CoordinatorShell) -> TransactionShard:
    assert isinstance(shell.state, TransactionShard)
    return shell.state

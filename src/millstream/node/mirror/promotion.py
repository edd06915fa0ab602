"""Promoted mirror topics on this node: what the source left open in their logs is closed.

A transaction of the source that was open at the promotion is aborted by a marker: its coordinator is at the source and
cannot end it here. The producers of the source are forgotten, because a producer of this cluster may have the same id.
Both are found by the leader epochs: those of this cluster since the promotion begin at a multiple of 2^20.
"""

import logging

from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import Marker
from millstream.node.environment import Environment
from millstream.node.metadata.mirrors import EPOCHS_OF_A_CLUSTER
from millstream.node.replicas.partition import Partition
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.mirror")


def promotion_offset(log: PartitionLog, leader_epoch: int) -> int:
    """The offset at which the records of this cluster begin."""
    first = leader_epoch // EPOCHS_OF_A_CLUSTER * EPOCHS_OF_A_CLUSTER
    return next((start for epoch, start in log.epochs.entries() if epoch >= first), log.log_end_offset)


def close_mirrored(partition: Partition, environment: Environment) -> bool:
    """Aborts open transactions of the source and forgets its producers; whether that is done."""
    try:
        log = partition.log
        since = promotion_offset(log, partition.leader_epoch)
        for producer_id, first_offset in log.open_transactions().items():
            if first_offset >= since:
                continue
            entry = log.producers.entries[producer_id]
            marker = Marker(
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                coordinator_epoch=max(entry.coordinator_epoch, 0),
                committed=False,
                transaction_version=0,
            )
            partition.append_marker(marker, environment.clock.now_ms())
            _log.warning(
                "mirrored_transaction_aborted partition=%s producer=%d first_offset=%d",
                partition.topic_partition,
                producer_id,
                first_offset,
            )
        log.producers.forget_before(since)
    except (KafkaError, OSError) as error:
        _log.warning("promotion_not_completed partition=%s error=%s", partition.topic_partition, error)
        return False
    return True

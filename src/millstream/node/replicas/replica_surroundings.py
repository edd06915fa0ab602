"""What a replicated partition asks of the node and the cluster around it."""

from typing import TYPE_CHECKING, Protocol

from millstream.node.replicas.core.leader import Proposal
from millstream.node.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from millstream.node.replicas.partition import Partition


class Replicas(Protocol):
    """The node as its partitions see it."""

    @property
    def node_id(self) -> int: ...

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool: ...

    def is_alive(self, broker_id: int) -> bool: ...

    def broker_epoch(self) -> int: ...

    def lag_max_ms(self) -> int: ...

    def is_out_of_touch(self) -> bool:
        """Whether the controller is not in reach, so that others may lead what this node leads."""
        ...

    def submit(self, partition: "Partition", proposal: Proposal) -> None:
        """Asks the controller to confirm a proposal; the answer comes to `Partition.proposal_answered`."""
        ...


class Surroundings:
    """What the pure leader asks, answered for one log."""

    __slots__ = ("_log", "_replicas")

    def __init__(self, replicas: Replicas, log: PartitionLog) -> None:
        self._replicas = replicas
        self._log = log

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return self._replicas.is_eligible(broker_id, broker_epoch)

    def is_alive(self, broker_id: int) -> bool:
        return self._replicas.is_alive(broker_id)

    def broker_epoch(self) -> int:
        return self._replicas.broker_epoch()

    def lag_max_ms(self) -> int:
        return self._replicas.lag_max_ms()

    def min_in_sync(self) -> int:
        return self._log.config.min_insync_replicas

    def own_end(self) -> int:
        log = self._log
        return log.recovery_point if log.config.flush_before_ack else log.log_end_offset

"""Whether a transaction has a partition, asked of its coordinator before the first batch there is appended (KIP-890).

Without the question a batch that was long on its way could arrive after its transaction's end, and open another that
nobody ever ends. With `adds` the question also adds the partitions, as the second transaction version does.
"""

from collections.abc import Sequence
from typing import Protocol

from millstream.model.errors import ErrorCode
from millstream.model.identifiers import TopicPartition


class LocalCoordinator(Protocol):
    """The transaction coordinator on this node, for the transactional ids that it has."""

    def partition_of(self, transactional_id: str) -> int: ...

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]: ...


class TransactionVerification:
    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """What the coordinator says of each of the partitions."""
        raise NotImplementedError

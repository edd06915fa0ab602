"""Offsets that a group commits in a producer's transaction: asked about at the transaction coordinator, then written.

The producer wrote to a partition of `__consumer_offsets` by that, so this is a partition of its transaction like any
other: the first commit there needs the coordinator's yes (KIP-890), and the marker makes it count.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicPartition, VerificationGuard
from millstream.formats.protocol.schema import Message
from millstream.formats.records.batch import NO_SEQUENCE
from millstream.node.coordination.coordinator_shell import CoordinatorShell
from millstream.node.groups.group_coordinator import GroupCoordinator

FIRST_THAT_ADDS = 5
"""The first TxnOffsetCommit that adds the group's partition to the transaction by itself (transaction version 2)."""
_FIRST_WITH_ABORTABLE = 4


class Verification(Protocol):
    """Asks the transaction coordinator, wherever it is."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Awaitable[dict[TopicPartition, ErrorCode]]: ...


class TransactionalOffsets:
    def __init__(
        self, groups: GroupCoordinator, verification: Verification, is_verification_enabled: Callable[[], bool]
    ) -> None:
        self._groups = groups
        self._verification = verification
        self._is_verification_enabled = is_verification_enabled

    async def commit(self, request: Message, version: int) -> dict[str, Any]:
        """TxnOffsetCommit; KafkaError if it is refused as a whole."""
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if request.producer_id < 0 or request.producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a transaction has a producer")
        shell = await self._groups.shell_of(request.group_id)
        guard = await self._verified(shell, request, version)
        return await self._groups.run_in(
            shell, lambda shard, now_ms: shard.offsets.commit_in_transaction(request, now_ms), guard
        )

    async def _verified(self, shell: CoordinatorShell, request: Message, version: int) -> VerificationGuard | None:
        adds = version >= FIRST_THAT_ADDS
        if not adds and not self._is_verification_enabled():
            return None
        partition = shell.partition
        producer_id, epoch = request.producer_id, request.producer_epoch
        try:
            guard = partition.begin_verification(producer_id, epoch, NO_SEQUENCE, bumps_epoch=adds)
        except KafkaError as error:
            if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
            raise
        if guard is None:
            return None  # the transaction is open here
        asked = partition.topic_partition
        answers = await self._verification.verify(request.transactional_id, producer_id, epoch, [asked], adds=adds)
        error_code = answers.get(asked, ErrorCode.INVALID_TXN_STATE)
        if error_code != ErrorCode.NONE:
            raise KafkaError(
                for_offset_commit(error_code, version), f"the transaction coordinator says {error_code.name}"
            )
        return guard


def for_offset_commit(error: ErrorCode, version: int) -> ErrorCode:
    """The error that a client gets whose TxnOffsetCommit has that version."""
    if error == ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return error

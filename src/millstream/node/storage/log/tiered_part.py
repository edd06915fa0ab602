"""The part of a log that is in the tier, an object store, and no longer on this disk: as the log uses it.

`node/tier` implements it. A log without tiered storage has none, and pays nothing for it: only an offset before the
local start, which would be out of range otherwise, comes here.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.opening import OpeningLimits

if TYPE_CHECKING:
    from millstream.node.storage.index.time_search import FoundOffset
    from millstream.node.storage.log.log_reader import Slice
    from millstream.node.storage.log.partition_log import PartitionLog
    from millstream.node.storage.log.producer_state import ProducerEntry


class TierStart(NamedTuple):
    """Where a log continues that takes everything before from the tier."""

    offset: int
    log_start_offset: int
    epochs: list[tuple[int, int]]
    """Leader epochs and their start offsets, up to `offset`."""
    producers: "list[ProducerEntry]"
    """The producers at `offset`."""


class TieredPart(Protocol):
    @property
    def end_offset(self) -> int:
        """Everything before is in the tier, or deleted. Local segments up to here are copies."""
        ...

    @property
    def removable_end(self) -> int:
        """Local segments before are in the tier, and what a restart needs instead of them is on stable storage."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether this node knows what the tier has: until then the start of the log is not known either."""
        ...

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool) -> "Slice":
        """As `PartitionLog.read`. If the bytes are not in the cache yet, they are requested, the slice is empty, and
        readers that wait for the partition are woken later. May return a slice from the disk (see `aborted`)."""
        ...

    def aborted(self, records: "Slice") -> list[tuple[int, int]] | None:
        """(producer id, first offset) of the aborted transactions in a slice that `read` returned; None for a slice
        from the disk, because compaction has removed the last offsets in the tier."""
        ...

    def offset_by_timestamp(self, timestamp: int, limits: OpeningLimits) -> "Awaitable[FoundOffset | None]":
        """The first record in the tier whose timestamp is not before `timestamp`."""
        ...

    def greatest_timestamp(self, limits: OpeningLimits) -> "Awaitable[FoundOffset | None]":
        """The first record in the tier with the tier's greatest timestamp."""
        ...

    def when_known(self) -> Awaitable[None]:
        """Returns when this node knows what the tier has; KafkaError if it cannot find out."""
        ...


def tier_of(log: "PartitionLog") -> TieredPart:
    """The tier of a log whose start is not on this disk."""
    if log.tier is None:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{log.topic_partition} is tiered, and this broker has no tier: set remote.log.storage.system.enable and "
            "millstream.tier.url",
        )
    return log.tier

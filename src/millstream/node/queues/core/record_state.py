"""The states a record goes through in a share group, and the small values that speak of them.

    available --acquire--> acquired --accept--> acknowledged
        ^                     |-----reject, gap--------------> archived
        |-- release, timeout -|-----at the delivery limit----> archived
                              (with a dead-letter topic: -> archiving -> archived)

Acknowledged and archived are final. A record that was never acquired is in no list at all: it is only in the log.
"""

from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """With Kafka's numbers, as they are persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """On its way to the dead-letter topic (KIP-1191)."""
    ARCHIVED = 4

    @property
    def final(self) -> bool:
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


class Acknowledgement(IntEnum):
    """What a consumer says of a record, with Kafka's numbers."""

    GAP = 0
    """There is no record at this offset: compacted away, or a control record."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class StateBatch(NamedTuple):
    """Offsets first to last, both included, with the same state and delivery count."""

    first: int
    last: int
    state: int
    deliveries: int


class Acquired(NamedTuple):
    """Offsets that a member was just given."""

    first: int
    last: int
    deliveries: int


class DeadLetter(NamedTuple):
    """Offsets that nobody will get any more, and why."""

    first: int
    last: int
    deliveries: int
    reason: str


REJECTED = "the consumer rejected the record"
LIMIT_REACHED = "the record reached its delivery count limit"

"""The kinds of anomaly, each with the sentence that says what is wrong, and one finding of such a kind."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Named after what a user of the log would say."""

    LOST_WRITE = "an acknowledged record is missing although later ones were read"
    UNSEEN_TAIL = "an acknowledged record at the end was never read, although everything was read to the end"
    DUPLICATE = "one record is at two offsets"
    INCONSISTENT_OFFSET = "two records are at one offset"
    REORDERED = "a producer's records are in the log in another order than it sent them"
    NON_MONOTONIC_SEND = "a send that began after another was acknowledged got a lower offset"
    NON_MONOTONIC_POLL = "a consumer went backwards without having been told to"
    POLL_SKIP = "a consumer passed over a record"
    GROUP_SKIP = "a group passed over a record: no member ever got it"
    GAP = "an offset below others holds nothing"
    PHANTOM = "a record was read that was never sent there, or whose send certainly failed"
    STALE_READ = "the end of a partition was reported before what was known to be in it"
    LOST_COMMIT = "a committed offset went backwards"
    ABORTED_READ = "a read_committed consumer got a record of a transaction that was not committed (G1a)"
    DIRTY_READ = "a read_committed consumer got a record before anybody asked to commit its transaction"
    TORN_TRANSACTION = "a part of a decided transaction is there and another part is not"
    DIRTY_OFFSETS = "an offset is committed that only a transaction not committed has"
    COPIED_TWICE = "an input is in the output more than once"
    OFFSETS_DISAGREE = "the group's offsets say another thing about what was copied than the output"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding."""

    kind: Kind
    partition: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.partition}: {self.text}"

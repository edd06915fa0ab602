"""Events of a replica, which the driver handles in order."""

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.messages import LogPosition, ParkedResponse
from millstream.node.consensus.raft.voter_set import Endpoint, VoterSet


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Another leader, another epoch, or no leader (`leader_id` None). Also when this replica leads."""

    leader_id: int | None
    epoch: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Elected; the LeaderChange record is appended at `start_offset` but not committed: no metadata changes yet."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Leading:
    """The LeaderChange record of this epoch is committed: so are all records of earlier leaders."""

    epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class LostLeadership:
    """This replica no longer leads `epoch`; records that it appended and that were not committed may be lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Records below `offset` are committed, and are in this log (or in its snapshot)."""

    offset: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """Records from `end_offset` on were removed. They were not committed."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The log was replaced by the leader's snapshot: state is to be loaded from it, then from the log."""

    snapshot: LogPosition


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """Another voter set is in force (appended, or restored by truncation; not necessarily committed)."""

    voters: VoterSet


@dataclass(frozen=True, slots=True)
class Responded:
    """The response to a parked request."""

    token: int
    response: ParkedResponse


@dataclass(frozen=True, slots=True)
class Refused:
    """Another node refuses this replica with an error that is not retriable (INCONSISTENT_CLUSTER_ID,
    INCONSISTENT_VOTER_SET)."""

    error: ErrorCode
    by: int


Event = (
    LeaderChanged
    | BecameLeader
    | Leading
    | LostLeadership
    | HighWatermarkAdvanced
    | Truncated
    | SnapshotInstalled
    | VotersChanged
    | Responded
    | Refused
)

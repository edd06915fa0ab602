"""What the driver is told, in order."""

from dataclasses import dataclass

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.messages import LogPosition, ParkedResponse
from millstream.node.consensus.raft.voter_set import Endpoint, VoterSet


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """Another leader, another epoch, or no leader (`leader_id` None). Also told of ourselves."""

    leader_id: int | None
    epoch: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Elected; the LeaderChange record is appended at `start_offset` but not committed: no decisions yet."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Leading:
    """The LeaderChange record of this epoch is committed: so is everything of earlier leaders."""

    epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class LostLeadership:
    """This replica no longer leads `epoch`; what it appended and did not see committed may or may not survive."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Records below `offset` are committed, and are in this log (or in its snapshot)."""

    offset: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """Records at and past `end_offset` are gone. They were not committed."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The log was replaced by the leader's snapshot: state has to be loaded from it, then from the log."""

    snapshot: LogPosition


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """Another voter set is in force (appended, or brought back by truncation; not necessarily committed)."""

    voters: VoterSet


@dataclass(frozen=True, slots=True)
class Responded:
    """The answer to a parked request."""

    token: int
    answer: ParkedResponse


@dataclass(frozen=True, slots=True)
class Refused:
    """Others refuse this replica for what waiting does not mend (INCONSISTENT_CLUSTER_ID, INCONSISTENT_VOTER_SET)."""

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

"""Requests between replicas and their responses, as values: KRaft's requests without their wire form.

Every request has a `cluster_id` (None while a node has none) and every response an error. Responses also have the
leader and epoch that their sender knows (`leader_id` -1 when none) and, if known, the leader's endpoints.
"""

from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class LogPosition:
    """An offset, and the epoch of the record before it: the id of a snapshot, the end of a log, the end of an epoch."""

    offset: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.offset}/{self.epoch}"


# --- Requests between replicas ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Vote (52). With `pre_vote` the epoch is the sender's present one, and the receiver's state does not change."""

    cluster_id: str | None
    voter: ReplicaKey
    """The receiver; a replica under that id with another directory refuses (INVALID_VOTER_KEY)."""
    epoch: int
    candidate: ReplicaKey
    log_end: LogPosition
    """On the wire: last_offset and last_offset_epoch."""
    pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpoch:
    """BeginQuorumEpoch (53): sent by a new leader, until every voter has fetched or acknowledged."""

    cluster_id: str | None
    voter: ReplicaKey
    leader_id: int
    epoch: int
    leader_endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpoch:
    """EndQuorumEpoch (54): the leader resigns; the first of `preferred_candidates` should request votes at once."""

    cluster_id: str | None
    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]
    leader_endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetch (1) of the metadata partition. Everything below `offset` is on the sender's disk."""

    cluster_id: str | None
    replica: ReplicaKey
    """Id -1 for a consumer: it gets records up to the high watermark, and is not remembered."""
    current_leader_epoch: int
    """-1 when unknown (consumers)."""
    offset: int
    last_fetched_epoch: int
    """Epoch of the sender's record before `offset`; -1 when unknown."""
    high_watermark: int
    """The sender's high watermark: the leader responds at once when it has a higher one. -1 when unknown."""
    max_wait_ms: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshot:
    """FetchSnapshot (59): a chunk of a snapshot."""

    cluster_id: str | None
    replica: ReplicaKey
    current_leader_epoch: int
    snapshot: LogPosition
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoter:
    """UpdateRaftVoter (82): a voter sends the leader its endpoints and the kraft.versions it supports."""

    cluster_id: str | None
    current_leader_epoch: int
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    min_kraft_version: int
    max_kraft_version: int


# --- Requests of an operator -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoter:
    """AddRaftVoter (80). The driver gets the kraft.versions from the new voter first, by ApiVersions."""

    cluster_id: str | None
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    timeout_ms: int
    ack_when_committed: bool = True
    min_kraft_version: int = 0
    max_kraft_version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoter:
    """RemoveRaftVoter (81)."""

    cluster_id: str | None
    voter: ReplicaKey
    timeout_ms: int = 30_000


PeerRequest = Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot | UpdateVoter
"""Requests that a replica sends (see `Send`)."""


# --- Responses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()
    granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumEpochResponse:
    """Response to BeginQuorumEpoch and to EndQuorumEpoch."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """At most one of `diverging`, `snapshot` and non-empty `records` is set."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: LogPosition | None = None
    """The sender's log differs: the leader's end of the largest epoch not above the sender's last."""
    snapshot: LogPosition | None = None
    """The leader's log begins after the offset: fetch this snapshot first."""
    records: bytes = b""
    """Whole batches from the fetched offset on; raft does not decode them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()
    snapshot: LogPosition
    size: int = 0
    position: int = 0
    chunk: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterResponse:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeVotersResponse:
    """Response to AddVoter and RemoveVoter, with a message for the operator."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    """One row of DescribeQuorum. Times are the driver's `now_ms`; -1 when unknown."""

    replica: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponse:
    """Only the leader knows (otherwise NOT_LEADER_OR_FOLLOWER). Endpoints of the voters: `RaftReplica.voters`."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int
    leader_endpoints: tuple[Endpoint, ...] = ()
    high_watermark: int = -1
    voters: tuple[ReplicaProgress, ...] = ()
    observers: tuple[ReplicaProgress, ...] = ()


PeerResponse = VoteResponse | QuorumEpochResponse | FetchResponse | FetchSnapshotResponse | UpdateVoterResponse
ParkedResponse = FetchResponse | ChangeVotersResponse | UpdateVoterResponse


@dataclass(frozen=True, slots=True)
class Parked:
    """The response comes later, as the event `Responded` with this token."""

    token: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The receiver of a request. `id` is the node id, or -2, -3, ... for bootstrap servers, whose ids are not known."""

    id: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """A request to send. Afterwards the driver calls exactly one of `on_response` and `on_request_failed` with it."""

    number: int
    peer: Peer
    request: PeerRequest
    sent_ms: int


def directory_or_none(directory_id: UUID) -> UUID | None:
    """The wire's zero UUID means that no directory is named."""
    return directory_id if directory_id.int else None

"""One replica of the quorum: the roles, and what moves it from one to another. Pure; see the room's docstring for its use."""

from enum import Enum
from random import Random
from typing import Any

from millstream.raft.events import Event
from millstream.raft.log import QuorumStateStore, RaftLog
from millstream.raft.messages import (
    AddVoter,
    BeginQuorumEpoch,
    ChangeVotersAnswer,
    DescribeQuorumAnswer,
    EndQuorumEpoch,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    FetchSnapshotAnswer,
    Parked,
    Peer,
    PeerAnswer,
    QuorumEpochAnswer,
    RemoveVoter,
    Send,
    UpdateVoter,
    UpdateVoterAnswer,
    Vote,
    VoteAnswer,
)
from millstream.raft.settings import QuorumSettings
from millstream.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


class RaftReplica:
    """See the room's docstring for how a driver uses this. No method may be called from inside another."""

    def __init__(
        self,
        *,
        key: ReplicaKey,
        static_voters: VoterSet,
        bootstrap_servers: tuple[Peer, ...],
        may_vote: bool,
        endpoints: tuple[Endpoint, ...],
        cluster_id: str | None,
        log: RaftLog,
        store: QuorumStateStore,
        settings: QuorumSettings,
        randomness: Random,
        now_ms: int,
    ) -> None:
        """Start from what is on disk.

        `static_voters` (controller.quorum.voters) hold until the log says otherwise; empty where there are only
        `bootstrap_servers` (peers with ids -2, -3, ...). `may_vote` is false for a node without the controller role: it is
        an observer for ever. `endpoints` are this node's own controller listeners. `key.directory_id` must be given.
        A quorum of one leads when the constructor returns and `tick` has been called once.
        """
        raise NotImplementedError

    # --- What a driver may look at (cheap, any time) -----------------------------------------------------------------

    @property
    def role(self) -> Role: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def is_voter(self) -> bool:
        """Whether this replica is in the voter set in force. One that is not is an observer, whatever its role."""

    @property
    def epoch(self) -> int: ...
    @property
    def leader_id(self) -> int | None: ...
    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def high_watermark(self) -> int:
        """Records below are committed. At start: where the log begins."""

    @property
    def voters(self) -> VoterSet: ...
    @property
    def kraft_version(self) -> int: ...
    def voters_at(self, end_offset: int) -> VoterSet:
        """The voter set as of the records below `end_offset`: for the head of a snapshot (kraft.version 1 only)."""

    def kraft_version_at(self, end_offset: int) -> int: ...
    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has to be called at the latest."""

    cluster_id: str | None
    """Set it when it becomes known."""

    # --- Inputs ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Time has passed."""

    def on_flushed(self, now_ms: int) -> None:
        """`log.flushed_offset` moved."""

    def on_log_trimmed(self) -> None:
        """The driver wrote a snapshot and moved `log.start`."""

    def append(self, records: Any, now_ms: int) -> int:
        """As leader, append records (given on to `RaftLog.append_records`); the offset of the last one.

        Raises KafkaError NOT_CONTROLLER when this replica does not lead.
        """

    def vote(self, request: Vote, now_ms: int) -> VoteAnswer: ...
    def begin_quorum_epoch(self, request: BeginQuorumEpoch, now_ms: int) -> QuorumEpochAnswer: ...
    def end_quorum_epoch(self, request: EndQuorumEpoch, now_ms: int) -> QuorumEpochAnswer: ...
    def fetch(self, request: Fetch, now_ms: int) -> FetchAnswer | Parked: ...
    def fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> FetchSnapshotAnswer: ...
    def describe_quorum(self, now_ms: int) -> DescribeQuorumAnswer: ...
    def add_voter(self, request: AddVoter, now_ms: int) -> ChangeVotersAnswer | Parked: ...
    def remove_voter(self, request: RemoveVoter, now_ms: int) -> ChangeVotersAnswer | Parked: ...
    def update_voter(self, request: UpdateVoter, now_ms: int) -> UpdateVoterAnswer | Parked: ...

    def upgrade_kraft_version(self, version: int, now_ms: int) -> int:
        """As leader, move from static voters to voters in the log (0 to 1): append a KRaftVersion and a Voters record.

        Returns the offset of the last record. Raises KafkaError: NOT_CONTROLLER, INVALID_UPDATE_VERSION (a voter cannot do
        it, has not shown its directory id yet, or the version would go down), REQUEST_TIMED_OUT (a change is under way).
        """

    def cancel(self, token: int) -> None:
        """Whoever waited for a parked request is gone."""

    def on_response(self, send: Send, answer: PeerAnswer, now_ms: int) -> None:
        """The answer to something this replica sent. A late one, of an earlier epoch or role, does no harm."""

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        """A request got no answer. `refused`: nobody listens at that address, so the process is gone (not: timed out)."""

    def resign(self, now_ms: int) -> None:
        """Give leadership up, telling the others whom we would prefer; does nothing when not leader."""

    def shutdown(self, now_ms: int) -> None:
        """Stop taking part: resign if leader, never ask for votes again. `EndQuorumEpoch` is in the outbox; the driver
        gives it a moment to be delivered. Parked requests are answered NOT_LEADER_OR_FOLLOWER."""

    # --- Outputs -----------------------------------------------------------------------------------------------------

    def drain_sends(self) -> list[Send]: ...
    def drain_events(self) -> list[Event]: ...


def static_voters(addresses: dict[int, tuple[str, int]], listener_name: str) -> VoterSet:
    """The voters of `controller.quorum.voters`."""
    return VoterSet(
        tuple(
            Voter(ReplicaKey(node_id), (Endpoint(listener_name, host, port),))
            for node_id, (host, port) in sorted(addresses.items())
        )
    )

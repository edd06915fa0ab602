"""One replica of the quorum, whole: what time and answers bring. See the room's docstring for how a driver uses it.

The roles and the table of their transitions are in `roles`; what each role does is in `elections`, `following`,
`leading` and `voter_changes`, on the common ground of `replica_core`.
"""

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.events import Event, Refused
from millstream.node.consensus.raft.following import CommittedLostError as CommittedLostError
from millstream.node.consensus.raft.leadership import Leadership
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    PeerResponse,
    QuorumEpochResponse,
    Send,
    UpdateVoter,
    UpdateVoterResponse,
    Vote,
    VoteResponse,
)
from millstream.node.consensus.raft.roles import Candidate, Follower, Prospective, Resigned, Unattached
from millstream.node.consensus.raft.voter_changes import VoterChanges

FAR_FUTURE_MS = 1 << 62


class RaftReplica(VoterChanges):
    """See the room's docstring for how a driver uses this. No method may be called from inside another."""

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has to be called at the latest."""
        match self._role:
            case Unattached(election_ms):
                deadlines = []
                if self._log_is_flushed:
                    deadlines += [self._outbox.ready_ms(peer.id, Fetch) for peer in self._peers_to_ask()]
                if self._may_campaign:
                    deadlines.append(election_ms)
            case Prospective(ballot, gives_up_ms) | Candidate(ballot, gives_up_ms):
                deadlines = [gives_up_ms]
                if not (isinstance(self._role, Candidate) and self._role.lost):
                    deadlines += [self._outbox.ready_ms(node_id, Vote) for node_id in ballot.unanswered]
            case Follower() as follower:
                deadlines = [follower.fetch_timeout_ms]
                if follower.election_ms is not None:
                    deadlines.append(follower.election_ms)
                if follower.receiving is not None:
                    deadlines.append(self._outbox.ready_ms(follower.leader_id, FetchSnapshot))
                elif self._log_is_flushed:
                    deadlines.append(self._outbox.ready_ms(follower.leader_id, Fetch))
                if self._has_to_introduce_itself(follower):
                    deadlines.append(self._outbox.ready_ms(follower.leader_id, UpdateVoter))
            case Leadership() as lead:
                deadlines = [parked.expires_ms for parked in lead.fetches.values()]
                deadlines += [parked.expires_ms for parked in lead.changes.values()]
                deadlines += [parked.expires_ms for parked in lead.joins.values()]
                resigns_ms = lead.resigns_ms(self.voters)
                if resigns_ms is not None:
                    deadlines.append(resigns_ms)
                for voter in self._other_voters():
                    deadlines.append(
                        max(self._silent_ms(lead, voter), self._outbox.ready_ms(voter.id, BeginQuorumEpoch))
                    )
            case Resigned() as resigned:
                deadlines = [self._outbox.ready_ms(node_id, EndQuorumEpoch) for node_id in resigned.unacknowledged]
                if not self._stopping:
                    deadlines.append(resigned.until_ms)
        return min(deadlines, default=FAR_FUTURE_MS)

    # --- Time

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        for _ in range(8):  # a quorum of one goes from unattached to leader in one tick
            role = self._role
            self._step(now_ms)
            if self._role is role:
                return

    def _step(self, now_ms: int) -> None:
        match self._role:
            case Unattached(election_ms):
                alone = self.is_voter and len(self.voters) == 1
                if self._may_campaign and (alone or now_ms >= election_ms):
                    self._become_prospective(now_ms)
                else:
                    self._look_for_leader(now_ms)
            case Prospective(_, gives_up_ms):
                if now_ms >= gives_up_ms:
                    self._end_pre_vote(now_ms)
                else:
                    self._ask_for_votes(now_ms)
            case Candidate() as candidate:
                if now_ms >= candidate.gives_up_ms:
                    self._become_prospective(now_ms)
                elif not candidate.lost:
                    self._ask_for_votes(now_ms)
            case Follower() as follower:
                gone = follower.election_ms is not None and now_ms >= follower.election_ms
                if gone or now_ms >= follower.fetch_timeout_ms:
                    self._give_leader_up(now_ms)
                else:
                    self._ask_leader(follower, now_ms)
            case Leadership() as lead:
                resigns_ms = lead.resigns_ms(self.voters)
                if resigns_ms is not None and now_ms >= resigns_ms:
                    self._resign(lead, now_ms)
                else:
                    self._lead(lead, now_ms)
            case Resigned() as resigned:
                if now_ms >= resigned.until_ms and not self._stopping:
                    self._enter(Unattached(self._election_timeout(now_ms)), self._state)
                else:
                    self._say_goodbye(resigned, now_ms)

    def on_flushed(self, now_ms: int) -> None:
        """`log.flushed_offset` moved."""
        if isinstance(self._role, Leadership):
            self._advance_high_watermark(self._role, now_ms)
        self.tick(now_ms)

    def on_log_trimmed(self) -> None:
        """The driver wrote a snapshot and moved `log.start`."""
        self._membership.forget_before(self._log.start.offset)

    # --- Answers

    def on_response(self, send: Send, answer: PeerResponse, now_ms: int) -> None:
        """The answer to something this replica sent. A late one, of an earlier epoch or role, does no harm."""
        current = self._outbox.is_current(send)
        if answer.error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET):
            self._events.append(Refused(answer.error, send.peer.id))
            if current:
                self._outbox.failed(send, now_ms)
        elif self._learn(answer.leader_id, answer.leader_epoch, answer.leader_endpoints, now_ms):
            pass  # whatever was asked was asked in another role
        elif current:
            self._answered(send, answer, now_ms)
        self.tick(now_ms)

    def _answered(self, send: Send, answer: PeerResponse, now_ms: int) -> None:
        if answer.error:
            self._outbox.failed(send, now_ms)
        else:
            self._outbox.succeeded(send)
        match self._role, answer:
            case ((Prospective(ballot, _) | Candidate(ballot, _)), VoteResponse()):
                ballot.votes[send.peer.id] = answer.granted and not answer.error
                self._count(ballot, now_ms)
            case Follower() as follower, FetchResponse() if send.peer.id == follower.leader_id:
                self._fetched(follower, send, answer, now_ms)
            case Follower() as follower, FetchSnapshotResponse() if send.peer.id == follower.leader_id:
                self._fetched_snapshot(follower, send, answer, now_ms)
            case Follower() as follower, UpdateVoterResponse():
                follower.introduced = not answer.error or not _worth_retrying(answer.error)
            case Leadership(), QuorumEpochResponse():
                self._outbox.pause(send.peer.id, BeginQuorumEpoch, now_ms + self._settings.fetch_timeout_ms // 2)
            case Resigned() as resigned, QuorumEpochResponse():
                if send.peer.id in resigned.unacknowledged:
                    resigned.unacknowledged.remove(send.peer.id)
            case _, FetchResponse():
                self._outbox.failed(send, now_ms)  # nobody knew a leader: ask again later
            case _:
                pass

    def on_request_failed(self, send: Send, *, refused: bool, now_ms: int) -> None:
        """A request got no answer. `refused`: nobody listens at that address, so the process is gone."""
        if self._outbox.is_current(send):
            self._outbox.failed(send, now_ms)
            match self._role:
                case Follower() as follower if refused and send.peer.id == follower.leader_id:
                    self._lost_leader(follower, now_ms)
                case Candidate(ballot) if refused:
                    ballot.gone.add(send.peer.id)
                    self._count(ballot, now_ms)
                case _:
                    pass
        self.tick(now_ms)

    # --- Outputs

    def drain_sends(self) -> list[Send]:
        return self._outbox.drain()

    def drain_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _worth_retrying(error: ErrorCode) -> bool:
    return error not in (ErrorCode.INVALID_REQUEST, ErrorCode.VOTER_NOT_FOUND)

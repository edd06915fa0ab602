"""Asking for votes, with a pre-vote first, and granting them."""

from abc import abstractmethod
from dataclasses import replace

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.leadership import Leadership
from millstream.node.consensus.raft.log import QuorumState
from millstream.node.consensus.raft.messages import LogPosition, Peer, Vote, VoteResponse
from millstream.node.consensus.raft.replica_core import ReplicaCore
from millstream.node.consensus.raft.roles import Ballot, Candidate, Follower, Prospective, Unattached

ELECTION_BACKOFF_MS = 50


class Elections(ReplicaCore):
    """Prospective, candidate, and voter."""

    @abstractmethod
    def _become_leader(self, ballot: Ballot, now_ms: int) -> None:
        """A majority voted for this replica."""

    def _become_prospective(self, now_ms: int) -> None:
        if not self._may_campaign:
            self._become_unattached(self.epoch, now_ms)
            return
        ballot = Ballot(self.voters, {self._key.id: True} if self.is_voter else {})
        self._enter(Prospective(ballot, self._election_timeout(now_ms)), self._state)
        self._count(ballot, now_ms)

    def _become_candidate(self, now_ms: int) -> None:
        ballot = Ballot(self.voters, {self._key.id: True} if self.is_voter else {})
        state = QuorumState(epoch=self.epoch + 1, voted=self._key)
        self._enter(Candidate(ballot, self._election_timeout(now_ms)), state)
        self._count(ballot, now_ms)

    def _count(self, ballot: Ballot, now_ms: int) -> None:
        match self._role:
            case Prospective():
                if ballot.won:
                    self._become_candidate(now_ms)
                elif ballot.lost:
                    self._end_pre_vote(now_ms)
                else:
                    self._ask_for_votes(now_ms)
            case Candidate() as candidate:
                if ballot.won:
                    self._become_leader(ballot, now_ms)
                elif ballot.hopeless:
                    if not candidate.lost:
                        candidate.lost = True
                        candidate.gives_up_ms = now_ms + self._election_backoff()
                else:
                    self._ask_for_votes(now_ms)
                    self._hurry(candidate, now_ms)
            case _:
                raise AssertionError("votes are counted by those who asked for them")

    def _hurry(self, candidate: Candidate, now_ms: int) -> None:
        """A split vote that only the lost leader could decide: it may hang, and is not waited for as long as others."""
        if candidate.hurried or self._leader_heard is None or not candidate.ballot.is_split(self._leader_heard[0]):
            return
        candidate.hurried = True
        candidate.gives_up_ms = min(candidate.gives_up_ms, now_ms + self._election_backoff())

    def _election_backoff(self) -> int:
        self._lost_elections += 1
        most_ms = min(self._settings.election_backoff_max_ms, ELECTION_BACKOFF_MS << min(self._lost_elections, 10))
        return self._randomness.randrange(max(1, most_ms)) + 1

    def _end_pre_vote(self, now_ms: int) -> None:
        """Not wanted: go back to the leader that others may still have, or wait for one."""
        self._lost_elections += 1
        if self.leader_id is not None:
            self._enter(self._follower_of(self.leader_id, (), now_ms), self._state)
        else:
            self._enter(Unattached(self._election_timeout(now_ms)), self._state)

    def _ask_for_votes(self, now_ms: int) -> None:
        role = self._role
        assert isinstance(role, Prospective | Candidate)
        for node_id in role.ballot.unanswered:
            if self._outbox.ready(node_id, Vote, now_ms):
                voter = role.ballot.voters.by_id[node_id]
                request = Vote(
                    cluster_id=self.cluster_id,
                    voter=voter.key,
                    epoch=self.epoch,
                    candidate=self._key,
                    log_end=self._log.end,
                    pre_vote=isinstance(role, Prospective),
                )
                self._outbox.send(Peer(node_id, voter.endpoints), request, now_ms)

    def vote(self, request: Vote, now_ms: int) -> VoteResponse:
        answer = self._vote(request, now_ms)
        self.tick(now_ms)
        return answer

    def _vote(self, request: Vote, now_ms: int) -> VoteResponse:
        error = self._voter_only_error(request.cluster_id, request.voter, request.candidate.id, request.epoch, now_ms)
        if request.epoch < 0 or request.log_end.epoch > request.epoch or request.candidate.directory_id is None:
            error = error or ErrorCode.INVALID_REQUEST
        granted = False
        if not error:
            if request.epoch > self.epoch:
                self._become_unattached(request.epoch, now_ms)
            granted = self._grants_pre_vote(request) if request.pre_vote else self._grants_vote(request)
            if granted and not request.pre_vote and self._state.voted is None:
                self._enter(Unattached(self._election_timeout(now_ms)), replace(self._state, voted=request.candidate))
        return VoteResponse(
            error=error or ErrorCode.NONE,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
            granted=granted,
        )

    def _grants_vote(self, request: Vote) -> bool:
        if self._state.voted is not None:
            return self._state.voted == request.candidate
        return self.leader_id is None and self._is_up_to_date(request.log_end)

    def _grants_pre_vote(self, request: Vote) -> bool:
        match self._role:
            case Leadership():
                return False
            case Follower() as follower if follower.heard:
                return False
            case _:
                return self._is_up_to_date(request.log_end)

    def _is_up_to_date(self, log_end: LogPosition) -> bool:
        own = self._log.end
        return (log_end.epoch, log_end.offset) >= (own.epoch, own.offset)

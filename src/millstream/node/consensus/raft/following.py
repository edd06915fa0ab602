"""Following a leader: finding it, fetching from it, agreeing with its log, receiving its snapshot, noticing its end."""

from collections.abc import Sequence

from millstream.formats.model.errors import ErrorCode
from millstream.node.consensus.raft.elections import Elections
from millstream.node.consensus.raft.events import Refused, SnapshotInstalled, Truncated, VotersChanged
from millstream.node.consensus.raft.log import CorruptFetchError, LeaderChangeRecord, PlacedControlRecord
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    Peer,
    QuorumEpochResponse,
    Send,
    UpdateVoter,
)
from millstream.node.consensus.raft.replica_core import MAX_KRAFT_VERSION, MIN_KRAFT_VERSION
from millstream.node.consensus.raft.roles import Follower, ReceivingSnapshot


class CommittedLostError(Exception):
    """The leader's log lacks what this replica knows to be committed: somebody lost a disk. There is no safe way on."""


class Following(Elections):
    """Unattached (looking for a leader) and follower; voter or observer makes no difference here."""

    def _peers_to_ask(self) -> list[Peer]:
        """Who may know the leader."""
        peers = [Peer(voter.id, voter.endpoints) for voter in self._other_voters()]
        return peers if peers and self.is_voter else [*peers, *self._bootstrap_servers]

    def _look_for_leader(self, now_ms: int) -> None:
        for peer in self._peers_to_ask():
            if self._outbox.ready(peer.id, Fetch, now_ms) and self._log_is_flushed:
                self._outbox.send(peer, self._fetch_request(wait_ms=0), now_ms)

    def _fetch_request(self, wait_ms: int) -> Fetch:
        end = self._log.end
        return Fetch(
            cluster_id=self.cluster_id,
            replica=self._key,
            current_leader_epoch=self.epoch,
            offset=end.offset,
            last_fetched_epoch=end.epoch,
            high_watermark=self._high_watermark,
            max_wait_ms=wait_ms,
            max_bytes=self._settings.fetch_max_bytes,
        )

    def _ask_leader(self, follower: Follower, now_ms: int) -> None:
        leader = Peer(follower.leader_id, self.leader_endpoints)
        receiving = follower.receiving
        if receiving is not None:
            if self._outbox.ready(leader.id, FetchSnapshot, now_ms):
                request = FetchSnapshot(
                    cluster_id=self.cluster_id,
                    replica=self._key,
                    current_leader_epoch=self.epoch,
                    snapshot=receiving.snapshot,
                    position=receiving.position,
                    max_bytes=self._settings.snapshot_chunk_bytes,
                )
                self._outbox.send(leader, request, now_ms)
        elif self._log_is_flushed and self._outbox.ready(leader.id, Fetch, now_ms):
            wait_ms = self._settings.fetch_max_wait_ms
            self._outbox.send(leader, self._fetch_request(wait_ms), now_ms, wait_ms)
        if self._has_to_introduce_itself(follower) and self._outbox.ready(leader.id, UpdateVoter, now_ms):
            update = UpdateVoter(
                cluster_id=self.cluster_id,
                current_leader_epoch=self.epoch,
                voter=self._key,
                endpoints=self._endpoints,
                min_kraft_version=MIN_KRAFT_VERSION,
                max_kraft_version=MAX_KRAFT_VERSION,
            )
            self._outbox.send(leader, update, now_ms)

    def _has_to_introduce_itself(self, follower: Follower) -> bool:
        """Whether the voter set says something else of this voter than it would itself."""
        if follower.introduced or not follower.heard or not self.is_voter or not self._endpoints:
            return False
        return self.kraft_version == 0 or self.voters.by_id[self._key.id] != self._as_voter()

    def _lost_leader(self, follower: Follower, now_ms: int, place: int | None = None) -> None:
        """The leader is known to be gone: no need to wait for the fetch timeout. A random delay keeps votes from
        splitting; `place` is this replica's place among the successors that the leader prefers."""
        follower.heard = False
        if place == 0:
            delay_ms = self._settings.retry_backoff_ms // 2
        else:
            most_ms = self._settings.refused_election_delay_ms << min(self._lost_elections, 8)
            delay_ms = self._randomness.randrange(max(1, min(most_ms, self._settings.election_timeout_ms)))
            delay_ms += (place or 0) * self._settings.retry_backoff_ms
        election_ms = now_ms + delay_ms
        if follower.election_ms is None or place == 0:
            follower.election_ms = election_ms

    def _give_leader_up(self, now_ms: int) -> None:
        if self._may_campaign:
            self._become_prospective(now_ms)
        else:
            self._become_unattached(self.epoch, now_ms)

    def _heard_leader(self, follower: Follower, now_ms: int) -> None:
        follower.heard = True
        self._leader_heard = follower.leader_id, now_ms
        follower.fetch_timeout_ms = now_ms + self._settings.fetch_timeout_ms
        follower.election_ms = None
        self._lost_elections = 0

    def _fetched(self, follower: Follower, send: Send, answer: FetchResponse, now_ms: int) -> None:
        request = send.request
        assert isinstance(request, Fetch) and request.offset == self._log.end.offset, "the log moved under a fetch"
        if answer.error:
            if answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER or answer.leader_epoch < self.epoch:
                self._lost_leader(follower, now_ms)
            return
        self._fetch_answered_ms = send.sent_ms
        self._heard_leader(follower, now_ms)
        if answer.diverging is not None:
            self._truncate_to_agreement(answer.diverging, send, now_ms)
        elif answer.snapshot is not None:
            if answer.snapshot.offset < self._log.start.offset or answer.snapshot.offset < self._high_watermark:
                raise CommittedLostError(
                    f"the leader {send.peer.id} offers snapshot {answer.snapshot}, behind what is committed here "
                    f"({self._high_watermark})"
                )
            follower.receiving = ReceivingSnapshot(answer.snapshot, self._log.begin_snapshot(answer.snapshot))
        else:
            if answer.records:
                try:
                    placed = self._log.append_fetched(answer.records)
                except CorruptFetchError:
                    self._outbox.failed(send, now_ms)
                    return
                self._apply(placed)
                self._check_static_voters(placed, follower.leader_id)
            self._raise_high_watermark(min(answer.high_watermark, self._log.end.offset))

    def _check_static_voters(self, placed: Sequence[PlacedControlRecord], leader_id: int) -> None:
        """Static voters that differ from the leader's: two majorities would be possible; one of the two has to go."""
        if self.kraft_version > 0 or not self.voters or self._log.end.epoch != self.epoch:
            return
        elected = [entry.record for entry in placed if isinstance(entry.record, LeaderChangeRecord)]
        if elected and sorted(elected[-1].voters) != list(self.voters.ids):
            self._events.append(Refused(ErrorCode.INCONSISTENT_VOTER_SET, leader_id))

    def _truncate_to_agreement(self, diverging: LogPosition, send: Send, now_ms: int) -> None:
        """Drop what the leader does not have: at least down to where both logs' epochs end."""
        own = self._log.end_of_epoch(diverging.epoch)
        end_offset = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        if min(end_offset, diverging.offset) < self._high_watermark:
            raise CommittedLostError(
                f"the leader's log ends epoch {diverging.epoch} at {diverging.offset}, below what is committed here "
                f"({self._high_watermark}): its disk or this one is not the one that the cluster knew"
            )
        if end_offset >= self._log.end.offset:
            self._outbox.failed(send, now_ms)
            return
        voters = self.voters
        self._log.truncate_to(end_offset)
        self._membership.truncate_to(end_offset)
        self._events.append(Truncated(end_offset))
        if self.voters != voters:
            self._events.append(VotersChanged(self.voters))

    def _fetched_snapshot(self, follower: Follower, send: Send, answer: FetchSnapshotResponse, now_ms: int) -> None:
        receiving, request = follower.receiving, send.request
        if receiving is None or not isinstance(request, FetchSnapshot) or request.snapshot != receiving.snapshot:
            return
        if answer.error:
            if answer.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
                follower.receiving = None  # the leader has a newer one by now: a fetch will say which
            elif answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._lost_leader(follower, now_ms)
            return
        self._heard_leader(follower, now_ms)
        if answer.position != receiving.position:
            return
        self._log.write_snapshot(answer.position, answer.chunk)
        receiving.position += len(answer.chunk)
        if receiving.position < answer.size:
            if not answer.chunk:
                self._outbox.failed(send, now_ms)
            return
        follower.receiving = None
        try:
            placed = self._log.install_snapshot()
        except CorruptFetchError:
            self._outbox.pause(send.peer.id, Fetch, now_ms + self._settings.election_timeout_ms)
            return
        voters = self.voters
        self._membership.replace_by(placed)
        self._events.append(SnapshotInstalled(receiving.snapshot))
        if self.voters != voters:
            self._events.append(VotersChanged(self.voters))
        self._raise_high_watermark(receiving.snapshot.offset)

    def begin_quorum_epoch(self, request: BeginQuorumEpoch, now_ms: int) -> QuorumEpochResponse:
        error = self._voter_only_error(request.cluster_id, request.voter, request.leader_id, request.epoch, now_ms)
        if error is None and request.epoch == self.epoch and self.leader_id not in (None, request.leader_id):
            error = ErrorCode.INVALID_REQUEST
        if error is None:
            following = isinstance(self._role, Follower) and request.epoch == self.epoch
            if not following:  # also a prospective that had lost this leader: here it is, alive
                self._follow(request.leader_id, request.epoch, request.leader_endpoints, now_ms)
        self.tick(now_ms)
        return self._quorum_epoch_answer(error)

    def end_quorum_epoch(self, request: EndQuorumEpoch, now_ms: int) -> QuorumEpochResponse:
        error = self._voter_only_error(request.cluster_id, self._key, request.leader_id, request.epoch, now_ms)
        if error is None and request.epoch == self.epoch and self.leader_id not in (None, request.leader_id):
            error = ErrorCode.INVALID_REQUEST
        if error is None:
            self._learn(request.leader_id, request.epoch, request.leader_endpoints, now_ms)
            if isinstance(self._role, Follower):
                ids = [candidate.id for candidate in request.preferred_candidates]
                place = ids.index(self._key.id) if self._key.id in ids else len(ids)
                self._lost_leader(self._role, now_ms, place)
        self.tick(now_ms)
        return self._quorum_epoch_answer(error)

    def _quorum_epoch_answer(self, error: ErrorCode | None) -> QuorumEpochResponse:
        return QuorumEpochResponse(
            error=error or ErrorCode.NONE,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
        )

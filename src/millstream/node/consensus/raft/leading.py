"""Leading: serving fetches, learning from them what is committed, and keeping a majority in touch."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.events import BecameLeader, Leading, Responded
from millstream.node.consensus.raft.following import Following
from millstream.node.consensus.raft.leadership import Leadership, ParkedFetch
from millstream.node.consensus.raft.log import ControlRecord, LeaderChangeRecord, PlacedControlRecord
from millstream.node.consensus.raft.messages import (
    BeginQuorumEpoch,
    ChangeVotersResponse,
    DescribeQuorumResponse,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    Parked,
    Peer,
    ReplicaProgress,
)
from millstream.node.consensus.raft.roles import Ballot, Candidate, Prospective, Resigned
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter


class LeadingRole(Following):
    """Leader, and resigned."""

    def _become_leader(self, ballot: Ballot, now_ms: int) -> None:
        lead = Leadership(
            me=self._key,
            epoch=self.epoch,
            start_offset=self._log.end.offset,
            started_ms=now_ms,
            check_quorum_ms=self._settings.fetch_timeout_ms * 3 // 2,
        )
        self._lost_elections = 0
        self._enter(lead, replace(self._state, leader_id=self._key.id))
        self._events.append(BecameLeader(lead.epoch, lead.start_offset))
        record = LeaderChangeRecord(self._key.id, ballot.voters.ids, ballot.granting)
        self._append_control(lead, (record,), now_ms)
        self._lead(lead, now_ms)

    def _append_control(self, lead: Leadership, records: Sequence[ControlRecord], now_ms: int) -> int:
        """Append one control batch; the offset of its last record."""
        offset = self._log.append_control(lead.epoch, records, now_ms)
        self._apply([PlacedControlRecord(offset + place, record) for place, record in enumerate(records)])
        self._appended(lead, now_ms)
        return offset + len(records) - 1

    def append(self, records: Any, now_ms: int) -> int:
        """As leader, append records (given on to `RaftLog.append_records`); the offset of the last one.

        Raises KafkaError NOT_CONTROLLER when this replica does not lead.
        """
        lead = self._role
        if not isinstance(lead, Leadership):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node does not lead the metadata quorum")
        last_offset = self._log.append_records(lead.epoch, records, now_ms)
        self._appended(lead, now_ms)
        return last_offset

    def _appended(self, lead: Leadership, now_ms: int) -> None:
        self._wake_fetches(lead, now_ms)
        self._advance_high_watermark(lead, now_ms)

    def _advance_high_watermark(self, lead: Leadership, now_ms: int) -> None:
        offset = lead.majority_end(self.voters, self._log.flushed_offset)
        if offset <= lead.start_offset or not self._raise_high_watermark(offset):
            return
        if not lead.announced:
            lead.announced = True
            self._events.append(Leading(lead.epoch, offset))
        for token in [token for token, change in lead.changes.items() if change.offset < offset]:
            self._events.append(Responded(token, lead.changes.pop(token).committed))
        self._wake_fetches(lead, now_ms)
        if not self.is_voter and self._membership.changed_at < offset:
            self._resign(lead, now_ms)  # this leader was voted out, and that is committed now

    def _lead(self, lead: Leadership, now_ms: int) -> None:
        """What a leader does as time passes: introduce itself to silent voters, let no parked request wait for ever."""
        for voter in self._other_voters():
            silent = self._silent_ms(lead, voter) <= now_ms
            if silent and self._outbox.ready(voter.id, BeginQuorumEpoch, now_ms):
                request = BeginQuorumEpoch(
                    cluster_id=self.cluster_id,
                    voter=voter.key,
                    leader_id=self._key.id,
                    epoch=lead.epoch,
                    leader_endpoints=self._endpoints,
                )
                self._outbox.send(Peer(voter.id, voter.endpoints), request, now_ms)
        self._wake_fetches(lead, now_ms)
        for token in [token for token, change in lead.changes.items() if change.expires_ms <= now_ms]:
            self._events.append(Responded(token, lead.changes.pop(token).timed_out))
        for token in [token for token, join in lead.joins.items() if join.expires_ms <= now_ms]:
            self._events.append(Responded(token, not_following(lead.joins.pop(token).request.voter)))

    def _silent_ms(self, lead: Leadership, voter: Voter) -> int:
        """When a voter counts as silent: at once until its first fetch."""
        heard_ms = lead.silent_since_ms(voter)
        return 0 if heard_ms < 0 else heard_ms + self._settings.fetch_timeout_ms

    @abstractmethod
    def _admit(self, lead: Leadership, key: ReplicaKey, now_ms: int) -> None:
        """A replica fetched: it may be one that waits to become a voter."""

    def fetch(self, request: Fetch, now_ms: int) -> FetchResponse | Parked:
        answer = self._fetch(request, now_ms)
        self.tick(now_ms)
        return answer

    def _fetch(self, request: Fetch, now_ms: int) -> FetchResponse | Parked:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        lead = self._role
        if error is not None or not isinstance(lead, Leadership):
            return self._fetch_answer(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.replica.id < 0:
            if not self._log.start.offset <= request.offset <= self._high_watermark:
                return self._fetch_answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            refusal = self._note_fetch(lead, request, now_ms)
            if refusal is not None:
                return refusal
        ready = self._ready_answer(request)
        if ready is not None or request.max_wait_ms <= 0:
            return ready or self._fetch_answer()
        token = self._new_token()
        lead.fetches[token] = ParkedFetch(request, now_ms + request.max_wait_ms)
        return Parked(token)

    def _new_token(self) -> int:
        self._next_token += 1
        return self._next_token

    def _note_fetch(self, lead: Leadership, request: Fetch, now_ms: int) -> FetchResponse | None:
        """Learn from a replica's fetch how far it is; an answer at once if its log is no beginning of this one."""
        if request.offset < 0 or not 0 <= request.last_fetched_epoch <= lead.epoch or request.current_leader_epoch < 0:
            return self._fetch_answer(ErrorCode.INVALID_REQUEST)
        static = self.kraft_version == 0
        if request.replica.id == self._key.id or (
            static and lead.is_impostor(request.replica, now_ms, self._settings.fetch_timeout_ms)
        ):
            return self._fetch_answer(ErrorCode.INCONSISTENT_VOTER_SET)  # two nodes have one id
        progress = lead.of(request.replica)
        start, end = self._log.start, self._log.end
        at_beginning = start.offset == 0 and request.offset == 0
        if not at_beginning:
            position = LogPosition(request.offset, request.last_fetched_epoch)
            if start.offset > 0 and (
                position.offset < start.offset
                or (position.offset == start.offset and position.epoch != start.epoch)
                or position.epoch < start.epoch
            ):
                progress.heard(now_ms)
                assert self._log.latest_snapshot is not None, "a log that does not begin at 0 begins at a snapshot"
                return self._fetch_answer(snapshot=self._log.latest_snapshot)
            own = self._log.end_of_epoch(position.epoch)
            if own.epoch != position.epoch or own.offset < position.offset:
                progress.heard(now_ms)
                return self._fetch_answer(diverging=own)
        progress.fetched(request.offset, end.offset, now_ms)
        lead.forget_gone(self.voters, now_ms)
        self._advance_high_watermark(lead, now_ms)
        if self._role is lead and lead.joins:
            self._admit(lead, request.replica, now_ms)
        return self._fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER) if self._role is not lead else None

    def _ready_answer(self, request: Fetch) -> FetchResponse | None:
        """What there is to tell now: records, or a higher watermark."""
        below = self._log.end.offset if request.replica.id >= 0 else self._high_watermark
        if request.offset < below:
            try:
                records = self._log.read(request.offset, request.max_bytes, below=below)
            except KafkaError as error:
                if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                return self._fetch_answer(error.code)  # an append that wakes this fetch was written all the same
            if records:
                return self._fetch_answer(records=records)
        if 0 <= request.high_watermark < self._high_watermark:
            return self._fetch_answer()
        return None

    def _fetch_answer(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        records: bytes = b"",
        diverging: LogPosition | None = None,
        snapshot: LogPosition | None = None,
    ) -> FetchResponse:
        return FetchResponse(
            error=error,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
            high_watermark=self._high_watermark if self.is_leader else -1,
            log_start_offset=self._log.start.offset,
            diverging=diverging,
            snapshot=snapshot,
            records=records,
        )

    def _wake_fetches(self, lead: Leadership, now_ms: int) -> None:
        for token, parked in list(lead.fetches.items()):
            if parked.request.offset < self._log.start.offset:
                answer: FetchResponse | None = self._fetch_answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            else:
                answer = self._ready_answer(parked.request) or (
                    self._fetch_answer() if parked.expires_ms <= now_ms else None
                )
            if answer is not None:
                del lead.fetches[token]
                self._events.append(Responded(token, answer))

    def cancel(self, token: int) -> None:
        """Whoever waited for a parked request is gone."""
        if isinstance(self._role, Leadership):
            self._role.fetches.pop(token, None)
            self._role.joins.pop(token, None)
            self._role.changes.pop(token, None)

    def _refuse_parked(self, lead: Leadership) -> None:
        """This replica no longer leads: whoever waits has to ask somebody else."""
        for token in lead.fetches:
            self._events.append(Responded(token, self._fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        for token, change in lead.changes.items():
            self._events.append(Responded(token, change.deposed))
        lead.fetches.clear()
        for token in lead.joins:
            answer = ChangeVotersResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="leadership was lost")
            self._events.append(Responded(token, answer))
        lead.changes.clear()
        lead.joins.clear()

    def fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> FetchSnapshotResponse:
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        size, chunk = 0, b""
        if error is None:
            found = self._log.read_snapshot(request.snapshot, request.position, request.max_bytes)
            if found is None:
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < max(1, found[0]):
                error = ErrorCode.POSITION_OUT_OF_RANGE
            else:
                size, chunk = found
        lead = self._role
        if error is None and isinstance(lead, Leadership) and request.replica.id >= 0:
            lead.of(request.replica).heard(now_ms)
        self.tick(now_ms)
        return FetchSnapshotResponse(
            error=error or ErrorCode.NONE,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
            snapshot=request.snapshot,
            size=size,
            position=request.position,
            chunk=chunk,
        )

    def describe_quorum(self, now_ms: int) -> DescribeQuorumResponse:
        lead = self._role
        if not isinstance(lead, Leadership):
            return DescribeQuorumResponse(
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                leader_id=self._told_leader_id,
                leader_epoch=self.epoch,
                leader_endpoints=self.leader_endpoints,
            )
        lead.forget_gone(self.voters, now_ms)
        own = ReplicaProgress(
            replica=self._key, log_end_offset=self._log.end.offset, last_fetch_ms=now_ms, last_caught_up_ms=now_ms
        )
        described = []
        shown = {self._key}
        for voter in self.voters:
            progress = lead.of_voter(voter)
            if voter.id == self._key.id and self.is_voter:
                described.append(own)
            elif progress is not None:
                shown.add(progress.key)
                described.append(progress.described())
            else:
                described.append(
                    ReplicaProgress(replica=voter.key, log_end_offset=-1, last_fetch_ms=-1, last_caught_up_ms=-1)
                )
        observers = [progress.described() for key, progress in lead.progress.items() if key not in shown]
        if not self.is_voter:
            observers.append(own)
        return DescribeQuorumResponse(
            leader_id=self._key.id,
            leader_epoch=self.epoch,
            leader_endpoints=self._endpoints,
            high_watermark=self._high_watermark,
            voters=tuple(described),
            observers=tuple(sorted(observers, key=lambda progress: progress.replica.id)),
        )

    def resign(self, now_ms: int) -> None:
        """Give leadership up, telling the others whom we would prefer; does nothing when not leader."""
        if isinstance(self._role, Leadership):
            self._resign(self._role, now_ms)
            self.tick(now_ms)

    def shutdown(self, now_ms: int) -> None:
        """Stop taking part: resign if leader, never ask for votes again. `EndQuorumEpoch` is in the outbox; the driver
        gives it a moment to be delivered. Parked requests are answered NOT_LEADER_OR_FOLLOWER."""
        self._stopping = True
        if isinstance(self._role, Prospective | Candidate):
            self._become_unattached(self.epoch, now_ms)
        self.resign(now_ms)

    def _resign(self, lead: Leadership, now_ms: int) -> None:
        preferred = tuple(voter.id for voter in lead.preferred_successors(self.voters))
        resigned = Resigned(self._election_timeout(now_ms), list(preferred), preferred)
        self._enter(resigned, replace(self._state, leader_id=None))
        self._say_goodbye(resigned, now_ms)

    def _say_goodbye(self, resigned: Resigned, now_ms: int) -> None:
        voters = self.voters.by_id
        preferred = tuple(voters[node_id].key for node_id in resigned.preferred if node_id in voters)
        for node_id in resigned.unacknowledged:
            if node_id in voters and self._outbox.ready(node_id, EndQuorumEpoch, now_ms):
                request = EndQuorumEpoch(
                    cluster_id=self.cluster_id,
                    leader_id=self._key.id,
                    epoch=self.epoch,
                    preferred_candidates=preferred,
                    leader_endpoints=self._endpoints,
                )
                self._outbox.send(Peer(node_id, voters[node_id].endpoints), request, now_ms)


def not_following(key: ReplicaKey) -> ChangeVotersResponse:
    message = f"node {key} does not follow the leader, or has not caught up with it; start it, and try again"
    return ChangeVotersResponse(error=ErrorCode.REQUEST_TIMED_OUT, message=message)

"""Changes of the voters by the leader: one at a time, each an appended record that is in force at once."""

from dataclasses import replace

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.events import Responded
from millstream.node.consensus.raft.leadership import Leadership, ParkedChange, ParkedJoin
from millstream.node.consensus.raft.leading import LeadingRole, not_following
from millstream.node.consensus.raft.log import KRaftVersionRecord, VotersRecord
from millstream.node.consensus.raft.messages import (
    AddVoter,
    ChangeVotersResponse,
    Parked,
    RemoveVoter,
    UpdateVoter,
    UpdateVoterResponse,
)
from millstream.node.consensus.raft.replica_core import MAX_KRAFT_VERSION
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter, VoterSet


class VoterChanges(LeadingRole):
    """AddVoter, RemoveVoter, UpdateVoter, and the step from static voters to voters in the log."""

    def _change_error(self, lead: Leadership) -> tuple[ErrorCode, str] | None:
        """Why the voters cannot change now: one change at a time, and none before this epoch committed something."""
        if not lead.announced:
            return ErrorCode.REQUEST_TIMED_OUT, "the new leader has not committed anything yet; try again"
        if self._membership.changed_at >= self._high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is not committed yet; try again"
        return None

    def _change_voters(
        self, lead: Leadership, voters: VoterSet, expires_ms: int, now_ms: int, token: int | None = None
    ) -> Parked:
        token = self._new_token() if token is None else token
        lead.changes[token] = ParkedChange(
            offset=self._log.end.offset,
            expires_ms=expires_ms,
            committed=ChangeVotersResponse(),
            timed_out=ChangeVotersResponse(
                error=ErrorCode.REQUEST_TIMED_OUT, message="the change was appended, but not committed in time"
            ),
            deposed=ChangeVotersResponse(
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="leadership was lost before the change was committed"
            ),
        )
        self._append_control(lead, (VotersRecord(voters),), now_ms)
        return Parked(token)

    def add_voter(self, request: AddVoter, now_ms: int) -> ChangeVotersResponse | Parked:
        """A new voter has to follow the leader as observer and have caught up; that is waited for."""
        answer = self._add_voter(request, now_ms + request.timeout_ms, now_ms)
        self.tick(now_ms)
        return answer

    def _add_voter(
        self, request: AddVoter, expires_ms: int, now_ms: int, token: int | None = None
    ) -> ChangeVotersResponse | Parked:
        lead = self._role
        error = self._operator_error(request.cluster_id)
        if error is not None or not isinstance(lead, Leadership):
            return _refusal(error or (ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader"))
        key = request.voter
        if key.id < 0 or key.directory_id is None or not request.endpoints:
            return _refusal((ErrorCode.INVALID_REQUEST, "a voter needs an id, a directory id and an endpoint"))
        error = self._change_error(lead)
        if error is not None:
            return _refusal(error)
        if key.id in self.voters.by_id:
            known = self.voters.by_id[key.id].key
            return _refusal((ErrorCode.DUPLICATE_VOTER, f"node {key.id} is a voter already, as {known}"))
        if not request.min_kraft_version <= self.kraft_version <= request.max_kraft_version:
            return _refusal((ErrorCode.INVALID_REQUEST, f"node {key.id} cannot do kraft.version {self.kraft_version}"))
        if not self._has_caught_up(lead, key, now_ms):
            if expires_ms <= now_ms:
                return not_following(key)
            token = self._new_token() if token is None else token
            lead.joins[token] = ParkedJoin(request, expires_ms)
            return Parked(token)
        voter = Voter(key, request.endpoints, request.min_kraft_version, request.max_kraft_version)
        if request.ack_when_committed:
            return self._change_voters(lead, self.voters.with_voter(voter), expires_ms, now_ms, token)
        self._append_control(lead, (VotersRecord(self.voters.with_voter(voter)),), now_ms)
        return ChangeVotersResponse()

    def _has_caught_up(self, lead: Leadership, key: ReplicaKey, now_ms: int) -> bool:
        """Alive, and not so far behind that it would hold up every commit it is needed for."""
        progress = lead.progress.get(key)
        return (
            progress is not None
            and progress.last_fetch_ms >= now_ms - 2 * self._settings.fetch_timeout_ms
            and 0 <= progress.last_caught_up_ms >= now_ms - self._settings.add_voter_lag_ms
        )

    def _admit(self, lead: Leadership, key: ReplicaKey, now_ms: int) -> None:
        for token, join in list(lead.joins.items()):
            if join.request.voter == key and self._has_caught_up(lead, key, now_ms):
                del lead.joins[token]
                answer = self._add_voter(join.request, join.expires_ms, now_ms, token)
                if not isinstance(answer, Parked):
                    self._events.append(Responded(token, answer))

    def remove_voter(self, request: RemoveVoter, now_ms: int) -> ChangeVotersResponse | Parked:
        answer = self._remove_voter(request, now_ms)
        self.tick(now_ms)
        return answer

    def _remove_voter(self, request: RemoveVoter, now_ms: int) -> ChangeVotersResponse | Parked:
        lead = self._role
        error = self._operator_error(request.cluster_id)
        if error is not None or not isinstance(lead, Leadership):
            return _refusal(error or (ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader"))
        error = self._change_error(lead)
        if error is not None:
            return _refusal(error)
        voter = self.voters.by_id.get(request.voter.id)
        if voter is None or voter.key != request.voter:
            return _refusal((ErrorCode.VOTER_NOT_FOUND, f"node {request.voter} is not a voter"))
        if len(self.voters) == 1:
            return _refusal((ErrorCode.VOTER_NOT_FOUND, "the last voter cannot be removed"))
        return self._change_voters(lead, self.voters.without(voter.id), now_ms + request.timeout_ms, now_ms)

    def _operator_error(self, cluster_id: str | None) -> tuple[ErrorCode, str] | None:
        if self._is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {self.cluster_id}, not {cluster_id}"
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the metadata quorum"
        if self.kraft_version < 1:
            return (
                ErrorCode.UNSUPPORTED_VERSION,
                "voters are static (kraft.version 0): raise the feature kraft.version to 1 first",
            )
        return None

    def update_voter(self, request: UpdateVoter, now_ms: int) -> UpdateVoterResponse | Parked:
        answer = self._update_voter(request, now_ms)
        self.tick(now_ms)
        return answer

    def _update_voter(self, request: UpdateVoter, now_ms: int) -> UpdateVoterResponse | Parked:
        lead = self._role
        error = self._leader_only_error(request.cluster_id, request.current_leader_epoch)
        if error is not None or not isinstance(lead, Leadership):
            return self._update_answer(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        key = request.voter
        updated = Voter(key, request.endpoints, request.min_kraft_version, request.max_kraft_version)
        if key.directory_id is None or not request.endpoints:
            return self._update_answer(ErrorCode.INVALID_REQUEST)
        if not request.min_kraft_version <= self.kraft_version <= request.max_kraft_version:
            return self._update_answer(ErrorCode.INVALID_REQUEST)
        if not self.voters.has(key):
            return self._update_answer(ErrorCode.VOTER_NOT_FOUND)
        if self.kraft_version == 0:
            lead.introduced[key.id] = updated
            return self._update_answer(ErrorCode.NONE)
        if self.voters.by_id[key.id] == updated:
            return self._update_answer(ErrorCode.NONE)
        if self._change_error(lead) is not None:
            return self._update_answer(ErrorCode.REQUEST_TIMED_OUT)
        token = self._new_token()
        lead.changes[token] = ParkedChange(
            offset=self._log.end.offset,
            expires_ms=now_ms + self._settings.request_timeout_ms,
            committed=self._update_answer(ErrorCode.NONE),
            timed_out=self._update_answer(ErrorCode.REQUEST_TIMED_OUT),
            deposed=UpdateVoterResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=self.epoch),
        )
        self._append_control(lead, (VotersRecord(self.voters.with_voter(updated)),), now_ms)
        return Parked(token)

    def _update_answer(self, error: ErrorCode) -> UpdateVoterResponse:
        return UpdateVoterResponse(
            error=error,
            leader_id=self._told_leader_id,
            leader_epoch=self.epoch,
            leader_endpoints=self.leader_endpoints,
        )

    def upgrade_kraft_version(self, version: int, now_ms: int) -> int:
        """As leader, move from static voters to voters in the log (0 to 1): append a KRaftVersion and a Voters record.

        Returns the offset of the last record. Raises KafkaError: NOT_CONTROLLER, INVALID_UPDATE_VERSION (a voter cannot
        do it or was not seen yet, or the version would go down), REQUEST_TIMED_OUT (a change is under way).
        """
        lead = self._role
        if not isinstance(lead, Leadership):
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node does not lead the metadata quorum")
        if version == self.kraft_version:
            return self._membership.changed_at
        if not self.kraft_version < version <= MAX_KRAFT_VERSION:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"kraft.version can go from {self.kraft_version} to at most {MAX_KRAFT_VERSION}, not to {version}",
            )
        error = self._change_error(lead)
        if error is not None:
            raise KafkaError(*error)
        introduced = {**lead.introduced, self._key.id: self._as_voter()}
        voters = []
        for voter in self.voters.with_directories(lead.known_directories()):
            known = introduced.get(voter.id)
            if voter.key.directory_id is None or known is None or known.key != voter.key:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"voter {voter.id} has not introduced itself to the leader: all voters have to run for this",
                )
            if not known.min_kraft_version <= version <= known.max_kraft_version:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION, f"voter {voter.id} cannot do kraft.version {version}"
                )
            voters.append(replace(known, endpoints=known.endpoints or voter.endpoints))
        records = (KRaftVersionRecord(version), VotersRecord(VoterSet(tuple(voters))))
        last_offset = self._append_control(lead, records, now_ms)
        self.tick(now_ms)
        return last_offset


def _refusal(error: tuple[ErrorCode, str]) -> ChangeVotersResponse:
    return ChangeVotersResponse(error=error[0], message=error[1])

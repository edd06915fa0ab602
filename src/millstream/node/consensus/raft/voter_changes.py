"""Changes of the voters by the leader: one at a time, each an appended record that is in force at once."""

from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.raft.events import Responded
from millstream.node.consensus.raft.log import KRaftVersionRecord, VotersRecord
from millstream.node.consensus.raft.messages import (
    AddVoter,
    ChangeVotersResponse,
    Parked,
    ParkedResponse,
    RemoveVoter,
    UpdateVoter,
    UpdateVoterResponse,
)
from millstream.node.consensus.raft.settings import MAX_KRAFT_VERSION
from millstream.node.consensus.raft.voter_set import ReplicaKey, Voter, VoterSet

if TYPE_CHECKING:
    from millstream.node.consensus.raft.leader import Leader
    from millstream.node.consensus.raft.replica import RaftReplica

Refusal = tuple[ErrorCode, str]


@dataclass(slots=True)
class ParkedChange:
    """A change of the voters, until its record is committed."""

    offset: int
    expires_ms: int
    committed: ParkedResponse
    timed_out: ParkedResponse
    deposed: ParkedResponse


@dataclass(slots=True)
class ParkedJoin:
    """A new voter, until it has caught up."""

    request: AddVoter
    expires_ms: int


class VoterChanges:
    """AddVoter, RemoveVoter, UpdateVoter, and the step from static voters to voters in the log, for one leader."""

    def __init__(self, leader: "Leader", replica: "RaftReplica") -> None:
        self._leader = leader
        self._replica = replica
        self._joins: dict[int, ParkedJoin] = {}
        self._changes: dict[int, ParkedChange] = {}
        self._introduced: dict[int, Voter] = {}
        """Static voters as they described themselves in UpdateVoter."""

    # Parked requests

    def deadlines_ms(self) -> list[int]:
        deadlines = [change.expires_ms for change in self._changes.values()]
        return deadlines + [join.expires_ms for join in self._joins.values()]

    def committed_to(self, offset: int) -> None:
        """Everything below the offset is committed."""
        for token in [token for token, change in self._changes.items() if change.offset < offset]:
            self._replica.events.append(Responded(token, self._changes.pop(token).committed))

    def expire(self, now_ms: int) -> None:
        for token in [token for token, change in self._changes.items() if change.expires_ms <= now_ms]:
            self._replica.events.append(Responded(token, self._changes.pop(token).timed_out))
        for token in [token for token, join in self._joins.items() if join.expires_ms <= now_ms]:
            self._replica.events.append(Responded(token, _not_following(self._joins.pop(token).request.voter)))

    def end_all(self) -> None:
        """Leadership was lost."""
        for token, change in self._changes.items():
            self._replica.events.append(Responded(token, change.deposed))
        for token in self._joins:
            response = ChangeVotersResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="leadership was lost")
            self._replica.events.append(Responded(token, response))
        self._changes.clear()
        self._joins.clear()

    def cancel(self, token: int) -> None:
        self._joins.pop(token, None)
        self._changes.pop(token, None)

    def _change_error(self) -> Refusal | None:
        """Why the voters cannot change now: one change at a time, and none before this epoch committed something."""
        if not self._leader.is_established:
            return ErrorCode.REQUEST_TIMED_OUT, "the new leader has not committed anything yet; try again"
        if self._replica.membership.changed_at >= self._replica.high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is not committed yet; try again"
        return None

    def _change(self, voters: VoterSet, expires_ms: int, now_ms: int, token: int | None = None) -> Parked:
        token = self._replica.new_token() if token is None else token
        self._changes[token] = ParkedChange(
            offset=self._replica.log.end.offset,
            expires_ms=expires_ms,
            committed=ChangeVotersResponse(),
            timed_out=ChangeVotersResponse(
                error=ErrorCode.REQUEST_TIMED_OUT, message="the change was appended, but not committed in time"
            ),
            deposed=ChangeVotersResponse(
                error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="leadership was lost before the change was committed"
            ),
        )
        self._leader.append_control((VotersRecord(voters),), now_ms)
        return Parked(token)

    # AddVoter and RemoveVoter

    def add(
        self, request: AddVoter, expires_ms: int, now_ms: int, token: int | None = None
    ) -> ChangeVotersResponse | Parked:
        """A new voter has to follow the leader as an observer first. The request is parked until it has caught up."""
        replica, key = self._replica, request.voter
        error = replica.operator_error(request.cluster_id)
        if error is not None:
            return refusal(error)
        if key.id < 0 or key.directory_id is None or not request.endpoints:
            return refusal((ErrorCode.INVALID_REQUEST, "a voter needs an id, a directory id and an endpoint"))
        error = self._change_error()
        if error is not None:
            return refusal(error)
        if key.id in replica.voters.by_id:
            known = replica.voters.by_id[key.id].key
            return refusal((ErrorCode.DUPLICATE_VOTER, f"node {key.id} is a voter already, as {known}"))
        version = replica.kraft_version
        if not request.min_kraft_version <= version <= request.max_kraft_version:
            return refusal((ErrorCode.INVALID_REQUEST, f"node {key.id} does not support kraft.version {version}"))
        if not self._has_caught_up(key, now_ms):
            if expires_ms <= now_ms:
                return _not_following(key)
            token = replica.new_token() if token is None else token
            self._joins[token] = ParkedJoin(request, expires_ms)
            return Parked(token)
        voter = Voter(key, request.endpoints, request.min_kraft_version, request.max_kraft_version)
        if request.ack_when_committed:
            return self._change(replica.voters.with_voter(voter), expires_ms, now_ms, token)
        self._leader.append_control((VotersRecord(replica.voters.with_voter(voter)),), now_ms)
        return ChangeVotersResponse()

    def _has_caught_up(self, key: ReplicaKey, now_ms: int) -> bool:
        """Alive, and not so far behind that it would delay every commit it is needed for."""
        settings = self._replica.settings
        progress = self._leader.progress.get(key)
        return (
            progress is not None
            and progress.last_fetch_ms >= now_ms - 2 * settings.fetch_timeout_ms
            and 0 <= progress.last_caught_up_ms >= now_ms - settings.add_voter_lag_ms
        )

    def admit(self, key: ReplicaKey, now_ms: int) -> None:
        """A replica fetched: a parked AddVoter may be for it."""
        for token, join in list(self._joins.items()):
            if join.request.voter == key and self._has_caught_up(key, now_ms):
                del self._joins[token]
                response = self.add(join.request, join.expires_ms, now_ms, token)
                if not isinstance(response, Parked):
                    self._replica.events.append(Responded(token, response))

    def remove(self, request: RemoveVoter, now_ms: int) -> ChangeVotersResponse | Parked:
        replica = self._replica
        error = replica.operator_error(request.cluster_id) or self._change_error()
        if error is not None:
            return refusal(error)
        voter = replica.voters.by_id.get(request.voter.id)
        if voter is None or voter.key != request.voter:
            return refusal((ErrorCode.VOTER_NOT_FOUND, f"node {request.voter} is not a voter"))
        if len(replica.voters) == 1:
            return refusal((ErrorCode.VOTER_NOT_FOUND, "the last voter cannot be removed"))
        return self._change(replica.voters.without(voter.id), now_ms + request.timeout_ms, now_ms)

    # UpdateVoter and kraft.version

    def update(self, request: UpdateVoter, now_ms: int) -> UpdateVoterResponse | Parked:
        replica, key = self._replica, request.voter
        updated = Voter(key, request.endpoints, request.min_kraft_version, request.max_kraft_version)
        if key.directory_id is None or not request.endpoints:
            return replica.update_voter_response(ErrorCode.INVALID_REQUEST)
        if not request.min_kraft_version <= replica.kraft_version <= request.max_kraft_version:
            return replica.update_voter_response(ErrorCode.INVALID_REQUEST)
        if not replica.voters.has(key):
            return replica.update_voter_response(ErrorCode.VOTER_NOT_FOUND)
        if replica.kraft_version == 0:
            self._introduced[key.id] = updated
            return replica.update_voter_response(ErrorCode.NONE)
        if replica.voters.by_id[key.id] == updated:
            return replica.update_voter_response(ErrorCode.NONE)
        if self._change_error() is not None:
            return replica.update_voter_response(ErrorCode.REQUEST_TIMED_OUT)
        token = replica.new_token()
        self._changes[token] = ParkedChange(
            offset=replica.log.end.offset,
            expires_ms=now_ms + replica.settings.request_timeout_ms,
            committed=replica.update_voter_response(ErrorCode.NONE),
            timed_out=replica.update_voter_response(ErrorCode.REQUEST_TIMED_OUT),
            deposed=UpdateVoterResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=replica.epoch),
        )
        self._leader.append_control((VotersRecord(replica.voters.with_voter(updated)),), now_ms)
        return Parked(token)

    def upgrade_kraft_version(self, version: int, now_ms: int) -> int:
        """See `RaftReplica.upgrade_kraft_version`."""
        replica = self._replica
        if version == replica.kraft_version:
            return replica.membership.changed_at
        if not replica.kraft_version < version <= MAX_KRAFT_VERSION:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"kraft.version can go from {replica.kraft_version} to at most {MAX_KRAFT_VERSION}, not to {version}",
            )
        error = self._change_error()
        if error is not None:
            raise KafkaError(*error)
        introduced = {**self._introduced, replica.key.id: replica.as_voter()}
        voters = []
        for voter in replica.voters.with_directories(self._leader.known_directories()):
            known = introduced.get(voter.id)
            if voter.key.directory_id is None or known is None or known.key != voter.key:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"voter {voter.id} has not introduced itself to the leader: all voters have to run for this",
                )
            if not known.min_kraft_version <= version <= known.max_kraft_version:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION, f"voter {voter.id} does not support kraft.version {version}"
                )
            voters.append(replace(known, endpoints=known.endpoints or voter.endpoints))
        records = (KRaftVersionRecord(version), VotersRecord(VoterSet(tuple(voters))))
        return self._leader.append_control(records, now_ms)


def refusal(error: Refusal) -> ChangeVotersResponse:
    return ChangeVotersResponse(error=error[0], message=error[1])


def _not_following(key: ReplicaKey) -> ChangeVotersResponse:
    message = f"node {key} does not follow the leader, or has not caught up with it; start it, and try again"
    return ChangeVotersResponse(error=ErrorCode.REQUEST_TIMED_OUT, message=message)

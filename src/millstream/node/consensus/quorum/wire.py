"""Raft's requests and responses on Kafka's wire and back: field names, nesting and nulls, nothing else.

Every request is for one partition, `__cluster_metadata-0`; another one is INVALID_REQUEST. Fields that older versions
do not have (directory ids, endpoints) are None or empty here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol import wire_types
from millstream.formats.protocol.schema import Message
from millstream.node.consensus.quorum.control_records import NO_DIRECTORY_ID
from millstream.node.consensus.quorum.metadata_log import METADATA_TOPIC_ID
from millstream.node.consensus.raft.messages import (
    NO_LEADER,
    AddVoter,
    BeginQuorumEpoch,
    DescribeQuorumResponse,
    EndQuorumEpoch,
    Fetch,
    FetchResponse,
    FetchSnapshot,
    FetchSnapshotResponse,
    LogPosition,
    PeerRequest,
    PeerResponse,
    QuorumEpochResponse,
    RemoveVoter,
    ReplicaProgress,
    UpdateVoter,
    UpdateVoterResponse,
    Vote,
    VoteResponse,
    directory_or_none,
)
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, VoterSet
from millstream.node.metadata.topic_names import CLUSTER_METADATA_TOPIC

Fields = dict[str, Any]
NO_HIGH_WATERMARK = (1 << 63) - 1
"""The high watermark of a fetch that does not wait for a higher one."""
FIRST_FETCH_BY_ID = 13


# Requests that this node sends


def request_fields(request: PeerRequest) -> tuple[str, Fields]:
    """The name of the API and the fields of the request."""
    match request:
        case Vote():
            return "vote", {
                "cluster_id": request.cluster_id,
                "voter_id": request.voter.id,
                **_one_partition(
                    "topic_name",
                    partition_index=0,
                    replica_epoch=request.epoch,
                    replica_id=request.candidate.id,
                    replica_directory_id=_directory(request.candidate),
                    voter_directory_id=_directory(request.voter),
                    last_offset_epoch=request.log_end.epoch,
                    last_offset=request.log_end.offset,
                    pre_vote=request.pre_vote,
                ),
            }
        case BeginQuorumEpoch():
            return "begin_quorum_epoch", {
                "cluster_id": request.cluster_id,
                "voter_id": request.voter.id,
                **_one_partition(
                    "topic_name",
                    partition_index=0,
                    voter_directory_id=_directory(request.voter),
                    leader_id=request.leader_id,
                    leader_epoch=request.epoch,
                ),
                "leader_endpoints": _endpoint_fields(request.leader_endpoints),
            }
        case EndQuorumEpoch():
            return "end_quorum_epoch", {
                "cluster_id": request.cluster_id,
                **_one_partition(
                    "topic_name",
                    partition_index=0,
                    leader_id=request.leader_id,
                    leader_epoch=request.epoch,
                    preferred_candidates=[
                        {"candidate_id": key.id, "candidate_directory_id": _directory(key)}
                        for key in request.preferred_candidates
                    ],
                    preferred_successors=[key.id for key in request.preferred_candidates],
                ),
                "leader_endpoints": _endpoint_fields(request.leader_endpoints),
            }
        case Fetch():
            return "fetch", _fetch_fields(request)
        case FetchSnapshot():
            return "fetch_snapshot", {
                "cluster_id": request.cluster_id,
                "replica_id": request.replica.id,
                "max_bytes": request.max_bytes,
                **_one_partition(
                    "name",
                    partition=0,
                    current_leader_epoch=request.current_leader_epoch,
                    snapshot_id=_snapshot_fields(request.snapshot),
                    position=request.position,
                    replica_directory_id=_directory(request.replica),
                ),
            }
        case UpdateVoter():
            return "update_raft_voter", {
                "cluster_id": request.cluster_id,
                "current_leader_epoch": request.current_leader_epoch,
                "voter_id": request.voter.id,
                "voter_directory_id": _directory(request.voter),
                "listeners": _endpoint_fields(request.endpoints),
                "k_raft_version_feature": {
                    "min_supported_version": request.min_kraft_version,
                    "max_supported_version": request.max_kraft_version,
                },
            }


def _fetch_fields(request: Fetch) -> Fields:
    partition = {
        "partition": 0,
        "current_leader_epoch": request.current_leader_epoch,
        "fetch_offset": request.offset,
        "last_fetched_epoch": request.last_fetched_epoch,
        "partition_max_bytes": request.max_bytes,
        "replica_directory_id": _directory(request.replica),
        "high_watermark": request.high_watermark if request.high_watermark >= 0 else NO_HIGH_WATERMARK,
    }
    return {
        "cluster_id": request.cluster_id,
        "replica_state": {"replica_id": request.replica.id, "replica_epoch": -1},
        "replica_id": request.replica.id,
        "max_wait_ms": request.max_wait_ms,
        "min_bytes": 1,
        "max_bytes": request.max_bytes,
        "topics": [{"topic_id": METADATA_TOPIC_ID, "topic": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
    }


# Responses that this node gets


def read_response(request: PeerRequest, response: Message, listener_name: str) -> PeerResponse:
    """`listener_name`: the name for endpoints without one."""
    match request:
        case Vote():
            error, row = _error_and_row(response, response.topics)
            return VoteResponse(
                error=error,
                granted=row is not None and row.vote_granted,
                **_leader_of(row, response.node_endpoints, listener_name),
            )
        case BeginQuorumEpoch() | EndQuorumEpoch():
            error, row = _error_and_row(response, response.topics)
            return QuorumEpochResponse(error=error, **_leader_of(row, response.node_endpoints, listener_name))
        case Fetch():
            error, row = _error_and_row(response, response.responses)
            leader = _leader_of(row and row.current_leader, response.node_endpoints, listener_name)
            if row is None:
                return FetchResponse(error=error, **leader)
            return FetchResponse(
                error=error,
                high_watermark=row.high_watermark,
                log_start_offset=row.log_start_offset,
                diverging=_position(row.diverging_epoch),
                snapshot=_position(row.snapshot_id),
                records=row.records or b"",
                **leader,
            )
        case FetchSnapshot():
            error, row = _error_and_row(response, response.topics)
            leader = _leader_of(row and row.current_leader, response.node_endpoints, listener_name)
            if row is None:
                return FetchSnapshotResponse(error=error, snapshot=request.snapshot, **leader)
            return FetchSnapshotResponse(
                error=error,
                snapshot=LogPosition(row.snapshot_id.end_offset, row.snapshot_id.epoch),
                size=row.size,
                position=row.position,
                chunk=row.unaligned_records,
                **leader,
            )
        case UpdateVoter():
            current = response.current_leader
            endpoints = (Endpoint(listener_name, current.host, current.port),) if current.host else ()
            return UpdateVoterResponse(
                error=_error(response.error_code),
                leader_id=current.leader_id,
                leader_epoch=current.leader_epoch,
                leader_endpoints=endpoints,
            )


def _error_and_row(response: Message, topics: Iterable[Message]) -> tuple[ErrorCode, Any]:
    """The error of the request or of the partition, and the partition's row; None if the whole request was refused."""
    row = next((row for topic in topics for row in topic.partitions), None)
    error = response.error_code or (row.error_code if row is not None else ErrorCode.UNKNOWN_SERVER_ERROR)
    return _error(error), row if not response.error_code else None


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:  # of a later version
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _leader_of(row: Any, endpoints: Iterable[Message], listener_name: str) -> Fields:
    if row is None:
        return {"leader_id": NO_LEADER, "leader_epoch": -1}
    found = tuple(Endpoint(listener_name, each.host, each.port) for each in endpoints if each.node_id == row.leader_id)
    return {"leader_id": row.leader_id, "leader_epoch": row.leader_epoch, "leader_endpoints": found}


# Requests that this node gets


def read_vote(request: wire_types.VoteRequest) -> Vote:
    row: wire_types.VoteRequestTopicsPartitions = _metadata_row(request.topics, "topic_name", "partition_index")
    return Vote(
        cluster_id=request.cluster_id,
        voter=_key(request.voter_id, row.voter_directory_id),
        epoch=row.replica_epoch,
        candidate=_key(row.replica_id, row.replica_directory_id),
        log_end=LogPosition(row.last_offset, row.last_offset_epoch),
        pre_vote=row.pre_vote,
    )


def read_begin_quorum_epoch(request: wire_types.BeginQuorumEpochRequest) -> BeginQuorumEpoch:
    row: wire_types.BeginQuorumEpochRequestTopicsPartitions = _metadata_row(
        request.topics, "topic_name", "partition_index"
    )
    return BeginQuorumEpoch(
        cluster_id=request.cluster_id,
        voter=_key(request.voter_id, row.voter_directory_id),
        leader_id=row.leader_id,
        epoch=row.leader_epoch,
        leader_endpoints=_endpoints(request.leader_endpoints),
    )


def read_end_quorum_epoch(request: wire_types.EndQuorumEpochRequest) -> EndQuorumEpoch:
    row: wire_types.EndQuorumEpochRequestTopicsPartitions = _metadata_row(
        request.topics, "topic_name", "partition_index"
    )
    named = tuple(_key(each.candidate_id, each.candidate_directory_id) for each in row.preferred_candidates)
    return EndQuorumEpoch(
        cluster_id=request.cluster_id,
        leader_id=row.leader_id,
        epoch=row.leader_epoch,
        preferred_candidates=named or tuple(map(ReplicaKey, row.preferred_successors)),
        leader_endpoints=_endpoints(request.leader_endpoints),
    )


def read_fetch(request: wire_types.FetchRequest, version: int) -> Fetch:
    row: wire_types.FetchRequestTopicsPartitions
    if version >= FIRST_FETCH_BY_ID:
        row = _metadata_row(request.topics, "topic_id", "partition", METADATA_TOPIC_ID)
    else:
        row = _metadata_row(request.topics, "topic", "partition")
    replica_id = request.replica_id if version < 15 else request.replica_state.replica_id
    high_watermark = row.high_watermark
    return Fetch(
        cluster_id=request.cluster_id,
        replica=_key(replica_id, row.replica_directory_id),
        current_leader_epoch=row.current_leader_epoch,
        offset=row.fetch_offset,
        last_fetched_epoch=row.last_fetched_epoch,
        high_watermark=-1 if high_watermark == NO_HIGH_WATERMARK else max(high_watermark, 0),
        max_wait_ms=request.max_wait_ms if request.min_bytes > 0 else 0,
        max_bytes=min(request.max_bytes, row.partition_max_bytes),
    )


def read_fetch_snapshot(request: wire_types.FetchSnapshotRequest) -> FetchSnapshot:
    row: wire_types.FetchSnapshotRequestTopicsPartitions = _metadata_row(request.topics, "name", "partition")
    return FetchSnapshot(
        cluster_id=request.cluster_id,
        replica=_key(request.replica_id, row.replica_directory_id),
        current_leader_epoch=row.current_leader_epoch,
        snapshot=LogPosition(row.snapshot_id.end_offset, row.snapshot_id.epoch),
        position=row.position,
        max_bytes=request.max_bytes,
    )


def read_update_voter(request: wire_types.UpdateRaftVoterRequest) -> UpdateVoter:
    feature = request.k_raft_version_feature
    return UpdateVoter(
        cluster_id=request.cluster_id,
        current_leader_epoch=request.current_leader_epoch,
        voter=_key(request.voter_id, request.voter_directory_id),
        endpoints=_endpoints(request.listeners),
        min_kraft_version=feature.min_supported_version,
        max_kraft_version=feature.max_supported_version,
    )


def read_add_voter(
    request: wire_types.AddRaftVoterRequest, *, min_kraft_version: int, max_kraft_version: int
) -> AddVoter:
    return AddVoter(
        cluster_id=request.cluster_id,
        voter=_key(request.voter_id, request.voter_directory_id),
        endpoints=_endpoints(request.listeners),
        timeout_ms=request.timeout_ms,
        ack_when_committed=request.ack_when_committed,
        min_kraft_version=min_kraft_version,
        max_kraft_version=max_kraft_version,
    )


def read_remove_voter(request: wire_types.RemoveRaftVoterRequest) -> RemoveVoter:
    return RemoveVoter(cluster_id=request.cluster_id, voter=_key(request.voter_id, request.voter_directory_id))


def _metadata_row(topics: Sequence[Any], name: str, index: str, wanted: str | UUID = CLUSTER_METADATA_TOPIC) -> Any:
    if len(topics) == 1 and getattr(topics[0], name) == wanted:
        rows = topics[0].partitions
        if len(rows) == 1 and getattr(rows[0], index) == 0:
            return rows[0]
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"this API serves only {CLUSTER_METADATA_TOPIC}-0")


# Responses that this node sends

TOP_LEVEL_ERRORS = frozenset(
    {ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST}
)
"""Errors of the whole request, which are at the top of the response."""


def vote_response(response: VoteResponse) -> Fields:
    if response.error in TOP_LEVEL_ERRORS:
        return {"error_code": response.error}
    return {
        **_one_partition(
            "topic_name",
            partition_index=0,
            error_code=response.error,
            leader_id=response.leader_id,
            leader_epoch=response.leader_epoch,
            vote_granted=response.granted,
        ),
        "node_endpoints": _node_endpoints(response),
    }


def quorum_epoch_response(response: QuorumEpochResponse) -> Fields:
    if response.error in TOP_LEVEL_ERRORS:
        return {"error_code": response.error}
    return {
        **_one_partition(
            "topic_name",
            partition_index=0,
            error_code=response.error,
            leader_id=response.leader_id,
            leader_epoch=response.leader_epoch,
        ),
        "node_endpoints": _node_endpoints(response),
    }


def fetch_response(response: FetchResponse) -> Fields:
    if response.error in TOP_LEVEL_ERRORS:
        return {"error_code": response.error}
    row: Fields = {
        "partition_index": 0,
        "error_code": response.error,
        "high_watermark": response.high_watermark,
        "last_stable_offset": response.high_watermark,
        "log_start_offset": response.log_start_offset,
        "current_leader": {"leader_id": response.leader_id, "leader_epoch": response.leader_epoch},
        "records": response.records,
    }
    if response.diverging is not None:
        row["diverging_epoch"] = {"epoch": response.diverging.epoch, "end_offset": response.diverging.offset}
    if response.snapshot is not None:
        row["snapshot_id"] = _snapshot_fields(response.snapshot)
    return {
        "responses": [{"topic_id": METADATA_TOPIC_ID, "topic": CLUSTER_METADATA_TOPIC, "partitions": [row]}],
        "node_endpoints": [{**each, "rack": None} for each in _node_endpoints(response)],
    }


def fetch_snapshot_response(response: FetchSnapshotResponse) -> Fields:
    if response.error in TOP_LEVEL_ERRORS:
        return {"error_code": response.error}
    return {
        **_one_partition(
            "name",
            index=0,
            error_code=response.error,
            snapshot_id=_snapshot_fields(response.snapshot),
            current_leader={"leader_id": response.leader_id, "leader_epoch": response.leader_epoch},
            size=response.size,
            position=response.position,
            unaligned_records=response.chunk,
        ),
        "node_endpoints": _node_endpoints(response),
    }


def update_voter_response(response: UpdateVoterResponse) -> Fields:
    leader: Fields = {"leader_id": response.leader_id, "leader_epoch": response.leader_epoch, "host": "", "port": 0}
    if response.leader_endpoints:
        leader |= {"host": response.leader_endpoints[0].host, "port": response.leader_endpoints[0].port}
    return {"error_code": response.error, "current_leader": leader}


def describe_quorum_response(response: DescribeQuorumResponse, voters: VoterSet, wall_ms_ahead: int) -> Fields:
    """`wall_ms_ahead`: the time of day minus raft's time."""
    row = {
        "partition_index": 0,
        "error_code": response.error,
        "leader_id": response.leader_id,
        "leader_epoch": response.leader_epoch,
        "high_watermark": response.high_watermark,
        "current_voters": [_progress(each, wall_ms_ahead) for each in response.voters],
        "observers": [_progress(each, wall_ms_ahead) for each in response.observers],
    }
    return {
        **_one_partition("topic_name", **row),
        "nodes": [
            {"node_id": voter.id, "listeners": _endpoint_fields(voter.endpoints)}
            for voter in voters
            if response.error == ErrorCode.NONE
        ],
    }


def _progress(each: ReplicaProgress, wall_ms_ahead: int) -> Fields:
    return {
        "replica_id": each.replica.id,
        "replica_directory_id": _directory(each.replica),
        "log_end_offset": each.log_end_offset,
        "last_fetch_timestamp": each.last_fetch_ms + wall_ms_ahead if each.last_fetch_ms >= 0 else -1,
        "last_caught_up_timestamp": each.last_caught_up_ms + wall_ms_ahead if each.last_caught_up_ms >= 0 else -1,
    }


def _node_endpoints(response: Any) -> list[Fields]:
    return [
        {"node_id": response.leader_id, "host": each.host, "port": each.port} for each in response.leader_endpoints[:1]
    ]


# Parts


class _Listener(Protocol):
    """The fields of an endpoint in all messages that have some."""

    name: str
    host: str
    port: int


def _one_partition(name: str, **row: Any) -> Fields:
    return {"topics": [{name: CLUSTER_METADATA_TOPIC, "partitions": [row]}]}


def _snapshot_fields(snapshot: LogPosition) -> Mapping[str, int]:
    return {"end_offset": snapshot.offset, "epoch": snapshot.epoch}


def _endpoint_fields(endpoints: Iterable[Endpoint]) -> list[Fields]:
    return [{"name": each.name, "host": each.host, "port": each.port} for each in endpoints]


def _endpoints(listeners: Iterable[_Listener]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(each.name, each.host, each.port) for each in listeners)


def _position(found: Message) -> LogPosition | None:
    return LogPosition(found.end_offset, found.epoch) if found.end_offset >= 0 else None


def _key(node_id: int, directory_id: UUID) -> ReplicaKey:
    return ReplicaKey(node_id, directory_or_none(directory_id))


def _directory(key: ReplicaKey) -> UUID:
    return key.directory_id or NO_DIRECTORY_ID
